#!/usr/bin/env bash
# Installs DuckDB, which agent-ctl/tests/readers.rs reads Parquet with, and prints the path of its
# Python; see tests/venv.sh.
set -euo pipefail

version=2.0.1
exec "$(dirname "${BASH_SOURCE[0]}")/venv.sh" duckdb "$version" --only-binary :all: "duckdb==$version"
