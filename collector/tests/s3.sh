#!/usr/bin/env bash
# Installs the S3 server that tests/archive.rs runs against, and prints the path of its Python; see
# tests/venv.sh of the repository.
set -euo pipefail

version=5.2.5
exec "$(dirname "${BASH_SOURCE[0]}")/../../tests/venv.sh" moto "$version" "moto[server]==$version"
