#!/bin/sh
# Compiles what a page runs: build.sh OUTPUT.wasm. The compiler is that of the package ziglang (pip install ziglang), of
# the Python that PYTHON names; CXX names another.
set -eu
output=$(realpath "$1")
cd "$(dirname "$0")/.."
. ./sources.sh
cxx=${CXX:-${PYTHON:-python3} -m ziglang c++ -target wasm32-wasi}
flags="-std=c++20 -O2 -ffp-contract=off -fno-math-errno -fno-strict-aliasing -Wall -Wextra -Wno-deprecated -msimd128"
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT

# shellcheck disable=SC2086  # words are wanted
$cxx $flags -DCUTAWAY_WASM -DCUTAWAY_TIER=wasm -DCUTAWAY_TIER_NAME="\"wasm\"" -DCUTAWAY_TIER_FUNCTION=kernels_wasm \
  -fno-exceptions -fno-rtti -c kernels.cpp -o "$objects/kernels.o" &
for name in web/core platform/wasm $core; do
  # shellcheck disable=SC2086
  $cxx $flags -fexceptions -c $name.cpp -o "$objects/$(echo "$name" | tr / _).o"
done
wait $!
# shellcheck disable=SC2086
$cxx $flags -mexec-model=reactor "$objects"/*.o -Wl,--strip-all -Wl,--export=__stack_pointer -o "$output"
printf '%s: %s bytes, %s as it is sent\n' "$output" "$(wc -c < "$output")" "$(gzip -9 -c "$output" | wc -c)"
