#!/usr/bin/env bash
# Looks for what a purpose needs, Go first, and installs missing Debian packages when run as root; names them otherwise.
#   tools/setup.sh build   Go, compilers and build tools
#   tools/setup.sh lint    clang-format
#   tools/setup.sh apt PURPOSE PACKAGE…   installs packages, for other scripts
# TANDEM_NO_APT=1 keeps it from installing anything.
set -euo pipefail
cd "$(dirname "$0")/.."

# apt PURPOSE PACKAGE…: announces packages and installs them, or says how.
apt() {
  local purpose=$1
  shift
  if [ -n "${TANDEM_NO_APT:-}" ] || [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "These packages are missing for $purpose, please install them: $*" >&2
    echo "On Debian: sudo apt-get install $*" >&2
    return 1
  fi
  echo "installing by apt-get, for $purpose: $* (TANDEM_NO_APT=1 keeps make from it)"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" > /dev/null
}

# older A B: version A is before version B.
older() { [ "$1" != "$2" ] && [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -1)" = "$1" ]; }

# check_go compares Go with go.mod before anything is built. From 1.21 on, go fetches the version that go.mod names by
# itself, unless GOTOOLCHAIN forbids it.
check_go() {
  local go=${GO:-go} wanted have
  wanted=$(sed -n 's/^go \([0-9.]*\).*/\1/p' go.mod)
  if ! command -v "$go" > /dev/null; then
    echo "Go $wanted or newer is needed: get it from https://go.dev/dl/, put it on PATH or call make GO=/path/to/go" >&2
    return 1
  fi
  # Outside the workspace and with its own toolchain, go says what it is.
  have=$(cd / && GOTOOLCHAIN=local GOFLAGS= "$go" version | sed -n 's/^go version go\([0-9.]*\).*/\1/p')
  if [ -z "$have" ] || ! older "$have" "$wanted"; then return 0; fi
  local toolchain=${GOTOOLCHAIN:-$(cd / && "$go" env GOTOOLCHAIN 2> /dev/null || true)}
  if older "$have" 1.21; then
    echo "Go $wanted or newer is needed, $(command -v "$go") is $have: get it from https://go.dev/dl/, put it on PATH or call make GO=/path/to/go" >&2
    return 1
  fi
  case $toolchain in
    local | path | local+path)
      echo "Go $wanted or newer is needed, $(command -v "$go") is $have and GOTOOLCHAIN=$toolchain keeps it from fetching another: unset it, set" \
        "GOTOOLCHAIN=go$wanted, or get Go from https://go.dev/dl/" >&2
      return 1
      ;;
  esac
  echo "Go $have fetches Go $wanted by itself (GOTOOLCHAIN=${toolchain:-auto})"
}

missing=()
need() { command -v "$1" > /dev/null || missing+=("$2"); }

case "${1:-build}" in
  build)
    check_go
    need gcc gcc
    need g++ g++
    need cmake cmake
    need ninja ninja-build
    need git git
    [ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
    [ ${#missing[@]} -eq 0 ] || apt "the build" "${missing[@]}"
    ;;
  lint)
    # 19 formats the tree; Debian 12 has it in its updates. tools/clang-format.sh says when it is not to be had.
    command -v clang-format-19 > /dev/null || apt "make lint" clang-format-19 || true
    ;;
  apt)
    shift
    apt "$@"
    ;;
  *)
    echo "usage: tools/setup.sh build|lint|apt PURPOSE PACKAGE…" >&2
    exit 2
    ;;
esac
