#!/bin/sh
# Builds the kernels with AddressSanitizer and UndefinedBehaviorSanitizer and runs all of them.
set -eu
source=$(cd "$(dirname "$0")" && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
: "${CXX:=c++}"
common="-std=c++17 -O1 -g -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=all"
kernel="$common -ffp-contract=off -fno-math-errno -fno-trapping-math"

case $(uname -m) in
x86_64 | amd64)
    $CXX $kernel -DBAYESBINN_ISA=portable -c "$source/kernels.cpp" -o "$build/portable.o"
    $CXX $kernel -DBAYESBINN_ISA=avx2 -mavx2 -c "$source/kernels.cpp" -o "$build/avx2.o"
    has="-DBAYESBINN_HAS_PORTABLE -DBAYESBINN_HAS_AVX2"
    if grep -q avx512vl /proc/cpuinfo 2>/dev/null; then
        $CXX $kernel -DBAYESBINN_ISA=avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl \
            -c "$source/kernels.cpp" -o "$build/avx512.o"
        has="$has -DBAYESBINN_HAS_AVX512"
    fi
    ;;
aarch64 | arm64)
    $CXX $kernel -DBAYESBINN_ISA=neon -c "$source/kernels.cpp" -o "$build/neon.o"
    has="-DBAYESBINN_HAS_NEON"
    ;;
*)
    $CXX $kernel -DBAYESBINN_ISA=portable -c "$source/kernels.cpp" -o "$build/portable.o"
    has="-DBAYESBINN_HAS_PORTABLE"
    ;;
esac
# shellcheck disable=SC2086
$CXX $common $has "$source/training.cpp" "$source/threads.cpp" "$source/isa.cpp" "$source/sanitize_test.cpp" \
    "$build"/*.o -pthread -ldl -o "$build/run"
"$build/run"
