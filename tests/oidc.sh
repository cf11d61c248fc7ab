#!/usr/bin/env bash
# Installs a certified provider of OpenID Connect, which logins at the collector are tested with,
# and prints its directory. Does nothing when it is there.
set -euo pipefail

package=oidc-provider
version=9.13.3
home="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/fleetprof/$package-$version"

if [ ! -f "$home/node_modules/$package/package.json" ]; then
  command -v npm >/dev/null || {
    echo "oidc: needs npm. On Debian: apt-get install npm" >&2
    exit 1
  }
  # Made beside and moved, so that two at once, or one that is interrupted, leave nothing half-made.
  mkdir -p "$(dirname "$home")"
  making="$(mktemp -d "$home.XXXXXX")"
  trap 'rm -rf "$making"' EXIT
  for try in 1 2 3; do
    npm install --silent --ignore-scripts --no-audit --no-fund --no-package-lock --prefix "$making" \
      "$package@$version" >&2 && break
    [ "$try" -lt 3 ] || exit 1
    echo "oidc: attempt $try failed, trying again" >&2
    sleep $((try * 5))
  done
  rm -rf "$home"
  mv -T "$making" "$home" 2>/dev/null || [ -f "$home/node_modules/$package/package.json" ]
fi
echo "$home"
