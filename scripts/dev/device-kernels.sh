#!/bin/bash
# Builds, tests and measures kernels/ alone, on a machine that has a compiler, CMake, Ninja and a
# Python with torch, and nothing of the rest of the project. For machines whose code paths the usual
# one lacks (AVX-512). The last lines are a short table and the verdict.
#
#   scripts/dev/device-kernels.sh [build folder]
#
#   GOOGLETEST_DIR  sources of GoogleTest, where no package is installed (default
#                   /usr/src/googletest)
#   DS_PYTHON       the Python that has torch (default python3)
#   JOBS            compiler processes (default: the number of CPUs)
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
build=${1:-build/device-kernels}
python=${DS_PYTHON:-python3}
jobs=${JOBS:-$(nproc)}

torch=$("$python" -c 'import importlib.util as u; print(list(u.find_spec("torch").submodule_search_locations)[0])') ||
  { echo "device-kernels: $python has no torch" >&2; exit 2; }

rm -rf "$build"
cmake -S kernels -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DDS_BUILD_TESTS=ON \
  -DDS_TORCH_PREFIX="$torch" -DDS_PYTHON="$(command -v "$python")" \
  -DGOOGLETEST_DIR="${GOOGLETEST_DIR:-/usr/src/googletest}" || exit 1
ninja -C "$build" -j "$jobs" -k 0 || exit 1

ctest --test-dir "$build" -j 4 --output-on-failure > "$build/ctest.log" 2>&1
tests=$?
tail -n 60 "$build/ctest.log"

echo
echo "== benchmark, all threads"
"$python" kernels/bench/bench.py "$build" | tee "$build/bench.txt"
echo "== benchmark, one thread"
"$python" kernels/bench/bench.py "$build" --threads 1 --seconds 0.2 | tee "$build/bench1.txt"

echo
echo "== paths (the self-tests' own words)"
"$python" - "$build" << 'PYTHON'
import ctypes, glob, os, sys
import torch
for library in sorted(glob.glob(sys.argv[1] + "/ds_*/libds_*.so")):
    op = os.path.basename(library)[len("libds_"):-len(".so")]
    detail = ctypes.create_string_buffer(200)
    status = getattr(ctypes.CDLL(library), "ds_self_test_" + op)(b"cpu", detail, ctypes.c_ulong(200))
    print(f"{op:<12} {status}  {detail.value.decode()}")
PYTHON
grep -E 'tests passed|Total Test time' "$build/ctest.log"
grep -E 'Skipped|SKIPPED' "$build/ctest.log" | sort | uniq -c
grep -m1 'model name' /proc/cpuinfo
exit $tests
