#!/bin/sh
# Builds the functions of the WebAssembly runtime for this machine, with AddressSanitizer and
# UndefinedBehaviorSanitizer, and makes the calls that tests/web/record.mjs recorded: `replay.sh FILE...`.
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
CXX=${CXX:-c++}
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
flags="-std=c++17 -O1 -g -Wall -Wextra -Wno-psabi -ffp-contract=off -fno-math-errno -fno-trapping-math
    -fsanitize=address,undefined -fno-sanitize-recover=all"
jobs=""
for name in inference/kernels inference/network inference/convolution inference/pointwise inference/weights \
    inference/session inference/team wasm/module wasm/sha256 tests/replay; do
    # shellcheck disable=SC2086
    $CXX $flags -DBAYESBINN_ISA=portable -c "$source/$name.cpp" -o "$build/$(echo "$name" | tr / _).o" &
    jobs="$jobs $!"
done
for job in $jobs; do wait "$job"; done
# shellcheck disable=SC2086
$CXX $flags "$build"/*.o -pthread -o "$build/replay"
ASAN_OPTIONS=detect_leaks=0 "$build/replay" "$@"
