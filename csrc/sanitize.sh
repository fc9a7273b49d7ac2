#!/bin/sh
# Builds the kernels with AddressSanitizer and UndefinedBehaviorSanitizer and runs all of them.
set -eu
source=$(cd "$(dirname "$0")" && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
: "${CXX:=c++}"
flags="-std=c++17 -O1 -g -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=all"
has=""
jobs=""

# kernels ISA FLAGS...: the kernels for one instruction set, compiled in the background.
kernels() {
    isa=$1
    shift
    has="$has -DBAYESBINN_HAS_$(echo "$isa" | tr '[:lower:]' '[:upper:]')"
    # shellcheck disable=SC2086
    $CXX $flags -ffp-contract=off -fno-math-errno -fno-trapping-math "-DBAYESBINN_ISA=$isa" "$@" \
        -c "$source/kernels.cpp" -o "$build/$isa.o" &
    jobs="$jobs $!"
}

case $(uname -m) in
x86_64 | amd64)
    kernels portable
    kernels avx2 -mavx2
    if grep -q avx512vl /proc/cpuinfo 2>/dev/null; then
        kernels avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl
    fi
    ;;
aarch64 | arm64) kernels neon ;;
*) kernels portable ;;
esac
for job in $jobs; do wait "$job"; done
# shellcheck disable=SC2086
$CXX $flags $has "$source/training.cpp" "$source/threads.cpp" "$source/isa.cpp" "$source/sanitize_test.cpp" \
    "$build"/*.o -pthread -ldl -o "$build/run"
"$build/run"
