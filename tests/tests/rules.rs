//! Rules of the repository, each with its reason, run as tests.

use regex::Regex;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testkit::modules::{cycles, graphs};
use testkit::repository::{files, root, rust_sources};

/// Most lines of a source file. 600 is where to look again; this is where it stops.
const LINES_MAX: usize = 900;

/// Most columns of a line with a comment only. Wider lines are cut off in side-by-side reviews.
const COMMENT_COLUMNS_MAX: usize = 100;

/// Where `unsafe` may stand: system calls and shared memory with the kernel. A path that ends with
/// `/` is a folder.
const UNSAFE_MAY_STAND_IN: &[&str] = &[
    "daemon/perf/src/",
    "daemon/host/src/sys.rs",
    "sandbox/src/sys.rs",
    "daemon/symbolize/src/open.rs",
    "daemon/host/src/time.rs",
];

/// Which members of the workspace a member may depend on. Tests and benches may use all.
const EDGES: &[(&str, &[&str])] = &[
    ("fleetprof-profile", &[]),
    ("fleetprof-proto", &["fleetprof-profile"]),
    ("fleetprof-config", &[]),
    ("fleetprof-host", &["fleetprof-profile"]),
    ("fleetprof-sandbox", &[]),
    (
        "fleetprof-identity",
        &[
            "fleetprof-host",
            "fleetprof-profile",
            "fleetprof-proto",
            "fleetprof-sandbox",
        ],
    ),
    (
        "fleetprof-agent-config",
        &["fleetprof-config", "fleetprof-profile"],
    ),
    (
        "fleetprof-perf",
        &[
            "fleetprof-agent-config",
            "fleetprof-config",
            "fleetprof-host",
        ],
    ),
    (
        "fleetprof-cgroup",
        &[
            "fleetprof-agent-config",
            "fleetprof-config",
            "fleetprof-host",
            "fleetprof-profile",
        ],
    ),
    (
        "fleetprof-symbolize",
        &[
            "fleetprof-debuginfod",
            "fleetprof-host",
            "fleetprof-profile",
        ],
    ),
    (
        "fleetprof-unwind",
        &[
            "fleetprof-host",
            "fleetprof-perf",
            "fleetprof-profile",
            "fleetprof-symbolize",
        ],
    ),
    (
        "fleetprof-jit",
        &[
            "fleetprof-agent-config",
            "fleetprof-host",
            "fleetprof-perf",
            "fleetprof-profile",
            "fleetprof-symbolize",
            "fleetprof-unwind",
        ],
    ),
    (
        "fleetprof-offcpu",
        &["fleetprof-host", "fleetprof-profile", "fleetprof-unwind"],
    ),
    ("fleetprof-metrics", &[]),
    (
        "fleetprof-aggregate",
        &[
            "fleetprof-agent-config",
            "fleetprof-cgroup",
            "fleetprof-host",
            "fleetprof-jit",
            "fleetprof-offcpu",
            "fleetprof-perf",
            "fleetprof-profile",
            "fleetprof-symbolize",
            "fleetprof-unwind",
        ],
    ),
    (
        "fleetprof-sampler",
        &[
            "fleetprof-aggregate",
            "fleetprof-cgroup",
            "fleetprof-host",
            "fleetprof-jit",
            "fleetprof-offcpu",
            "fleetprof-perf",
            "fleetprof-profile",
            "fleetprof-symbolize",
            "fleetprof-unwind",
        ],
    ),
    (
        "fleetprof-segment",
        &["fleetprof-aggregate", "fleetprof-host", "fleetprof-profile"],
    ),
    (
        "fleetprof-export",
        &[
            "fleetprof-agent-config",
            "fleetprof-aggregate",
            "fleetprof-host",
            "fleetprof-identity",
            "fleetprof-metrics",
            "fleetprof-profile",
            "fleetprof-proto",
            "fleetprof-sandbox",
            "fleetprof-segment",
        ],
    ),
    (
        "fleetprof-capture",
        &[
            "fleetprof-agent-config",
            "fleetprof-aggregate",
            "fleetprof-cgroup",
            "fleetprof-config",
            "fleetprof-host",
            "fleetprof-jit",
            "fleetprof-metrics",
            "fleetprof-offcpu",
            "fleetprof-perf",
            "fleetprof-profile",
            "fleetprof-proto",
            "fleetprof-sampler",
            "fleetprof-symbolize",
        ],
    ),
    (
        "fleetprof-pins",
        &[
            "fleetprof-aggregate",
            "fleetprof-export",
            "fleetprof-host",
            "fleetprof-profile",
            "fleetprof-proto",
            "fleetprof-segment",
        ],
    ),
    (
        "fleetprof-triggers",
        &[
            "fleetprof-agent-config",
            "fleetprof-aggregate",
            "fleetprof-capture",
            "fleetprof-cgroup",
            "fleetprof-config",
            "fleetprof-host",
            "fleetprof-pins",
            "fleetprof-profile",
            "fleetprof-proto",
        ],
    ),
    (
        "fleetprof-control",
        &[
            "fleetprof-agent-config",
            "fleetprof-capture",
            "fleetprof-export",
            "fleetprof-host",
            "fleetprof-metrics",
            "fleetprof-profile",
            "fleetprof-proto",
        ],
    ),
    ("fleetprof-debuginfod", &["fleetprof-profile"]),
    (
        "fleetprof-daemon",
        &[
            "fleetprof-agent-config",
            "fleetprof-aggregate",
            "fleetprof-capture",
            "fleetprof-cgroup",
            "fleetprof-config",
            "fleetprof-control",
            "fleetprof-export",
            "fleetprof-host",
            "fleetprof-identity",
            "fleetprof-jit",
            "fleetprof-metrics",
            "fleetprof-offcpu",
            "fleetprof-perf",
            "fleetprof-pins",
            "fleetprof-profile",
            "fleetprof-proto",
            "fleetprof-sampler",
            "fleetprof-sandbox",
            "fleetprof-symbolize",
            "fleetprof-triggers",
            "fleetprof-unwind",
        ],
    ),
    (
        "fleetprof-collector",
        &[
            "fleetprof-config",
            "fleetprof-debuginfod",
            "fleetprof-metrics",
            "fleetprof-profile",
            "fleetprof-proto",
            "fleetprof-sandbox",
        ],
    ),
    (
        "fleetprof-perf-data",
        &[
            "fleetprof-host",
            "fleetprof-jit",
            "fleetprof-perf",
            "fleetprof-profile",
            "fleetprof-symbolize",
            "fleetprof-unwind",
        ],
    ),
    (
        "agent-ctl",
        &[
            "fleetprof-perf-data",
            "fleetprof-profile",
            "fleetprof-proto",
        ],
    ),
];
const MAY_USE_ALL: &[&str] = &["fleetprof-tests", "fleetprof-benches"];

