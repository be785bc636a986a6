#!/usr/bin/env bash
# Runs the parts of make test one after the other and says which of how many runs, and how long it took the last time.
#   tools/test.sh PART…      each is a target test-PART of the Makefile
#   RESUME=1 tools/test.sh   goes on after a run that was ended: parts that are done are left out
# Results of parts are in build/test, times in build/test-times.
set -euo pipefail
cd "$(dirname "$0")/.."
results=build/test times=build/test-times
[ -n "${RESUME:-}" ] || rm -rf "$results"
mkdir -p "$results" "$times"

# duration SECONDS prints it as people say it.
duration() {
  if [ "$1" -lt 90 ]; then echo "$1 s"; else echo "$((($1 + 30) / 60)) min"; fi
}

total=0 unknown=0
for part in "$@"; do
  if [ -e "$results/$part.done" ]; then continue; fi
  if [ -e "$times/$part" ]; then total=$((total + $(cat "$times/$part"))); else unknown=$((unknown + 1)); fi
done
echo "$# parts: $*"
if [ "$total" -gt 0 ]; then
  new=$([ "$unknown" = 0 ] || echo ", without $unknown that never ran here")
  echo "took $(duration "$total") here the last time$new; RESUME=1 goes on after an end"
else
  echo "never ran here: an hour or two on 2 cores; RESUME=1 goes on after an end; make test-quick takes minutes"
fi

n=0
for part in "$@"; do
  n=$((n + 1))
  if [ -e "$results/$part.done" ]; then
    echo "=== $n of $#: $part is done already"
    continue
  fi
  last=
  if [ -e "$times/$part" ]; then last=", $(duration "$(cat "$times/$part")") the last time"; fi
  echo "=== $n of $#: $part$last"
  began=$SECONDS
  before=$(find "$results" -name '*.result.json' | sort)
  # What a part that is ended had reported so far would count twice.
  trap 'for f in $(comm -13 <(echo "$before") <(find "$results" -name "*.result.json" | sort)); do rm -f "$f"; done' EXIT
  "${MAKE:-make}" --no-print-directory "test-$part"
  trap - EXIT
  echo $((SECONDS - began)) > "$times/$part"
  touch "$results/$part.done"
  echo "=== $part took $(cat "$times/$part") s"
done
echo "seconds of the parts: $(for part in "$@"; do echo -n "$part $(cat "$times/$part"), "; done | sed 's/, $//')"
