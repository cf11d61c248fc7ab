//! The reference of metrics is what the programs say of themselves.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use std::collections::BTreeMap;
use std::fmt::Write;
use testkit::fleet::Options;
use testkit::http::{free_address, http_get};
use testkit::repository::check_generated;
use testkit::{Daemon, Need, beside};

/// What a program tells of its metrics: name to kind and sentence.
fn families(metrics: &str) -> BTreeMap<String, (String, String)> {
    let mut families: BTreeMap<String, (String, String)> = BTreeMap::new();
    for line in metrics.lines() {
        if let Some((name, help)) = line
            .strip_prefix("# HELP ")
            .and_then(|rest| rest.split_once(' '))
        {
            families.entry(name.to_owned()).or_default().1 = help.to_owned();
        }
        if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        {
            families.entry(name.to_owned()).or_default().0 = kind.to_owned();
        }
    }
    families
}

/// A section of the page.
fn section(page: &mut String, title: &str, metrics: &str) {
    write!(page, "\n## {title}\n\n| metric | kind | |\n|---|---|---|\n").unwrap();
    for (name, (kind, help)) in families(metrics) {
        let help = help.replace('|', "\\|").replace('<', "&lt;");
        writeln!(page, "| `{name}` | {kind} | {help} |").unwrap();
    }
}

/// `FLEETPROF_BLESS=1 tests/run reference`, as root, writes the page again.
#[test]
fn the_reference_has_every_metric_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let collector = Options::new().start(dir.path());
    let address = free_address();
    let daemon = Daemon::with()
        .metrics(&address)
        .set(&format!("collector.address={}", collector.options().grpc()))
        .set(&format!(
            "collector.spool.dir={}/spool",
            dir.path().display()
        ))
        .start()
        .sampling();
    let mut page = "# Metrics\n\n\
        What `/metrics` of each program has, in Prometheus' text format. Labels stand with the\n\
        values there. Generated from the running programs.\n"
        .to_owned();
    let agent = http_get(&address, "/metrics");
    section(&mut page, "The agent, `metrics.listen`", &agent);
    let own = collector.get("/metrics");
    section(&mut page, "The collector, next to its page", &own);
    daemon.stop();
    collector.stop();
    assert!(page.matches("| counter |").count() > 100, "{page}");
    check_generated("docs/reference/metrics.md", &page);
}
