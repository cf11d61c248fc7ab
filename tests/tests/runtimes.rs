//! Real language runtimes in one recording: what is known of generated code is under its clean
//! name, of the right kind, with file and line where the runtime tells them, and with the raw name
//! beside it.

use profile::{FrameKind, UnnamedReason};
use std::collections::BTreeMap;
use std::time::Duration;
use testkit::process::wait_for;
use testkit::recording::Shared;
use testkit::runtimes::{self, Missing, Running, Runtime};
use testkit::{Cgroup, Daemon, Need, View, ViewFrame, skip};

const NEEDS: &[Need] = &[Need::Root, Need::Cgroup2];
/// Longest wait for all runtimes to have been seen in what their programs do.
const LIMIT: Duration = Duration::from_secs(90);
/// Between two looks: maps of HotSpot are rewritten for each. Unit: seconds.
const LOOK: Duration = Duration::from_secs(3);
/// The newest CPython minor versions that have `-X perf`.
const PYTHONS: [u32; 2] = [12, 13];

struct Recording {
    /// By runtime: what was seen of it, or why it did not run.
    views: BTreeMap<&'static str, Result<View, Missing>>,
}

static RECORDING: Shared<Recording> = Shared::new();

/// What shows that a runtime was seen at work.
fn landmarks(runtime: &str) -> &'static [&'static str] {
    match runtime {
        "node" => &["settle", "sort", "openShop"],
        "java" => &["com.example.Orders.settle", "Interpreter"],
        "python" => &["Ledger.settle"],
        "php" | "php-worker" => &["Shop\\Ledger::settle"],
        "erlang" => &["orders:settle/2"],
        _ => &["settle"],
    }
}

fn all() -> Vec<(&'static str, Result<Runtime, Missing>)> {
    let python = PYTHONS
        .iter()
        .find_map(|&minor| runtimes::python(minor).ok());
    let python = python.ok_or_else(|| "needs Python 3.12 or 3.13".to_owned());
    vec![
        ("node", runtimes::node(true)),
        ("java", runtimes::java()),
        ("python", python),
        ("php", runtimes::php()),
        ("php-worker", runtimes::php_worker()),
        ("erlang", runtimes::erlang()),
        ("wasmtime", runtimes::wasmtime("perfmap")),
    ]
}

fn recording() -> Option<&'static Recording> {
    RECORDING.get_beside(NEEDS, || {
        let daemon = Daemon::start().sampling();
        let cgroup = Cgroup::new("runtimes");
        let mut missing = BTreeMap::new();
        let mut running: Vec<Running> = Vec::new();
        for (name, runtime) in all() {
            match runtime {
                Ok(runtime) => running.push(runtime.start_in(&cgroup)),
                Err(why) => drop(missing.insert(name, Err(why))),
            }
        }
        let views = || -> BTreeMap<&str, View> {
            running.iter().for_each(Running::write_map);
            let view = daemon.client().everything();
            let of = |one: &Running| (one.name, view.in_cgroup(one.cgroup.path()));
            running.iter().map(of).collect()
        };
        let mut last = views();
        let seen = |(name, view): (&&str, &View)| {
            landmarks(name)
                .iter()
                .all(|&landmark| view.count_with(landmark) > 0)
        };
        wait_for(LIMIT, || {
            std::thread::sleep(LOOK);
            last = views();
            last.iter().all(seen).then_some(())
        });
        // What did not come fails its own test, which shows what came instead.
        for one in &mut running {
            println!("{}", one.state());
        }
        drop(running);
        daemon.stop();
        let seen = last.into_iter().map(|(name, view)| (name, Ok(view)));
        Recording {
            views: missing.into_iter().chain(seen).collect(),
        }
    })
}

/// What was seen of a runtime; skipped where it is not installed.
fn view(runtime: &str) -> Option<&'static View> {
    match recording()?.views.get(runtime)? {
        Ok(view) => Some(view),
        Err(why) => {
            skip(why);
            None
        }
    }
}

/// The frames of a function, of which there is one at least.
fn frames(view: &View, function: &str) -> Vec<ViewFrame> {
    let found: Vec<_> = view
        .frames()
        .into_iter()
        .filter(|frame| frame.function == function)
        .collect();
    assert!(!found.is_empty(), "no `{function}`: {}", view.dump());
    found
}

