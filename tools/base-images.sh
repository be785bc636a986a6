#!/usr/bin/env bash
# Makes the base images of deploy/ from files of this Debian machine, for container tests where no registry is reached:
# a build image with Go, compilers and the modules the product needs, and a small one with the C and C++ libraries; on
# request also stand-ins for the vendors' images, with the compilers of tools/gpu-toolchain.sh.
# Images that exist already are left alone.
#   tools/base-images.sh GO_IMAGE BASE_IMAGE [CUDA_IMAGE ROCM_IMAGE]
set -euo pipefail
cd "$(dirname "$0")/.."
go_image=${1:?name of the build image} base_image=${2:?name of the base image} cuda_image=${3:-} rocm_image=${4:-}
[ -e /etc/debian_version ] || { echo "base images are made on Debian only" >&2; exit 1; }

work=$(mktemp -d)
# Module caches are read-only on purpose.
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

# closure PACKAGE…: the installed packages that these depend on, themselves included.
closure() {
  apt-cache depends --recurse --installed --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
    --no-enhances "$@" | grep '^[a-z0-9]' | sort -u
}

# Packages still list /bin/sh and the like, which lie in /usr since directories were merged.
# collect ROOT PACKAGE…: makes $work/image.tar of the files of the packages and of what ROOT holds.
collect() {
  local root=$1
  shift
  # Virtual packages have no files: dpkg-query says so and goes on.
  { dpkg-query -L $(closure "$@") 2> /dev/null || true; } \
    | grep -v -e '^/usr/share/\(doc\|man\|locale\|info\|lintian\|cmake-[0-9.]*/Help\)/' -e '^/\.$' \
    | sed -n 's,^/\(bin\|sbin\|lib\|lib32\|lib64\)/,/usr/\1/,; s,^/,/,p' | sort -u | while read -r f; do
        if [ -e "$f" ] || [ -L "$f" ]; then echo "${f#/}"; fi
      done > "$work/files"
  # Links that packages do not own: merged /usr, alternatives.
  for f in tmp bin sbin lib lib64 etc/ssl/certs/ca-certificates.crt usr/bin/sh usr/bin/cc usr/bin/c++ usr/bin/awk \
    usr/bin/which; do
    if [ -e "/$f" ] || [ -L "/$f" ]; then echo "$f"; fi
  done >> "$work/files"
  (cd / && ls -d etc/alternatives/*) >> "$work/files"
  sort -u -o "$work/files" "$work/files" # a name given twice becomes a link to itself
  mkdir -p "$root"
  tar -C / --no-recursion -cf "$work/image.tar" -T "$work/files"
  (cd "$root" && find . ! -type d -printf '%P\n') > "$work/files"
  tar -C "$root" --no-recursion -rf "$work/image.tar" -T "$work/files"
}

# pack ROOT IMAGE PACKAGE…: imports them as an image.
pack() {
  local root=$1 image=$2
  shift 2
  collect "$root" "$@"
  docker import -c 'ENV PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
    -c 'ENV GOFLAGS=-modcacherw' -c 'ENV GOPROXY=off' -c 'ENV GOTOOLCHAIN=local' -c 'ENV GOMODCACHE=/go/pkg/mod' \
    -c 'CMD ["sh"]' "$work/image.tar" "$image" > /dev/null
  rm -f "$work/image.tar"
  echo "made $image"
}

if ! docker image inspect "$base_image" > /dev/null 2>&1; then
  pack "$work/base" "$base_image" libc6 libstdc++6 libgcc-s1 dash coreutils
fi

if ! docker image inspect "$go_image" > /dev/null 2>&1; then
  root=$work/go
  mkdir -p "$root/usr/local" "$root/go/pkg/mod"
  cp -a "$(go env GOROOT)" "$root/usr/local/go"
  # Only the modules that the programs need, out of the cache that building them has filled; the workspace may have
  # built them of newer ones.
  GOWORK=off GOFLAGS=-modcacherw GOPROXY="file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)" GOSUMDB=off \
    GOMODCACHE="$root/go/pkg/mod" \
    go list -deps ./gateway/cmd/... ./worker-target/cmd/... ./worker-draft/cmd/... ./worker-prefill/cmd/... \
    ./native/plugin/... > /dev/null
  rm -rf "$root/go/pkg/mod/cache/download/sumdb"
  pack "$root" "$go_image" gcc g++ cmake ninja-build make git bash dash coreutils findutils grep sed gawk tar gzip \
    diffutils ca-certificates
fi

if [ -n "$cuda_image" ] && ! docker image inspect "$cuda_image" > /dev/null 2>&1; then
  tools/gpu-toolchain.sh cuda
  printf 'FROM %s\nCOPY . /usr/local/cuda\n' "$go_image" |
    docker build -q -t "$cuda_image" -f - "$(readlink -f build/gpu-toolchain/cuda)" > /dev/null
  echo "made $cuda_image"
fi

if [ -n "$rocm_image" ] && ! docker image inspect "$rocm_image" > /dev/null 2>&1; then
  tools/gpu-toolchain.sh hip
  # The places where ROCm has them; Debian spreads them over /usr.
  rocm=$work/rocm/opt/rocm
  mkdir -p "$rocm"/{amdgcn,lib,llvm/bin,share} "$work/context"
  cp -r build/gpu-toolchain/hip/bitcode "$rocm/amdgcn/"
  ln -s /usr/include "$rocm/include"
  ln -s /usr/share/hip "$rocm/share/hip" # its version: clang brings HIP's own declarations only when it finds one
  ln -s /usr/lib/x86_64-linux-gnu/libamdhip64.so "$rocm/lib/libamdhip64.so"
  ln -s /usr/lib/llvm-19/bin/clang++ "$rocm/llvm/bin/clang++"
  collect "$work/rocm" clang-19 clang-tools-19 lld-19 llvm-19 libamdhip64-dev rocm-device-libs
  mv "$work/image.tar" "$work/context/"
  printf 'FROM %s\nADD image.tar /\n' "$go_image" | docker build -q -t "$rocm_image" -f - "$work/context" > /dev/null
  echo "made $rocm_image"
fi
