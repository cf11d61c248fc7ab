//! Tests which configurations are rejected, with which messages, and which source takes precedence.

use super::*;
use config::FILE_BYTES_MAX;
use proptest::prelude::*;
use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use testkit::repository::check_generated;

/// The user who owns what a test writes.
fn euid() -> u32 {
    std::fs::metadata("/proc/self").unwrap().uid()
}

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new("a.yaml")).map_err(|error| error.to_string())
}

fn refused(text: &str) -> String {
    parse(text).expect_err("must be refused")
}

fn load(env: &[(&str, &str)], sets: &[&str]) -> Result<Loaded, String> {
    let env = env
        .iter()
        .map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let sets: Vec<String> = sets.iter().map(|&set| set.to_owned()).collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.yaml");
    std::fs::write(&path, "sampling: {rate_hz: 49}\n").unwrap();
    Config::load(Some(&path), env, &sets, euid()).map_err(|error| error.to_string())
}

#[test]
fn a_file_that_others_can_write_is_no_policy() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.yaml");
    std::fs::write(&path, "captures: {remote: 'off'}\n").unwrap();
    let try_as = |mode, uid| {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let loaded = Config::load(Some(&path), [], &[], uid);
        loaded.map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(try_as(0o644, euid()), Ok(()));
    let told = try_as(0o666, euid()).unwrap_err();
    assert!(told.contains("chmod go-w"), "{told}");
    // A file of root is good for every user, and one of a user for no other.
    match euid() {
        0 => assert_eq!(try_as(0o644, 998), Ok(())),
        own => {
            let told = try_as(0o644, own + 1).unwrap_err();
            assert!(told.contains("chown root:root"), "{told}");
        }
    }
}

/// `FLEETPROF_BLESS=1 cargo test -p fleetprof-agent-config sample` writes the file again.
#[test]
fn sample_file_is_written_from_the_table() {
    check_generated("config/agent.yaml", &sample_yaml::<Config>());
}

/// `FLEETPROF_BLESS=1 cargo test -p fleetprof-agent-config page` writes the page again.
#[test]
fn page_of_the_reference_is_written_from_the_table() {
    let page = config::reference_page::<Config>("the agent", "agent.yaml");
    check_generated("docs/reference/config-agent.md", &page);
}

#[test]
fn sample_file_says_the_defaults() {
    assert_eq!(parse(&sample_yaml::<Config>()), Ok(Config::default()));
}

#[test]
fn every_default_is_in_its_own_range() {
    for key in KEYS {
        assert!(key.kind.admits(&key.default()), "{}", key.path);
    }
}

#[test]
fn every_field_has_a_key() {
    let yaml: serde_yaml::Value = serde_yaml::from_str(&Config::default().to_yaml()).unwrap();
    let mut paths = Vec::new();
    for (section, keys) in yaml.as_mapping().unwrap() {
        let section = section.as_str().unwrap();
        if !keys.is_mapping() {
            paths.push(section.to_owned());
            continue;
        }
        for (name, value) in keys.as_mapping().unwrap() {
            let path = format!("{section}.{}", name.as_str().unwrap());
            // A map is a section of its own, labels aside.
            match value.as_mapping() {
                Some(keys) if path != "collector.labels" => paths.extend(
                    keys.keys()
                        .map(|name| format!("{path}.{}", name.as_str().unwrap())),
                ),
                _ => paths.push(path),
            }
        }
    }
    // `server.tls` is a section that is null by default.
    paths.retain(|path| path != "server.tls");
    let known: Vec<&str> = KEYS
        .iter()
        .map(|key| key.path)
        .filter(|path| !path.starts_with("server.tls."))
        .collect();
    assert_eq!(paths, known);
}

