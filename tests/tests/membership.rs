//! Hosts that join a fleet: the printed line, followed literally, with the real daemon, the real
//! collector and the real command. Nothing restarts, nothing goes in clear, and who is removed is
//! out.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;
use testkit::ctl::{CONFIG, USAGE, ctl};
use testkit::fleet::{Collector, Options};
use testkit::process::wait_for;
use testkit::wire::{Wire, has_bytes};
use testkit::workload::c;
use testkit::{Cgroup, Daemon, Need, beside};

const NEEDS: &[Need] = &[Need::Root, Need::Program("cc")];

/// Longest wait for windows to arrive, or for a connection to end.
const ARRIVE: Duration = Duration::from_secs(90);

/// What the names of functions start with that nothing else has.
const CANARY: &str = "canary_in_the_mine_";

fn daemon(dir: &Path, host: &str) -> Daemon {
    Daemon::with()
        .set("windows.length_s=2")
        .set(&format!("collector.host_id={host}"))
        .set(&format!(
            "collector.identity_dir={}",
            dir.join(host).display()
        ))
        .set(&format!(
            "collector.spool.dir={}",
            dir.join("spool").join(host).display()
        ))
        .start()
        .sampling()
}

/// What `agent-ctl` prints when it succeeds.
fn asked(collector: &Collector, args: &[&str]) -> String {
    let grpc = collector.options().grpc();
    let output = ctl([&["--collector", &grpc], args].concat());
    assert_eq!(output.code, Some(0), "{args:?}: {}", output.stderr);
    output.text()
}

/// The invitation in the line that `hosts invite` prints.
fn invitation(collector: &Collector, args: &[&str]) -> String {
    let line = asked(collector, &[&["hosts", "invite"], args].concat());
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!(words[..3], ["sudo", "agent-ctl", "join"], "{line}");
    words[4].to_owned()
}

fn pushes(daemon: &Daemon) {
    let before = daemon.export().acked_windows;
    let pushed = wait_for(ARRIVE, || {
        (daemon.export().acked_windows > before + 1).then_some(())
    });
    assert!(pushed.is_some(), "{}", daemon.log());
}

/// Whether the daemon has metrics of the way to a collector, of windows and of captures.
fn counts_pushes(daemon: &Daemon) -> bool {
    let counters = daemon.client().status().unwrap().counters;
    let has = |name: &str| counters.iter().any(|counter| counter.name == name);
    let both = has("fleetprof_export_windows_total");
    assert_eq!(both, has("fleetprof_control_connections_total"));
    both
}

#[test]
fn a_host_joins_without_a_restart_and_nothing_goes_in_clear_needs_root() {
    let Some(_live) = beside(NEEDS) else { return };
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().with_tls();
    let collector = options.start(dir.path());
    let wire = Wire::tapped(&options.tls());
    let mut agent = daemon(dir.path(), "one");
    let pid = agent.pid();
    let cgroup = Cgroup::new("membership");
    let recipe = c("split.c").prefixed(CANARY).named("canary");
    let _burner = recipe.start_in(&cgroup, &["-p", "30"]);
    // It has no collector, and keeps nothing for one.
    assert!(agent.client().status().unwrap().export.is_none());
    assert!(!counts_pushes(&agent));
    let invited = invitation(&collector, &["--name", "web-1", "--label", "cluster=eu"]);
    let joined = agent.ctl(&["join", &wire.address(), &invited]);
    assert_eq!(joined.code, Some(0), "{}", joined.stderr);
    assert!(joined.text().contains("as web-1"), "{}", joined.text());
    pushes(&agent);
    assert!(counts_pushes(&agent));
    assert_eq!(agent.pid(), pid);
    let selector = "host=\"web-1\",cluster=\"eu\"";
    let found = wait_for(ARRIVE, || {
        let folded = asked(
            &collector,
            &[
                "profile",
                "--since",
                "5m",
                "--selector",
                selector,
                "--format",
                "folded",
            ],
        );
        folded.contains(CANARY).then_some(())
    });
    assert!(found.is_some(), "the collector has what the host sampled");
    let heard = wire.heard();
    assert!(!has_bytes(&heard, CANARY));
    assert!(!has_bytes(&heard, "PRI * HTTP/2.0"));
    assert!(heard.len() > 4096, "it went through here");
    // The same after a restart, without being invited again.
    agent.signal(rustix::process::Signal::TERM);
    assert!(agent.wait(ARRIVE).is_some());
    drop(agent);
    let agent = daemon(dir.path(), "one");
    pushes(&agent);
    let used = agent.ctl(&["join", &wire.address(), &invited]);
    // Its own key is known: joining again is renewing.
    assert_eq!(used.code, Some(0), "{}", used.stderr);
}

