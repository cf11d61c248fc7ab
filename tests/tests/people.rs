//! People at a collector, with the real command: the printed line, followed literally.

use std::path::Path;
use std::time::Duration;
use testkit::ctl::command;
use testkit::fleet::{Collector, Options};
use testkit::process::{Output, run};
use testkit::wire::{Wire, has_bytes};

const LIMIT: Duration = Duration::from_secs(30);

/// Exit codes.
const USAGE: i32 = 2;
const PERMISSION: i32 = 4;
const UNREACHABLE: i32 = 5;
const PARTIAL: i32 = 6;

/// The command of somebody whose configuration is in this directory.
fn somebody(config: &Path, args: &[&str]) -> Output {
    let mut command = command(args);
    command
        .env("XDG_CONFIG_HOME", config)
        .env_remove("FLEETPROF_COLLECTOR");
    run(&mut command, LIMIT)
}

fn fine(config: &Path, args: &[&str]) -> String {
    let output = somebody(config, args);
    assert_eq!(output.code, Some(0), "{args:?}: {}", output.stderr);
    output.text()
}

/// What whoever is on the collector's machine is told.
fn local(collector: &Collector, config: &Path, args: &[&str]) -> String {
    let grpc = collector.options().grpc();
    fine(config, &[&["--collector", &grpc], args].concat())
}

/// The token in the line that `users add` prints.
fn token(collector: &Collector, config: &Path, args: &[&str]) -> String {
    let line = local(collector, config, &[&["users", "add"], args].concat());
    let words: Vec<_> = line.split_whitespace().collect();
    let tls = collector.options().tls();
    assert_eq!(words[2..], ["|", "agent-ctl", "login", &tls, "-"], "{line}");
    assert_eq!(words[0], "echo", "{line}");
    words[1].to_owned()
}

#[test]
fn who_logs_in_by_the_printed_line_needs_no_option_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let (laptop, root) = (dir.path().join("laptop"), dir.path().join("root"));
    let options = Options::new().with_tls();
    let collector = options.start(dir.path());
    let token = token(&collector, &root, &["anna", "--role", "operator"]);
    // Nothing of it crosses the network in clear.
    let wire = Wire::tapped(&options.tls());
    let said = fine(
        &laptop,
        &["login", &wire.address(), &token, "--name", "prod"],
    );
    assert!(
        said.contains("anna (operator; the complete fleet"),
        "{said}"
    );
    let who = fine(&laptop, &["whoami", "--json"]);
    assert!(
        who.contains("\"name\": \"anna\"") || who.contains("\"name\":\"anna\""),
        "{who}"
    );
    // Answered, by a fleet that has no hosts yet.
    for args in [&["--collector", "prod", "hosts"] as &[&str], &["hosts"]] {
        let hosts = somebody(&laptop, args);
        assert_eq!(hosts.code, Some(PARTIAL), "{}", hosts.stderr);
    }
    fine(&laptop, &["captures"]);
    let heard = wire.heard();
    let clear = |text: &str| has_bytes(&heard, text);
    assert!(heard.len() > 2048 && !clear(&token) && !clear("anna"));
    // What the role does not let her is said, with who may.
    let refused = somebody(&laptop, &["users", "list"]);
    assert_eq!(refused.code, Some(PERMISSION), "{}", refused.stderr);
    assert!(refused.stderr.contains("`admin` may"), "{}", refused.stderr);
    let listed = local(&collector, &root, &["users", "list"]);
    assert!(
        listed.contains("anna") && listed.contains("operator"),
        "{listed}"
    );
    // Her token ends.
    local(&collector, &root, &["users", "remove", "anna"]);
    let refused = somebody(&laptop, &["whoami"]);
    assert_eq!(refused.code, Some(PERMISSION), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("agent-ctl login"),
        "{}",
        refused.stderr
    );
    fine(&laptop, &["logout"]);
    let nobody = somebody(&laptop, &["whoami"]);
    assert_eq!(nobody.code, Some(USAGE), "{}", nobody.stderr);
}

