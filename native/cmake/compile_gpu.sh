#!/usr/bin/env bash
# compile_gpu.sh report command...: runs a device compiler and keeps what it says about registers, spills and shared
# memory in `report` instead of on the screen. When the compiler fails, everything it said is shown.
set -euo pipefail
report=$1
shift
if ! "$@" > "$report.tmp" 2>&1; then
  grep -vE '^ptxas info|bytes stack frame|-Rpass-analysis=kernel-resource-usage' "$report.tmp" >&2 || true
  rm -f "$report.tmp"
  exit 1
fi
mv "$report.tmp" "$report"