#[test]
fn a_host_of_an_image_joins_by_itself_when_the_collector_is_there_needs_root() {
    let Some(_live) = beside(NEEDS) else { return };
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().with_tls().set("listen.advertise=localhost");
    let collector = options.start(dir.path());
    let grpc = options.grpc();
    let line = asked(
        &collector,
        &["hosts", "invite", "--hosts", "10", "--lifetime", "30d"],
    );
    assert!(line.starts_with("sudo agent-ctl join localhost:"), "{line}");
    assert!(collector.stop().success());
    // As a volume of Kubernetes has it: renewed by exchanging the link `..data`.
    let file = dir.path().join("join");
    std::fs::create_dir(dir.path().join("..2026")).unwrap();
    std::fs::write(dir.path().join("..2026/join"), line).unwrap();
    symlink("..2026", dir.path().join("..data")).unwrap();
    symlink("..data/join", &file).unwrap();
    let agent = Daemon::with()
        .set("windows.length_s=2")
        .set("collector.host_id=one")
        .set("collector.host_name=node-1")
        .set(&format!("collector.join_file={}", file.display()))
        .set(&format!(
            "collector.identity_dir={}",
            dir.path().join("one").display()
        ))
        .set(&format!(
            "collector.spool.dir={}",
            dir.path().join("spool").display()
        ))
        .start()
        .sampling();
    let told = wait_for(ARRIVE, || {
        let status = agent.client().status().ok()?;
        let mut all = status.degradations.iter();
        all.any(|one| one.id == "fleet_not_joined").then_some(())
    });
    assert!(told.is_some(), "{}", agent.log());
    let collector = options.start(dir.path());
    let joined = wait_for(ARRIVE, || {
        let export = agent.client().status().ok()?.export?;
        (export.acked_windows > 0).then_some(())
    });
    assert!(joined.is_some(), "{} {grpc}", agent.log());
    let status = agent.client().status().unwrap();
    assert!(
        !status
            .degradations
            .iter()
            .any(|one| one.id == "fleet_not_joined")
    );
    let members = asked(&collector, &["hosts", "members"]);
    assert!(members.contains("node-1 "), "{members}");
    assert!(collector.stop().success());
}

#[test]
fn a_removed_host_is_out_and_a_copy_of_a_host_never_gets_in_needs_root() {
    let Some(_live) = beside(NEEDS) else { return };
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().with_tls();
    let collector = options.start(dir.path());
    let agent = daemon(dir.path(), "one");
    let invited = invitation(&collector, &["--name", "one"]);
    let joined = agent.ctl(&["join", &options.tls(), &invited]);
    assert_eq!(joined.code, Some(0), "{}", joined.stderr);
    pushes(&agent);
    // A second machine with the id of the first: its disk was copied, or it lies.
    let copy = Daemon::with()
        .set("collector.host_id=one")
        .set(&format!(
            "collector.identity_dir={}",
            dir.path().join("copy").display()
        ))
        .set(&format!(
            "collector.spool.dir={}",
            dir.path().join("copied").display()
        ))
        .start();
    let second = invitation(&collector, &[]);
    let refused = copy.ctl(&["join", &options.tls(), &second]);
    assert_ne!(refused.code, Some(0));
    assert!(
        refused.stderr.contains("a member already"),
        "{}",
        refused.stderr
    );
    drop(copy);
    asked(&collector, &["hosts", "remove", "one"]);
    let away = wait_for(ARRIVE, || {
        let export = agent.export();
        (export.connected_since_unix_ns == 0 && export.last_error.contains("removed")).then_some(())
    });
    assert!(away.is_some(), "{:?}", agent.export());
    let acked = agent.export().acked_windows;
    // What it samples meanwhile waits, and arrives when it is let in again.
    let waiting = wait_for(ARRIVE, || {
        (agent.export().waiting_windows > 1).then_some(())
    });
    assert!(waiting.is_some());
    assert_eq!(agent.export().acked_windows, acked);
    let again = invitation(&collector, &[]);
    let joined = agent.ctl(&["join", &options.tls(), &again]);
    assert_eq!(joined.code, Some(0), "{}", joined.stderr);
    pushes(&agent);
    // It leaves by itself.
    assert_eq!(agent.ctl(&["leave"]).code, Some(0));
    let away = wait_for(ARRIVE, || {
        (agent.export().connected_since_unix_ns == 0).then_some(())
    });
    assert!(away.is_some());
}

