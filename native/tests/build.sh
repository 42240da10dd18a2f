#!/bin/sh
# Compiles native/tests/ and the native code, without Python: build.sh OUTPUT [FLAGS …].
# KERNEL_FLAGS are more flags of the kernels alone, as -mrelaxed-simd: all else is compiled alike, and found in zig's cache.
# CXX names the compiler, and with it the machine: CXX="python -m ziglang c++ -target wasm32-wasi" makes WebAssembly.
# The tiers' flags are those of CMakeLists.txt.
set -eu
output=$(realpath "$1")
shift
cd "$(dirname "$0")/.."
. ./sources.sh
cxx=${CXX:-g++}
common="-std=c++20 -ffp-contract=off -fno-math-errno -fno-strict-aliasing -Wall -Wextra -Wno-uninitialized -O1 -DCUTAWAY_EVEX $*"
case $($cxx --version) in
  *clang*) ;;
  *) common="$common -Wno-maybe-uninitialized" ;;  # GCC 12 says it of its own intrinsics
esac
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT

case $($cxx -dumpmachine) in
  wasm32*) common="$common -msimd128 -fexceptions" ;;
esac

tier() {
  name=$1
  shift
  upper=$(echo "$name" | tr '[:lower:]' '[:upper:]')
  # shellcheck disable=SC2086  # words are wanted
  $cxx $common "$@" -DCUTAWAY_$upper -DCUTAWAY_TIER=$name -DCUTAWAY_TIER_NAME="\"$name\"" \
    -DCUTAWAY_TIER_FUNCTION=kernels_$name -fno-exceptions -fno-rtti -c kernels.cpp -o "$objects/$name.o"
}

tiles() {
  name=$1
  shift
  # shellcheck disable=SC2086  # words are wanted
  $cxx $common "$@" -DCUTAWAY_TIER=$name -DCUTAWAY_TIER_NAME="\"$(echo "$name" | tr _ -)\"" \
    -DCUTAWAY_TIER_FUNCTION=add_tiles_$name -fno-exceptions -fno-rtti -c kernels_tiles.cpp -o "$objects/tiles_$name.o"
}

avx2="-mavx2 -mfma -mf16c"
# As processors with AVX-512 run it, so that it is tested on them too.
avxvnni="$avx2 -mavx512f -mavx512vl -mavx512vnni -mprefer-vector-width=256"
avx512="$avx2 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mprefer-vector-width=512"
# shellcheck disable=SC2086
case $($cxx -dumpmachine) in
  x86_64*) tier avx512 $avx512 & tiles amx -DCUTAWAY_AVX512 $avx512 & tier avxvnni $avxvnni & tier avx2 $avx2 & ;;
  wasm32*) tier wasm ${KERNEL_FLAGS:-} & ;;
  aarch64*) tier neon -march=armv8.2-a+dotprod+fp16 & tier i8mm -march=armv8.2-a+dotprod+fp16+i8mm & ;;
esac
threads="pool tests/pool tests/plan matrix_units" link=-pthread
case $($cxx -dumpmachine) in
  wasm32*) platform=platform/wasm threads="" link="" ;;
  *windows* | *mingw*) platform=platform/windows ;;
  *apple* | *darwin* | *macos*) platform="platform/posix platform/macos" ;;
  *) platform="platform/posix platform/linux" ;;
esac
if [ -n "$threads" ]; then tier generic & tiles amx_plain -DCUTAWAY_TILES_PLAIN & fi
# shellcheck disable=SC2086
for name in tests/bits tests/sampler $core $threads quantise quantise_small quantise_k quantise_table quantise_search $platform; do
  # shellcheck disable=SC2086
  $cxx $common -c $name.cpp -o "$objects/$(echo "$name" | tr / _).o"
done
wait
# shellcheck disable=SC2086
$cxx $common "$objects"/*.o $link -o "$output"
