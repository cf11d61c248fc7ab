//! A burst of 300 ms that has passed is found in the heat map of the recorder, and becomes a flame
//! graph.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use proto::agent::QueryProfileRequest;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;
use testkit::process::wait_for;
use testkit::workload::c;
use testkit::{Cgroup, Daemon, Need, live, met};

const NEEDS: &[Need] = &[Need::Root, Need::StaticC, Need::Cgroup2];
/// Longest wait for a state that is on its way. A window is 10 s.
const SOON: Duration = Duration::from_secs(40);
/// Rows of a second, as heat maps have them unasked.
const ROWS: usize = 50;
const ROW_NS: i64 = 1_000_000_000 / ROWS as i64;
/// Cells that a burst of 300 ms can touch: it starts in the middle of one.
const STRETCH: usize = 16;

/// What the program says of its burst. Unit: nanoseconds.
struct Burst {
    from: i64,
    to: i64,
    cpu: u64,
}

/// The cells of a heat map in order of time.
struct Map {
    start_ns: i64,
    cells: Vec<u64>,
    total: u64,
}

impl Map {
    fn read(text: &str) -> Map {
        let map: Value = serde_json::from_str(text).unwrap();
        assert_eq!(
            (&map["rows"], &map["column_ns"]),
            (&50.into(), &1_000_000_000.into())
        );
        assert_eq!(map["dropped"], 0, "a few seconds have room");
        let columns = map["columns"].as_u64().unwrap() as usize;
        let mut cells = vec![0; columns * ROWS];
        for cell in map["cells"].as_array().unwrap() {
            let at = |index: usize| cell[index].as_u64().unwrap();
            cells[at(0) as usize * ROWS + at(1) as usize] = at(2);
        }
        Map {
            start_ns: map["start_unix_ns"].as_i64().unwrap(),
            cells,
            total: map["total"]["count"].as_u64().unwrap(),
        }
    }

    /// The cell of a time.
    fn at(&self, unix_ns: i64) -> usize {
        ((unix_ns - self.start_ns) / ROW_NS) as usize
    }

    fn sum(&self, from: usize, cells: usize) -> u64 {
        self.cells.iter().skip(from).take(cells).sum()
    }

    /// First and last cell of the densest stretch: what an eye is drawn to.
    fn spot(&self) -> (usize, usize) {
        let most = |&from: &usize| (self.sum(from, STRETCH), std::cmp::Reverse(from));
        let from = (0..self.cells.len()).max_by_key(most).unwrap();
        let mut filled =
            (from..self.cells.len().min(from + STRETCH)).filter(|&at| self.cells[at] > 0);
        let first = filled.next().expect("something was sampled");
        (first, filled.next_back().unwrap_or(first))
    }

    /// As `--pick` takes a cell.
    fn name(at: usize) -> String {
        format!("{},{}", at / ROWS, at % ROWS)
    }
}

fn heat_map(daemon: &Daemon, cgroup: &Cgroup, more: &[&str]) -> String {
    let args = [
        "heatmap",
        "--since",
        "10m",
        "--cgroup",
        cgroup.path(),
        "--quiet",
    ];
    daemon.ctl(&[&args, more].concat()).ok().text()
}

/// Samples of folded stacks, and those of them below a function.
fn counts(folded: &str, function: &str) -> (u64, u64) {
    let (mut all, mut with) = (0, 0);
    for line in folded.lines() {
        let (stack, count) = line.rsplit_once(' ').expect("a stack and a count");
        let count: u64 = count.parse().unwrap();
        all += count;
        if stack.split(';').any(|frame| frame == function) {
            with += count;
        }
    }
    (all, with)
}

/// The burst stands in the map where it was, and nearly nothing else of its size does.
fn check_map(map: &Map, burst: &Burst, period: u64) {
    let (first, last) = map.spot();
    // A row on either side: the clocks are two, and a sample is of what ran until it was taken.
    let (from, to) = (map.at(burst.from).saturating_sub(1), map.at(burst.to) + 1);
    let inside = map.sum(from, to - from + 1);
    let expected = burst.cpu as f64 / period as f64;
    let text = format!(
        "densest cells {first} to {last}, burst {from} to {to}: {inside} of {expected:.1} samples; {} in all",
        map.total
    );
    eprintln!("{text}");
    assert!(from <= first && last <= to, "{text}");
    // Other programs may cut it to pieces that a tick meets by chance.
    let (least, most) = (expected / 3.0, expected * 1.5 + 3.0);
    assert!((least..=most).contains(&(inside as f64)), "{text}");
    let apart = |&at: &usize| at + STRETCH <= from || at > to;
    let other = (0..map.cells.len()).filter(apart);
    let other = other.map(|at| map.sum(at, STRETCH)).max().unwrap();
    assert!(other * 2 <= inside.max(1), "{other} elsewhere: {text}");
}

