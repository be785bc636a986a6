#!/usr/bin/env bash
# Shows that clusters of any mix of devices answer alike: for every target device given, the demonstration models answer the
# same prompts plainly, as chain and as tree, with the draft on each device in turn; texts must not differ.
#   tools/mixed-devices.sh cuda:0                 target on cuda:0; draft on cuda:0 and on the cpu
#   tools/mixed-devices.sh cuda:0 hip:0 cpu       all nine mixes
# Programs are taken from bin/ (PROGRAMS=folder: from elsewhere), with the engine libraries beside them.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=${PROGRAMS:-bin}
target=models/tandem-tiny-target-q4_k_m.gguf draft=models/tandem-tiny-draft-q8_0.gguf
targets=("$@")
[ ${#targets[@]} -gt 0 ] || { echo "usage: tools/mixed-devices.sh DEVICE..." >&2; exit 2; }
drafts=("$@")
case " $* " in *" cpu "*) ;; *) drafts+=(cpu) ;; esac

answers() { # answers FLAG...: the texts of all prompts, greedy and sampled
  local prompt
  for prompt in "What is DDTree?" "Write a Go function that adds two numbers." "Who are you?"; do
    "$programs/tandem" run --quiet --programs "$programs" --max-tokens 64 --temperature 0 "$@" "$target" "$prompt"
    "$programs/tandem" run --quiet --programs "$programs" --max-tokens 64 --temperature 0.8 --seed 7 "$@" "$target" "$prompt"
  done
}

failed=0
for t in "${targets[@]}"; do
  want=$(answers --target-device "$t" --speculation off)
  echo "target $t, no draft: $(wc -c <<< "$want") characters, $(sha256sum <<< "$want" | cut -c1-12)"
  for d in "${drafts[@]}"; do
    for mode in chain tree:16; do
      got=$(answers --target-device "$t" --draft "$draft" --draft-device "$d" --speculation "$mode")
      if [ "$got" = "$want" ]; then
        echo "target $t, draft $d, $mode: identical"
      else
        echo "target $t, draft $d, $mode: DIFFERS"
        diff <(echo "$want") <(echo "$got") || true
        failed=1
      fi
    done
  done
done
exit $failed
