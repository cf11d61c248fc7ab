//! Locks the process out of what it does not need, before it does anything else.
//!
//! It may only open its own files below `data_dir` and files named in the configuration, start no
//! program, listen on its ports, and connect to ports that the configuration names. The
//! restrictions are applied while there is one thread, and all later threads inherit them.
//!
//! A file that another tool replaces is read again, so its directory is readable, and the directory
//! of what it links to.

use crate::alerts;
use crate::config::{Archive, Config, Engine, Sandbox as Mode};
use sandbox::{Calls, Reach, Report, Sandbox};
use std::path::{Path, PathBuf};

/// Files that every program reads: its own numbers, random numbers, the list of CPUs.
const OWN: [&str; 4] = [
    "/proc/self",
    "/dev/urandom",
    "/dev/null",
    "/sys/devices/system/cpu",
];

/// Where the configuration is read again when none was there at the start.
const CONFIGURATIONS: &str = "/etc/fleetprof";

/// Most entries of `data_dir`, and of each directory in it, that are looked at for links.
const ENTRIES_MAX: usize = 10_000;

/// In place of the name of a thread.
const ALL: &str = "all";

/// Locks the process out of what `config` does not need. `file`: where the configuration came from.
/// Call it while the process has one thread.
pub fn give_up(config: &Config, file: Option<&Path>) -> Report {
    let sandbox = Sandbox::new(config.sandbox == Mode::Auto);
    sandbox.confine(ALL, &reach(config, file));
    sandbox.refuse_calls(Calls::Server);
    let report = sandbox.report();
    report.tell();
    if !report.on {
        return report;
    }
    for path in unsettled(config, file) {
        tracing::warn!(
            path = %path.display(),
            "the sandbox allows reading this file, but not a new file that replaces it, because \
             its directory holds other files, does not exist yet, or is behind a link: put the \
             file in a directory of its own"
        );
    }
    for (link, to) in strays(&config.data_dir) {
        tracing::warn!(
            link = %link.display(),
            to = %to.display(),
            "this link leads out of `data_dir`, so its target can be neither read nor written: \
             mount that disk in place of the link (`mount --bind`), or set `sandbox: off`"
        );
    }
    report
}

/// Links in `data_dir` and in its directories that lead out of it, and where to.
fn strays(data_dir: &Path) -> Vec<(PathBuf, PathBuf)> {
    let Ok(own) = data_dir.canonicalize() else {
        return Vec::new();
    };
    let entries = |dir: &Path| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let entries = entries.take(ENTRIES_MAX);
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let mut found = Vec::new();
    for first in entries(&own) {
        // Not through a link: the link itself reports what it leads to.
        let below = match first.is_symlink() {
            true => Vec::new(),
            false => entries(&first),
        };
        for path in std::iter::once(first).chain(below) {
            if path.is_symlink()
                && let Ok(to) = path.canonicalize()
                && !to.starts_with(&own)
            {
                found.push((path, to));
            }
        }
    }
    found
}

/// The remaining access.
pub fn reach(config: &Config, file: Option<&Path>) -> Reach {
    let mut reads: Vec<PathBuf> = OWN.iter().map(PathBuf::from).collect();
    reads.push(PathBuf::from(CONFIGURATIONS));
    let listen = &config.listen;
    let listens = [
        Some(listen.grpc),
        Some(listen.http),
        listen.tls,
        listen.https,
    ];
    let notified = std::env::var_os("NOTIFY_SOCKET");
    let reach = Reach {
        reads,
        writes: vec![config.data_dir.clone()],
        // Where other collectors of the same database are is found in it.
        any_port: config.store == Engine::ClickHouse,
        listens: listens
            .into_iter()
            .flatten()
            .map(|address| address.port())
            .collect(),
        abstract_sockets: notified.is_some_and(|path| path.as_encoded_bytes().starts_with(b"@")),
        ..Reach::default()
    };
    let files = files(config, file).into_iter();
    let reach = files.fold(reach, |reach, file| reach.renewed(file));
    let tokens = config
        .archive
        .url
        .iter()
        .flat_map(|_| Archive::token_files());
    let reach = tokens.fold(reach, |reach, file| reach.renewed(&file));
    let urls = urls(config);
    match urls.is_empty() {
        true => reach,
        false => reach.naming().urls(&urls),
    }
}

/// Files outside `data_dir` that are read, some of them again and again.
fn files<'a>(config: &'a Config, file: Option<&'a Path>) -> Vec<&'a Path> {
    let named = [
        &config.web.tls.cert_file,
        &config.web.tls.key_file,
        &config.clickhouse.password_file,
        &config.clickhouse.ca_file,
        &config.clickhouse.cert_file,
        &config.clickhouse.key_file,
        &config.identity.outside.cert_file,
        &config.identity.outside.key_file,
        &config.auth.oidc.client_secret_file,
        &config.auth.oidc.ca_file,
        &config.archive.credentials_file,
        &config.archive.ca_file,
        &config.export.otlp.headers_file,
        &config.export.otlp.ca_file,
        &config.export.otlp.cert_file,
        &config.export.otlp.key_file,
    ];
    let named = named.into_iter().flatten();
    let named = named.chain(&config.identity.outside.ca_files);
    let receivers = config.receivers.iter();
    let named = named.chain(receivers.filter_map(|one| one.url_file.as_ref()));
    named.map(PathBuf::as_path).chain(file).collect()
}

