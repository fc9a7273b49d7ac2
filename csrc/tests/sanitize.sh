#!/bin/sh
# Builds the kernels with sanitizers and runs all of them: csrc/tests/sanitize.sh [training] [inference] [threads], by
# default all three. AddressSanitizer and UndefinedBehaviorSanitizer watch the first two, ThreadSanitizer the last.
#
# ISAS=portable checks only these instruction sets, OPTIMIZE=-O0 compiles faster, and LARGEST=100003 is the largest size
# of the training kernels: together they take a fraction of the time.
#
# For another processor, without sanitizers, which an emulator does not run:
#   CXX=aarch64-linux-gnu-g++ RUN='qemu-aarch64 -L /usr/aarch64-linux-gnu' SANITIZE= csrc/tests/sanitize.sh training inference
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
: "${CXX:=c++}" "${RUN:=}" "${OPTIMIZE:=-O1}" "${LARGEST:=1000003}"
common="-std=c++17 $OPTIMIZE -g -Wall -Wextra -Werror -Wno-psabi -ffp-contract=off -fno-math-errno -fno-trapping-math"
memory=${SANITIZE--fsanitize=address,undefined -fno-sanitize-recover=all}

# kernels FILE FLAGS ISA...: the kernels of a file for each instruction set, all at once.
kernels() {
    file=$1 flags=$2
    shift 2
    has="" jobs=""
    for isa in "$@"; do
        case $isa in
        avx2) vectors="-mavx2" ;;
        avx512) vectors="-mavx512f -mavx512bw -mavx512dq -mavx512vl" ;;
        *) vectors="" ;;
        esac
        has="$has -DBAYESBINN_HAS_$(echo "$isa" | tr '[:lower:]' '[:upper:]')"
        # shellcheck disable=SC2086
        $CXX $common $flags $vectors "-DBAYESBINN_ISA=$isa" -c "$file" -o "$build/$isa.o" &
        jobs="$jobs $!"
    done
    for job in $jobs; do wait "$job"; done
}

# finish FLAGS SOURCES...: links the rest to the kernels.
finish() {
    flags=$1
    shift
    # shellcheck disable=SC2086
    $CXX $common $flags $has "$@" "$build"/*.o -pthread -ldl -o "$build/run"
    rm "$build"/*.o
}

training() {
    # shellcheck disable=SC2086
    kernels "$source/training/kernels.cpp" "$memory" $all
    for name in training/training training/products training/threads training/isa tests/sanitize_training; do
        set -- "$@" "$source/$name.cpp"
    done
    finish "$memory" "$@"
    $RUN "$build/run" "$LARGEST"
}

# inference FLAGS: the test of inference, built but not run.
inference() {
    flags=$1
    shift
    # shellcheck disable=SC2086
    kernels "$source/inference/kernels.cpp" "$flags" $most
    for name in network convolution pointwise weights session team choose; do
        set -- "$@" "$source/inference/$name.cpp"
    done
    finish "$flags" "$@" "$source/tests/sanitize_inference.cpp"
}

case $($CXX -dumpmachine) in
x86_64* | amd64*)
    all="portable avx2" most="portable avx2"
    if grep -q avx512vl /proc/cpuinfo 2>/dev/null; then all="$all avx512"; fi
    ;;
aarch64* | arm64*) all="neon" most="neon" ;;
*) all="portable" most="portable" ;;
esac
if [ -n "${ISAS:-}" ]; then all=$ISAS most=$ISAS; fi
if [ $# = 0 ]; then set -- training inference threads; fi
for part in "$@"; do
    case $part in
    training) training ;;
    inference)
        inference "$memory"
        $RUN "$build/run"
        ;;
    threads)
        inference "-fsanitize=thread"
        $RUN "$build/run" threads
        ;;
    *)
        echo "$part: training, inference or threads" >&2
        exit 2
        ;;
    esac
done