/// The range picked there is a flame graph of the burst, by cells and by times.
fn check_picked(daemon: &Daemon, cgroup: &Cgroup, map: &Map) {
    let (first, last) = map.spot();
    let found: u64 = map.cells[first..=last].iter().sum();
    let time = |ns: i64| format!("@{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    let begin = map.start_ns + first as i64 * ROW_NS;
    let end = map.start_ns + (last as i64 + 1) * ROW_NS;
    for pick in [
        format!("{}..{}", Map::name(first), Map::name(last)),
        format!("{}..{}", time(begin), time(end)),
    ] {
        let folded = heat_map(daemon, cgroup, &["--pick", &pick]);
        let (all, burst) = counts(&folded, "burst_out");
        assert_eq!(all, found, "{pick}: {folded}");
        assert!(burst * 10 >= all * 9, "{pick}: {folded}");
    }
    let whole = heat_map(daemon, cgroup, &["--pick", "+0s.."]);
    let (_, beats) = counts(&whole, "keep_the_beat");
    assert!(beats > 0, "the whole time has more than the burst: {whole}");
}

/// The pprof file of the time until the burst's end has the counts of the JSON, as its own tool
/// reads them.
fn check_pprof(daemon: &Daemon, cgroup: &Cgroup, until_ns: i64) {
    if !met(&[Need::Program("go")]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let until = format!("@{}", until_ns / 1_000_000_000);
    for name in ["burst.json", "burst.pb.gz"] {
        let of = [
            "profile",
            "--closed",
            "--to",
            &until,
            "--cgroup",
            cgroup.path(),
        ];
        daemon.ctl(&[&of[..], &["-o", &file(name)]].concat()).ok();
    }
    let json: Value = serde_json::from_slice(&std::fs::read(file("burst.json")).unwrap()).unwrap();
    let mut own: BTreeMap<&str, u64> = BTreeMap::new();
    for sample in json["samples"].as_array().unwrap() {
        let leaf = sample["frames"].as_array().unwrap().last();
        let name = leaf.map_or("", |id| {
            let frame = &json["frames"][id.as_u64().unwrap() as usize];
            frame["function"].as_str().unwrap()
        });
        *own.entry(name).or_default() += sample["count"].as_u64().unwrap();
    }
    let mut top = Command::new("go");
    top.args(["tool", "pprof", "-top", "-sample_index=samples"]);
    top.args(["-nodecount=1000000", "-nodefraction=0"]);
    top.arg(file("burst.pb.gz"))
        .env("HOME", dir.path())
        .env("PPROF_TMPDIR", dir.path());
    let top = testkit::process::run(&mut top, SOON).ok().text();
    assert!(
        top.contains(&format!("of {} total", json["total"]["count"])),
        "{top}"
    );
    for name in ["burst_out", "keep_the_beat"] {
        let row = top.lines().find(|line| line.ends_with(&format!(" {name}")));
        let flat = row.and_then(|row| row.split_whitespace().next()?.parse().ok());
        assert_eq!(flat, own.get(name).copied(), "{name}: {top}");
    }
}

#[test]
fn a_burst_that_has_passed_is_a_spot_and_its_flame_graph_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let cgroup = Cgroup::new("burst");
    let daemon = Daemon::start().sampling();
    let client = daemon.client();
    let mut program = c("burst.c").start_in(&cgroup, &[]);
    let done = wait_for(SOON, || {
        program.proc().stdout().contains("done").then_some(())
    });
    done.expect("the burst");
    let passed = testkit::clock::unix_ns();
    // While the window of the burst is open, and when it is closed and packed.
    let mut maps = Vec::new();
    let mut period = 0;
    for fresh in [true, false] {
        let asked = QueryProfileRequest {
            fresh,
            ..QueryProfileRequest::default()
        };
        let reached = wait_for(SOON, || {
            let info = client.query(asked.clone()).ok()?.info;
            period = info.period;
            let end = info.start_unix_ns + info.duration_ns as i64;
            (info.duration_ns > 0 && end > passed).then_some(())
        });
        reached.expect("the time of the burst");
        maps.push(Map::read(&heat_map(
            &daemon,
            &cgroup,
            &["--format", "json"],
        )));
    }
    check_picked(&daemon, &cgroup, &maps[1]);
    check_pprof(&daemon, &cgroup, passed);
    let drawn = heat_map(&daemon, &cgroup, &["--ascii"]);
    let said = program.finish("burst");
    let burst = Burst {
        from: said[0] as i64,
        to: said[1] as i64,
        cpu: said[2],
    };
    eprintln!("{drawn}");
    for map in &maps {
        check_map(map, &burst, period);
    }
    daemon.stop();
}
