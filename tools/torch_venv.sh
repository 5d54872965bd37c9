#!/bin/sh
# Makes a virtual environment with PyTorch for timing it beside ours; prints its interpreter.
set -eu
venv="${FLASHWOK_TORCH_VENV:-.venv}"
if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
  python3 -m venv "$venv" >&2
  "$venv/bin/pip" install -q torch numpy >&2
fi
echo "$venv/bin/python"