#[test]
fn who_cannot_join_is_told_what_to_do_needs_root() {
    let Some(_live) = beside(NEEDS) else { return };
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().with_tls().set("listen.https=127.0.0.1:0");
    let collector = options.start(dir.path());
    let agent = daemon(dir.path(), "one");
    let refused = |address: &str, invited: &str, told: &str| {
        let refused = agent.ctl(&["join", address, invited]);
        assert_eq!(refused.code, Some(USAGE), "{}", refused.stderr);
        assert!(refused.stderr.contains(told), "{}", refused.stderr);
        assert!(
            !refused.stderr.contains("--token-file"),
            "{}",
            refused.stderr
        );
    };
    // Used up: by a host of another key.
    let other = daemon(dir.path(), "two");
    let invited = invitation(&collector, &[]);
    let joined = other.ctl(&["join", &options.tls(), &invited]);
    assert_eq!(joined.code, Some(0), "{}", joined.stderr);
    let again = "make a new one with `agent-ctl hosts invite`";
    refused(&options.tls(), &invited, again);
    // Of another fleet.
    let elsewhere = tempfile::tempdir().unwrap();
    let foreign = Options::new().with_tls();
    let _foreign = foreign.start(elsewhere.path());
    refused(&foreign.tls(), &invited, "does not belong to the fleet");
    // Other ports of the collector.
    for clear in [options.grpc(), options.http()] {
        refused(&clear, &invited, "does not speak TLS");
        refused(&clear, &invited, "`listen.tls`, which is 7601 by default");
    }
    let log = collector.log();
    let page = log.split("people=\"https://").nth(1).unwrap_or_default();
    let page = page.split('/').next().unwrap();
    refused(page, &invited, "is a port for browsers");
}

/// A `systemctl` of a machine where both services are installed: the agent's is a daemon that runs,
/// at a socket that it is given at its start, and the collector's is one that this starts.
const SYSTEMCTL: &str = r#"#!/bin/sh
echo "$*" >>@DIR@/asked
[ "$1" != --no-ask-password ] || shift
for unit; do :; done
pid_file=@DIR@/collector.pid log=@DIR@/collector.log
run() {
    # Before it starts: what the last one said is not for this one.
    : >$log
    setsid @BINARY@ --config @DIR@/collector.yaml --data-dir @DIR@/data \
        --listen-grpc @GRPC@ --listen-http @HTTP@ >>$log 2>&1 </dev/null &
    pid=$!
    echo $pid >$pid_file
    until grep -q listening $log; do
        [ -e /proc/$pid ] || exit 1
        sleep 0.1
    done
}
is=inactive
case "$1 $unit" in
"show fleetprofd.service") [ ! -e @DIR@/agent.sock ] || is=active ;;
"show fleetprof-collector.service") [ ! -e $pid_file ] || is=active ;;
"enable fleetprofd.service") ln -s @SOCKET@ @DIR@/agent.sock ;;
"enable fleetprof-collector.service") run ;;
"restart fleetprof-collector.service")
    pid=$(cat $pid_file)
    kill $pid
    # Where nobody reaps it, its entry stays.
    until [ ! -e /proc/$pid ] || grep -q '^State:.Z' /proc/$pid/status; do sleep 0.1; done
    run
    ;;
esac
[ "$1" != show ] || printf 'LoadState=loaded\nActiveState=%s\n' $is
"#;

/// The collector that [`SYSTEMCTL`] started; ended when dropped.
struct Started(std::path::PathBuf);

impl Drop for Started {
    fn drop(&mut self) {
        let pid = std::fs::read_to_string(&self.0).unwrap_or_default();
        if !pid.trim().is_empty() {
            let _ = std::process::Command::new("kill").arg(pid.trim()).status();
        }
    }
}

