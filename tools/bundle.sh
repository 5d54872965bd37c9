#!/bin/sh
# Puts a program and the shared libraries that it needs, but for the C library's own, into a folder
# that runs on another machine: LD_LIBRARY_PATH=FOLDER FOLDER/PROGRAM.
#   tools/bundle.sh PROGRAM FOLDER
set -eu
mkdir -p "$2"
cp "$1" "$2"
ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
  grep -Ev '/(libc|libm|libdl|librt|libpthread|libresolv)\.so' | xargs -I{} cp -L {} "$2"
du -sh "$2"
