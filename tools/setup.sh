#!/usr/bin/env bash
# Installs the Debian packages that a purpose needs when run as root; names them otherwise.
#   tools/setup.sh build   compilers and build tools
#   tools/setup.sh lint    clang-format
set -euo pipefail

missing=()
need() { command -v "$1" > /dev/null || missing+=("$2"); }

case "${1:-build}" in
  build)
    need gcc gcc
    need g++ g++
    need cmake cmake
    need ninja ninja-build
    need git git
    [ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
    ;;
  lint)
    # 19 formats the tree; Debian 12 has it in its updates. tools/clang-format.sh says when it is not to be had.
    if ! command -v clang-format-19 > /dev/null && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
      apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq clang-format-19 > /dev/null || true
    fi
    exit 0
    ;;
  *)
    echo "usage: tools/setup.sh build|lint" >&2
    exit 2
    ;;
esac

if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    echo "installing ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" > /dev/null
  else
    echo "These packages are missing, please install them: ${missing[*]}" >&2
    echo "On Debian: sudo apt-get install ${missing[*]}" >&2
    exit 1
  fi
fi

if ! command -v "${GO:-go}" > /dev/null; then
  echo "Go 1.26 or newer is needed: put it on PATH, or call make GO=/path/to/go" >&2
  exit 1
fi