#[test]
fn the_first_invitation_and_the_first_join_start_the_services_needs_root() {
    let Some(_live) = beside(NEEDS) else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let options = Options::new().with_tls();
    let agent = daemon(dir.path(), "one");
    let _started = Started(dir.path().join("collector.pid"));
    let script = SYSTEMCTL
        .replace("@DIR@", dir.path().to_str().unwrap())
        .replace("@BINARY@", testkit::binaries::collector().to_str().unwrap())
        .replace("@GRPC@", &options.grpc())
        .replace("@HTTP@", &options.http())
        .replace("@SOCKET@", agent.socket().to_str().unwrap());
    std::fs::create_dir(path("bin")).unwrap();
    std::fs::write(path("script"), script).unwrap();
    testkit::process::install(path("script"), path("bin/systemctl"));
    // As the package has it.
    let packaged = "# Where.\n#listen:\n#  grpc: 127.0.0.1:7600\n#  tls: null\n";
    std::fs::write(path("collector.yaml"), packaged).unwrap();
    let runs = |args: &[&str]| {
        let mut command = testkit::ctl::command(args);
        let search = format!("{}:{}", path("bin"), std::env::var("PATH").unwrap());
        testkit::process::run(command.env("PATH", search), ARRIVE)
    };
    let grpc = options.grpc();
    let invites = |listen: &[&str]| {
        let config = path("collector.yaml");
        let words = ["--collector", &grpc, "hosts", "invite"];
        let config = ["--config", config.as_str()];
        match listen.is_empty() {
            true => runs(&words),
            false => runs(&[&words, listen, &config].concat()),
        }
    };
    let tls = options.tls();
    let first = invites(&["--listen", &tls]);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    assert!(first.stderr.contains("started now"), "{}", first.stderr);
    let written = std::fs::read_to_string(path("collector.yaml")).unwrap();
    let expected = format!("# Where.\nlisten:\n#  grpc: 127.0.0.1:7600\n  tls: {tls}\n");
    assert_eq!(written, expected);
    // The printed line is all that the host needs.
    let line = first.text();
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!(words[..3], ["sudo", "agent-ctl", "join"], "{line}");
    let socket = format!("unix:{}", path("agent.sock"));
    let joined = runs(&["--agent", &socket, "join", words[3], words[4]]);
    assert_eq!(joined.code, Some(0), "{}", joined.stderr);
    assert!(joined.stderr.contains("started now"), "{}", joined.stderr);
    pushes(&agent);
    // What listens already is left alone, whatever is said.
    let asked = || std::fs::read_to_string(path("asked")).unwrap();
    let before = asked();
    let second = invites(&["--listen", "127.0.0.1:1"]);
    assert_eq!(second.code, Some(0), "{}", second.stderr);
    assert_eq!(asked(), before);
    assert_eq!(
        std::fs::read_to_string(path("collector.yaml")).unwrap(),
        written
    );
    // One that runs and does not listen is told to, and starts again.
    std::fs::write(path("collector.yaml"), packaged).unwrap();
    runs_systemctl(&path("bin/systemctl"));
    let alone = invites(&[]);
    assert_ne!(alone.code, Some(0));
    assert!(
        alone.stderr.contains("--listen 0.0.0.0:7601"),
        "{}",
        alone.stderr
    );
    // Somebody has decided otherwise.
    std::fs::write(path("collector.yaml"), "listen: {tls: null}\n").unwrap();
    let decided = invites(&["--listen", &tls]);
    assert_ne!(decided.code, Some(0));
    assert!(
        decided.stderr.contains("is unchanged"),
        "{}",
        decided.stderr
    );
    // What would not be valid is not written.
    let wrong = "{data_dir: /x}\n";
    std::fs::write(path("collector.yaml"), wrong).unwrap();
    let refused = invites(&["--listen", &tls]);
    assert_eq!(refused.code, Some(CONFIG), "{}", refused.stderr);
    assert_eq!(
        std::fs::read_to_string(path("collector.yaml")).unwrap(),
        wrong
    );
    std::fs::write(path("collector.yaml"), packaged).unwrap();
    let third = invites(&["--listen", &tls]);
    assert_eq!(third.code, Some(0), "{}", third.stderr);
    assert!(!third.stderr.contains("started now"), "{}", third.stderr);
}

/// Has the collector of [`SYSTEMCTL`] start again.
fn runs_systemctl(systemctl: &str) {
    let mut command = std::process::Command::new(systemctl);
    let restart = command.args(["restart", "fleetprof-collector.service"]);
    testkit::process::run(restart, ARRIVE).ok();
}