#[test]
fn what_can_be_withheld_is_checked_and_shown_as_it_reads() {
    let config = parse("withhold:\n- unit=a.service\n- cgroup^='/b c',namespace=d\n").unwrap();
    assert_eq!(
        config.withhold,
        ["unit=a.service", "cgroup^='/b c',namespace=d"]
    );
    assert!(!config.withholding().is_empty());
    let key = KEYS.iter().find(|key| key.path == "withhold").unwrap();
    let shown = format!("withhold: {}", (key.get)(&config));
    assert_eq!(parse(&shown).unwrap().withhold, config.withhold, "{shown}");
    for (text, says) in [
        (
            "withhold: [unit=a, comm=b]",
            "a process can change its own `comm`",
        ),
        ("withhold: ['']", "withhold"),
        ("withhold: unit=a", "withhold"),
    ] {
        assert!(refused(text).contains(says), "{}", refused(text));
    }
}

#[test]
fn shown_configuration_reads_back() {
    let text = "server: {listen: 0.0.0.0:7000, token_file: /t, socket_group: '1000',\n\
                tls: {cert_file: /c, key_file: /k, client_ca_file: /a}}\n\
                metrics: {listen: null}\nsampling: {event: cycles, max_stack_depth: 500}";
    let config = parse(text).unwrap();
    assert_eq!(parse(&config.to_yaml()), Ok(config));
}

#[test]
fn empty_files_are_the_defaults() {
    for text in [
        "",
        "\n",
        "# nothing\n",
        "---\n",
        "sampling:\n",
        "server:\n  tls: null\n",
    ] {
        assert_eq!(parse(text), Ok(Config::default()), "{text:?}");
    }
}

#[test]
fn unknown_keys_are_refused_with_line_and_nearest_name() {
    assert_eq!(
        refused("log:\n  level: info\nsampling:\n  rate: 99\n"),
        "unknown key `sampling.rate` in `a.yaml` line 4; did you mean `sampling.rate_hz`?"
    );
    assert_eq!(
        refused("smapling: {}\n"),
        "unknown key `smapling` in `a.yaml` line 1; did you mean `sampling`?"
    );
    assert_eq!(
        refused("server:\n  tls:\n    cert: /c\n"),
        "unknown key `server.tls.cert` in `a.yaml` line 3; did you mean `server.tls.cert_file`?"
    );
    assert_eq!(
        refused("sampling: {rate_hz: 9}\nlog: {length_s: 3}\n"),
        "unknown key `log.length_s` in `a.yaml` line 2; did you mean `windows.length_s`?"
    );
    assert_eq!(refused("zzz: 1\n"), "unknown key `zzz` in `a.yaml` line 1");
    assert_eq!(
        refused("sampling.rate_hz: 9\n"),
        "unknown key `sampling.rate_hz` in `a.yaml` line 1; did you mean `sampling.rate_hz`?"
    );
}

#[test]
fn what_is_no_yaml_is_told_as_that_and_not_by_a_key_before() {
    for text in ["a: [\n", "zzz: 1\nlog: {level: info\n"] {
        let message = refused(text);
        assert!(message.starts_with("failed to parse `a.yaml`"), "{message}");
        assert!(!message.contains("unknown key"), "{message}");
    }
}

#[test]
fn the_cpu_budget_is_auto_or_a_percentage() {
    for (text, ppm) in [
        ("auto", 10_000),
        ("1%", 10_000),
        ("0.5%", 5_000),
        ("0.05 %", 500),
        ("12.25%", 122_500),
        ("10000%", 100_000_000),
    ] {
        let config = parse(&format!("budget: {{cpu: {text}}}")).unwrap();
        assert_eq!(config.budget.cpu_ppm(16), ppm, "{text}");
    }
    for text in [
        "0%",
        "0.04%",
        "1",
        "-1%",
        "1.234%",
        ".5%",
        "1.%",
        "10001%",
        "%",
        "automatic",
    ] {
        assert!(
            refused(&format!("budget: {{cpu: '{text}'}}"))
                .contains("expected auto, or a percentage"),
            "{text}"
        );
    }
}

#[test]
fn the_automatic_cpu_budget_is_a_percent_for_every_16_cpus_or_part_of_16() {
    let budget = Budget::default();
    for (cpus, ppm) in [
        (0, 10_000),
        (1, 10_000),
        (16, 10_000),
        (17, 20_000),
        (512, 320_000),
    ] {
        assert_eq!(budget.cpu_ppm(cpus), ppm, "{cpus} CPUs");
    }
}

