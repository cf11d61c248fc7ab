//! Tests the sample file, the defaults, and what is rejected.

use super::*;
use ::config::Kind;
use std::ffi::OsString;
use std::path::Path;
use testkit::repository::check_generated;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new("c.yaml")).map_err(|error| error.to_string())
}

fn refused(text: &str) -> String {
    parse(text).expect_err("it is refused")
}

/// `FLEETPROF_BLESS=1 cargo test -p fleetprof-collector sample` rewrites the file.
#[test]
fn sample_file_is_written_from_the_table() {
    check_generated("config/collector.yaml", &sample_yaml::<Config>());
}

/// `FLEETPROF_BLESS=1 cargo test -p fleetprof-collector page` writes the page again.
#[test]
fn page_of_the_reference_is_written_from_the_table() {
    let page = config::reference_page::<Config>("the collector", "collector.yaml");
    check_generated("docs/reference/config-collector.md", &page);
}

#[test]
fn sample_file_says_the_defaults() {
    assert_eq!(parse(&sample_yaml::<Config>()), Ok(Config::default()));
    assert_eq!(parse(""), Ok(Config::default()));
}

#[test]
fn what_is_written_is_read_back() {
    let config = Config {
        store: Engine::ClickHouse,
        service_labels: vec!["app".to_owned()],
        ..Config::default()
    };
    assert_eq!(parse(&config.to_yaml()), Ok(config));
}

#[test]
fn keys_are_in_their_sections_and_told_in_sentences() {
    for key in KEYS {
        let (section, _) = key.split();
        let known = section.is_empty() || keys::SECTIONS.iter().any(|(name, _)| *name == section);
        assert!(known, "{}", key.path);
        assert!(key.doc.ends_with('.'), "{}", key.path);
        assert!(key.kind.admits(&key.default()), "{}", key.path);
    }
}

#[test]
fn addresses_that_others_reach_are_refused() {
    let text = refused("listen: {grpc: '0.0.0.0:7600'}\n");
    assert!(text.contains("`listen.grpc` is 0.0.0.0:7600"), "{text}");
    assert!(text.contains("must be on loopback"), "{text}");
    assert!(refused("listen: {http: '[::]:1'}\n").contains("`listen.http`"));
    assert!(parse("listen: {http: '[::1]:1'}\n").is_ok());
    assert!(refused("listen: {http: '127.0.0.1:7600'}\n").contains("the same as `listen.grpc`"));
}

#[test]
fn others_are_told_a_name_that_a_shell_takes_as_one_word() {
    let listens = ([0, 0, 0, 0], 7601).into();
    for (text, told) in [
        ("c1.example.net", "c1.example.net:7601"),
        ("c1.example.net:443", "c1.example.net:443"),
        ("10.0.0.7", "10.0.0.7:7601"),
        ("[fd00::7]", "[fd00::7]:7601"),
        ("[fd00::7]:443", "[fd00::7]:443"),
    ] {
        let config = parse(&format!("listen: {{advertise: '{text}'}}\n")).unwrap();
        assert_eq!(config.listen.advertised(listens), told);
    }
    let own = Config::default().listen.advertised(listens);
    assert_eq!(own, "0.0.0.0:7601", "its name is added by who prints it");
    for text in [
        "c1; rm -r /",
        "$(id)",
        "-c1",
        "c1:0",
        "c1:99999",
        "c1:",
        "fd00::7",
        "https://c1",
        "a@c1",
        ":7601",
    ] {
        let said = refused(&format!("listen: {{advertise: '{text}'}}\n"));
        assert!(said.contains("`listen.advertise`"), "{text}: {said}");
    }
}

