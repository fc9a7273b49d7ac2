#!/bin/sh
# Compiles the runtime to WebAssembly: `build.sh OUT.wasm`. ZIG is the compiler's command, by default that of the Python
# package `ziglang`, whose version constraints.txt pins: the same sources give the same bytes. `build.sh --sources`
# prints a digest of everything that decides them, which `make wasm` writes beside the result.
set -eu
export LC_ALL=C # the order of the files
case $1 in
--sources) out="" ;;
*) out=$(realpath -m "$1") ;;
esac
cd "$(dirname "$0")/.."
if [ -z "$out" ]; then
    cat inference/*.hpp inference/*.cpp wasm/*.hpp wasm/*.cpp wasm/build.sh | sha256sum | cut -c 1-64
    grep -h '^ziglang==' ../constraints.txt
    exit
fi
zig=${ZIG:-${PYTHON:-python3} -m ziglang}
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

# Fused multiply-adds would change results. Exceptions and type information would cost half as much again in size.
common="-target wasm32-wasi -msimd128 -std=c++17 -Os -flto -DNDEBUG -ffp-contract=off -fno-math-errno -fno-trapping-math
    -fno-exceptions -fno-rtti -fno-threadsafe-statics -fno-stack-protector -fno-sanitize=undefined
    -ffunction-sections -fdata-sections -Wall -Wextra -ffile-prefix-map=$PWD=."
for source in inference/kernels inference/network inference/convolution inference/pointwise inference/weights \
    inference/session wasm/module wasm/failure wasm/sha256; do
    # shellcheck disable=SC2086
    $zig c++ $common -DBAYESBINN_ISA=simd128 -c $source.cpp -o "$build/$(basename $source).o"
done
# Only the headers of the C++ library are used, and nothing of WASI: the module has no imports.
$zig c++ -target wasm32-wasi -mexec-model=reactor -nostdlib++ -Wl,--gc-sections -Wl,--strip-all \
    -Wl,-z,stack-size=131072 "$build"/*.o -o "$out"
chmod 644 "$out"