/// Runs `openssl` in a directory.
fn openssl(dir: &Path, args: &[&str]) {
    let mut command = std::process::Command::new("openssl");
    testkit::process::run(command.args(args).current_dir(dir), ARRIVE).ok();
}

/// Makes a key and has the authority in `dir` sign a certificate for it, as files of this name.
fn signed(dir: &Path, name: &str, id: &str, days: &str) {
    let (key, csr, crt) = (
        format!("{name}.key"),
        format!("{name}.csr"),
        format!("{name}.crt"),
    );
    let extensions = format!(
        "subjectAltName=URI:{id}\nextendedKeyUsage=clientAuth\nbasicConstraints=CA:FALSE\n"
    );
    std::fs::write(dir.join("extensions"), extensions).unwrap();
    let ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
    let new = [
        "req", "-new", "-nodes", "-subj", "/CN=host", "-keyout", &key,
    ];
    openssl(dir, &[&new[..], &ec, &["-out", &csr]].concat());
    let sign = [
        "x509", "-req", "-in", &csr, "-CA", "ca.pem", "-CAkey", "ca.key",
    ];
    let rest = [
        "-CAcreateserial",
        "-days",
        days,
        "-extfile",
        "extensions",
        "-out",
        &crt,
    ];
    openssl(dir, &[&sign[..], &rest].concat());
}

#[test]
fn a_host_comes_with_files_that_somebody_else_renews_needs_root() {
    let needs = [Need::Root, Need::Program("openssl")];
    let Some(_live) = beside(&needs) else { return };
    let dir = tempfile::tempdir().unwrap();
    let pki = dir.path().join("pki");
    std::fs::create_dir(&pki).unwrap();
    let ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
    let root = ["req", "-x509", "-nodes", "-subj", "/CN=prod", "-days", "30"];
    let out = ["-keyout", "ca.key", "-out", "ca.pem"];
    openssl(&pki, &[&root[..], &ec, &out].concat());
    let id = "spiffe://prod.example/host/web-1";
    signed(&pki, "tls", id, "5");
    let options = Options::new()
        .with_tls()
        .set(&format!(
            "identity.outside.ca_files={}",
            pki.join("ca.pem").display()
        ))
        .set("identity.outside.hosts=spiffe://prod.example/host/");
    let collector = options.start(dir.path());
    let authority = dir.path().join("data/identity/authority.crt");
    let agent = Daemon::with()
        .set("windows.length_s=2")
        .set("collector.host_id=of-its-own")
        .set(&format!("collector.tls.address={}", options.tls()))
        .set(&format!(
            "collector.tls.cert_file={}",
            pki.join("tls.crt").display()
        ))
        .set(&format!(
            "collector.tls.key_file={}",
            pki.join("tls.key").display()
        ))
        .set(&format!("collector.tls.ca_file={}", authority.display()))
        .set(&format!(
            "collector.spool.dir={}",
            dir.path().join("spool").display()
        ))
        .start()
        .sampling();
    pushes(&agent);
    let membership = || agent.client().status().unwrap().membership.unwrap();
    assert_eq!(membership().name, id);
    let members = asked(&collector, &["hosts", "members"]);
    assert!(
        members.contains("web-1") && members.contains(id),
        "{members}"
    );
    assert!(!members.contains("of-its-own"), "{members}");
    let refused = agent.ctl(&["leave"]);
    assert_ne!(refused.code, Some(0));
    assert!(
        refused.stderr.contains("collector.tls"),
        "{}",
        refused.stderr
    );
    // Renewed as by cert-manager: other files in their place, one after the other.
    let before = membership().not_after_unix_s;
    signed(&pki, "next", id, "9");
    for end in ["crt", "key"] {
        let (next, tls) = (format!("next.{end}"), format!("tls.{end}"));
        std::fs::rename(pki.join(next), pki.join(tls)).unwrap();
    }
    let renewed = wait_for(ARRIVE, || {
        (membership().not_after_unix_s > before).then_some(())
    });
    assert!(renewed.is_some(), "{}", agent.log());
    pushes(&agent);
    asked(&collector, &["hosts", "remove", "web-1"]);
    let members = asked(&collector, &["hosts", "members"]);
    assert!(!members.contains("web-1"), "{members}");
    agent.stop();
}