#[test]
fn a_socket_for_everybody_is_warned_of() {
    let warnings = |mode: &str| {
        let set = format!("server.socket_mode={mode}");
        load(&[], &[&set]).unwrap().warnings
    };
    assert_eq!(warnings("0660"), [""; 0]);
    assert!(warnings("0777")[0].starts_with("`server.socket_mode` is 0777: every user"));
}

#[test]
fn keys_given_twice_are_refused() {
    assert_eq!(
        refused("sampling:\n  rate_hz: 9\n  event: cycles\n  rate_hz: 10\n"),
        "key `sampling.rate_hz` is given twice in `a.yaml` line 4"
    );
    assert_eq!(
        refused("log: {}\nsampling: {}\nlog: {}\n"),
        "key `log` is given twice in `a.yaml` line 3"
    );
}

#[test]
fn values_out_of_range_name_key_value_range_and_line() {
    assert_eq!(
        refused("sampling:\n  rate_hz: 10000\n"),
        "invalid value `10000` for `sampling.rate_hz` in `a.yaml` line 2: expected a whole number \
         from 1 to 9999 (samples a second on each busy CPU)"
    );
    assert_eq!(
        refused("sampling: {ring_kib: 300}"),
        "invalid value `300` for `sampling.ring_kib` in `a.yaml` line 1: expected a power of two \
         from 64 to 65536, or 0 for automatic (KiB for each CPU)"
    );
    assert_eq!(
        refused("windows: {length_s: 7}"),
        "invalid value `7` for `windows.length_s` in `a.yaml` line 1: expected one of 1, 2, 3, 4, \
         5, 6, 10, 12, 15, 20, 30, 60 (seconds)"
    );
    assert_eq!(
        refused("log: {level: loud}"),
        "invalid value `loud` for `log.level` in `a.yaml` line 1: expected error or warn or info \
         or debug or trace"
    );
    assert_eq!(
        refused("metrics: {listen: '0.0.0.0:9095'}"),
        "invalid value `0.0.0.0:9095` for `metrics.listen` in `a.yaml` line 1: expected IP:PORT \
         with a loopback address, or null"
    );
}

#[test]
fn values_of_the_wrong_type_are_refused() {
    for text in [
        "sampling: {rate_hz: -1}",
        "sampling: {rate_hz: 9.5}",
        "sampling: {rate_hz: '99'}",
        "sampling: {rate_hz: 18446744073709551616}",
        "sampling: {rate_hz: null}",
        "sampling: {rate_hz: {a: 1}}",
        "sampling: {rate_hz: [1]}",
        "sampling: {rate_hz: !tag 99}",
        "symbols: {lines: yes}",
        "symbols: {debug_dirs: /usr/lib/debug}",
        "symbols: {debug_dirs: [relative]}",
        "server: {socket_mode: 0o660}",
        "server: {socket_mode: '0460'}",
        "server: {socket_mode: '1777'}",
        "server: {listen: 'unix:relative'}",
        "server: {listen: 'example.org:80'}",
        "server: {socket_group: 'a b'}",
        "server: {token_file: true}",
    ] {
        assert!(
            refused(text).starts_with("invalid value") || text.contains("!tag"),
            "{text}"
        );
    }
}

#[test]
fn what_is_no_map_of_keys_is_refused() {
    for text in [
        "- 1\n",
        "text",
        "3",
        "sampling: 3",
        "sampling: [1]",
        "log: level: c",
        "--- {}\n--- {}\n",
    ] {
        let message = refused(text);
        assert!(
            message.starts_with("failed to parse `a.yaml`"),
            "{text}: {message}"
        );
    }
}

#[test]
fn aliases_cannot_be_multiplied_without_end() {
    let mut text = "log: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        text += &format!(
            "k{level}: &a{level} [{}]\n",
            vec![format!("*a{}", level - 1); 9].join(",")
        );
    }
    assert!(parse(&text).is_err());
}

