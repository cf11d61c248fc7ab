#!/usr/bin/env bash
# Installs wasmtime, which tests/tests/runtimes.rs runs WebAssembly with, and prints the path of its
# Python; see tests/venv.sh.
set -euo pipefail

version=50.0.1
exec "$(dirname "${BASH_SOURCE[0]}")/venv.sh" wasmtime "$version" --only-binary :all: "wasmtime==$version"
