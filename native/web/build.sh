#!/bin/sh
# Compiles what a page runs: build.sh FOLDER writes core.wasm, core-threads.wasm for pages that are isolated, and of each one
# with relaxed instructions. The compiler is that of the package ziglang (pip install ziglang), of the Python that PYTHON
# names; CXX names another. Of itself it would write debug information, which takes a quarter longer and is stripped.
# The first line says how many lines follow, one for each file that is done: `cutaway export --page` draws a bar of them.
set -eu
mkdir -p "$1"
folder=$(realpath "$1")
cd "$(dirname "$0")/.."
. ./sources.sh
features=generic+simd128+atomics+bulk_memory
cxx() {
  if [ -n "${CXX:-}" ]; then $CXX "$@"; else "${PYTHON:-python3}" -m ziglang c++ -target wasm32-wasi "$@"; fi
}
flags="-std=c++20 -O2 -g0 -ffp-contract=off -fno-math-errno -fno-strict-aliasing -Wall -Wextra -Wno-deprecated"
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
# shellcheck disable=SC2086  # words are wanted
set -- "$1" $core
printf '%s\n' $(($# + 9)) # web/core, platform/wasm and $core; two objects of each tier; four cores

# shellcheck disable=SC2086  # words are wanted
tier() { # NAME FEATURES
  mkdir "$objects/$1"
  for name in kernels web/probe; do
    cxx -mcpu=$2 $flags -DCUTAWAY_WASM -DCUTAWAY_TIER=wasm -DCUTAWAY_TIER_NAME="\"$1\"" -DCUTAWAY_TIER_FUNCTION=kernels_wasm \
      -fno-exceptions -fno-rtti -c $name.cpp -o "$objects/$1/$(basename $name).o"
    echo "$1: $name"
  done
}
# shellcheck disable=SC2086
link() { # OUTPUT TIER FLAGS
  output=$folder/$1.wasm tier=$2
  shift 2
  cxx -mcpu=$features $flags -mexec-model=reactor "$objects"/*.o "$objects/$tier"/*.o -Wl,--strip-all \
    -Wl,--export=__stack_pointer "$@" -o "$output"
  printf '%s: %s bytes, %s as it is sent\n' "$output" "$(wc -c < "$output")" "$(gzip -9 -c "$output" | wc -c)"
}

tier wasm $features &
kernels=$!
tier wasm-relaxed $features+relaxed_simd
for name in web/core platform/wasm $core; do
  # shellcheck disable=SC2086
  cxx -mcpu=$features $flags -fexceptions -c $name.cpp -o "$objects/$(echo "$name" | tr / _).o"
  echo "$name"
done
wait $kernels
# Memory that grows up to 4 GB, begun with 512 pages: as local/cores.js makes it.
threads="-Wl,--import-memory -Wl,--shared-memory -Wl,--initial-memory=33554432 -Wl,--max-memory=4294901760
  -Wl,--export=__wasm_init_tls -Wl,--export=__tls_size -Wl,--export=__tls_align"
for tier in wasm wasm-relaxed; do
  link "core${tier#wasm}" $tier
  # shellcheck disable=SC2086
  link "core${tier#wasm}-threads" $tier $threads
done