#[test]
fn text_from_the_file_cannot_write_to_the_terminal() {
    let message = refused("\"a\\e[31m\\nb\": 1\n");
    assert!(
        !message.contains('\u{1b}') && !message.contains('\n'),
        "{message:?}"
    );
    let message = refused("log: {level: \"\\e[31m\\n\"}\n");
    assert!(
        !message.contains('\u{1b}') && !message.contains('\n'),
        "{message:?}"
    );
}

#[test]
fn flags_win_over_environment_and_that_over_the_file() {
    let rate = |env: &[_], sets: &[_]| load(env, sets).unwrap().config.sampling.rate_hz;
    assert_eq!(rate(&[], &[]), 49);
    assert_eq!(rate(&[("FLEETPROF_SAMPLING_RATE_HZ", "19")], &[]), 19);
    let env = [("FLEETPROF_SAMPLING_RATE_HZ", "19")];
    assert_eq!(rate(&env, &["sampling.rate_hz=29"]), 29);
    assert_eq!(
        rate(&env, &["sampling.rate_hz=29", "sampling.rate_hz=39"]),
        39
    );
}

#[test]
fn environment_and_flags_take_lists_nulls_and_modes() {
    let env = [
        ("FLEETPROF_SYMBOLS_DEBUG_DIRS", "/a:/b"),
        ("FLEETPROF_METRICS_LISTEN", "null"),
    ];
    let sets = [
        "server.socket_mode=0600",
        "server.socket_group=adm",
        "symbols.lines=true",
    ];
    let config = load(&env, &sets).unwrap().config;
    assert_eq!(
        config.symbols.debug_dirs,
        [Path::new("/a"), Path::new("/b")]
    );
    assert_eq!(config.metrics.listen, None);
    assert_eq!(config.server.socket_mode, SocketMode(0o600));
    assert_eq!(config.server.socket_group.as_deref(), Some("adm"));
    assert!(config.symbols.lines);
}

#[test]
fn bad_environment_and_flags_are_refused_where_they_stand() {
    assert_eq!(
        load(&[("FLEETPROF_SAMPLING_RATE_HZ", "0")], &[]).unwrap_err(),
        "invalid value `0` for `sampling.rate_hz` in environment variable \
         `FLEETPROF_SAMPLING_RATE_HZ`: expected a whole number from 1 to 9999 (samples a second on \
         each busy CPU)"
    );
    assert_eq!(
        load(&[], &["sampling.rat_hz=1"]).unwrap_err(),
        "unknown key `sampling.rat_hz` in `--set`; did you mean `sampling.rate_hz`?"
    );
    assert_eq!(
        load(&[], &["sampling"]).unwrap_err(),
        "failed to parse `--set`: `sampling` is not `key=value`"
    );
}

#[test]
fn strange_environment_variables_are_told_not_refused() {
    let env = [
        ("FLEETPROF_SAMPLING_RATE", "9"),
        ("FLEETPROF_AGENT", "unix:/x"),
        ("PATH", "/bin"),
        ("FLEETPROF_SERVICE_HOST", "10.0.0.1"),
    ];
    assert_eq!(
        load(&env, &[]).unwrap().warnings,
        [
            "failed to use environment variable `FLEETPROF_SAMPLING_RATE`: there is no such key; did you mean \
          `FLEETPROF_SAMPLING_RATE_HZ`?"
        ]
    );
}

#[test]
fn environment_names_are_distinct() {
    let mut names: Vec<String> = KEYS.iter().map(Key::env_name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), KEYS.len());
}

#[test]
fn tcp_takes_a_token_and_beyond_loopback_tls() {
    let message = refused("server: {listen: '127.0.0.1:7000'}");
    assert!(
        message.starts_with("`server.token_file` must be set to listen on TCP"),
        "{message}"
    );
    assert!(parse("server: {listen: '127.0.0.1:7000', token_file: /t}").is_ok());
    assert!(parse("server: {listen: 'localhost:7000', token_file: /t}").is_ok());
    assert!(parse("server: {listen: '[::1]:7000', token_file: /t}").is_ok());
    let message = refused("server: {listen: '[::]:7000', token_file: /t}");
    assert!(
        message.starts_with("`server.tls` must be set to listen beyond loopback"),
        "{message}"
    );
    let tls = "tls: {cert_file: /c, key_file: /k}";
    assert!(
        parse(&format!(
            "server: {{listen: '0.0.0.0:7000', token_file: /t, {tls}}}"
        ))
        .is_ok()
    );
    assert!(refused(&format!("server: {{listen: '0.0.0.0:7000', {tls}}}")).contains("token_file"));
}

