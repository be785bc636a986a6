#!/usr/bin/env bash
# Ends the "tandem serve" processes that were started from this checkout, and waits until they are gone.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(readlink -f bin/tandem || true)
pids=()
for exe in /proc/[0-9]*/exe; do
  pid=${exe//[!0-9]/}
  [ "$(readlink "$exe" 2> /dev/null || true)" = "$program" ] || continue
  tr '\0' ' ' < "/proc/$pid/cmdline" 2> /dev/null | grep -q ' serve' || continue
  pids+=("$pid")
done
if [ ${#pids[@]} = 0 ]; then
  echo "no cluster of this checkout is running"
  exit 0
fi
kill -TERM "${pids[@]}"
for _ in $(seq 400); do
  alive=0
  for pid in "${pids[@]}"; do kill -0 "$pid" 2> /dev/null && alive=1; done
  [ "$alive" = 0 ] && { echo "ended ${pids[*]}"; exit 0; }
  sleep 0.1
done
echo "still running after 40 s: ${pids[*]}" >&2
exit 1
