#!/usr/bin/env bash
# All measurements, one after the other. Numbers mean little while anything else runs on the machine.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/bench}
mkdir -p "$out"
for name in speed rounds concurrency gateway streams needle constrain sessions; do
  go run "./bench/$name" | tee "$out/$name.md"
done
go run ./bench/soak -duration 3m -out "$out/soak.json" | tee "$out/soak.md"
echo "tables are in $out"
