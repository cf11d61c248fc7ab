//! Tests what is read from the lines that versions and options of perf write.

use super::*;

fn event(line: &str) -> EventLine<'_> {
    event_line(line).unwrap_or_else(|| panic!("no event: {line}"))
}

#[test]
fn events_are_read_with_whatever_fields_they_have() {
    let s = 1_000_000_000;
    for (line, comm, pid, at_ns, period, name) in [
        (
            "x 1.5: 1234 [000] 1000.1: 10101010 cpu-clock: ",
            "x 1.5:",
            "1234",
            Some(1_000 * s + 100_000_000),
            Some(10_101_010),
            "cpu-clock",
        ),
        (
            "1.5: 1234 1000.1: cpu-clock: ",
            "1.5:",
            "1234",
            Some(1_000 * s + 100_000_000),
            None,
            "cpu-clock",
        ),
        (
            "java 25607 4794564.109216: cycles: ",
            "java",
            "25607",
            Some(4_794_564 * s + 109_216_000),
            None,
            "cycles",
        ),
        (
            "java 12688 [002] 6544038.708352: cpu-clock: ",
            "java",
            "12688",
            Some(6_544_038 * s + 708_352_000),
            None,
            "cpu-clock",
        ),
        (
            "V8 WorkerThread 24636/25607 [000] 94564.109216: 10101010 cpu-clock:ppp: ",
            "V8 WorkerThread",
            "24636",
            Some(94_564 * s + 109_216_000),
            Some(10_101_010),
            "cpu-clock:ppp",
        ),
        (
            "     swapper     0 [002] 5.25:   10101010 cpu-clock:  ffffffff810013aa a+0xa (/b)",
            "swapper",
            "0",
            Some(5 * s + 250_000_000),
            Some(10_101_010),
            "cpu-clock",
        ),
        (
            "vote   913    72.176760001:     257597 cycles:uppp: ",
            "vote",
            "913",
            Some(72 * s + 176_760_001),
            Some(257_597),
            "cycles:uppp",
        ),
        (
            "a b 7 c 12/13 [001] d..2. 1.0: sched:sched_switch: prev_comm=x prev_pid=1",
            "a b 7 c",
            "12",
            Some(s),
            None,
            "sched:sched_switch",
        ),
        // Without a process, without a CPU, without an event, without a time.
        (
            "nginx [003] 1.5: cpu-clock:",
            "nginx",
            "",
            Some(s + 500_000_000),
            None,
            "cpu-clock",
        ),
        ("nginx 1.5: ", "nginx", "", Some(s + 500_000_000), None, ""),
        (
            "nginx 7/8 cpu-clock: ",
            "nginx",
            "7",
            None,
            None,
            "cpu-clock",
        ),
        (
            "nginx 7/8 [001] 99 cycles: ",
            "nginx",
            "7",
            None,
            Some(99),
            "cycles",
        ),
        (
            "gone -1 1.5: cycles:",
            "gone",
            "-1",
            Some(s + 500_000_000),
            None,
            "cycles",
        ),
    ] {
        let found = event(line);
        let fields = (
            found.comm,
            found.pid,
            found.at_ns,
            found.period,
            found.event,
        );
        assert_eq!(fields, (comm, pid, at_ns, period, name), "{line}");
    }
}

#[test]
fn other_lines_are_no_events() {
    for line in [
        "",
        "hello",
        "Warning: processed 3 events",
        "\t7f1 main (/bin/x)",
        "a 99999999999.9x: b",
    ] {
        assert_eq!(event_line(line), None, "{line}");
    }
}

#[test]
fn frames_are_read_with_whatever_they_have() {
    for (line, symbol, module) in [
        (
            "ffffffff81051586 native_safe_halt ([kernel.kallsyms])",
            "native_safe_halt",
            "[kernel.kallsyms]",
        ),
        (
            "7fa4 CardTable::process(Space*, int) (/usr/lib/libjvm.so)",
            "CardTable::process(Space*, int)",
            "/usr/lib/libjvm.so",
        ),
        (
            "7f92 Lio/Out;::write (/tmp/perf-11936.map)",
            "Lio/Out;::write",
            "/tmp/perf-11936.map",
        ),
        ("0 [unknown] ([unknown])", "[unknown]", "[unknown]"),
        ("7f1e2215d058  (/lib/libc-2.15.so)", "", "/lib/libc-2.15.so"),
        ("7f1e main", "main", ""),
        ("7f1e f (inlined)", "f", "inlined"),
        ("7f1e", "", ""),
    ] {
        assert_eq!(frame_line(line), Some((symbol, module)), "{line}");
    }
    for line in ["main (/bin/x)", "  main.c:12", "12345678901234567 x (y)"] {
        assert_eq!(frame_line(line), None, "{line}");
    }
}

/// `comm labels | frames kind:function[module] end | count weight`, sorted.
fn shown(import: &Import) -> Vec<String> {
    let profile = &import.profile;
    let mut all: Vec<String> = profile
        .samples
        .iter()
        .map(|(key, value)| {
            let labels = profile.dict.labels(key.labels);
            let labels: Vec<_> = labels
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            let mut frames: Vec<_> = profile
                .dict
                .stacks
                .leaf_first(key.stack)
                .map(|id| profile.dict.frame(id))
                .map(|frame| format!("{}:{}[{}]", frame.kind.word(), frame.function, frame.module))
                .collect();
            frames.reverse();
            format!(
                "{} | {} | {} {} {}",
                labels.join(","),
                frames.join(";"),
                key.end.word(),
                value.count,
                value.weight
            )
        })
        .collect();
    all.sort();
    all
}

