#!/usr/bin/env bash
# Installs the ClickHouse engine that tests/clickhouse.rs runs against, in a virtual environment of its
# own under the cache directory, and prints the path of its Python. Does nothing when it is there.
set -euo pipefail

# Pinned: chdb 4.4.0 is ClickHouse 26.9.
version=4.4.0
core_version=26.9.0
home="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/fleetprof/chdb-$version"

if [ -x "$home/bin/python" ] && "$home/bin/python" -c 'import chdb' 2>/dev/null; then
  echo "$home/bin/python"
  exit 0
fi

command -v python3 >/dev/null || {
  echo "chdb: needs python3. On Debian: apt-get install python3 python3-venv" >&2
  exit 1
}

# Made beside and moved, so that two at once, or one that is interrupted, leave nothing half-made.
mkdir -p "$(dirname "$home")"
making="$(mktemp -d "$home.XXXXXX")"
trap 'rm -rf "$making"' EXIT
python3 -m venv "$making" >&2 || {
  echo "chdb: needs venv. On Debian: apt-get install python3-venv" >&2
  exit 1
}
for try in 1 2 3; do
  "$making/bin/pip" install --quiet --disable-pip-version-check \
    "chdb==$version" "chdb-core==$core_version" >&2 && break
  [ "$try" -lt 3 ] || exit 1
  echo "chdb: attempt $try failed, trying again" >&2
  sleep $((try * 5))
done
rm -rf "$home"
mv -T "$making" "$home" 2>/dev/null || [ -x "$home/bin/python" ]
trap - EXIT
rm -rf "$making"
"$home/bin/python" -c 'import chdb'
echo "$home/bin/python"