#[test]
fn node_functions_have_name_file_line_and_tier_needs_root() {
    let Some(view) = view("node") else { return };
    for (function, line) in [("settle", 8), ("sort", 15)] {
        let found = frames(view, function);
        assert!(found.iter().any(|frame| frame.kind == FrameKind::Jit));
        for frame in found {
            let raw = &frame.system_name;
            assert!(frame.file.ends_with("/orders.js"), "{frame:?}");
            assert_eq!(frame.line, line, "{frame:?}");
            assert!(
                raw.starts_with("JS:") && raw.contains(function),
                "{frame:?}"
            );
            assert_eq!(
                raw.starts_with("JS:~"),
                frame.kind == FrameKind::Interpreted
            );
        }
    }
}

#[test]
fn node_functions_that_nothing_compiles_are_interpreted_needs_root() {
    let Some(view) = view("node") else { return };
    for frame in frames(view, "openShop") {
        assert_eq!(frame.kind, FrameKind::Interpreted, "{frame:?}");
        assert!(frame.system_name.starts_with("JS:~openShop "), "{frame:?}");
    }
}

#[test]
fn java_overloads_share_a_name_and_keep_their_own_needs_root() {
    let Some(view) = view("java") else { return };
    let mut raw: Vec<_> = frames(view, "com.example.Orders.settle")
        .into_iter()
        .map(|frame| (frame.kind, frame.system_name))
        .collect();
    raw.dedup();
    let overloads = [
        "Lcom/example/Orders;::settle(I)J",
        "Lcom/example/Orders;::settle(Ljava/lang/String;[I)J",
    ];
    assert_eq!(raw, overloads.map(|raw| (FrameKind::Jit, raw.to_owned())));
}

#[test]
fn java_code_of_the_interpreter_is_interpreted_needs_root() {
    let Some(view) = view("java") else { return };
    for frame in frames(view, "Interpreter") {
        assert_eq!(frame.kind, FrameKind::Interpreted);
        assert_eq!(frame.system_name, "");
    }
}

#[test]
fn python_functions_are_interpreted_and_have_a_file_needs_root() {
    let Some(view) = view("python") else { return };
    for frame in frames(view, "Ledger.settle") {
        assert_eq!(frame.kind, FrameKind::Interpreted, "{frame:?}");
        assert!(frame.file.ends_with("/orders.py"), "{frame:?}");
        assert_eq!(
            frame.system_name,
            format!("py::Ledger.settle:{}", frame.file)
        );
    }
}

#[test]
fn php_functions_lose_what_the_compiler_puts_before_them_needs_root() {
    let Some(view) = view("php") else { return };
    for frame in frames(view, "Shop\\Ledger::settle") {
        assert_eq!(frame.kind, FrameKind::Jit, "{frame:?}");
        assert_eq!(frame.system_name, "JIT$Shop\\Ledger::settle");
    }
}

#[test]
fn a_php_worker_has_the_names_of_its_server_needs_root() {
    let Some(view) = view("php-worker") else {
        return;
    };
    let settle = "Shop\\Ledger::settle";
    let unnamed = view.only(|sample| {
        sample
            .frames
            .iter()
            .any(|frame| frame.unnamed == UnnamedReason::JitNoMap)
    });
    let named = view.count_with(settle);
    assert!(named > 10 * unnamed.count(), "{}", view.dump());
}

#[test]
fn erlang_functions_keep_module_and_arity_needs_root() {
    let Some(view) = view("erlang") else { return };
    for frame in frames(view, "orders:settle/2") {
        assert_eq!(frame.kind, FrameKind::Jit, "{frame:?}");
        // It writes a perf map, with the dollar sign, and a jitdump, without.
        let raw = &*frame.system_name;
        assert!(["$orders:settle/2", ""].contains(&raw), "{frame:?}");
    }
}

#[test]
fn web_assembly_has_the_names_of_its_module_needs_root() {
    let Some(view) = view("wasmtime") else { return };
    let generated = |frame: &ViewFrame| frame.kind == FrameKind::Jit;
    let found: Vec<_> = frames(view, "settle")
        .into_iter()
        .filter(generated)
        .collect();
    assert!(!found.is_empty(), "{}", view.dump());
    assert!(found.iter().all(|frame| frame.system_name.is_empty()));
}
