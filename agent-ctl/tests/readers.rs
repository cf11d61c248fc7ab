//! Opens files of every format in the programs that people use: `go tool pprof`, DuckDB,
//! speedscope, a browser.
//!
//! One recording with many hostile names goes through `agent-ctl import` to every format; what a
//! reader shows is compared with the JSON. The checks in the browser are in
//! `collector/ui/tests/e2e/readers.test.ts`.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failure"
)]

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// What each sample stands for. Unit: nanoseconds.
const PERIOD: u64 = 10_000_000;
/// The burst: 30 samples from here, one every 10 ms. Unit: milliseconds since the start.
const BURST_MS: u64 = 12_350;
const BURST: &str = "close_month";
/// Names that a page, a picture or a template could take for its own.
const HOSTILE: [&str; 6] = [
    "<script>window.__pwned = 1</script>",
    "\"><img src=x onerror=\"window.__pwned = 2\">",
    "</script><script>window.__pwned = 3</script>",
    "]]><svg onload=\"window.__pwned = 4\">",
    "{{script}}${window.__pwned = 5}",
    "operator<<\u{202e}&amp",
];
const HOSTILE_COMM: &str = "</title><b>";
const TITLE: &str = "</title><script>window.__pwned = 6</script>";

/// Text of `perf script`: 20 s of steady work, a burst, and a process full of hostile names.
fn recording() -> String {
    let mut events: Vec<(u64, &str, Vec<String>)> = Vec::new();
    let frame = |name: &str| format!("7f01 {name} (/usr/bin/app)");
    for at in 0..400u64 {
        let leaf = match at % 4 {
            0 => "ffffffff81 sys_read ([kernel.kallsyms])".to_owned(),
            1 => "7f09 render(Page const&, int) (/usr/bin/app)".to_owned(),
            _ => frame("std::vec<(int)>::push"),
        };
        let stack = vec![leaf, frame("serve one"), frame("main")];
        events.push((at * 50, "app", stack));
    }
    for at in 0..30 {
        let stack = vec![frame(BURST), frame("main")];
        events.push((BURST_MS + at * 10, "app", stack));
    }
    for (at, name) in HOSTILE.iter().enumerate() {
        for turn in 0..5 {
            let stack = vec![frame(name), frame("main")];
            events.push((1_000 + at as u64 * 700 + turn * 20, HOSTILE_COMM, stack));
        }
    }
    events.sort_by_key(|&(at, _, _)| at);
    let mut text = String::new();
    for (at, comm, stack) in events {
        let (s, ms) = (1_700_000_000 + at / 1000, at % 1000);
        let _ = writeln!(text, "{comm} 7 {s}.{ms:03}000: {PERIOD} cpu-clock:");
        for line in stack {
            let _ = writeln!(text, "\t{line}");
        }
        text.push('\n');
    }
    text
}

fn agent_ctl(args: &[&str]) {
    let out = Command::new(env!("CARGO_BIN_EXE_agent-ctl"))
        .args(args)
        .env("TZ", "UTC")
        .env_remove("FLEETPROF_AGENT")
        .env_remove("FLEETPROF_COLLECTOR")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{args:?}: {errors}");
}

/// The recording in a directory, and every file that is made of it.
fn files() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let source = path("recording.perf");
    std::fs::write(&source, recording()).unwrap();
    for name in [
        "profile.json",
        "profile.pb.gz",
        "profile.folded",
        "profile.speedscope.json",
        "profile.firefox.json",
        "profile.perf.txt",
        "profile.svg",
        "profile.html",
        "profile.bundle.html",
        "profile.parquet",
    ] {
        agent_ctl(&[
            "import",
            &source,
            "-o",
            &path(name),
            "--title",
            TITLE,
            "--quiet",
        ]);
    }
    for name in ["heat.svg", "heat.html"] {
        agent_ctl(&[
            "heatmap",
            &source,
            "-o",
            &path(name),
            "--title",
            TITLE,
            "--quiet",
        ]);
    }
    dir
}

/// What the JSON of a profile says.
#[derive(Default)]
struct Output {
    count: u64,
    weight: u64,
    /// Own and total count by function.
    functions: BTreeMap<String, (u64, u64)>,
}

fn said(file: &Path) -> Output {
    let text = std::fs::read_to_string(file).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let mut said = Output::default();
    let number = |value: &Value| value.as_u64().unwrap();
    for sample in json["samples"].as_array().unwrap() {
        let count = number(&sample["count"]);
        said.count += count;
        said.weight += number(&sample["weight"]);
        let frames = sample["frames"].as_array().unwrap();
        let name = |id: &Value| {
            json["frames"][number(id) as usize]["function"]
                .as_str()
                .unwrap()
        };
        let mut names: Vec<&str> = frames.iter().map(name).collect();
        if let Some(&leaf) = names.last() {
            said.functions.entry(leaf.to_owned()).or_default().0 += count;
        }
        // A function that calls itself counts once.
        names.sort_unstable();
        names.dedup();
        for name in names {
            said.functions.entry(name.to_owned()).or_default().1 += count;
        }
    }
    assert_eq!(number(&json["total"]["count"]), said.count);
    assert_eq!(number(&json["total"]["weight"]), said.weight);
    said
}

