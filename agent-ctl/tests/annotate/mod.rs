//! `agent-ctl annotate` and `profile --lines` against a fake agent.

use crate::{Ended, FakeAgent, ask, empty, sound};

const SOURCE: &str = "#include \"x.h\"


static inline int decode(const char *at)
{
\twhile (*at)
\t\tat += step(at);
\treturn fill(at);
}

/* \x1b[2J */
int serve(const char *at)
{
\treturn decode(at);
}

int main(int count, char **words)
{
\tfor (;;)
\t\tif (count > 1)
\t\t\tserve(words[1]);
}
";

/// Annotates where the source is.
fn annotate(args: &[&str]) -> Ended {
    let running = sound();
    let dir = running.dir().join("checkout/src");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("web.c"), SOURCE).unwrap();
    let place = running.dir().join("checkout");
    let place = place.to_str().unwrap();
    let common = ["annotate", "--source-dir", place];
    ask(&running, &[&common[..], args].concat())
}

#[test]
fn samples_stand_beside_the_lines_they_are_of() {
    insta::assert_snapshot!("text", annotate(&["decode"]).all());
    insta::assert_snapshot!("caller", annotate(&["serve", "--quiet"]).all());
}

#[test]
fn instructions_of_files_that_are_gone_are_bare_addresses_with_a_reason() {
    let ended = annotate(&["decode", "--instructions", "--quiet"]);
    insta::assert_snapshot!("instructions", ended.all());
}

#[test]
fn scripts_get_json() {
    let ended = annotate(&["decode", "--json", "--instructions", "--quiet"]);
    assert_eq!(ended.code, 0, "{}", ended.all());
    insta::assert_snapshot!("json", ended.out);
}

#[test]
fn a_part_of_a_name_or_a_pattern_is_enough_where_one_function_matches() {
    for name in ["erv", "^ser.e$"] {
        let ended = annotate(&[name]);
        assert_eq!(ended.code, 0, "{}", ended.all());
        assert!(ended.out.starts_with("serve ("), "{}", ended.out);
    }
    // It is no pattern, and its text is in no name.
    let ended = annotate(&["(["]);
    assert_eq!(ended.code, 2, "{}", ended.all());
}

#[test]
fn what_may_be_meant_is_named() {
    let many = annotate(&["de"]);
    let one = annotate(&["decoder"]);
    let two = annotate(&["e$|m"]);
    assert_eq!((many.code, one.code, two.code), (0, 2, 2), "{}", many.all());
    let why = "agent-ctl: failed to annotate `decoder`: no sample has this function\n\
               fix: the nearest are `decode`, ";
    // Behind what the agent says of the samples: it may be the reason.
    let (before, _) = one.err.split_once(why).expect(&one.err);
    assert!(before.contains("the kernel throttled it"), "{}", one.err);
    let why = "agent-ctl: failed to annotate `e$|m`: 3 functions match\n\
               fix: give the name of one: `main`, `decode`, `serve`\n";
    assert!(two.err.contains(why), "{}", two.err);
}

#[test]
fn a_source_that_is_not_what_was_built_is_told() {
    let running = sound();
    std::fs::write(running.dir().join("web.c"), "int x;\n").unwrap();
    let place = running.dir().to_str().unwrap();
    let ended = ask(&running, &["annotate", "decode", "--source-dir", place]);
    assert_eq!(ended.code, 0, "{}", ended.all());
    let why = "web.c` has 1 lines here, but samples are at line ";
    assert!(ended.err.contains(why), "{}", ended.err);
}

#[test]
fn a_file_of_another_build_is_not_taken_for_what_was_sampled() {
    let ended = annotate(&[
        "decode",
        "--instructions",
        "--binary",
        env!("CARGO_BIN_EXE_agent-ctl"),
    ]);
    assert_eq!(ended.code, 0, "{}", ended.all());
    let why = "it is not the build that was sampled";
    assert!(ended.err.contains(why), "{}", ended.err);
}

#[test]
fn without_samples_there_is_nothing_to_annotate() {
    let running: FakeAgent = empty();
    let ended = ask(&running, &["annotate", "decode"]);
    assert_eq!((ended.code, ended.out.as_str()), (6, ""), "{}", ended.all());
}

#[test]
fn lines_are_recorded_from_now_on_and_tell_functions_apart() {
    let ended = ask(
        &sound(),
        &["profile", "--lines", "--for", "3s", "--group-by", "none"],
    );
    assert_eq!(ended.code, 0, "{}", ended.all());
    let hottest = "main web.c:21;serve web.c:14;decode web.c:6 600";
    assert!(
        ended.out.lines().any(|line| line == hottest),
        "{}",
        ended.out
    );
    for past in [&["--since", "5m"][..], &["--to", "-1m"], &["--closed"]] {
        let ended = ask(&sound(), &[&["profile", "--lines"], past].concat());
        assert_eq!(ended.code, 2, "{}", ended.all());
        let why = format!("agent-ctl: failed to use {} with --lines: ", past[0]);
        assert!(ended.err.starts_with(&why), "{}", ended.err);
        assert!(
            ended.err.contains("record new samples with --for"),
            "{}",
            ended.err
        );
    }
}
