#!/usr/bin/env bash
# Usage: tests/venv.sh MODULE VERSION PIP-ARGUMENT...
#
# Has pip install a Python module, or a program that comes as a package of pip, in a virtual
# environment of its own under the cache directory, and prints the path of its Python. Does nothing
# when it is there.
set -euo pipefail

module=$1 version=$2
shift 2
home="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/fleetprof/$module-$version"

# there HOME: what is wanted can be imported there, or run.
there() { [ -x "$1/bin/$module" ] || "$1/bin/python" -c "import $module" 2>/dev/null; }

if there "$home"; then
  echo "$home/bin/python"
  exit 0
fi

command -v python3 >/dev/null || {
  echo "$module: needs python3. On Debian: apt-get install python3 python3-venv" >&2
  exit 1
}

# Made beside and moved, so that two at once, or one that is interrupted, leave nothing half-made.
mkdir -p "$(dirname "$home")"
making="$(mktemp -d "$home.XXXXXX")"
trap 'rm -rf "$making"' EXIT
python3 -m venv "$making" >&2 || {
  echo "$module: needs venv. On Debian: apt-get install python3-venv" >&2
  exit 1
}
for try in 1 2 3; do
  "$making/bin/pip" install --quiet --disable-pip-version-check "$@" >&2 && break
  [ "$try" -lt 3 ] || exit 1
  echo "$module: attempt $try failed, trying again" >&2
  sleep $((try * 5))
done
rm -rf "$home"
mv -T "$making" "$home" 2>/dev/null || [ -x "$home/bin/python" ]
there "$home"
echo "$home/bin/python"
