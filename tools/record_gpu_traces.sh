#!/bin/sh
# Records the traces of examples/traces on a machine with a Hopper GPU, with the folder that
# `make cuda-trace` makes; what it prints belongs beside them.
#   tools/record_gpu_traces.sh build/cuda-trace/bundle FOLDER
set -eu
LD_LIBRARY_PATH="$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export LD_LIBRARY_PATH
mkdir -p "$2"
for d in 64 128; do
  for mask in none bottom_right; do
    [ "$mask" = none ] && name=full || name=causal
    "$1/flashwok" trace --device cuda --shape "1,2304,2304,24,24,$d" --dtype bfloat16 \
      --causal "$mask" --blocks 0 --summary -o "$2/h200_v3_d${d}_$name.fwtrace"
  done
done
