#!/bin/sh
# Builds the inference module with AddressSanitizer and UndefinedBehaviorSanitizer and feeds it damaged and forged
# model files: csrc/tests/fuzz.sh --count 20000 --seed 0. The options are those of tests/tools/fuzz_model_files.py.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
source=$root/csrc/inference
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
: "${CXX:=c++}" "${PYTHON:=$root/.venv/bin/python}"
nanobind=$("$PYTHON" -c 'import nanobind, os; print(os.path.dirname(nanobind.__file__))')
python_headers=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')
sanitize="-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
flags="-std=c++17 -O1 -g -fPIC -fvisibility=hidden"
has=""

# kernels ISA FLAGS...
kernels() {
    isa=$1
    shift
    has="$has -DBAYESBINN_HAS_$(echo "$isa" | tr '[:lower:]' '[:upper:]')"
    # shellcheck disable=SC2086
    $CXX $flags $sanitize -Wno-psabi -ffp-contract=off -fno-math-errno -fno-trapping-math "-DBAYESBINN_ISA=$isa" "$@" \
        -c "$source/kernels.cpp" -o "$build/$isa.o"
}

case $(uname -m) in
x86_64 | amd64)
    kernels portable
    kernels avx2 -mavx2
    ;;
aarch64 | arm64) kernels neon ;;
*) kernels portable ;;
esac
# nanobind itself is not tested.
# shellcheck disable=SC2086
$CXX $flags -fno-strict-aliasing -DNB_BUILD -I"$python_headers" -I"$nanobind/include" \
    -I"$nanobind/ext/robin_map/include" -c "$nanobind/src/nb_combined.cpp" -o "$build/nanobind.o"
for name in module network convolution pointwise weights session team choose; do
    # shellcheck disable=SC2086
    $CXX $flags $sanitize $has -I"$python_headers" -I"$nanobind/include" -c "$source/$name.cpp" -o "$build/$name.o"
done
# shellcheck disable=SC2086
$CXX $sanitize -shared "$build"/*.o -pthread -o "$build/_native.so"

# Python is not built with the sanitizer, so its library must be loaded first, and also libstdc++, whose exceptions it
# intercepts. The sanitizer keeps freed memory to find late uses; here only a little, so that the measured peak is the
# program's. An allocation larger than any file of a few kilobytes can need ends the program.
LD_PRELOAD="$($CXX -print-file-name=libasan.so) $($CXX -print-file-name=libstdc++.so)" \
    ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=8:max_allocation_size_mb=512:allocator_may_return_null=0 \
    UBSAN_OPTIONS=print_stacktrace=1 \
    BAYESBINN_FUZZ_MODULE="$build/_native.so" \
    "$PYTHON" "$root/tests/tools/fuzz_model_files.py" "$@"