const TEXT: &str = "\
# cmdline : perf record -g
java 10/12 [001] 5.000001: 10101010 cpu-clock:ppp: \r
\tffffffff81 sys_read+0x1f ([kernel.kallsyms])\r
\tffffffff82 nft_do_chain ([nf_tables])
\t7f01 Lfoo;::bar (/tmp/perf-10.map)
\t7f02 fast (inlined)
\t7f03 std::vector<int>::push_back(int const&)+0x7 (/usr/lib/libx y.so)
\t7f04 [unknown] (/usr/lib/libc.so.6)
\t7f05 [unknown] ([unknown])

java 10/12 [001] 5.5: 10101010 cpu-clock:ppp:
\t7f01 work_[j] (/x)

other 11 5.7: 1 sched:sched_switch:
\t7f01 f (/x)

";

#[test]
fn a_text_becomes_samples_with_their_times() {
    let import = read(TEXT).unwrap();
    assert_eq!(
        shown(&import),
        [
            "comm=java,pid=10 | jit:work[] | complete 1 10101010",
            "comm=java,pid=10 | native:[unknown][];native:[libc.so.6][/usr/lib/libc.so.6];\
             native:std::vector<int>::push_back(int const&)[/usr/lib/libx y.so];inlined:fast[];\
             jit:Lfoo;::bar[];kernel:nft_do_chain[nf_tables];kernel:sys_read[[kernel]] | complete 1 10101010",
        ]
    );
    let info = &import.profile.info;
    assert_eq!(
        (info.event.as_str(), info.unit.as_str()),
        ("cpu-clock", "nanoseconds")
    );
    assert_eq!(
        (info.start_unix_ns, info.duration_ns, info.period),
        (5_000_001_000, 499_999_001, 10_101_010)
    );
    let at: Vec<u64> = import
        .profile
        .timestamps
        .list
        .iter()
        .map(|timestamp| timestamp.at_ns)
        .collect();
    assert_eq!(at, [0, 499_999_000]);
    assert_eq!(import.profile.info.quality.taken, 2);
    assert_eq!(
        import.notes,
        [
            "1 samples of events other than `cpu-clock` were skipped",
            "times count from boot, not from a date"
        ]
    );
}

#[test]
fn a_text_cut_anywhere_is_read_up_to_there() {
    for end in 0..TEXT.len() {
        if let Ok(import) = read(&TEXT[..end]) {
            assert!(import.profile.total().count <= 2);
            let cut = import
                .notes
                .iter()
                .any(|note| note.contains("middle of a line"));
            assert_eq!(cut, !TEXT[..end].ends_with('\n'), "{end}");
        }
    }
    let error = read("hello\nworld\n").unwrap_err();
    assert_eq!(error, PerfScriptError::NoEvents { lines: 2, line: 1 });
}

#[test]
fn what_cannot_be_read_is_left_out_and_said() {
    let import = read("a 1 1.0: 5 cycles:\nnonsense\n\t7f f (x)\n\n").unwrap();
    assert_eq!(
        shown(&import),
        ["comm=a,pid=1 | native:f[x] | complete 1 5"]
    );
    assert!(import.notes[0].starts_with("1 lines") && import.notes[0].ends_with("line 2"));
}

#[test]
fn events_without_a_stack_have_one_frame_or_none() {
    let text = "     a 1 1.0: 5 cycles: 7f main+0x1 (/bin/x)\n     a 1 2.0: 5 cycles: ffff f ([kernel.kallsyms])\n";
    let import = read(text).unwrap();
    assert_eq!(
        shown(&import),
        [
            "comm=a,pid=1 | kernel:f[[kernel]] | complete 1 5",
            "comm=a,pid=1 | native:main[/bin/x] | complete 1 5"
        ]
    );
    let bare = read("a 1 1.0: cycles:\n").unwrap();
    assert_eq!(bare.profile.total().count, 1);
    assert_eq!(bare.profile.info.unit, "");
}

#[test]
fn deep_stacks_lose_their_root_end() {
    let mut text = "a 1 1.0: 5 cycles:\n".to_owned();
    for at in 0..STACK_FRAMES_MAX + 5 {
        text.push_str(&format!("\t{at:x} f{at} (x)\n"));
    }
    let import = read(&text).unwrap();
    let (key, _) = import.profile.sorted()[0];
    assert_eq!(key.end, StackEnd::DepthLimit);
    assert_eq!(
        import.profile.dict.stacks.leaf_first(key.stack).count(),
        STACK_FRAMES_MAX
    );
    assert_eq!(import.profile.info.quality.depth_limit, 1);
    assert!(import.notes[0].contains("more than 8192 frames"));
}

#[test]
fn the_kind_of_text_is_told_by_its_first_lines() {
    assert!(looks_like(TEXT));
    assert!(looks_like("dd 27540 \n\tffff read ([k])\n"));
    assert!(looks_like("java 12688/12764 cpu-clock:\n\t7f x (y)\n"));
    for text in ["main;f 3\n", "main 5;f 3\n", "a 1 2\n", "{}", ""] {
        assert!(!looks_like(text), "{text}");
    }
}
