#!/usr/bin/env bash
# Puts buf and the two generators of Go code that it calls into bin/. buf comes as the ready program of PyPI's package
# buf-bin, in the version that tools/proto/go.mod names; without pip it is built, which takes minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
export GOWORK=off GOBIN=$PWD/bin
go=${GO:-go}
mkdir -p bin
version=$(sed -n 's,^[[:space:]]*github.com/bufbuild/buf v\([0-9.]*\).*,\1,p' tools/proto/go.mod)
"$go" -C tools/proto install google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$work" \
  "buf-bin==$version" 2> "$work/log"; then
  python3 -m zipfile -e "$work"/buf_bin-*.whl "$work/wheel"
  install -m 755 "$work"/wheel/*.data/scripts/buf bin/buf
else
  echo "building buf $version, because PyPI's package cannot be had: $(tail -n 1 "$work/log")"
  "$go" -C tools/proto install github.com/bufbuild/buf/cmd/buf
fi