#[test]
fn half_a_certificate_is_refused() {
    let server = "listen: '0.0.0.0:7000', token_file: /t";
    assert_eq!(
        refused(&format!("server: {{{server}, tls: {{cert_file: /c}}}}")),
        "`server.tls.key_file` is missing: TLS needs both this key and `server.tls.cert_file` (in `a.yaml` line 1)"
    );
    let message = refused(&format!(
        "server: {{{server}, tls: {{client_ca_file: /c}}}}"
    ));
    assert!(
        message.starts_with("`server.tls.cert_file` is missing"),
        "{message}"
    );
}

#[test]
fn a_reload_takes_over_only_what_needs_no_restart() {
    let mut active = Config::default();
    let new = parse("symbols: {lines: true}\nlog: {level: debug}\nsampling: {rate_hz: 9}").unwrap();
    let expected = Diff {
        changed: vec!["log.level", "sampling.rate_hz"],
        needs_restart: vec!["symbols.lines"],
    };
    assert_eq!(active.diff(&new), expected);
    assert_eq!(active.adopt(&new), expected);
    assert!(!active.symbols.lines);
    assert_eq!(
        (active.sampling.rate_hz, active.log.level),
        (9, LogLevel::Debug)
    );
    assert_eq!(active.diff(&new).changed, Vec::<&str>::new());
}

#[test]
fn files_beyond_the_bound_fifos_and_folders_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |path: &Path| {
        Config::load(Some(path), [], &[], euid())
            .unwrap_err()
            .to_string()
    };
    let path = dir.path().join("large.yaml");
    std::fs::write(&path, vec![b'#'; FILE_BYTES_MAX as usize + 1]).unwrap();
    assert!(refused(&path).contains("larger than 1048576 bytes"));
    std::fs::write(&path, b"log:\n  level: \xff\n").unwrap();
    assert!(
        refused(&path).ends_with("line 2: not UTF-8"),
        "{}",
        refused(&path)
    );
    assert!(refused(dir.path()).contains("not a regular file"));
    assert!(refused(&dir.path().join("none")).contains("failed to read configuration"));
}

proptest! {
    /// Any text is read or refused, never a panic, and what is read is in range.
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,80}", key in 0..KEYS.len()) {
        let (section, name) = KEYS[key].split();
        let _ = Config::parse(&text, Path::new("a"));
        let yaml = section.replace('.', ": {") + ": {" + name + ": " + &text + "}"
            + &"}".repeat(section.matches('.').count());
        if let Ok(config) = Config::parse(&yaml, Path::new("a")) {
            for key in KEYS {
                prop_assert!(key.kind.admits(&(key.get)(&config)), "{}", key.path);
            }
        }
    }
}

fn collector_of(text: &str) -> Result<Option<String>, String> {
    let config = Config::parse(text, Path::new("agent.yaml"));
    let address = |config: Config| config.collector.address.map(|at| at.to_string());
    config.map(address).map_err(|error| error.to_string())
}

#[test]
fn the_collector_may_stand_in_one_line_and_without_its_port() {
    let at = |address: &str| Ok(Some(address.to_owned()));
    assert_eq!(
        collector_of("collector: 127.0.0.1:9000"),
        at("127.0.0.1:9000")
    );
    assert_eq!(collector_of("collector: 127.0.0.1"), at("127.0.0.1:7600"));
    assert_eq!(collector_of("collector: localhost"), at("127.0.0.1:7600"));
    assert_eq!(collector_of("collector: '[::1]'"), at("[::1]:7600"));
    assert_eq!(collector_of("collector: ::1"), at("[::1]:7600"));
    assert_eq!(
        collector_of("collector: {address: '::1'}"),
        at("[::1]:7600")
    );
    assert_eq!(collector_of("collector: null"), Ok(None));
    assert_eq!(collector_of("collector:"), Ok(None));
    let flags = |flag: &str| {
        Config::load(None, [], &[flag.to_owned()], 0)
            .unwrap()
            .config
    };
    for flag in ["collector.address=[::1]", "collector=::1"] {
        assert_eq!(
            flags(flag).collector.address,
            Some("[::1]:7600".parse().unwrap())
        );
    }
}

