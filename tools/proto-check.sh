#!/usr/bin/env bash
# Checks that the generated code and reference are what bin/buf makes of the .proto files, and that they still read what
# main's did.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

bin/buf generate -o "$work/new"
stale=0
while read -r file; do
  cmp "$work/new/$file" "$file" || stale=1
done < <(cd "$work/new" && find . -type f | sort)
if [ $stale = 0 ]; then
  echo "generated code is up to date"
else
  echo "generated code differs from the .proto files: run make proto" >&2
  exit 1
fi

base=
for ref in origin/main main; do
  if git rev-parse -q --verify "$ref^{commit}" > /dev/null; then
    base=$ref
    break
  fi
done
if [ -z "$base" ] || ! git cat-file -e "$base:proto" 2> /dev/null; then
  echo "skipped buf breaking: this clone has no main branch to compare with"
  exit 0
fi
mkdir "$work/base"
git archive "$base" buf.yaml proto | tar -x -C "$work/base"
bin/buf breaking --against "$work/base"
echo "no breaking change against $base"
