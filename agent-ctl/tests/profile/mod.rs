//! Tests what `agent-ctl profile` writes, and where.

use super::*;

#[test]
fn folded_stacks_go_to_standard_output() {
    let args = [
        "profile",
        "--from",
        "-1h",
        "--to",
        "now",
        "--group-by",
        "comm",
        "--annotate",
    ];
    insta::assert_snapshot!(ask(&sound(), &args).all());
}

#[test]
fn a_profile_is_selected_and_filtered() {
    let args = [
        "profile", "--unit", "nginx", "--drop", "epoll", "--focus", "^ngx", "--to", "now", "-q",
    ];
    let ended = ask(&sound(), &args);
    let expected = "nginx;ngx_worker_process_cycle;do_syscall_64;tcp_sendmsg 200\n";
    assert_eq!(
        (ended.code, ended.out.as_str(), ended.err.as_str()),
        (0, expected, "")
    );
    let ended = ask(
        &sound(),
        &["profile", "--container", "3f", "--to", "now", "-q"],
    );
    assert_eq!(ended.out.lines().count(), 1, "{}", ended.all());
}

#[test]
fn files_get_the_format_of_their_name_and_appear_whole() {
    let running = sound();
    for (name, begins) in [
        ("cpu.svg", b"<?xml" as &[u8]),
        ("cpu.pb.gz", &[0x1f, 0x8b]),
        ("cpu.html", b"<!"),
        ("cpu.speedscope.json", b"{"),
        ("cpu.json", b"{"),
        ("cpu.folded", b""),
    ] {
        let path = running.dir().join(name);
        std::fs::write(&path, "the file before").unwrap();
        let ended = ask(&running, &["profile", "-o", path.to_str().unwrap()]);
        assert_eq!(ended.code, 0, "{name}: {}", ended.all());
        assert!(
            ended.err.contains("1,900 samples") && ended.err.contains(name),
            "{}",
            ended.err
        );
        let bytes = std::fs::read(&path).unwrap();
        assert!(
            bytes.starts_with(begins) && bytes != b"the file before",
            "{name}"
        );
    }
    let left: Vec<_> = std::fs::read_dir(running.dir())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with('.'))
        .collect();
    assert_eq!(left, [""; 0]);
}

#[test]
fn a_device_takes_folded_stacks() {
    let ended = ask(&sound(), &["profile", "-o", "/dev/null"]);
    assert_eq!(ended.code, 0, "{}", ended.all());
}

#[test]
fn a_place_that_cannot_be_written_to_is_named_and_nothing_else() {
    let ended = ask(&sound(), &["profile", "-o", "/proc/no/cpu.svg"]);
    assert!(ended.err.contains("`/proc/no/cpu.svg`"), "{}", ended.err);
    assert!(!ended.err.contains(".agent-ctl-"), "{}", ended.err);
    let why = ended.err.contains(": No such file or directory");
    assert!(why, "{}", ended.err);
}

#[test]
fn a_label_that_nobody_gives_is_refused_with_the_nearest() {
    for (asked, nearest) in [
        ("comm,contaner", "container"),
        ("unti", "unit"),
        ("PID", "pid"),
    ] {
        let ended = ask(&sound(), &["profile", "--group-by", asked]);
        assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{}", ended.all());
        let said = format!("the nearest is `{nearest}`");
        assert!(ended.err.contains(&said), "{}", ended.err);
    }
    let ended = ask(&sound(), &["profile", "--group-by", "pod_uid,context"]);
    assert_eq!(ended.code, 0, "{}", ended.all());
}

#[test]
fn times_may_have_fractions() {
    for range in [
        ["--from=90.5s", "--to=1.25m"],
        ["--from=@1763733780.25", "--to=1763733781.5"],
        ["--from=-1.5h", "--to=now"],
    ] {
        let [from, to] = range;
        let ended = ask(&sound(), &["profile", from, to]);
        assert_eq!(ended.code, 0, "{range:?}: {}", ended.all());
    }
}

#[test]
fn a_full_disk_is_named_with_what_was_to_be_written() {
    let running = sound();
    let ended = ask(&running, &["profile", "-o", "/dev/full"]);
    let expected =
        "agent-ctl: failed to write `/dev/full`: No space left on device (os error 28)\n";
    assert_eq!((ended.code, ended.err.as_str()), (1, expected));
    let expected =
        "agent-ctl: failed to write to standard output: No space left on device (os error 28)\n";
    for args in [
        &["profile"] as &[&str],
        &["status"],
        &["status", "--json"],
        &["tail"],
        &["--help"],
        &["completions", "bash"],
    ] {
        let mut command = command(&agent(&running), args);
        let full = std::fs::File::options().write(true).open("/dev/full");
        let output = command.stdout(full.unwrap()).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), err.as_str()),
            (Some(1), expected),
            "{args:?}"
        );
    }
}
