//! Tables for notebooks: `GET /api/profile.parquet`, as the library's own reader sees them.

use crate::rig::{NOW, Options, Rig, SECOND, starting, window};
use crate::web::get;
use parquet::file::reader::{FileReader, SerializedFileReader};
use std::collections::BTreeMap;

/// The rows of a file as text.
pub fn rows(file: Vec<u8>) -> Vec<String> {
    let reader = SerializedFileReader::new(hyper::body::Bytes::from(file)).expect("Parquet");
    let rows = reader.get_row_iter(None).expect("rows");
    rows.map(|row| row.expect("a row").to_string()).collect()
}

/// The start of the range.
const START: i64 = NOW - 600 * SECOND;

/// Two hosts with six windows each, but that `b` has none of 30 s to 50 s.
async fn filled() -> Rig {
    let rig = Rig::with(Options::default()).await;
    for (host, missing) in [("a", 0..0), ("b", 4..6)] {
        let mut agent = rig.agent(host).await;
        for number in (1..=6u64).filter(|number| !missing.contains(number)) {
            let mut part = window(number, &["main;read", "main;write"]);
            part.new_dictionary = number == 1;
            let start = START + (number as i64 - 1) * 10 * SECOND;
            let part = starting(start, part);
            agent.store_part(part, &["main;read", "main;write"]).await;
        }
    }
    rig.hosts.flush(&rig.open).expect("stored");
    rig
}

fn between(format: &str, from_s: i64, to_s: i64) -> String {
    let (from, to) = (START + from_s * SECOND, START + to_s * SECOND);
    format!("/api/profile.{format}?from={from}&to={to}&group_by=host")
}

/// What stands in a row under a name.
fn cell<'r>(row: &'r str, name: &str) -> &'r str {
    let (_, rest) = row.split_once(&format!("{name}: ")).expect(name);
    let end = if rest.starts_with('[') { "]" } else { "," };
    let (cell, _) = rest.split_once(end).expect(name);
    cell.trim_start_matches('[')
}

/// Samples by host and stack, as folded stacks have them.
fn by_stack(rows: &[String]) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for row in rows {
        let stack = [cell(row, "host"), cell(row, "stack")].join(", ");
        let stack = stack.replace('"', "").replace(", ", ";");
        *sums.entry(stack).or_default() += cell(row, "weight").parse::<u64>().expect("a number");
    }
    sums
}

#[tokio::test]
async fn a_table_has_the_sums_of_folded_stacks_whatever_its_steps() {
    let rig = filled().await;
    let folded = get(&rig, &between("folded", 0, 60)).await.text();
    let lines = folded
        .lines()
        .map(|line| line.rsplit_once(' ').expect("a count"));
    let expected: BTreeMap<String, u64> = lines
        .map(|(stack, weight)| (stack.to_owned(), weight.parse().expect("a number")))
        .collect();
    assert_eq!(expected.len(), 4, "{folded}");
    for step in ["", "&step=10", "&step=20", "&step=600"] {
        let reply = get(&rig, &(between("parquet", 0, 60) + step)).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(by_stack(&rows(reply.body)), expected, "{step}");
    }
}

#[tokio::test]
async fn steps_are_cut_to_the_range() {
    let rig = filled().await;
    let of = async |path: String| {
        let rows = rows(get(&rig, &path).await.body);
        by_stack(&rows).values().sum::<u64>()
    };
    let one = of(between("parquet", 10, 30)).await;
    assert!(one > 0 && one < of(between("parquet", 0, 60)).await);
    assert_eq!(of(between("parquet", 10, 30) + "&step=600").await, one);
}

#[tokio::test]
async fn rows_of_a_step_have_its_time_and_steps_without_data_have_none() {
    let rig = filled().await;
    let path = between("parquet", 0, 60) + "&step=10&selector=host%3Db";
    let rows = rows(get(&rig, &path).await.body);
    let mut times: Vec<&str> = rows.iter().map(|row| cell(row, "start_time")).collect();
    times.dedup();
    assert_eq!(times.len(), 4, "{rows:#?}");
    assert_eq!(rows.len(), 8);
}

#[tokio::test]
async fn a_name_says_the_time_of_all_steps() {
    let rig = filled().await;
    let reply = get(&rig, &(between("parquet", 0, 60) + "&step=20")).await;
    let name = reply.header("content-disposition").expect("a file");
    assert!(name.ends_with("-60s.parquet\""), "{name}");
}

/// Runs a notebook's cells and shows what each ends in, as Jupyter does; not its charts.
const RUN: &str = r#"
import ast, json, sys
names = {}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] != "code" or "chart" in cell["metadata"].get("tags", []):
        continue
    body = ast.parse("".join(cell["source"])).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    if last:
        print(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
"#;

#[tokio::test]
async fn the_notebook_of_the_documentation_runs() {
    let python = match testkit::runtimes::duckdb() {
        Ok(python) => python,
        Err(missing) => return testkit::skip(missing),
    };
    let rig = filled().await;
    let mut command = std::process::Command::new(python);
    command
        .args(["-c", RUN])
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../docs/notebooks/fleet-cpu.ipynb"
        ))
        .env("FLEETPROF_COLLECTOR", format!("http://{}", rig.http))
        .env("FLEETPROF_END", (NOW / SECOND).to_string());
    let running = tokio::task::spawn_blocking(move || command.output());
    let out = running.await.expect("no panic").expect("it starts");
    let (shown, errors) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    assert!(out.status.success(), "{errors}");
    for expected in ["stack_line", "read", "write", "web.service", "complete"] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
}

#[tokio::test]
async fn go_tool_pprof_takes_the_address() {
    if !testkit::met(&[testkit::Need::Program("go")]) {
        return;
    }
    let rig = filled().await;
    let home = tempfile::tempdir().expect("a directory");
    let mut command = std::process::Command::new("go");
    command
        .args(["tool", "pprof", "-top", "-unit=ns"])
        .arg(format!(
            "http://{}/api/profile.pb.gz?from=0&selector=unit=\"web.service\"",
            rig.http
        ))
        .env("HOME", home.path())
        .env("PPROF_TMPDIR", home.path());
    let running = tokio::task::spawn_blocking(move || command.output());
    let out = running.await.expect("no panic").expect("it starts");
    let (shown, errors) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    assert!(out.status.success(), "{errors}");
    for expected in ["Type: cpu", " write\n", " read\n"] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
}