fn members() -> Vec<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args([
        "metadata",
        "--no-deps",
        "--offline",
        "--format-version",
        "1",
    ]);
    let out = testkit::process::run(command.current_dir(root()), Duration::from_secs(60)).ok();
    let metadata: Value = serde_json::from_slice(&out.stdout).expect("cargo prints JSON");
    metadata["packages"]
        .as_array()
        .expect("a list of packages")
        .clone()
}

fn name(value: &Value) -> &str {
    value["name"].as_str().expect("a name")
}

#[test]
fn crates_depend_along_the_arrows() {
    let members = members();
    let all: BTreeSet<&str> = members.iter().map(name).collect();
    let mut wrong = Vec::new();
    for member in &members {
        let from = name(member);
        let allowed = EDGES.iter().find(|(crate_name, _)| *crate_name == from);
        if allowed.is_none() && !MAY_USE_ALL.contains(&from) {
            wrong.push(format!("`{from}` has no rule: say what it may depend on"));
        }
        let dependencies = member["dependencies"].as_array().expect("a list");
        // Tests of any crate may use the testkit.
        let of_tests =
            |it: &&Value| it["kind"].as_str() == Some("dev") && name(it) == "fleetprof-tests";
        let built = dependencies.iter().filter(|it| !of_tests(it)).map(name);
        for to in built.filter(|to| all.contains(to)) {
            if allowed.is_some_and(|(_, targets)| !targets.contains(&to)) {
                wrong.push(format!("`{from}` depends on `{to}`"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (rule, _) in EDGES {
        assert!(
            all.contains(rule),
            "a rule for `{rule}`, which is no member"
        );
    }
}

/// Where the library or the program of a member has its sources.
fn source_folder(member: &Value) -> PathBuf {
    let targets = member["targets"].as_array().expect("a list");
    let is_main = |it: &&Value| matches!(it["kind"][0].as_str(), Some("lib" | "bin"));
    let main = targets.iter().find(is_main).expect("a library or program");
    let file = Path::new(main["src_path"].as_str().expect("a path"));
    let folder = file.parent().expect("a folder");
    let folder = folder.strip_prefix(root());
    folder.expect("a member lies in the workspace").to_owned()
}

#[test]
fn sibling_modules_never_use_each_other_in_a_circle() {
    let sources = rust_sources();
    let mut wrong = Vec::new();
    for member in &members() {
        let src = source_folder(member);
        for (parent, graph) in &graphs(&sources, &src) {
            for circle in cycles(graph) {
                wrong.push(format!(
                    "modules of `{}` in `{parent}` use each other in a circle:",
                    src.display()
                ));
                for (from, uses) in graph
                    .iter()
                    .filter(|(from, _)| circle.contains(from.as_str()))
                {
                    let within = uses.iter().filter(|(to, _)| circle.contains(to.as_str()));
                    let told = |(to, place)| format!("  `{from}` uses `{to}` ({place})");
                    wrong.extend(within.map(told));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_crate_takes_the_lints_of_the_workspace() {
    for file in files().iter().filter(|file| file.ends_with("Cargo.toml")) {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        let inherits = text.contains("[lints]\nworkspace = true");
        assert!(
            inherits || text.contains("[workspace.lints"),
            "{}",
            file.display()
        );
    }
}

/// A line without what follows `//`.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

fn may_be_unsafe(file: &Path) -> bool {
    UNSAFE_MAY_STAND_IN
        .iter()
        .any(|place| match place.strip_suffix('/') {
            Some(folder) => file.starts_with(folder),
            None => file == Path::new(place),
        })
}

#[test]
fn unsafe_code_stands_only_where_it_may() {
    let is_unsafe = Regex::new(r"\bunsafe\s*(\{|fn\b|impl\b|extern\b|trait\b)").unwrap();
    let mut wrong = Vec::new();
    for (file, text) in rust_sources() {
        for (number, line) in text.lines().enumerate() {
            if is_unsafe.is_match(code(line)) && !may_be_unsafe(&file) {
                wrong.push(format!("{}:{}", file.display(), number + 1));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "unsafe code outside {UNSAFE_MAY_STAND_IN:?}:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn crates_without_unsafe_code_forbid_it() {
    for member in members() {
        for target in member["targets"].as_array().expect("a list") {
            let kind = target["kind"][0].as_str().expect("a kind");
            let path = Path::new(target["src_path"].as_str().expect("a path"));
            let folder = path.parent().expect("a folder");
            let mut exceptions = UNSAFE_MAY_STAND_IN.iter().map(|place| root().join(place));
            let exempt = kind == "lib" && exceptions.any(|place| place.starts_with(folder));
            if !matches!(kind, "lib" | "bin") || exempt {
                continue;
            }
            let text = std::fs::read_to_string(path).unwrap();
            assert!(
                text.contains("#![forbid(unsafe_code)]"),
                "{}",
                path.display()
            );
        }
    }
}

/// A guard taken in a field of a struct expression lives until its statement ends, so a field below
/// that locks the same again waits for itself forever. A local lets go at once.
#[test]
fn no_field_of_an_expression_takes_a_lock() {
    // A field and what follows on its lines, up to a comma, a semicolon or a brace.
    let field = Regex::new(r"(?m)^\s+\w+: [^;,{}]*(\block\(&|\.lock\(\))");
    let field = field.expect("a pattern");
    let mut wrong = Vec::new();
    for (file, text) in rust_sources() {
        let text: Vec<&str> = text.lines().map(code).collect();
        let text = text.join("\n");
        for found in field.find_iter(&text) {
            let number = text[..found.end()].lines().count();
            wrong.push(format!("{}:{number}", file.display()));
        }
    }
    assert!(
        wrong.is_empty(),
        "take these locks before:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn one_module_alone_knows_the_yaml_parser() {
    let others: Vec<PathBuf> = rust_sources()
        .into_iter()
        .filter(|(_, text)| {
            text.lines()
                .any(|line| code(line).contains(concat!("serde_yaml", "::")))
        })
        .map(|(file, _)| file)
        .filter(|file| !file.ends_with("config/src/yaml.rs") && !file.ends_with("tests.rs"))
        .collect();
    assert!(
        others.is_empty(),
        "go through config/src/yaml.rs: {others:?}"
    );
}

#[test]
fn no_source_file_is_too_long() {
    let long: Vec<_> = rust_sources()
        .into_iter()
        .map(|(file, text)| (file, text.lines().count()))
        .filter(|&(_, lines)| lines > LINES_MAX)
        .collect();
    assert!(long.is_empty(), "over {LINES_MAX} lines: {long:?}");
}

#[test]
fn every_source_file_opens_with_its_duty() {
    let silent: Vec<_> = rust_sources()
        .into_iter()
        .filter(|(_, text)| !text.starts_with("//! "))
        .map(|(file, _)| file)
        .collect();
    assert!(
        silent.is_empty(),
        "files without `//!` in their first line: {silent:?}"
    );
}

/// Comments are read next to code, in terminals and in reviews.
#[test]
fn comment_lines_end_at_100_columns() {
    let slashes = Regex::new(r"^\s*(//|/\*|\* )").unwrap();
    let hashes = Regex::new(r"^\s*#").unwrap();
    let mut wrong = Vec::new();
    for file in files() {
        let Ok(text) = std::fs::read_to_string(root().join(&file)) else {
            continue;
        };
        let comment = match file.extension().map(|it| it.to_string_lossy()).as_deref() {
            Some("rs" | "proto" | "ts" | "tsx" | "js" | "c" | "h") => &slashes,
            Some("yaml" | "toml" | "sh") => &hashes,
            None if text.starts_with("#!") => &hashes,
            _ => continue,
        };
        for (number, line) in text.lines().enumerate() {
            if comment.is_match(line) && line.chars().count() > COMMENT_COLUMNS_MAX {
                wrong.push(format!("{}:{}", file.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "wrap:\n{}", wrong.join("\n"));
}

#[test]
fn no_file_names_a_developers_machine() {
    // Home directories, and wherever this checkout happens to lie.
    let home = Regex::new(r#"(^|[\s"'`=(:])(/home/\w|/Users/\w|/root/)"#).unwrap();
    let here = root().to_str().filter(|path| path.matches('/').count() > 1);
    let mut wrong = Vec::new();
    for file in files() {
        let Ok(text) = std::fs::read_to_string(root().join(&file)) else {
            continue;
        };
        for (number, line) in text.lines().enumerate() {
            if home.is_match(line) || here.is_some_and(|here| line.contains(here)) {
                wrong.push(format!("{}:{}: {line}", file.display(), number + 1));
            }
        }
    }
    // This file spells the patterns out.
    wrong.retain(|place| !place.starts_with("tests/tests/rules.rs"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn scripts_can_be_run() {
    use std::os::unix::fs::PermissionsExt;
    for file in files() {
        let Ok(text) = std::fs::read_to_string(root().join(&file)) else {
            continue;
        };
        if text.starts_with("#!/") {
            let mode = std::fs::metadata(root().join(&file))
                .unwrap()
                .permissions()
                .mode();
            assert!(
                mode & 0o111 == 0o111,
                "{} is not executable",
                file.display()
            );
        }
    }
}

/// The lines of a Markdown text that are no code, each with its number from 0.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// What links call the headings of a page: as code hosts make it of their text.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, line) in prose(text) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = |c: &char| c.is_alphanumeric() || "-_ ".contains(*c);
        let title = title.trim().to_lowercase();
        let name = title.chars().filter(kept).collect::<String>();
        let name = name.replace(' ', "-");
        // Equal headings are numbered from the second on.
        let mut anchor = name.clone();
        let mut nth = 0;
        while !found.insert(anchor) {
            nth += 1;
            anchor = format!("{name}-{nth}");
        }
    }
    found
}

/// The file that `page` links to by a relative path; `None` when it is outside of the repository.
fn linked(page: &Path, path: &str) -> Option<PathBuf> {
    let mut file = page.parent()?.to_owned();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => file.pop().then_some(())?,
            name => file.push(name),
        }
    }
    Some(file)
}

fn leads_somewhere(page: &Path, target: &str) -> bool {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let file = match path {
        "" => Some(page.to_owned()),
        path => linked(page, path),
    };
    let Some(file) = file else { return false };
    let file = root().join(file);
    match anchor {
        "" => file.exists(),
        anchor => std::fs::read_to_string(file).is_ok_and(|text| anchors(&text).contains(anchor)),
    }
}

#[test]
fn every_link_in_the_documentation_leads_somewhere() {
    let link = Regex::new(r"\]\(([^()\s]+)\)").unwrap();
    let mut wrong = Vec::new();
    for page in files()
        .iter()
        .filter(|file| file.extension().is_some_and(|e| e == "md"))
    {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        for (number, line) in prose(&text) {
            for found in link.captures_iter(line) {
                let target = &found[1];
                let is_ours = !target.contains("://") && !target.starts_with("mailto:");
                if is_ours && !leads_somewhere(page, target) {
                    wrong.push(format!("{}:{}: {target}", page.display(), number + 1));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "links that lead nowhere:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn every_source_file_that_the_documentation_names_is_there() {
    let name = Regex::new(r"`([\w./-]+\.(?:rs|proto|ts|tsx))`").unwrap();
    let all: Vec<_> = files()
        .iter()
        .map(|file| format!("/{}", file.display()))
        .collect();
    let mut wrong = Vec::new();
    for page in all.iter().filter(|file| file.ends_with(".md")) {
        let text = std::fs::read_to_string(root().join(&page[1..])).unwrap();
        for found in name.captures_iter(&text) {
            let ending = format!("/{}", &found[1]);
            if !all.iter().any(|file| file.ends_with(&ending)) {
                wrong.push(format!("{page}: {}", &found[1]));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "files that are not there:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn headings_are_linked_by_what_is_left_of_their_text() {
    let page = "# A `b.c`: d's\n## A b\n```\n# no\n```\n## A b\n#no\n";
    let expected = ["a-b", "a-b-1", "a-bc-ds"].map(str::to_owned);
    assert_eq!(anchors(page), BTreeSet::from(expected));
}

/// The words of a list of single-quoted texts in a TypeScript source.
fn words_of<'a>(source: &'a str, list: &str) -> Vec<&'a str> {
    let start = source.find(list).expect("the list is there");
    let from = start + source[start..].find("= [").expect("it is a list");
    let until = from + source[from..].find("];").expect("it ends");
    source[from..until].split('\'').skip(1).step_by(2).collect()
}

#[test]
fn the_page_knows_every_stack_end_and_every_reason_for_a_missing_name() {
    use profile::{StackEnd, UnnamedReason};
    let path = root().join("collector/ui/src/query/outcome.ts");
    let source = std::fs::read_to_string(path).expect("failed to read the page's tables");
    let ends: Vec<_> = StackEnd::ALL.iter().map(|end| end.word()).collect();
    assert_eq!(words_of(&source, "END_WORDS"), ends);
    let reasons: Vec<_> = UnnamedReason::ALL
        .iter()
        .map(|reason| reason.word())
        .collect();
    assert_eq!(words_of(&source, "UNNAMED_WORDS"), reasons);
    assert_eq!(words_of(&source, "UNNAMED: ").len(), reasons.len());
    let complete: Vec<_> = StackEnd::ALL
        .iter()
        .filter(|end| end.is_complete())
        .map(|&end| (end as u8).to_string())
        .collect();
    let listed = format!("const COMPLETE = [{}];", complete.join(", "));
    assert!(source.contains(&listed), "the page lacks `{listed}`");
}

#[test]
fn the_reference_knows_every_stack_end_and_every_reason_for_a_missing_name() {
    use profile::{StackEnd, UnnamedReason};
    let path = root().join("docs/reference/outcomes.md");
    let page = std::fs::read_to_string(path).expect("failed to read the page");
    let ends = StackEnd::ALL.iter().map(|&end| (end as u8, end.word()));
    let reasons = UnnamedReason::ALL
        .iter()
        .map(|&reason| (reason as u8, reason.word()));
    for (id, word) in ends.chain(reasons) {
        let row = format!("\n| {id} | `{word}` |");
        assert!(page.contains(&row), "the page lacks `{word}`");
    }
}

#[test]
fn agent_ctl_lists_every_event_that_has_a_name() {
    let read = |file: &str| std::fs::read_to_string(root().join(file)).expect("a table of events");
    let first = |source: &str, before: &str| -> BTreeSet<String> {
        let found = source.split(before).skip(1);
        let name = |rest: &str| {
            let text = rest.trim_start().strip_prefix('"')?;
            text.split('"').next().map(str::to_owned)
        };
        found.filter_map(name).collect()
    };
    let agent = read("daemon/capture/src/event.rs");
    let mut known = first(&agent, "Counted::software(");
    known.extend(first(&agent, "Counted::hardware("));
    known.extend(["off-cpu", "block-io"].map(str::to_owned));
    let ctl = read("agent-ctl/src/sampleable.rs");
    let table = ctl.split("pub const NAMED").nth(1).expect("the table");
    let table = table.split("];").next().expect("it ends");
    assert_eq!(first(table, "("), known);
}
