//! Tests the interpretation of command lines: formats by file names, labels, times, numbers, and
//! why nothing matched.

use super::{ask, empty, sound};

#[test]
fn a_comparison_gets_the_format_of_the_files_name() {
    let running = sound();
    let compare_into = |name: &str| {
        let path = running.dir().join(name);
        let args = ["diff", "--before", "-1h..-30m", "-o"];
        let args = [&args[..], &[path.to_str().unwrap()]].concat();
        (ask(&running, &args), path)
    };
    for (name, begins, ends) in [
        ("d.svg", "<?xml", "</svg>\n"),
        ("d.html", "<!DOCTYPE html>", "</html>\n"),
        ("d.json", "{", "}\n"),
        ("d.folded", "[truncated];", "\n"),
        ("d.txt", "SELF BEFORE", "\n"),
    ] {
        let (ended, path) = compare_into(name);
        assert!(matches!(ended.code, 0 | 6), "{name}: {}", ended.all());
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.trim_start().starts_with(begins), "{name}: {text:.200}");
        assert!(text.ends_with(ends), "{name}");
    }
    let (ended, path) = compare_into("d.xyz");
    assert_eq!(ended.code, 2, "{}", ended.all());
    assert!(
        ended.err.contains("failed to derive the format"),
        "{}",
        ended.err
    );
    assert!(!path.exists());
    // A page that compares has both sides.
    let page = std::fs::read_to_string(running.dir().join("d.html")).unwrap();
    assert!(
        page.contains("\"before\":{\"scaled\":true,\"count\":["),
        "{page:.300}"
    );
}

#[test]
fn every_label_is_a_root_frame_when_all_are_asked_for() {
    let ended = ask(&sound(), &["profile", "--group-by", "*", "-q"]);
    assert_eq!(ended.code, 0, "{}", ended.all());
    let nginx = ended.out.lines().find(|line| line.contains(";ngx_worker"));
    let roots: Vec<&str> = nginx.unwrap().split(';').collect();
    let main = roots.iter().position(|&frame| frame == "main").unwrap();
    // What holds others comes first.
    let at = |frame: &str| roots[..main].iter().position(|&root| root == frame);
    let (unit, comm) = (at("nginx.service"), at("nginx"));
    assert!(unit.is_some() && comm.is_some() && unit < comm, "{roots:?}");
}

#[test]
fn times_that_cannot_be_meant_are_refused_and_others_are_said() {
    let running = sound();
    let ended = ask(&running, &["profile", "--from", "2999-01-01"]);
    assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{}", ended.all());
    assert!(ended.err.contains("it is in the future"), "{}", ended.err);
    // An end in the future is now.
    let args = ["profile", "--from", "-5m", "--to", "2999-01-01"];
    let ended = ask(&running, &args);
    assert_eq!(ended.code, 0, "{}", ended.all());
    assert!(ended.err.contains("the range ends now"), "{}", ended.err);
    let ended = ask(&running, &["profile", "--since", "-5m", "-q"]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.all());
}

#[test]
fn numbers_are_refused_in_words() {
    for (args, expected) in [
        (&["capture", "--rate", "0"] as &[&str], "from 1 to 9,999"),
        (&["capture", "--rate", "x"], "from 1 to 9,999"),
        (&["profile", "--pid", "abc"], "0 or more"),
        (&["cgroups", "--depth", "0"], "1 or more"),
        (&["captures", "cancel", "x"], "0 or more"),
    ] {
        let ended = ask(&sound(), args);
        assert_eq!(ended.code, 2, "{}", ended.all());
        let expected = format!("expected a whole number, {expected}");
        assert!(ended.err.contains(&expected), "{}", ended.err);
    }
}

#[test]
fn what_excluded_every_sample_is_said() {
    let running = sound();
    for (args, expected) in [
        (
            &["--unit", "ngin"] as &[&str],
            "the nearest is `nginx.service`",
        ),
        (&["--selector", "foo=\"x\""], "none with the label `foo`"),
        (&["--focus", "^nosuch$"], "none left after"),
    ] {
        let mut all = vec!["profile"];
        all.extend(args);
        let ended = ask(&running, &all);
        assert_eq!((ended.code, ended.out.as_str()), (6, ""), "{}", ended.all());
        assert!(ended.err.contains(expected), "{}", ended.err);
        assert!(ended.err.contains("1,900 samples, "), "{}", ended.err);
    }
    let ended = ask(&empty(), &["profile", "--unit", "ngin"]);
    assert_eq!(
        ended.err,
        "agent-ctl: no samples in the range: nothing written\n"
    );
}
