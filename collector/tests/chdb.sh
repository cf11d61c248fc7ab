#!/usr/bin/env bash
# Installs the ClickHouse engine that tests/clickhouse.rs runs against, and prints the path of its
# Python; see tests/venv.sh of the repository.
set -euo pipefail

# Pinned: chdb 4.4.0 is ClickHouse 26.9.
version=4.4.0
core_version=26.9.0
exec "$(dirname "${BASH_SOURCE[0]}")/../../tests/venv.sh" chdb "$version" \
  "chdb==$version" "chdb-core==$core_version"