#[test]
fn what_others_reach_of_the_page_is_whole_or_refused() {
    assert!(parse("listen: {https: '0.0.0.0:7611'}\n").is_ok());
    for (text, key) in [
        ("web: {tls: {cert_file: /a.pem}}\n", "web.tls.cert_file"),
        ("web: {tls: {key_file: /a.key}}\n", "web.tls.cert_file"),
        (
            "web: {external_url: profiles.example.net}\n",
            "web.external_url",
        ),
        ("web: {external_url: 'https://a/b'}\n", "web.external_url"),
        ("web: {external_url: 'ftp://a'}\n", "web.external_url"),
        ("web: {embed_ancestors: '*'}\n", "web.embed_ancestors"),
        (
            "web: {embed_ancestors: \"https://a.example;script-src\"}\n",
            "web.embed_ancestors",
        ),
        (
            "web: {embed_ancestors: 'https://a.example,https://b/c'}\n",
            "web.embed_ancestors",
        ),
        ("web: {proxy: {user_header: X-User}}\n", "web.proxy.from"),
        (
            "web: {proxy: {from: proxy.example.net}}\n",
            "web.proxy.from",
        ),
        (
            "web: {proxy: {from: 10.0.0.1, user_header: 'X:User'}}\n",
            "web.proxy.user_header",
        ),
        (
            "web: {proxy: {from: 10.0.0.1, role_header: 'X:Role'}}\n",
            "web.proxy.role_header",
        ),
    ] {
        let said = refused(text);
        assert!(said.contains(&format!("`{key}`")), "{text}: {said}");
    }
    let sound = "web: {external_url: 'https://a.example:8443', proxy: {from: '10.0.0.1,::1', user_header: X-User}}\n";
    assert!(parse(sound).is_ok());
}

#[test]
fn a_provider_of_identities_is_whole_or_refused() {
    let sound = "listen: {https: '0.0.0.0:7611'}
web: {external_url: 'https://p.example'}
auth:
  oidc:
    issuer: https://i.example/realms/main
    client_id: fleetprof
    client_secret_file: /etc/fleetprof/oidc.secret
    rules:
      - {group: platform, role: admin}
      - {group: team-a, role: operator, scope: 'namespace=a'}
";
    let config = parse(sound).expect("sound");
    assert_eq!(config.auth.oidc.rules.len(), 2);
    assert_eq!(parse(&config.to_yaml()), Ok(config));
    let issuer = "issuer: https://i.example/realms/main";
    for (old, new, key) in [
        (issuer, "issuer: http://i.example", "auth.oidc.issuer"),
        (issuer, "issuer: i.example", "auth.oidc.issuer"),
        (issuer, "issuer: https://a@i.example", "auth.oidc.issuer"),
        (issuer, "issuer: ftp://i.example", "auth.oidc.issuer"),
        ("    client_id: fleetprof\n", "", "auth.oidc.client_id"),
        ("https://p.example", "http://p.example", "web.external_url"),
        (
            "{external_url: 'https://p.example'}",
            "{}",
            "web.external_url",
        ),
        ("{https: '0.0.0.0:7611'}", "{}", "auth.oidc.issuer"),
        ("role: operator", "role: admin", "auth.oidc.rules"),
        ("role: operator", "role: root", "auth.oidc.rules[1].role"),
        ("role: operator, ", "", "auth.oidc.rules[1]"),
    ] {
        let text = sound.replace(old, new);
        assert_ne!(text, sound);
        let said = refused(&text);
        assert!(said.contains(&format!("`{key}`")), "{new}: {said}");
    }
    let none = sound.split("    rules:").next().expect("text");
    assert!(refused(none).contains("`auth.oidc.rules` is empty"));
    let local = sound.replace("https://i.example", "http://127.0.0.1:9");
    assert!(parse(&local).is_ok());
    let proxied = sound.replace("listen: {https: '0.0.0.0:7611'}\n", "");
    let proxied = proxied.replace("web: {", "web: {login: always, ");
    assert!(parse(&proxied).is_ok());
}

#[test]
fn data_becomes_coarser_in_the_order_of_its_age() {
    let text = refused("retention: {raw_days: 15}\n");
    assert!(
        text.contains("`retention.minute_days` is 14, less than `retention.raw_days`, which is 15"),
        "{text}"
    );
    let text = refused("retention: {service_hours_days: 30}\n");
    assert!(
        text.contains("`retention.service_hours_days` is 30"),
        "{text}"
    );
    assert!(parse("retention: {raw_days: 14}\n").is_ok());
    assert!(refused("retention: {days: 14}\n").contains("unknown key `retention.days`"));
    assert!(refused("retention: {raw_days: 0}\n").contains("raw_days"));
}

