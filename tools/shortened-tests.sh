#!/usr/bin/env bash
# Prints the Go tests that do less with -short or under the race detector, as a pattern for go test -run.
#   tools/shortened-tests.sh
# A guard (testing.Short(), racetest.Enabled) stands in a test, or in a function that tests of the same folder call.
set -euo pipefail
cd "$(dirname "$0")/.."
guard='testing\\.Short\\(\\)|racetest\\.Enabled'

# functions PATTERN FILE… prints the names of the functions whose bodies match.
functions() {
  awk -v pattern="$1" '
    /^func / { name = $0; sub(/^func (\([^)]*\) )?/, "", name); sub(/[[(].*/, "", name); next }
    $0 ~ pattern { print name }' "${@:2}" | sort -u
}

names=
while read -r file; do
  for name in $(functions "$guard" "$file"); do
    case $name in
      Test*) names+=" $name" ;;
      *)
        callers=$(functions "(^|[^A-Za-z0-9_.])$name\\\\(" "$(dirname "$file")"/*_test.go | grep '^Test') || {
          echo "shortened-tests.sh: $file: no test calls $name, which has a guard" >&2
          exit 1
        }
        names+=" $callers"
        ;;
    esac
  done
done < <(git grep -lE 'testing\.Short\(\)|racetest\.Enabled' -- '*_test.go' ':!tests')
# shellcheck disable=SC2086 # a list of words
echo "^($(printf '%s\n' $names | sort -u | paste -sd '|'))\$"
