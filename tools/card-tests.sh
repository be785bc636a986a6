#!/usr/bin/env bash
# Runs the native tests of a GPU library on the first card and prints what they say as events of go test -json, for
# bin/testsum: a line a case and a line a program; of a program that fails everything it wrote.
#   tools/card-tests.sh cuda native/build
#   PRELOAD=native/build/libamdsim.so tools/card-tests.sh hip native/build quick 'gpu_*'
# BUILD is a build with the target tandem_cuda_tests (tandem_hip_tests). CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES
# choose another card. PRELOAD is a library that programs load first: a simulator. quick: of the programs that run whole
# models only the cases that take seconds there (all: every case). Last, which programs, all unless told.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,/^set/{/^set/d;s/^# \?//p}' "$0" >&2; exit 2; }
build=$(realpath "$2")
# shellcheck disable=SC2206 # a pattern
programs=("$build/$1"_${4:-*}_test)
cd "$(dirname "$0")/../native" # where the tests find their data
[ -x "${programs[0]}" ] || { echo "card-tests.sh: no $1_*_test in $2: build tandem_$1_tests" >&2; exit 2; }
preload=
[ -z "${PRELOAD:-}" ] || preload=$(cd "$OLDPWD" && realpath "$PRELOAD")
declare -A quick=(
  [engine_test]="bits_do_not layer_shards snapshots_ sequences_ dense_ damaged wanted_outputs features_are"
  [model_test]="random_shape qwen3"
  [dflash_test]="incremental appends_ batched positions_ feature_order snapshots_ memory_cap demonstration_"
  [dflash_golden_test]="fused_features"
  [gpu_graphs_test]="16_bit joint_appends"
  [gpu_scorer_test]="bits_of close_to role_checks"
  [snapshot_parts_test]="parts_share"
  [groups_test]="prompts_may contracts_are fused_features"
  [pages_test]="forks_share pending_rows"
)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0
for program in "${programs[@]}"; do
  name=$(basename "$program") start=$SECONDS status=0
  cases=
  [ "${3:-}" != quick ] || cases=${quick[${name#"$1"_}]:-}
  # shellcheck disable=SC2086 # a list of words
  LD_PRELOAD=$preload "$program" $cases > "$log" 2>&1 || status=$?
  [ "$status" -eq 0 ] || cat "$log"
  event="{\"Action\":\"%s\",\"Package\":\"$name\",\"Test\":\"%s\"}\n"
  while read -r outcome test _; do
    case $outcome in
      ok) printf "$event" pass "$test" ;;
      FAIL) printf "$event" fail "$test" ;;
    esac
  done < "$log"
  action=pass
  if [ "$status" -ne 0 ]; then
    action=fail failed=1
    echo "$name ended with status $status"
  fi
  echo "{\"Action\":\"$action\",\"Package\":\"$name\",\"Elapsed\":$((SECONDS - start))}"
done
exit $failed
