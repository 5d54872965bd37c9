#!/bin/sh
# Runs each fuzzer of build/fuzz for the given seconds from the kept corpus. What is new stays under
# build/fuzz/corpus, an input that fails under build/fuzz/findings.
set -eu
cd "$(dirname "$0")/.."
seconds=$1
mkdir -p build/fuzz/findings
for name in npy npz safetensors problem; do
  mkdir -p "build/fuzz/corpus/$name" "tests/fuzz/corpus/$name"
  log=build/fuzz/$name.log
  "build/fuzz/tests/fuzz/${name}_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -artifact_prefix="build/fuzz/findings/$name-" \
    "build/fuzz/corpus/$name" "tests/fuzz/corpus/$name" >"$log" 2>&1 || { tail -n 40 "$log"; exit 1; }
  echo "$name: $(tail -n 1 "$log")"
done
