# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts beside it: where things are, how to say what is done, how to make a Python
# environment, and the environment MPI programs run in.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${CADENZA_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME is not set}/.cache}/cadenza}
venv=$root/.venv

# An activated project environment must not be the one that remakes it.
PATH=":$PATH:"
PATH=${PATH//:$venv\/bin:/:}
PATH=${PATH#:}
PATH=${PATH%:}
unset VIRTUAL_ENV

export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1   # a second clone reuses the compilations of the first
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

say() { echo "== $*"; }
die() { echo "error: $*" >&2; exit 1; }

unfinished=   # the folder that is being made; removed when the script ends before it is complete
clean_up() { [ -z "$unfinished" ] || rm -rf "$unfinished"; }
trap clean_up EXIT
trap 'echo "error: ${0##*/} stopped at line $LINENO" >&2' ERR
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# with_lock NAME COMMAND...: one process of this user at a time.
with_lock() {
  local status=0 lock
  mkdir -p "$cache"
  exec {lock}>"$cache/$1.lock"
  flock "$lock"
  "${@:2}" || status=$?
  exec {lock}>&-
  return $status
}

# python_environment FOLDER PIP_INSTALL_ARGUMENTS...: a virtual environment that is complete or is not
# there at all. Remade when the arguments, the folder or the interpreter have changed. Python compiles a
# module when it is first imported: pip would compile all, which takes longer than to unpack them.
python_environment() {
  local folder=$1 key
  shift
  key="$folder $(python3 -c 'import sys; print(sys.version, sys.base_prefix)') $*"
  if [ "$(cat "$folder/.complete" 2>/dev/null)" = "$key" ] && "$folder/bin/python" -c pass; then
    return 0
  fi
  say "making the Python environment $folder"
  unfinished=$folder
  rm -rf "$folder"
  python3 -m venv "$folder" || return 1
  if [ $# -gt 0 ]; then
    "$folder/bin/python" -m pip install --quiet --no-compile "$@" || return 1
  fi
  echo "$key" >"$folder/.complete"
  unfinished=
}

# activate: what scripts/setup prepared comes first on the path (the environment's python, and its
# cmake or ninja where the machine's own would not do).
activate() { export PATH=$venv/bin:$PATH; }

# configure PRESET: quiet unless it fails.
configure() {
  local log=$root/build/$1-configure.log
  mkdir -p "$root/build"
  say "configuring build/$1"
  if ! (cd "$root" && cmake --preset "$1") >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    die "cmake --preset $1 failed; all of its output is in $log"
  fi
}

# build PRESET [TARGET...]
build() {
  local preset=$1 targets=()
  shift
  [ $# -eq 0 ] || targets=(--target "$@")
  say "building build/$preset ${*:-(everything)}"
  (cd "$root" && cmake --build --preset "$preset" "${targets[@]}") || die "the build of build/$preset failed"
}

# mpi_environment RANKS: scripts/mpi-environment, and what so many ranks need besides.
mpi_environment() {
  # shellcheck source=scripts/mpi-environment
  source "$root/scripts/mpi-environment"
  if [ "$1" -gt "$(nproc)" ]; then
    say "$1 ranks share $(nproc) cores, so times will be longer"
    export OMPI_MCA_mpi_yield_when_idle=1
  fi
}

# install_analysis: the Python package of analysis/ in the project's environment, as it is in the tree.
install_analysis() {
  local mark=$venv/.analysis key
  key=$(sha256sum "$root/analysis/pyproject.toml")
  [ "$(cat "$mark" 2>/dev/null)" != "$key" ] || return 0
  say "installing analysis/ into .venv"
  "$venv/bin/python" -m pip install --quiet --no-compile --editable "$root/analysis" ||
    die "analysis/ could not be installed into .venv"
  echo "$key" >"$mark"
}

# test_environment SCRATCH_FOLDER: Python with what the tests' requirements and the analysis package ask
# for comes first on the path, analysis/ itself from the tree. What Python compiles stays beside it, not in
# the tree.
test_environment() {
  local scratch=$1 needs=("$root"/tests/*/requirements.txt) key arguments=() file folder
  key=$(cat "${needs[@]}" "$root/analysis/pyproject.toml" <(python3 --version) | sha256sum | cut -c1-12)
  test_python=$cache/test-python-$key
  for file in "${needs[@]}"; do
    folder=$(basename "$(dirname "$file")")
    cp "$file" "$scratch/$folder.txt"
    arguments+=(--requirement "$folder.txt")
  done
  cp -r "$root/analysis" "$scratch/analysis"   # pip writes beside what it builds
  # Paths from there: what is installed does not depend on where the scratch folder is.
  pushd "$scratch" >/dev/null
  with_lock test-python python_environment "$test_python" "${arguments[@]}" "./analysis[test]" ||
    die "the Python environment of the tests could not be made (see above)"
  popd >/dev/null
  rm -rf "$scratch/analysis"
  export PATH=$test_python/bin:$PATH PYTHONPATH=$root/analysis PYTHONPYCACHEPREFIX=$test_python/compiled
  unset PYTHONDONTWRITEBYTECODE
}
