# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# The Python environment with PyTorch, in the cache: sourced by bench/compare and bench/accuracy.

cpu_wheels=https://download.pytorch.org/whl/cpu

# PyTorch without CUDA is a tenth of the size; PyPI does not have it, its own index does.
prefer_cpu_wheels() {
  if python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=10)' \
      "$cpu_wheels/torch/" 2>/dev/null; then
    export PIP_EXTRA_INDEX_URL=$cpu_wheels
  else
    say "$cpu_wheels cannot be reached: PyPI's PyTorch is taken, some GB with its CUDA libraries"
  fi
}

# Leaves its folder in bench_python.
bench_environment() {
  local key requirements=$root/bench/requirements.txt
  key=$(cat "$requirements" <(python3 --version) | sha256sum | cut -c1-12)
  bench_python=$cache/bench-python-$key
  [ -e "$bench_python/.complete" ] || prefer_cpu_wheels
  with_lock bench-python python_environment "$bench_python" --requirement "$requirements" ||
    die "the Python environment of the peers could not be made (see above)"
}
