#!/bin/sh
# Installs the Debian packages that the build needs and that are missing; with `python`, also those
# of the Python package; with `ci`, those of the fuzzers and of the builds for other machines too.
# Without root or sudo it prints the command and stops.
set -eu
packages="g++ cmake ninja-build ccache pkg-config libhwy-dev libcli11-dev nlohmann-json3-dev \
libfmt-dev libgtest-dev libzip-dev libcairo2-dev python3 python3-venv"
[ -n "${1:-}" ] && ! python3-config --includes >/dev/null 2>&1 && packages="$packages python3-dev"
[ "${1:-}" = ci ] && packages="$packages clang emscripten g++-aarch64-linux-gnu qemu-user"
missing=""
for package in $packages; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
    missing="$missing $package"
done
[ -z "$missing" ] && exit 0
command="apt-get update && apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" = 0 ]; then
  sudo=""
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
  sudo="sudo -n"
else
  echo "Missing packages. As root, run:"
  echo "  $command"
  exit 1
fi
echo "Installing:$missing"
$sudo apt-get update -qq
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing \
  >/dev/null
