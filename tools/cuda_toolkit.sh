#!/bin/sh
# Puts a CUDA compiler from PyPI into build/cuda-toolkit, without root; prints the folder.
set -eu
cd "$(dirname "$0")/.."
folder=build/cuda-toolkit
toolkit="$folder/nvidia/cu13"
if [ ! -x "$toolkit/bin/cuobjdump" ]; then
  python3 -m venv "$folder/venv" >&2
  "$folder/venv/bin/pip" install -q --target "$folder" nvidia-cuda-nvcc==13.0.* nvidia-nvvm==13.0.* \
    nvidia-cuda-crt==13.0.* nvidia-cuda-runtime==13.0.* nvidia-cuda-cccl==13.0.* \
    nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm >&2
fi
# Where CMake looks.
[ -e "$toolkit/lib64" ] || ln -s lib "$toolkit/lib64"
[ -e "$toolkit/lib/libcudart.so" ] || ln -s libcudart.so.13 "$toolkit/lib/libcudart.so"
echo "$toolkit"