/// Who is asked.
fn urls(config: &Config) -> Vec<String> {
    let mut urls = config.symbols.debuginfod.clone();
    if !urls.is_empty() {
        urls.extend(sandbox::proxies());
    }
    if config.store == Engine::ClickHouse {
        urls.extend(config.clickhouse.urls.iter().cloned());
    }
    urls.extend(config.auth.oidc.issuer.clone());
    urls.extend(config.archive.urls());
    urls.extend(config.export.otlp.url.clone());
    urls.extend(alerts::addresses(&config.receivers));
    urls
}

/// Files in a directory that the collector may not read, or that may be another one tomorrow: a
/// file that does not exist yet, or one behind a link.
fn unsettled<'a>(config: &'a Config, file: Option<&'a Path>) -> Vec<&'a Path> {
    let mut files = files(config, file);
    files.retain(|file| {
        let named = std::path::absolute(file);
        let named = named.as_deref().ok().and_then(Path::parent);
        sandbox::directory(file).is_none_or(|real| named != Some(&*real) || !real.is_dir())
    });
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::KEYS;
    use config::{Kind, Value};

    #[test]
    fn every_file_of_the_configuration_can_be_read_again() {
        let mut config = Config::default();
        let mut paths = Vec::new();
        for (number, key) in KEYS.iter().enumerate() {
            let path = format!("/run/fleetprof-test-{number}/own/file");
            match key.kind {
                Kind::PathOrNull => (key.put)(&mut config, Value::Text(path.clone())),
                Kind::Paths(_) => (key.put)(&mut config, Value::List(vec![path.clone()])),
                _ => continue,
            }
            paths.push(PathBuf::from(path));
        }
        assert!(paths.len() > 2);
        let reach = reach(&config, None);
        for path in paths {
            let directory = path.parent().expect("a directory").to_owned();
            assert!(reach.reads.contains(&directory), "{}", path.display());
        }
    }

    #[test]
    fn a_file_among_those_of_the_system_is_told() {
        let page = Path::new("/etc/page.pem");
        let mut config = Config::default();
        config.web.tls.cert_file = Some(page.to_owned());
        assert_eq!(unsettled(&config, None), [page]);
        let own = tempfile::tempdir().expect("a directory");
        let own = own.path().canonicalize().expect("its name");
        config.web.tls.cert_file = Some(own.join("page.pem"));
        assert!(unsettled(&config, None).is_empty());
        // What leads there may lead elsewhere tomorrow.
        std::os::unix::fs::symlink(&own, own.join("current")).expect("a link");
        config.web.tls.cert_file = Some(own.join("current/page.pem"));
        assert_eq!(unsettled(&config, None).len(), 1);
        config.web.tls.cert_file = Some(own.join("later/page.pem"));
        assert_eq!(unsettled(&config, None).len(), 1);
        // Named from where the program was started, as this crate's is by its tests.
        config.web.tls.cert_file = None;
        let beside = Path::new("Cargo.toml");
        assert!(unsettled(&config, Some(beside)).is_empty());
        let here = std::env::current_dir().expect("one");
        assert!(reach(&config, Some(beside)).reads.contains(&here));
    }

    #[test]
    fn links_out_of_the_data_are_told() {
        let (own, other) = (tempfile::tempdir(), tempfile::tempdir());
        let (own, other) = (own.expect("a directory"), other.expect("a directory"));
        let (data, other) = (own.path().join("data"), other.path());
        assert!(strays(&data).is_empty(), "there is none yet");
        std::fs::create_dir_all(data.join("identity")).expect("made");
        std::fs::create_dir(data.join("blocks")).expect("made");
        let link = |to: &Path, name: &str| {
            std::os::unix::fs::symlink(to, data.join(name)).expect("a link");
        };
        link(&data.join("blocks"), "within");
        link(Path::new("/nothing/there"), "dangling");
        assert!(strays(&data).is_empty(), "{:?}", strays(&data));
        link(other, "pins");
        link(other, "identity/keys");
        let mut told: Vec<_> = strays(&data).into_iter().map(|(link, _)| link).collect();
        told.sort();
        let data = data.canonicalize().expect("its name");
        assert_eq!(told, [data.join("identity/keys"), data.join("pins")]);
    }

    #[test]
    fn ports_are_those_of_the_configuration() {
        let mut config = Config::default();
        config.listen.tls = Some(([0, 0, 0, 0], 7601).into());
        let alone = reach(&config, None);
        assert_eq!(alone.listens, [7600, 7601, 7610].into());
        assert!(alone.ports.is_empty() && !alone.any_port, "it asks nobody");
        assert!(!alone.reads.iter().any(|path| path == Path::new("/etc")));
        config.symbols.debuginfod = vec!["https://debug.example:8443/x".to_owned()];
        let asks = reach(&config, None);
        assert!(
            [53, 80, 443, 8443]
                .iter()
                .all(|port| asks.ports.contains(port))
        );
        config.auth.oidc.issuer = Some("https://login.example:9443/realm".to_owned());
        assert!(reach(&config, None).ports.contains(&9443));
        config.export.otlp.url = Some("https://otel.example:4317".to_owned());
        assert!(reach(&config, None).ports.contains(&4317));
        let receiver = |port: u16| crate::config::Receiver {
            name: "chat".to_owned(),
            format: "slack".to_owned(),
            url: Some(crate::config::alerts::SecretUrl(format!(
                "http://10.0.0.1:{port}/x"
            ))),
            url_file: None,
        };
        config.receivers = vec![receiver(9094)];
        assert!(reach(&config, None).ports.contains(&9094));
        config.store = Engine::ClickHouse;
        assert!(reach(&config, None).any_port);
    }
}