fn go_tool_pprof(dir: &Path, args: &[&str]) -> String {
    let out = Command::new("go")
        .args(["tool", "pprof"])
        .args(args)
        .arg(dir.join("profile.pb.gz"))
        .env("HOME", dir)
        .env("PPROF_TMPDIR", dir)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{errors}");
    assert!(!errors.contains("rror"), "{errors}");
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn go_tool_pprof_counts_for_each_function_what_the_json_does() {
    if !testkit::met(&[testkit::Need::Program("go")]) {
        return;
    }
    let dir = files();
    let said = said(&dir.path().join("profile.json"));
    let all = [
        "-nodecount=1000000",
        "-nodefraction=0",
        "-sample_index=samples",
    ];
    let top = go_tool_pprof(dir.path(), &[&["-top"], &all[..]].concat());
    assert!(top.contains(&format!("of {} total", said.count)), "{top}");
    let rows = top.lines().skip_while(|line| !line.contains("flat%"));
    let mut found = BTreeMap::new();
    for row in rows.skip(1) {
        let mut rest = row.trim_start();
        let mut field = || {
            let (field, after) = rest.split_once(' ').unwrap();
            rest = after.trim_start();
            field
        };
        let fields: [&str; 5] = std::array::from_fn(|_| field());
        let count = |at: usize| fields[at].parse::<u64>().unwrap();
        found.insert(rest.to_owned(), (count(0), count(3)));
    }
    assert_eq!(found, said.functions, "{top}");
    // Both values of each sample, with its stack.
    let raw = go_tool_pprof(dir.path(), &["-raw"]);
    assert!(
        raw.contains("\nsamples/count cpu/nanoseconds[dflt]\n"),
        "{raw}"
    );
    let lines = raw.lines().skip_while(|line| *line != "Samples:");
    let (mut count, mut weight) = (0, 0);
    for line in lines.take_while(|line| *line != "Locations") {
        let values = line
            .split_once(": ")
            .map(|(values, _)| values.split_whitespace());
        let values: Option<Vec<u64>> =
            values.and_then(|values| values.map(|value| value.parse().ok()).collect());
        if let Some([one, other]) = values.as_deref() {
            count += one;
            weight += other;
        }
    }
    assert_eq!((count, weight), (said.count, said.weight), "{raw}");
    // Stacks as people read them: leaf first, its callers below.
    let traces = go_tool_pprof(dir.path(), &["-traces", "-sample_index=samples"]);
    assert!(
        traces.contains(&format!("30   {BURST}\n             main\n")),
        "{traces}"
    );
}

/// Own and total samples of each function, and both sums.
const QUERY: &str = "
import duckdb, json, sys
table = f\"read_parquet('{sys.argv[1]}')\"
each = f'SELECT unnest(list_distinct(stack)) AS f, samples, stack[-1] AS leaf FROM {table}'
own = 'coalesce(sum(samples) FILTER (f = leaf), 0)::BIGINT'
functions = duckdb.sql(f'SELECT f, {own}, sum(samples)::BIGINT FROM ({each}) GROUP BY f').fetchall()
sums = duckdb.sql(f'SELECT sum(samples)::BIGINT, sum(weight)::BIGINT FROM {table}').fetchall()[0]
print(json.dumps({'functions': {f: [own, all] for f, own, all in functions}, 'sums': sums}))
";

#[test]
fn duckdb_counts_for_each_function_what_the_json_does() {
    let python = match testkit::runtimes::duckdb() {
        Ok(python) => python,
        Err(missing) => return testkit::skip(missing),
    };
    let dir = files();
    let said = said(&dir.path().join("profile.json"));
    let out = Command::new(python)
        .args(["-c", QUERY])
        .arg(dir.path().join("profile.parquet"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{errors}");
    let found: Value = serde_json::from_slice(&out.stdout).unwrap();
    let expected = json!({ "functions": said.functions, "sums": [said.count, said.weight] });
    assert_eq!(found, expected);
}

#[test]
fn speedscope_and_a_browser_show_what_the_json_says() {
    let ui = Path::new(env!("CARGO_MANIFEST_DIR")).join("../collector/ui");
    let missing = match () {
        () if testkit::program("npm").is_none() => Some("needs npm"),
        () if !ui.join("node_modules/speedscope").is_dir() => {
            Some("needs the page's packages: `npm ci` in collector/ui")
        }
        () if std::env::var_os("CHROMIUM").is_none() && testkit::browser::chromium().is_none() => {
            Some("needs chromium")
        }
        () => None,
    };
    if let Some(missing) = missing {
        return testkit::skip(missing);
    }
    let dir = files();
    let said = said(&dir.path().join("profile.json"));
    let burst = BURST_MS * 50 / 1000;
    let expected = json!({
        "samples": said.count,
        "nanoseconds": said.weight,
        "functions": said.functions,
        "burst": { "function": BURST, "first": burst, "last": burst + 15, "samples": 30 },
        "title": TITLE,
        "comm": HOSTILE_COMM,
        "hostile": HOSTILE.map(|name| name.replace('\u{202e}', "\\u{202e}")),
    });
    std::fs::write(dir.path().join("expected.json"), expected.to_string()).unwrap();
    // It ends what hangs, with all that it started.
    let status = Command::new("timeout")
        .args(["--kill-after=5", "240", "npm", "run", "--silent", "readers"])
        .current_dir(&ui)
        .env("READERS_DIR", dir.path())
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}
