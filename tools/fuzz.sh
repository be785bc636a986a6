#!/usr/bin/env bash
# Runs one Go fuzzer for a number of executions, with coverage counters in our packages and the JSON reader only: go
# test -fuzz puts them into every dependency and clears and compares them all after each execution, which is five times
# slower.
#   tools/fuzz.sh ./services/grammar FuzzParse            10 million executions
#   tools/fuzz.sh ./gateway/internal/openai FuzzChatRequest 500000
# What it learns stays in build/fuzz; a finding lies in the package's testdata/fuzz.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 2 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
package=$1 name=$2 count=${3:-10000000}
out=$PWD/build/fuzz/$(echo "${package#./}" | tr / -)-$name
mkdir -p "$out"
instrument=("-gcflags=encoding/json=-d=libfuzzer")
while read -r ours; do
  instrument+=("-gcflags=$ours=-d=libfuzzer")
done < <(go list -deps "$package" | grep '^github.com/tandem-inference/tandem/' | grep -v '/proto/')
CGO_ENABLED=0 go test -c -trimpath "${instrument[@]}" -ldflags='-s -w' -o "$out/fuzz.test" "$package"
cd "$package"
exec "$out/fuzz.test" -test.run '^$' -test.fuzz "^$name\$" -test.fuzztime "${count}x" -test.fuzzminimizetime 1x \
  -test.fuzzcachedir "$out/cache"
