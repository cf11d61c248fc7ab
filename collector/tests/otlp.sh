#!/usr/bin/env bash
# Installs OpenTelemetry's own classes, by which exports are received in tests/server, and prints
# the path of their Python; see tests/venv.sh of the repository.
set -euo pipefail

version=1.45.2
exec "$(dirname "${BASH_SOURCE[0]}")/../../tests/venv.sh" opentelemetry "$version" \
  "opentelemetry-proto==$version" "grpcio==1.85.3"
