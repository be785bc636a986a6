#!/usr/bin/env bash
# Runs the native tests of the CUDA engine and the conformance suite under a tool of compute-sanitizer, every case as a
# process of its own, as many at a time as there are processors. Prints a line a case and, at the end, how many were
# clean, launched no kernels, had findings, failed, or did not end in time; what the tools wrote is in the folder of
# logs.
#   tools/check-kernels.sh racecheck native/build /tmp/races [SECONDS [PATTERN]]
# SECONDS: for a case (600). PATTERN: grep -E of "program case"; all without. BUILD is a build with the targets
# cuda_*_test and tandem_cuda. Conformance runs if CONFORMANCE names the test program of native/plugin (go test -c):
# races with the small random model, all else with the demonstration models.
#
# The race checker is given launches one after the other, without clusters, early starts and graphs, and a host that
# waits for every launch: else the records of accesses fill the host's memory.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 3 ] || { sed -n '2,/^$/s/^# \?//p' "$0" >&2; exit 2; }
tool=$1 build=$(realpath "$2") logs=$3 seconds=${4:-600} pattern=${5:-.}
mkdir -p "$logs"
logs=$(realpath "$logs")
sanitizer=${COMPUTE_SANITIZER:-$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)}
[ -x "$sanitizer" ] || { echo "check-kernels.sh: no compute-sanitizer on PATH or in /usr/local/cuda/bin; COMPUTE_SANITIZER names it" >&2; exit 2; }
options=(--tool "$tool" --error-exitcode 99 --report-api-errors no)  # tests ask for more memory than there is
suite=TestLibrary
export TANDEM_ENGINE_LIB=$build/libtandem_cuda.so
if [ "$tool" = racecheck ]; then
  options+=(--force-blocking-launches)
  suite=TestLibrarySmall
  export TANDEM_GPU_LAUNCHES=plain
fi

cases() {
  local program
  for program in "$build"/cuda_*_test; do
    "$program" --list | sed "s|^|$program |"
  done
  if [ -n "${CONFORMANCE:-}" ]; then
    grep -oE '^\s*\{"[A-Za-z]+", \(\*suite\)' services/engine/enginetest/enginetest.go | grep -oE '[A-Z][A-Za-z]+' |
      sed "s|^|$(realpath "$CONFORMANCE") |"
  fi
}

run_case() { # run_case PROGRAM CASE
  local name log status=0 start=$SECONDS outcome
  name="$(basename "$1") $2" log="$logs/$(basename "$1").$2.log"
  case $1 in
    */cuda_*) timeout -k 5 "$seconds" "$sanitizer" "${options[@]}" "$1" "$2" > "$log" 2>&1 || status=$? ;;
    *) (cd native/plugin && timeout -k 5 "$seconds" "$sanitizer" "${options[@]}" "$1" -test.run "^$suite\$/^$2\$") \
      > "$log" 2>&1 || status=$? ;;
  esac
  case $status in
    0) outcome=clean ;;
    99) outcome=findings ;;
    124 | 137) outcome="not ended" ;;
    *) outcome=failed ;;
  esac
  if grep -q 'terminated before first instrumented API call' "$log" && grep -qE '^PASS|, 0 failed' "$log"; then
    outcome="no kernels"
  fi
  echo "$outcome: $name, $((SECONDS - start)) s: $(grep -E 'SUMMARY' "$log" | tail -1)"
}
export -f run_case
export logs seconds sanitizer suite
export options_text="${options[*]}"
cases | grep -E "$pattern" |
  xargs -P "$(nproc)" -L 1 bash -c 'read -ra options <<< "$options_text"; run_case "$@"' run_case | tee "$logs/summary"
for outcome in clean "no kernels" findings failed "not ended"; do
  echo "$outcome: $(grep -c "^$outcome:" "$logs/summary" || true)"
done
! grep -qE '^(findings|failed):' "$logs/summary"
