#!/usr/bin/env bash
# Gets the compilers of the GPU libraries for a machine without the vendors' toolkits (CI, a developer without a card):
# they compile and link; running needs a card and its driver.
#   tools/gpu-toolchain.sh cuda    nvcc and its run-time library from PyPI, in build/gpu-toolchain/cuda
#   tools/gpu-toolchain.sh hip     clang 19 and HIP's headers from Debian (as root, else named), device bitcode for newer
#                                  cards in build/gpu-toolchain/hip
#   tools/gpu-toolchain.sh         both
# What is there already is left alone: a system toolkit is used when it is found (native/cmake/{cuda,hip}.cmake).
set -euo pipefail
cd "$(dirname "$0")/.."
cache=$PWD/build/gpu-toolchain

# Pinned, because registers are compared with native/GPU_RESOURCES.tsv.
nvcc_packages=(
  nvidia-cuda-nvcc==13.5.37 nvidia-cuda-crt==13.5.37 nvidia-nvvm==13.5.37 nvidia-cuda-runtime==13.5.37
  nvidia-cuda-cccl==13.3.5.0.6
)
debian_packages=(clang-19 clang-tools-19 lld-19 llvm-19 libamdhip64-dev rocm-device-libs)

cuda() {
  if command -v nvcc > /dev/null || [ -x /usr/local/cuda/bin/nvcc ] || [ -x "$cache/cuda/bin/nvcc" ]; then return; fi
  local python=python3
  # A python3 of a version manager may lack venv; Debian's is taken then.
  if ! python3 -c 'import venv, ensurepip' 2> /dev/null; then
    python=/usr/bin/python3
    if ! "$python" -c 'import venv, ensurepip' 2> /dev/null; then
      install_debian python3-venv
    fi
  fi
  echo "fetching ${nvcc_packages[0]} and its parts from PyPI into build/gpu-toolchain: no nvcc is installed"
  rm -rf "$cache/cuda" "$cache/venv"
  mkdir -p "$cache"
  "$python" -m venv "$cache/venv"
  "$cache/venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --no-deps "${nvcc_packages[@]}"
  local root
  root=$(echo "$cache"/venv/lib/python*/site-packages/nvidia/cu13)
  if [ ! -x "$root/bin/nvcc" ]; then
    echo "the packages from PyPI brought no nvcc in $root" >&2
    exit 1
  fi
  ln -sfn "$root" "$cache/cuda"
}

# install_debian package... installs as root and names the packages otherwise.
install_debian() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null | grep -qx installed || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  tools/setup.sh apt "the compilers of the GPU libraries" "${missing[@]}"
}

hip() {
  if [ -e /opt/rocm/include/hip/hip_runtime.h ]; then return; fi
  install_debian "${debian_packages[@]}"
  # Debian's bitcode ends at gfx1036. What is processor-specific in it is one number, so the files for newer processors
  # are made from that of gfx1030.
  local source=/usr/lib/x86_64-linux-gnu/amdgcn/bitcode target=$cache/hip/bitcode
  if [ -e "$target/complete" ]; then return; fi
  mkdir -p "$target"
  cp "$source"/*.bc "$target/"
  local entry name number
  for entry in 1100:11000 1101:11001 1102:11002 1103:11003 1150:11500 1151:11501 1200:12000 1201:12001; do
    name=${entry%%:*} number=${entry##*:}
    if [ ! -e "$target/oclc_isa_version_$name.bc" ]; then
      llvm-dis-19 < "$source/oclc_isa_version_1030.bc" | sed "s/constant i32 10300/constant i32 $number/" |
        llvm-as-19 -o "$target/oclc_isa_version_$name.bc"
    fi
  done
  touch "$target/complete"
}

case "${1:-all}" in
  cuda) cuda ;;
  hip) hip ;;
  all) cuda && hip ;;
  *)
    echo "usage: tools/gpu-toolchain.sh [cuda|hip]" >&2
    exit 2
    ;;
esac