#[test]
fn who_takes_another_port_or_has_no_login_is_told_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config");
    let options = Options::new().with_tls().set("listen.https=127.0.0.1:0");
    let collector = options.start(dir.path());
    let token = token(&collector, &config, &["anna", "--role", "viewer"]);
    let log = collector.log();
    let page = log.split("people=\"https://").nth(1).unwrap_or_default();
    let page = page.split('/').next().unwrap();
    for (address, what) in [
        (options.grpc().as_str(), "does not speak TLS"),
        (options.http().as_str(), "does not speak TLS"),
        (page, "is a port for browsers"),
    ] {
        let lost = somebody(&config, &["login", address, &token]);
        assert_eq!(lost.code, Some(UNREACHABLE), "{}", lost.stderr);
        for told in [what, "`listen.tls`, which is 7601 by default"] {
            assert!(lost.stderr.contains(told), "{}", lost.stderr);
        }
        assert!(!lost.stderr.contains("systemctl"), "{}", lost.stderr);
    }
    let nobody = somebody(&config, &["--collector", &options.tls(), "hosts"]);
    assert_eq!(nobody.code, Some(PERMISSION), "{}", nobody.stderr);
    let told = "log in with `agent-ctl login";
    assert!(nobody.stderr.contains(told), "{}", nobody.stderr);
    let browser = somebody(&config, &["--collector", page, "hosts"]);
    assert!(
        browser.stderr.contains("`listen.tls`"),
        "{}",
        browser.stderr
    );
}

#[test]
fn a_token_is_shown_to_its_own_collector_alone() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let config = dir.path().join("config");
    let options = Options::new().with_tls();
    let collector = options.start(dir.path());
    let token = token(&collector, &config, &["anna", "--role", "admin"]);
    let other = Options::new().with_tls();
    let _other = other.start(elsewhere.path());
    let misled = somebody(&config, &["login", &other.tls(), &token]);
    assert_eq!(misled.code, Some(UNREACHABLE), "{}", misled.stderr);
    let why = "not the collector that the token is for";
    assert!(misled.stderr.contains(why), "{}", misled.stderr);
    // What is cut is noticed before anybody is asked.
    let cut = somebody(&config, &["login", &options.tls(), &token[..80]]);
    assert_eq!(cut.code, Some(USAGE), "{}", cut.stderr);
    // A program gives it as a file.
    let file = dir.path().join("token");
    std::fs::write(&file, &token).unwrap();
    let file = file.to_str().unwrap();
    let who = fine(
        &config,
        &[
            "--collector",
            &options.tls(),
            "--token-file",
            file,
            "whoami",
        ],
    );
    assert!(who.contains("anna (admin"), "{who}");
}

#[test]
fn of_two_logins_at_one_address_the_one_that_is_named_asks() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config");
    let options = Options::new().with_tls();
    let collector = options.start(dir.path());
    let address = options.tls();
    for (name, role) in [("ann", "admin"), ("ben", "viewer")] {
        let token = token(&collector, &config, &[name, "--role", role]);
        fine(&config, &["login", &address, &token, "--name", name]);
    }
    for name in ["ann", "ben"] {
        let who = fine(&config, &["--collector", name, "whoami"]);
        assert!(who.starts_with(&format!("{name} (")), "{who}");
    }
    // The last one that logged in asks where none is named.
    let who = fine(&config, &["whoami"]);
    assert!(who.starts_with("ben ("), "{who}");
}

#[test]
fn the_audit_log_is_read_and_verified() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config");
    let collector = Options::new().with_tls().start(dir.path());
    token(&collector, &config, &["anna", "--role", "admin"]);
    local(&collector, &config, &["hosts", "invite", "--name", "web-1"]);
    let listed = local(&collector, &config, &["hosts", "invitations", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let id = listed["invitations"][0]["id"].as_str().unwrap();
    local(&collector, &config, &["hosts", "uninvite", id]);
    let log = local(&collector, &config, &["audit"]);
    for action in ["user-add", "invite", "invitation-revoke"] {
        assert!(log.contains(action), "{log}");
    }
    let lines = local(&collector, &config, &["audit", "--json", "--limit", "2"]);
    assert_eq!(lines.lines().count(), 2, "{lines}");
    let sound = local(&collector, &config, &["audit", "verify"]);
    assert!(sound.contains("complete and unchanged"), "{sound}");
    let folder = dir.path().join("data/audit");
    let files = std::fs::read_dir(folder).unwrap();
    let mut files = files.map(|file| file.unwrap().path());
    let file = files
        .find(|path| path.extension().is_some_and(|end| end == "jsonl"))
        .unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen("web-1", "web-2", 1)).unwrap();
    let grpc = collector.options().grpc();
    let changed = somebody(&config, &["--collector", &grpc, "audit", "verify"]);
    assert_eq!(changed.code, Some(PARTIAL), "{}", changed.stderr);
}
