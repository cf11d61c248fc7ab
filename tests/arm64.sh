#!/usr/bin/env bash
# Runs the unit tests whose subject is the architecture as programs for arm64, by qemu's emulation
# of its instructions: of host, perf, unwind, symbolize, jit and the sandbox. On Debian, as root,
# installs what is missing. Words go to every test program. Takes about twenty minutes the first
# time: everything that the tests use is built again.
#
# No system of arm64 runs: what the kernel does (samples, filters of calls) is this machine's. Such
# a system is that of tests/arm64-system/run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=aarch64-unknown-linux-gnu
packages=(host perf unwind symbolize jit sandbox)
# What the emulator does not have: marks of memory for core dumps, filters of calls.
skipped=(--skip left_out_of_core_dumps --skip the_kernel_refuses_what_the_list_has)
# The vdso is the emulator's own.
skipped+=(--skip the_vdso_has_names)
# A file at the path of a process that ended is gone in the emulator, and another in a real system.
skipped+=(--skip the_hosts_file_is_not_taken_for_a_containers_as_root)

die() {
  echo "arm64: $*" >&2
  exit 1
}
if ! command -v aarch64-linux-gnu-gcc >/dev/null; then
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    die "needs aarch64-linux-gnu-gcc. On Debian: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    gcc-aarch64-linux-gnu libc6-dev-arm64-cross >/dev/null
fi

# The emulator of Debian 12 has no openat2, by which files of strangers are opened; that of its
# backports has.
qemu="${QEMU_AARCH64:-}"
if [ -z "$qemu" ]; then
  for found in qemu-aarch64-static qemu-aarch64; do
    version="$("$found" --version 2>/dev/null | sed -n 's/^qemu-aarch64 version \([0-9]*\).*/\1/p')" || true
    [ "${version:-0}" -lt 10 ] || qemu="$found"
  done
fi
if [ -z "$qemu" ]; then
  home="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/fleetprof/qemu-user-10"
  qemu="$home/usr/bin/qemu-aarch64"
  if [ ! -x "$qemu" ]; then
    command -v apt-get >/dev/null || die "needs qemu-aarch64 10 or later: QEMU_AARCH64=PATH says where it is"
    making="$(mktemp -d)"
    trap 'rm -rf "$making"' EXIT
    mkdir -p "$making"/{lists,cache/archives}/partial "$home"
    : >"$making/status"
    echo "deb ${DEBIAN_MIRROR:-http://deb.debian.org/debian} bookworm-backports main" >"$making/sources.list"
    apt=(-o "Dir::State=$making" -o "Dir::State::status=$making/status" -o "Dir::Cache=$making/cache"
      -o "Dir::Etc::sourcelist=$making/sources.list" -o Dir::Etc::sourceparts=- -o APT::Sandbox::User=root)
    apt-get "${apt[@]}" update -qq
    (cd "$making" && apt-get "${apt[@]}" download -qq qemu-user && dpkg-deb --extract qemu-user_*.deb "$home")
  fi
fi
cargo="${CARGO:-cargo}"
[ -d "$("${RUSTC:-rustc}" --print target-libdir --target "$target" 2>/dev/null)" ] || rustup target add "$target"

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$qemu -L /usr/aarch64-linux-gnu"
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
chosen=()
for package in "${packages[@]}"; do
  chosen+=(-p "fleetprof-$package")
done
# What is missing here is missing on purpose.
FLEETPROF_SKIP_FAILS=0 "$cargo" test --no-fail-fast --target "$target" --lib "${chosen[@]}" -- "${skipped[@]}" "$@"
