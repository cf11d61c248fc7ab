#!/usr/bin/env bash
# Installs wasmtime, which tests/tests/runtimes.rs runs WebAssembly with, in a virtual environment of its
# own under the cache directory, and prints the path of its Python. Does nothing when it is there.
set -euo pipefail

version=50.0.1
home="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/fleetprof/wasmtime-$version"

if [ -x "$home/bin/python" ] && "$home/bin/python" -c 'import wasmtime' 2>/dev/null; then
  echo "$home/bin/python"
  exit 0
fi

command -v python3 >/dev/null || {
  echo "wasmtime: needs python3. On Debian: apt-get install python3 python3-venv" >&2
  exit 1
}

# Made beside and moved, so that two at once, or one that is interrupted, leave nothing half-made.
mkdir -p "$(dirname "$home")"
making="$(mktemp -d "$home.XXXXXX")"
trap 'rm -rf "$making"' EXIT
python3 -m venv "$making" >&2 || {
  echo "wasmtime: needs venv. On Debian: apt-get install python3-venv" >&2
  exit 1
}
"$making/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: "wasmtime==$version" >&2
rm -rf "$home"
mv -T "$making" "$home" 2>/dev/null || [ -x "$home/bin/python" ]
"$home/bin/python" -c 'import wasmtime'
echo "$home/bin/python"