#[test]
fn unknown_keys_are_refused_with_the_nearest_name() {
    assert_eq!(
        refused("query: {timeout: 3}\n"),
        "unknown key `query.timeout` in `c.yaml` line 1; did you mean `query.timeout_s`?"
    );
    assert_eq!(
        refused("data: /x\n"),
        "unknown key `data` in `c.yaml` line 1; did you mean `data_dir`?"
    );
    assert!(refused("store: sqlite\n").contains("expected embedded or clickhouse"));
    assert!(refused("data_dir: here\n").contains("expected an absolute path"));
    assert!(refused("service_labels: ['a b']\n").contains("a list of at most 8 names"));
    assert!(refused("clickhouse: {urls: ['localhost:8123']}\n").contains("http://HOST[:PORT]"));
}

#[test]
fn flags_win_over_variables() {
    let env = [
        ("FLEETPROF_COLLECTOR_QUERY_TIMEOUT_S", "7"),
        ("FLEETPROF_COLLECTOR_DATA_DIR", "/a"),
        ("FLEETPROF_COLLECTOR_SERVICE_LABELS", "app, unit"),
        ("FLEETPROF_COLLECTOR_QUERY_TIMEOUT", "7"),
    ];
    let env = env.map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let sets = ["query.timeout_s=8".to_owned()];
    let empty = tempfile::NamedTempFile::new().expect("a file");
    let loaded = Config::load(Some(empty.path()), env, &sets, 1).expect("valid");
    assert_eq!(loaded.config.query.timeout_s, 8);
    assert_eq!(loaded.config.data_dir, Path::new("/a"));
    assert_eq!(loaded.config.service_labels, ["app", "unit"]);
    assert_eq!(loaded.warnings.len(), 1, "{:?}", loaded.warnings);
}

#[test]
fn the_alerts_and_receivers_of_the_sample_are_right() {
    let mut text = String::new();
    for key in ["alerts", "receivers"] {
        let Kind::Items(items) = Key::<Config>::find(key).expect(key).kind else {
            panic!("no list");
        };
        text += items.example;
    }
    let config = parse(&text).expect("valid");
    let names: Vec<&str> = config
        .alerts
        .iter()
        .map(|rule| rule.name.as_str())
        .collect();
    assert_eq!(names, ["api-cpu", "api-malloc"]);
    assert_eq!((config.alerts[1].over, config.receivers.len()), (300, 2));
    assert_eq!(
        parse(&config.to_yaml()),
        Ok(config.clone()),
        "shown, it reads back"
    );
}

#[test]
fn rules_and_receivers_that_cannot_be_are_refused_by_name_and_without_addresses() {
    for (text, parts) in [
        (
            "alerts: [{name: a, when: cores > 1, form: 5m}]",
            ["alerts[0].form", "did you mean `for`"],
        ),
        (
            "alerts: [{name: a, when: cors > 1}]",
            ["has the alert `a`", "cors"],
        ),
        (
            "alerts: [{name: a, when: cores > 1}, {name: a, when: cores > 2}]",
            ["has the alert `a`", "twice"],
        ),
        (
            "alerts: [{name: a, when: cores > 1, to: oncall}]",
            ["`to` names the receiver `oncall`", "no receiver"],
        ),
        (
            "receivers: [{name: a, format: slack}]",
            ["has the receiver `a`", "either `url` or `url_file`"],
        ),
        (
            "receivers: [{name: a, format: slack, url: 'ftp://hooks.example/s3cret'}]",
            ["has the receiver `a`", "does not start with http"],
        ),
        (
            "receivers: [{name: a, format: slack, url: 'https://u:s3cret@hooks.example/'}]",
            ["has the receiver `a`", "has a user name"],
        ),
    ] {
        let why = refused(text);
        for part in parts {
            assert!(why.contains(part), "{text}: {why}");
        }
        assert!(!why.contains("s3cret"), "{why}");
    }
}
