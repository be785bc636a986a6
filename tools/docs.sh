#!/usr/bin/env bash
# Builds the documents as a site into build/site. The generator is fetched from PyPI once, in the versions of
# docs/site/requirements.txt; links and anchors that lead nowhere are errors.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$PWD/build/docs
wanted=docs/site/requirements.txt
if ! cmp -s "$wanted" "$work/installed.txt"; then
  rm -rf "$work/venv" "$work/installed.txt"
  mkdir -p "$work"
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --no-deps -r "$wanted"
  cp "$wanted" "$work/installed.txt"
fi
python3 tools/docs-stage.py "$work/pages"
cp docs/site/mkdocs.yml "$work/"
cp docs/site/iframe-worker.js "$work/pages/"
rm -rf "$work/site" build/site
(cd "$work" && venv/bin/zensical build --clean --strict -f mkdocs.yml)
loads='<(script|img|iframe)[^>]* src="?(https?:)?//[^ >]*|<link[^>]*stylesheet[^>]*href="?(https?:)?//[^ >]*'
if grep -rnoE --include='*.html' "$loads" "$work/site"; then
  echo "pages load something from the network" >&2
  exit 1
fi
mv "$work/site" build/site
echo "the site is in build/site: open build/site/index.html"
