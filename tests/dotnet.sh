#!/usr/bin/env bash
# Installs a program in .NET, which daemon/jit is tested with, and prints its path. npm has no .NET
# itself, but programs that bring theirs: this one, under the MIT licence, has .NET 10 and runs as a
# server of the Model Context Protocol as long as its input is open. Does nothing when it is there.
set -euo pipefail

package=@azure/mcp-linux-x64
version=2.0.5
home="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/fleetprof/dotnet-$version"
program="$home/package/dist/azmcp"

if [ ! -x "$program" ]; then
  command -v npm >/dev/null || {
    echo "dotnet: needs npm. On Debian: apt-get install npm" >&2
    exit 1
  }
  # Made beside and moved, so that two at once, or one that is interrupted, leave nothing half-made.
  mkdir -p "$(dirname "$home")"
  making="$(mktemp -d "$home.XXXXXX")"
  trap 'rm -rf "$making"' EXIT
  for try in 1 2 3; do
    npm pack --silent --pack-destination "$making" "$package@$version" >&2 && break
    [ "$try" -lt 3 ] || exit 1
    echo "dotnet: attempt $try failed, trying again" >&2
    sleep $((try * 5))
  done
  tar -xzf "$making"/*.tgz -C "$making"
  rm "$making"/*.tgz
  rm -rf "$home"
  mv -T "$making" "$home" 2>/dev/null || [ -x "$program" ]
fi
echo "$program"