#[test]
fn a_collector_in_one_line_that_is_none_names_the_key() {
    for text in [
        "collector: 7600",
        "collector: true",
        "collector: 10.0.0.1",
        "collector: c:0",
    ] {
        let error = collector_of(text).unwrap_err();
        assert!(error.contains("`collector.address`"), "{error}");
        assert!(error.contains("default port 7600"), "{error}");
    }
    let error = collector_of("collector: [127.0.0.1]").unwrap_err();
    assert!(
        error.contains("or the value of `collector.address` alone"),
        "{error}"
    );
    let error = collector_of("collector: 127.0.0.1\ncollector: {host_id: a}").unwrap_err();
    assert!(error.contains("given twice"), "{error}");
    let error = collector_of("windows: 5").unwrap_err();
    assert!(
        error.ends_with("`windows` must be a map of keys"),
        "{error}"
    );
}

#[test]
fn a_host_may_be_called_as_a_node_and_its_cluster_are() {
    let node = |bytes: usize| {
        let name = format!("{}/{}", "c".repeat(32), "n".repeat(bytes - 33));
        parse(&format!(
            "collector: {{host_id: '{name}', host_name: '{name}'}}"
        ))
    };
    let config = node(32 + 1 + 253).unwrap();
    assert_eq!(config.collector.host_id, config.collector.host_name);
    assert!(node(profile::fleet::HOST_ID_BYTES_MAX + 1).is_err());
}

#[test]
fn the_triggers_of_the_sample_are_right() {
    let Kind::Items(items) = Key::<Config>::find("triggers").unwrap().kind else {
        panic!("no list");
    };
    let config = parse(items.example).unwrap();
    let names: Vec<&str> = config.triggers.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["api-throttled", "pressure", "jump"]);
    let capture = config.triggers[0].capture.as_ref().unwrap();
    assert_eq!(
        (capture.event.as_str(), capture.duration),
        ("off-cpu", Seconds(20))
    );
    assert_eq!(config.triggers[1].clear.as_deref(), Some("20"));
    assert_eq!(
        parse(&config.to_yaml()),
        Ok(config.clone()),
        "shown, it reads back"
    );
    // A value may come by a flag too.
    let flag = "triggers=[{name: t, target: host, when: cpus > 1.5, for: 5s}]";
    let loaded = load(&[], &[flag]).unwrap().config;
    assert_eq!(
        (loaded.triggers.len(), loaded.triggers[0].hold),
        (1, Seconds(5))
    );
}

#[test]
fn what_is_left_out_of_a_trigger_is_what_the_sample_says() {
    let Kind::Items(items) = Key::<Config>::find("triggers").unwrap().kind else {
        panic!("no list");
    };
    let text = "triggers: [{name: t, target: host, when: cpus > 1, capture: {event: cycles}}]";
    let item = parse(text).unwrap().triggers[0].item();
    let told = |field: &&config::Field| !field.default.is_empty() && field.name != "clear";
    for field in items.fields.iter().filter(told) {
        let (_, value) = item.iter().find(|(name, _)| name == field.name).unwrap();
        assert_eq!(value.to_string(), field.default, "{}", field.name);
    }
}

