#!/usr/bin/env bash
# Runs clang-format 19 with the given arguments over the native sources that git knows.
set -euo pipefail
cd "$(dirname "$0")/.."
tool=$(command -v clang-format-19 || true)
if [ -z "$tool" ]; then
  echo "skipped clang-format: version 19 is not installed"
  exit 0
fi
git ls-files -z 'native/*.cpp' 'native/*.h' 'native/*.c' 'native/*.cu' 'native/*.cuh' |
  xargs -0 --no-run-if-empty "$tool" "$@"
