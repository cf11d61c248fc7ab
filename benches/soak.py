#!/usr/bin/env python3
"""Runs the daemon and a collector next to real services, other profilers and kills, and checks
every ten seconds that nobody goes blind.

As root. Needs postgresql, redis-server, redis-tools, nginx, apache2-utils, nodejs, linux-perf and
bpftrace (Debian's package names). Prints one row a minute and a verdict; exit code 1 when a check
failed. Every service runs in a cgroup of its own on loopback, and is stopped at the end.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TICK_S = 10
"""Time between two looks. Unit: seconds; the length of a window."""
SETTLE_S = 30
"""Time after a start or a kill in which rates are not judged. Unit: seconds."""
COVERAGE_MIN = 0.99
"""Least share of cpu.stat that samples must cover over the whole run."""
RSS_GROWTH_MAX = 1.25
"""Most that resident memory may grow from the first third to the last third of the run."""

CAPTURES = [
    ["--event", "cpu-clock", "--rate", "997"],
    ["--event", "task-clock"],
    ["--event", "off-cpu"],
    ["--event", "off-cpu", "--comm", "redis-server"],
    ["--event", "page-faults"],
    ["--event", "context-switches"],
    ["--event", "cpu-migrations"],
    ["--event", "block-io"],
    ["--event", "tracepoint:sched:sched_process_exec"],
    ["--event", "uprobe:/usr/bin/redis-server:main"],
]


def cgroup2():
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(where)
    sys.exit("soak: cgroup2 is not mounted")


class Machine:
    """What the soak starts, and stops again whatever happens."""

    def __init__(self, args, work):
        self.args, self.work = args, work
        self.cgroups, self.children = [], []
        self.root = cgroup2()
        self.socket = f"unix:{work}/agent.sock"
        self.grpc = f"127.0.0.1:{args.port}"
        self.http = f"127.0.0.1:{args.port + 1}"
        self.metrics = f"127.0.0.1:{args.port + 2}"

    def spawn(self, command, cgroup=None, log=None, **more):
        out = open(self.work / log, "ab") if log else subprocess.DEVNULL
        enter = None
        if cgroup:
            where = self.root / cgroup
            where.mkdir(parents=True, exist_ok=True)
            if where not in self.cgroups:
                self.cgroups.append(where)
            enter = lambda: (where / "cgroup.procs").write_text(str(os.getpid()))  # noqa: E731
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            preexec_fn=enter, start_new_session=True, **more,
        )
        self.children.append(child)
        return child

    def program(self, name):
        return str(Path(self.args.bin_dir) / name)

    def start_collector(self):
        self.collector = self.spawn(
            [self.program("fleetprof-collector"), "--data-dir", f"{self.work}/store",
             "--listen-grpc", self.grpc, "--listen-http", self.http], log="collector.log")

    def start_daemon(self):
        self.daemon = self.spawn(
            [self.program("fleetprofd"), "--listen", self.socket, "--collector", self.grpc,
             "--set", f"metrics.listen={self.metrics}",
             "--set", f"collector.spool.dir={self.work}/spool",
             "--set", "collector.host_id=soak"], log="daemon.log")

    def ctl(self, *command, fleet=False, timeout=60):
        where = ["--collector", self.grpc] if fleet else ["--agent", self.socket]
        return subprocess.run(
            [self.program("agent-ctl"), *where, *command],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False)

    def json(self, *command, fleet=False):
        try:
            done = self.ctl(*command, fleet=fleet)
            return json.loads(done.stdout) if done.stdout.strip() else None
        except (json.JSONDecodeError, subprocess.TimeoutExpired):
            return None

    def end(self):
        for child in reversed(self.children):
            if child.poll() is None:
                try:
                    os.killpg(child.pid, signal.SIGTERM)
                except ProcessLookupError:
                    pass
        time.sleep(3)
        for child in self.children:
            if child.poll() is None:
                try:
                    os.killpg(child.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            child.wait()
        for where in sorted(self.cgroups, reverse=True):
            for _ in range(50):
                try:
                    for pid in (where / "cgroup.procs").read_text().split():
                        os.kill(int(pid), signal.SIGKILL)
                    where.rmdir()
                    break
                except OSError:
                    time.sleep(0.1)


def services(machine, seconds):
    """Starts the services and their load, as an operator would find them."""
    base, work = machine.args.port + 10, machine.work
    pg = work / "pg"
    pg.mkdir()
    shutil.chown(pg, "postgres")
    bins = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1]
    sql = lambda command: ["su", "postgres", "-s", "/bin/sh", "-c", command]  # noqa: E731
    subprocess.run(sql(f"{bins}/initdb -D {pg} >/dev/null"), check=True)
    machine.spawn(sql(f"exec {bins}/postgres -D {pg} -k {pg} -p {base}"),
                  "soak/postgresql.service", "postgres.log")
    machine.spawn(["redis-server", "--port", str(base + 1), "--save", ""],
                  "soak/redis.service", "redis.log")
    www = work / "www"
    www.mkdir()
    (www / "index.html").write_text("fleet " * 20_000)
    (work / "nginx.conf").write_text(
        f"worker_processes 1; pid {work}/nginx.pid; error_log {work}/nginx.err; user root;"
        "events { worker_connections 256; } http { access_log off; gzip on; gzip_types text/html;"
        f"server {{ listen 127.0.0.1:{base + 2}; root {www}; }} }}")
    machine.spawn(["nginx", "-c", str(work / "nginx.conf"), "-g", "daemon off;"],
                  "soak/nginx.service", "nginx.log")
    (work / "api.js").write_text(
        "require('http').createServer((q, r) => { let s = 0; for (let i = 0; i < 3e5; i++)"
        " s = (s * 31 + i) | 0; r.end(JSON.stringify({ s })); })"
        f".listen({base + 3}, '127.0.0.1');")
    machine.spawn(["node", "--perf-basic-prof", str(work / "api.js")],
                  "soak/api.service", "node.log")
    (work / "jobs.py").write_text(
        "import hashlib, json, re, time\n"
        "while True:\n"
        "    text = json.dumps([{'n': n, 'h': hashlib.md5(str(n).encode()).hexdigest()}"
        " for n in range(4000)])\n"
        "    re.findall(r'[a-f]{3}', text); time.sleep(0.02)\n")
    machine.spawn(["python3", str(work / "jobs.py")], "soak/jobs.service", "python.log")
    time.sleep(5)
    subprocess.run(sql(f"createdb -h {pg} -p {base} bench; pgbench -h {pg} -p {base} -i -q bench"),
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    load = (
        f"end=$(($(date +%s)+{seconds})); while [ $(date +%s) -lt $end ]; do "
        f"ab -q -n 800 -c 4 -H 'Accept-Encoding: gzip' http://127.0.0.1:{base + 2}/ ; "
        f"ab -q -n 800 -c 4 http://127.0.0.1:{base + 3}/ ; "
        f"redis-benchmark -p {base + 1} -q -n 8000 -c 4 -t set,get,lrange ; "
        f"su postgres -s /bin/sh -c 'pgbench -h {pg} -p {base} -T 3 -c 2 bench' ; "
        "sleep 0.5; done")
    machine.spawn(["bash", "-c", load], "soak/load.scope", "load.log")
    # One loop a CPU, so that every CPU has something to sample in each second.
    for cpu in range(os.cpu_count()):
        machine.spawn(["taskset", "-c", str(cpu), "nice", "-n", "19", "bash", "-c",
                       "while :; do :; done"], "soak/busy.scope")


class Checks:
    """What was seen, and what of it is not as promised."""

    def __init__(self):
        self.failures, self.rss, self.kept = [], {"daemon": [], "collector": []}, []
        self.longest_silence = 0.0
        self.unwanted = {}

    def fail(self, text):
        self.failures.append(text)
        print(f"FAILED {time.strftime('%H:%M:%S')} {text}", flush=True)


def rss_mib(child):
    try:
        for line in Path(f"/proc/{child.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return None


def held(machine, end):
    """Samples that the collector has of the time up to `end`, in whole steps of ten seconds."""
    answer = machine.json("profile", "--from", machine.began, "--to", end, "--format", "json",
                          "-o", "-", fleet=True)
    return answer["quality"]["taken"] if answer else None


def stamp(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds // 10 * 10))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--bin-dir", default="target/release")
    parser.add_argument("--port", type=int, default=17900)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("soak: needs root")
    for program in ["redis-server", "nginx", "ab", "redis-benchmark", "pgbench", "node", "perf",
                    "bpftrace"]:
        if not shutil.which(program):
            sys.exit(f"soak: needs {program}")
    random.seed(args.seed)
    print(f"soak: {args.minutes} min, seed {args.seed}, programs of {args.bin_dir}", flush=True)
    work = Path(tempfile.mkdtemp(prefix="soak-"))
    work.chmod(0o755)
    machine, checks = Machine(args, work), Checks()
    try:
        run(machine, checks, args.minutes * 60)
    finally:
        machine.end()
        logs = [work / "daemon.log", work / "collector.log"]
        for log in logs:
            if log.exists() and checks.failures:
                shutil.copy(log, Path(tempfile.gettempdir()) / f"failed-{work.name}-{log.name}")
        shutil.rmtree(work, ignore_errors=True)
    sys.exit(1 if checks.failures else 0)


def run(machine, checks, seconds):
    machine.start_collector()
    time.sleep(1)
    services(machine, seconds + 60)
    machine.began = stamp(time.time())
    machine.start_daemon()
    start = time.monotonic()
    calm_after = start + SETTLE_S
    last, captures, kills, others = {}, 0, 0, 0
    capture_codes, running = {}, []
    taken_before_kill = 0
    coverage = []
    next_event = start + SETTLE_S
    minute = 0
    while time.monotonic() < start + seconds:
        tick = time.monotonic()
        status = machine.json("status", "--json")
        now = time.monotonic()
        if status is None:
            if now > calm_after:
                checks.fail("the daemon does not answer `status`")
        else:
            for cpu in status["cpus"]:
                number, samples = cpu["cpu"], cpu["samples"]
                before = last.get(number)
                if before and now > calm_after and samples <= before[1]:
                    checks.longest_silence = max(checks.longest_silence, now - before[0])
                    checks.fail(f"cpu {number}: no sample in {now - before[0]:.0f} s")
                last[number] = (now, samples)
            share = status["last_minute"]["share"]
            if share is not None and now > calm_after + 60:
                coverage.append(share)
            for row in status["degradations"]:
                if row["severity"] != "info":
                    checks.unwanted[row["id"]] = checks.unwanted.get(row["id"], 0) + 1
        for name in ["daemon", "collector"]:
            mib = rss_mib(getattr(machine, name))
            if mib and now > calm_after:
                checks.rss[name].append((now - start, mib))
            if getattr(machine, name).poll() is not None:
                checks.fail(f"{name} ended by itself: {getattr(machine, name).returncode}")
                getattr(machine, f"start_{name}")()
                calm_after, last = time.monotonic() + SETTLE_S, {}
        for entry in running[:]:
            what, child, deadline = entry
            if child.poll() is not None:
                capture_codes.setdefault(what, []).append(child.returncode)
                running.remove(entry)
            elif now > deadline:
                checks.fail(f"capture {what} does not end")
                child.kill()
                running.remove(entry)
        if now > next_event:
            next_event = now + random.uniform(5, 25)
            kind = random.choices(
                ["perf", "bpftrace", "capture", "capture", "kill collector", "kill daemon"],
                [3, 3, 3, 3, 1, 1])[0]
            left = start + seconds - now
            if kind == "perf":
                machine.spawn(["perf", "record", "-q", "-a", "-g", "-F", "99", "-o", "/dev/null", "--",
                               "sleep", str(random.randint(5, 30))])
                others += 1
            elif kind == "bpftrace":
                for _ in range(random.randint(1, 5)):
                    machine.spawn(["timeout", "8", "bpftrace", "-e",
                                   "profile:hz:97 { @[cpu] = count(); }"])
                    others += 1
            elif kind == "capture" and left > 40:
                what = random.choice(CAPTURES)
                out = machine.work / f"capture-{captures}.folded"
                child = machine.spawn(
                    [machine.program("agent-ctl"), "--agent", machine.socket, "capture", *what,
                     "--duration", "5s", "-o", str(out)], log="captures.log")
                running.append((" ".join(what), child, now + 60))
                captures += 1
            elif kind == "kill collector" and left > 90:
                end = stamp(time.time() - 40)
                before = held(machine, end)
                machine.collector.kill()
                machine.collector.wait()
                time.sleep(random.uniform(0, 15))
                machine.start_collector()
                time.sleep(2)
                after = held(machine, end)
                kills += 1
                checks.kept.append((before, after))
                if before is not None and (after is None or after < before):
                    checks.fail(f"the collector had {before} samples up to {end}, now {after}")
            elif kind == "kill daemon" and left > 90:
                taken_before_kill += (status or {}).get("export", {}).get("acked_samples", 0)
                machine.daemon.kill()
                machine.daemon.wait()
                time.sleep(random.uniform(0, 5))
                machine.start_daemon()
                kills += 1
                calm_after, last = time.monotonic() + SETTLE_S, {}
        if (now - start) // 60 > minute:
            minute = int((now - start) // 60)
            hosts = machine.json("hosts", "--json", fleet=True) or {"hosts": [{}]}
            host = (hosts["hosts"] or [{}])[0]
            print(f"{minute:3} min  daemon {rss_mib(machine.daemon) or 0:6.1f} MiB  "
                  f"collector {rss_mib(machine.collector) or 0:6.1f} MiB  "
                  f"coverage {(coverage or [0])[-1]:.4f} fleet {host.get('coverage_share')}  "
                  f"captures {captures} kills {kills} others {others}  "
                  f"warnings {host.get('warnings')}", flush=True)
        time.sleep(max(0, TICK_S - (time.monotonic() - tick)))
    verdict(machine, checks, coverage, capture_codes, taken_before_kill, seconds)


def verdict(machine, checks, coverage, capture_codes, acked_before, seconds):
    time.sleep(15)
    status = machine.json("status", "--json")
    acked = acked_before + status["export"]["acked_samples"]
    waiting = status["export"]["waiting_windows"]
    have = held(machine, stamp(time.time() + 20))
    print(f"acknowledged at least {acked} samples, the collector has {have}; {waiting} windows wait")
    if have is None or have < acked:
        checks.fail(f"acknowledged {acked} samples, the collector has {have}")
    for name, rows in checks.rss.items():
        third = seconds / 3
        first = [mib for when, mib in rows if when < third]
        final = [mib for when, mib in rows if when > 2 * third]
        if first and final:
            a, b = max(first), max(final)
            print(f"{name}: at most {a:.1f} MiB in the first third, {b:.1f} MiB in the last")
            if b > a * RSS_GROWTH_MAX + 16:
                checks.fail(f"{name} grew from {a:.1f} to {b:.1f} MiB")
    if coverage:
        mean = sum(coverage) / len(coverage)
        print(f"coverage of the last minute, each {TICK_S} s: mean {mean:.4f}, worst {min(coverage):.4f}")
        if mean < COVERAGE_MIN:
            checks.fail(f"coverage {mean:.4f} is below {COVERAGE_MIN}")
    for what, codes in sorted(capture_codes.items()):
        print(f"capture {what}: exit codes {sorted(codes)}")
        if any(code not in (0, 6) for code in codes):
            checks.fail(f"capture {what} failed: {codes}")
    print(f"degradations seen, by looks: {checks.unwanted}")
    print(f"kills of the collector, samples before and after: {checks.kept}")
    print(f"soak: {len(checks.failures)} failed checks")


if __name__ == "__main__":
    main()
