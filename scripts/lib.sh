# What scripts/run, scripts/test and .ci/run share. Sourced by bash; sets root, the source folder.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
readonly root
readonly cache=${XDG_CACHE_HOME:-$HOME/.cache}/ds-install

# Compilations survive the clone where ccache is there.
if command -v ccache >/dev/null; then
  export CCACHE_DIR=${CCACHE_DIR:-$cache/ccache} CCACHE_BASEDIR=${CCACHE_BASEDIR:-$root}
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi

say() { echo "==> $*" >&2; }
die() {
  echo "error: $*" >&2
  exit 2
}

# quietly CMD...: shows what a command prints only if it fails.
quietly() {
  local log status=0
  log=$(mktemp)
  "$@" >"$log" 2>&1 </dev/null || status=$?
  ((status == 0)) || cat "$log" >&2
  rm -f "$log"
  return "$status"
}

# build PRESET [TARGET...]: configures and builds in build/PRESET. Ninja's progress is one line
# that is redrawn on a terminal; elsewhere only warnings and errors are worth a line. Nothing goes to
# stdout, which is the program's.
build() {
  local preset=$1
  shift
  local -a targets=() quiet=()
  (($# == 0)) || targets=(--target "$@")
  [[ -t 2 ]] || quiet=(-- --quiet)
  say "configuring build/$preset"
  (cd "$root" && quietly cmake --preset "$preset") || return
  say "building build/$preset"
  (cd "$root" && cmake --build --preset "$preset" -j "$(nproc)" "${targets[@]}" "${quiet[@]}") </dev/null >&2
}
