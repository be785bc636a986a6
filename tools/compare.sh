#!/usr/bin/env bash
# Runs commands in turn, so that a machine that warms up or is busy disturbs all alike, and prints the medians of what
# they time, and the ratio of each to the first command's.
#   tools/compare.sh [-n RUNS] COMMAND COMMAND...
# A command is a line for the shell. It prints lines such as "plain token   5.431 ms ..."; lines of the same name are
# told apart by their order; times are in ms or us, the first of a line counts. For example, two builds, by whole steps
# and by products alone:
#   STEP="step27b_cuda --device cuda:0 --contexts 1024 --draft 0 --prefill 0"
#   tools/compare.sh "before/$STEP" "native/build/$STEP"
#   tools/compare.sh "before/gpu_matmul_bench_cuda q6_k/5120" "native/build/gpu_matmul_bench_cuda q6_k/5120"
set -euo pipefail
usage="usage: tools/compare.sh [-n RUNS] COMMAND COMMAND..."
runs=3
while getopts n: option; do
  case $option in
    n) runs=$OPTARG ;;
    *) echo "$usage" >&2 && exit 2 ;;
  esac
done
shift $((OPTIND - 1))
if [[ $# -lt 2 || ! $runs =~ ^[1-9][0-9]*$ ]]; then
  echo "$usage" >&2
  exit 2
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for ((run = 1; run <= runs; run++)); do
  i=0
  for command in "$@"; do
    i=$((i + 1))
    bash -c "$command" > "$out/$i.$run" || {
      echo "run $run of command $i failed: $command" >&2
      exit 1
    }
  done
done
for ((i = 1; i <= $#; i++)); do echo "$i: ${!i}"; done
echo "medians of $runs runs (times command 1)"
for ((i = 1; i <= $#; i++)); do
  for ((run = 1; run <= runs; run++)); do
    # The first time of a line, under what stands before it.
    awk -v command="$i" '/^[[:alpha:]]/ && match($0, /[[:space:]][0-9.]+ (ms|us)([ ,]|$)/) {
      name = substr($0, 1, RSTART - 1)
      sub(/[[:space:]]+$/, "", name)
      split(substr($0, RSTART + 1, RLENGTH - 1), time, /[ ,]/)
      name = name ", " time[2]
      print command "\t" name "\t" ++seen[name] "\t" ++lines "\t" time[1]
    }' "$out/$i.$run"
  done
done | sort -t $'\t' -k4,4n -k1,1n -k5,5g | awk -F '\t' -v commands=$# '
  function row(  c, text) {
    text = sprintf("%-40s", name)
    for (c = 1; c <= commands; c++) {
      if (c in median) text = text sprintf("  %9.3f", median[c])
      else text = text sprintf("  %9s", "-")
      if (c > 1 && (c in median) && (1 in median)) text = text sprintf(" (%.3f)", median[c] / median[1])
    }
    print text
  }
  function close_command() {
    if (n > 0) median[command] = n % 2 ? times[(n + 1) / 2] : (times[n / 2] + times[n / 2 + 1]) / 2
    n = 0
  }
  {
    if ($4 != line) {
      close_command()
      if (line != "") row()
      delete median
      line = $4
      name = $3 > 1 ? $2 " [" $3 "]" : $2
    } else if ($1 != command) close_command()
    command = $1
    times[++n] = $5
  }
  END {
    close_command()
    if (line != "") row()
    else { print "no command printed a line with a time in ms or us" > "/dev/stderr"; exit 1 }
  }'
