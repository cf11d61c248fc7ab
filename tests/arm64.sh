#!/usr/bin/env bash
# Runs the unit tests whose subject is the architecture as programs for arm64, by qemu's emulation of its
# instructions: of perf, unwind, host and the sandbox. On Debian, as root, installs what is missing.
# Words go to every test program. Takes about ten minutes the first time: everything that the tests use is built again.
#
# No system of arm64 runs: what the kernel does (samples, filters of calls) is this machine's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=aarch64-unknown-linux-gnu
# Those of symbolize and jit go by recordings of x86-64 and by processes that an emulator hides.
packages=(host perf unwind sandbox)
# What the emulator does not have: marks of memory for core dumps, filters of calls.
skipped=(--skip left_out_of_core_dumps --skip the_kernel_refuses_what_the_list_has)
# What Go's runtime does by itself on arm64 is not all followed yet (docs/limits.md).
skipped+=(--skip depths_are_those_of_the_debug_information --skip the_runtimes_own_functions_start_end)

if ! command -v aarch64-linux-gnu-gcc >/dev/null || ! command -v qemu-aarch64-static >/dev/null; then
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "arm64: needs aarch64-linux-gnu-gcc and qemu-aarch64-static." \
      "On Debian: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static" >&2
    exit 1
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static >/dev/null
fi
cargo="${CARGO:-cargo}"
[ -d "$("${RUSTC:-rustc}" --print target-libdir --target "$target" 2>/dev/null)" ] || rustup target add "$target"

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /usr/aarch64-linux-gnu"
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
chosen=()
for package in "${packages[@]}"; do
  chosen+=(-p "fleetprof-$package")
done
# What is missing here is missing on purpose.
FLEETPROF_SKIP_FAILS=0 "$cargo" test --target "$target" --lib "${chosen[@]}" -- "${skipped[@]}" "$@"
