#!/usr/bin/env bash
# Fetches the published chat templates of Qwen3 and Qwen3.5 into build/templates, where TestPublishedTemplates of
# gateway/internal/model looks for them. They lie in the source package of llama-cpp-python on PyPI (77 MB). With
# --goldens it also renders published-goldens.json of that package's testdata again, which needs jinja2 3.1.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=build/templates
version=0.3.36
mkdir -p "$dir"
command -v python3 > /dev/null || { echo "python3 is missing" >&2; exit 1; }
sums="a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715  Qwen3.5-4B.jinja
87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5  Qwen-Qwen3-0.6B.jinja"
if ! (cd "$dir" && echo "$sums" | sha256sum --check --status 2> /dev/null); then
  tmp=$(mktemp -d)
  trap 'rm -rf "$tmp"' EXIT
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest "$tmp" \
    "llama-cpp-python==$version"
  for file in Qwen3.5-4B.jinja Qwen-Qwen3-0.6B.jinja; do
    tar -xzOf "$tmp"/llama_cpp_python-$version.tar.gz \
      "llama_cpp_python-$version/vendor/llama.cpp/models/templates/$file" > "$dir/$file"
  done
  (cd "$dir" && echo "$sums" | sha256sum --check --quiet)
fi
if [ "${1:-}" = --goldens ]; then
  python3 gateway/internal/model/testdata/gen_published.py "$dir"
fi
