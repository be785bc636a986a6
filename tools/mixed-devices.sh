#!/usr/bin/env bash
# Shows that clusters of any mix of devices answer alike: for every target device given, the demonstration models answer
# the same prompts plainly, as chain and as tree, with the draft on each device in turn; texts must not differ. Then,
# with the scorer on each device in turn, a long prompt is compressed: the fact hidden in it must still be found.
#   tools/mixed-devices.sh cuda:0                 target on cuda:0; draft and scorer on cuda:0 and on the cpu
#   tools/mixed-devices.sh cuda:0 hip:0 cpu       all nine mixes
# Programs are taken from bin/ (PROGRAMS=folder: from elsewhere), with the engine libraries beside them. PORT (18471) is
# used on 127.0.0.1.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=${PROGRAMS:-bin}
port=${PORT:-18471}
target=models/tandem-tiny-target-q4_k_m.gguf draft=models/tandem-tiny-draft-q8_0.gguf
scorer=models/tandem-tiny-prefill-q8_0.gguf
targets=("$@")
[ ${#targets[@]} -gt 0 ] || { echo "usage: tools/mixed-devices.sh DEVICE..." >&2; exit 2; }
others=("$@")
case " $* " in *" cpu "*) ;; *) others+=(cpu) ;; esac

answers() { # answers FLAG...: the texts of all prompts, greedy and sampled
  local prompt
  for prompt in "What is DDTree?" "Write a Go function that adds two numbers." "Who are you?"; do
    "$programs/tandem" run --quiet --programs "$programs" --max-tokens 64 --temperature 0 "$@" "$target" "$prompt"
    "$programs/tandem" run --quiet --programs "$programs" --max-tokens 64 --temperature 0.8 --seed 7 "$@" \
      "$target" "$prompt"
  done
}

long_prompt() { # Go source with one fact in it, as JSON text
  local source
  source=$(head -c 2500 services/ddtree/*.go)
  printf '%s\n\nThe access code of raven is 40963.\n\n%s\n\nTell me the access code of raven.' "$source" "$source" |
    sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/\t/\\t/g' | awk '{ printf "%s\\n", $0 }'
}

compressed() { # compressed FLAG...: the reply to the long prompt of a cluster that compresses it
  local pid reply
  "$programs/tandem" serve --port "$port" --grpc-port 0 --programs "$programs" --log-level error \
    --prefill-drafter "$scorer" \
    --prefill-compression always --prefill-keep-ratio 0.2 "$@" "$target" > /dev/null &
  pid=$!
  for _ in $(seq 300); do
    if "$programs/tandem" health --server "http://127.0.0.1:$port" > /dev/null 2>&1; then break; fi
    kill -0 "$pid" 2> /dev/null || break
    sleep 0.2
  done
  reply=$(curl -sS "http://127.0.0.1:$port/v1/chat/completions" -H 'Content-Type: application/json' -d \
    "{\"model\":\"x\",\"temperature\":0,\"max_tokens\":32,\"messages\":[{\"role\":\"user\",\"content\":\"$(long_prompt)\"}]}") || true
  kill "$pid" 2> /dev/null || true
  wait "$pid" || true
  echo "$reply"
}

failed=0
for t in "${targets[@]}"; do
  want=$(answers --target-device "$t" --speculation off)
  echo "target $t, no draft: $(wc -c <<< "$want") characters, $(sha256sum <<< "$want" | cut -c1-12)"
  for d in "${others[@]}"; do
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
  for d in "${others[@]}"; do
    got=$(compressed --target-device "$t" --prefill-device "$d")
    if grep -q 40963 <<< "$got" && grep -Eq '"compressed_tokens": ?[1-9]' <<< "$got"; then
      echo "target $t, scorer $d: compressed, fact found"
    else
      echo "target $t, scorer $d: FAILS: $got"
      failed=1
    fi
  done
done
exit $failed