#[test]
fn triggers_are_refused_with_line_and_what_would_be_right() {
    let check = |entry: &str, expected: &str| {
        let text =
            format!("triggers:\n- {{name: t, target: host, when: cpus > 1}}\n- {{{entry}}}\n");
        let found = refused(&text);
        assert!(found.contains(expected), "{entry}: {found}");
    };
    check(
        "name: a, target: host, wen: cpus > 1",
        "unknown key `triggers[1].wen` in `a.yaml` line 3; did you mean `when`?",
    );
    check(
        "name: a, target: host, when: cpu > 1",
        "`triggers` `a`: failed to read `when: cpu > 1`: there is no quantity `cpu`; did you mean",
    );
    check(
        "name: a, target: hots, when: cpus > 1",
        "expected `host`, a path",
    );
    check(
        "name: a, target: host",
        "has no `when`, which every trigger has",
    );
    check(
        "name: t, target: host, when: cpus > 2",
        "has two triggers with the name `t`",
    );
    check(
        "name: a b, target: host, when: cpus > 2",
        "use 1 to 64 letters",
    );
    check(
        "name: a, target: host, when: nr_throttled > 2",
        "only cgroups have",
    );
    check(
        "name: a, target: /a, when: run_queue > 2",
        "only the host has",
    );
    check(
        "name: a, target: host, when: cpus > 2, clear: 3",
        "`clear` is 3, above the 2",
    );
    check(
        "name: a, target: host, when: cpus > 2, keep_before: 2h",
        "expected a time from 0s to 1h, such as 30s, 5m or 2h",
    );
    check(
        "name: a, target: host, when: cpus > 2, capture: {rate_hz: 99}",
        "has no `capture.event`",
    );
}

#[test]
fn triggers_are_in_force_at_a_reload() {
    let mut active = Config::default();
    let new = parse("triggers: [{name: t, target: host, when: cpus > 1}]").unwrap();
    assert_eq!(active.adopt(&new).changed, ["triggers"]);
    assert_eq!(active, new);
}

fn check(text: &str) -> Result<Vec<String>, Vec<String>> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    std::fs::write(&path, text).unwrap();
    let shown = |error: ConfigError| {
        let text = error.to_string();
        text.replace(&format!("{}/", dir.path().display()), "")
    };
    let checked = Config::check(&path, euid());
    checked.map_err(|errors| errors.into_iter().map(shown).collect())
}

#[test]
fn a_check_tells_all_that_is_wrong_with_the_lines() {
    let text = "\
sampling:
  rate_hz: 0
  rint_kib: 64
windows: {length_s: 5, length_s: 6}
budget: none
triggers:
- name: a
  target: host
  when: cpu > 1
- {name: b, target: host}
- name: a
  target: host
  wen: cpus > 1
  when: cpus > 1
- {name: c, target: host, when: nr_throttled > 1, for: soon}
log: {levl: info}
";
    let expected = [
        ("invalid value `0` for `sampling.rate_hz`", 2, ""),
        ("unknown key `sampling.rint_kib`", 3, "`sampling.ring_kib`?"),
        ("key `windows.length_s` is given twice", 4, ""),
        ("`budget` must be a map of keys", 5, ""),
        ("`triggers[1]` has no `when`", 10, ""),
        ("unknown key `triggers[2].wen`", 13, "`when`?"),
        ("invalid value `soon` for `triggers[3].for`", 15, ""),
        ("unknown key `log.levl`", 16, "`log.level`?"),
        (
            "`triggers` `a`: failed to read `when: cpu > 1`",
            9,
            "`cpus`?",
        ),
        ("`triggers` has two triggers with the name `a`", 11, ""),
        ("`triggers` `c`: only cgroups have `nr_throttled`", 15, ""),
    ];
    let found = check(text).unwrap_err();
    for (what, line, nearest) in expected {
        let place = format!("`a.yaml` line {line}");
        let told = |error: &&String| {
            error.contains(what) && error.contains(&place) && error.contains(nearest)
        };
        assert_eq!(found.iter().filter(told).count(), 1, "{what}: {found:#?}");
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
}

#[test]
fn a_check_of_a_sound_file_finds_nothing() {
    assert_eq!(check(&sample_yaml::<Config>()), Ok(Vec::new()));
}

#[test]
fn a_check_does_not_blame_keys_for_others_that_are_wrong() {
    let text = "server: {listen: 127.0.0.1:4317, token_file: 5}\n";
    let found = check(text).unwrap_err();
    assert!(found[0].contains("`server.token_file`"), "{found:?}");
    assert_eq!(found.len(), 1, "{found:?}");
}
