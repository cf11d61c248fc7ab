//! Tests which name an address has at which time.

use super::*;
use proptest::prelude::*;

fn at(time: u64) -> When {
    When::at(MonotonicTime(time))
}

fn between(after: u64, by: u64) -> When {
    When::between(MonotonicTime(after), MonotonicTime(by))
}

fn map() -> CodeMap {
    CodeMap::new(1 << 20)
}

fn load(map: &mut CodeMap, range: Range<u64>, name: &str, when: When) {
    assert!(map.load(range, name, Lines::default(), when));
}

fn name<'a>(found: &CodeLookup<'a>) -> &'a str {
    match found {
        CodeLookup::Code(code, _) => &code.name,
        CodeLookup::Unsure => "?",
        CodeLookup::Nothing => "-",
    }
}

fn at_times(map: &CodeMap, address: u64, times: &[u64]) -> String {
    let names = times
        .iter()
        .map(|&time| name(&map.find(address, MonotonicTime(time))));
    names.collect::<Vec<_>>().join(" ")
}

#[test]
fn an_address_has_the_name_of_its_time() {
    let mut map = map();
    load(&mut map, 0x1000..0x1100, "first", at(10));
    load(&mut map, 0x1000..0x1100, "second", at(20));
    load(&mut map, 0x1000..0x1100, "third", at(30));
    assert_eq!(
        at_times(&map, 0x1080, &[9, 10, 19, 20, 29, 30, 99]),
        "- first first second second third third"
    );
}

#[test]
fn code_that_moved_keeps_its_name_at_both_places() {
    let mut map = map();
    load(&mut map, 0x1000..0x1100, "walker", at(10));
    assert!(map.relocate(0x1000, 0x5000, 0x100, at(20)));
    load(&mut map, 0x1000..0x1010, "settler", at(30));
    assert_eq!(at_times(&map, 0x1000, &[15, 25, 35]), "walker - settler");
    assert_eq!(at_times(&map, 0x5000, &[15, 25, 35]), "- walker walker");
    assert!(!map.relocate(0x9000, 0x1000, 1, at(40)));
}

#[test]
fn between_two_readings_of_a_map_only_one_name_is_no_guess() {
    let mut map = map();
    load(&mut map, 0x1000..0x1100, "old", between(0, 10));
    assert_eq!(at_times(&map, 0x1000, &[5, 10, 15]), "old old old");
    load(&mut map, 0x1000..0x1100, "new", between(20, 30));
    assert_eq!(at_times(&map, 0x1000, &[20, 25, 30]), "old ? new");
    load(&mut map, 0x1000..0x1100, "newer", between(30, 40));
    assert_eq!(at_times(&map, 0x1000, &[15, 30, 35, 41]), "old new ? newer");
}

#[test]
fn the_same_function_written_again_is_no_doubt() {
    let mut map = map();
    load(&mut map, 0x1000..0x1100, "same", between(0, 10));
    load(&mut map, 0x1000..0x1080, "same", between(10, 20));
    assert_eq!(at_times(&map, 0x1000, &[15]), "same");
}

#[test]
fn a_list_of_all_code_ends_what_it_does_not_list() {
    let mut map = map();
    load(&mut map, 0x1000..0x1100, "stays", between(0, 10));
    load(&mut map, 0x2000..0x2100, "goes", between(0, 10));
    let mut newer = CodeMap::new(1 << 20);
    load(&mut newer, 0x1000..0x1100, "stays", at(50));
    load(&mut newer, 0x3000..0x3100, "comes", at(50));
    map.succeed(newer, between(10, 50));
    assert_eq!(at_times(&map, 0x1000, &[11, 30, 60]), "stays stays stays");
    assert_eq!(at_times(&map, 0x2000, &[10, 30, 60]), "goes goes -");
    assert_eq!(at_times(&map, 0x3000, &[10, 30, 60]), "- comes comes");
}

#[test]
fn what_did_not_change_in_a_window_is_steady() {
    let mut map = map();
    load(&mut map, 0x1000..0x1100, "old", at(10));
    load(&mut map, 0x2000..0x2100, "young", at(50));
    load(&mut map, 0x1080..0x1100, "over", at(60));
    let steady = |address, from, until| {
        let found = map.steady(address, MonotonicTime(from), MonotonicTime(until));
        found.map_or("changes", |found| name(&found))
    };
    assert_eq!(steady(0x1000, 20, 90), "old");
    assert_eq!(steady(0x1080, 20, 90), "changes");
    assert_eq!(steady(0x1080, 60, 90), "over");
    assert_eq!(steady(0x2000, 20, 90), "changes");
    assert_eq!(steady(0x2000, 20, 49), "-");
    assert_eq!(steady(0x9000, 20, 90), "-");
}

#[test]
fn code_listed_late_is_found_for_the_time_before_and_only_so_long() {
    let mut map = map();
    load(&mut map, 0x1000..0x1100, "first", between(20, 30));
    load(&mut map, 0x1000..0x1100, "second", between(30, 40));
    load(&mut map, 0x2000..0x2100, "exact", at(30));
    let soon = |address, time, by| {
        name(&map.soon(address, MonotonicTime(time), MonotonicTime(by))).to_owned()
    };
    assert_eq!(at_times(&map, 0x1000, &[10]), "-");
    assert_eq!(soon(0x1000, 10, 40), "first");
    assert_eq!(soon(0x1000, 10, 29), "-");
    assert_eq!(soon(0x2000, 10, 40), "-", "then nothing lay there");
}

#[test]
fn lines_are_found_by_offset() {
    let mut map = map();
    let lines = Lines {
        files: ["a.js".into(), "b.js".into()].into(),
        rows: [(0, 0, 7), (0x10, 1, 9)].into(),
    };
    map.load(0x1000..0x1100, "f", lines, at(1));
    map.relocate(0x1000, 0x4000, 0x100, at(2));
    let CodeLookup::Code(code, offset) = map.find(0x4012, MonotonicTime(3)) else {
        panic!("it is there");
    };
    assert_eq!(code.place(offset), Some(("b.js", 9)));
    assert_eq!(code.place(0), Some(("a.js", 7)));
}

#[test]
fn memory_is_bounded_and_what_is_refused_is_counted() {
    let mut map = CodeMap::new(100_000);
    for number in 0..10_000u64 {
        let start = 0x1000 + number * 16;
        map.load(
            start..start + 16,
            &format!("f{number}"),
            Lines::default(),
            at(number),
        );
    }
    assert!(map.heap_bytes() <= 100_000 && map.is_full());
    assert_eq!(map.dropped().0 as usize + map.len(), 10_000);
    assert_eq!(at_times(&map, 0x1000, &[10]), "f0");
}

#[test]
fn code_that_changes_for_ever_takes_no_more_memory() {
    let mut map = CodeMap::new(16 << 20);
    let mut most = 0;
    for time in 1..200_000u64 {
        load(
            &mut map,
            0x1000..0x1100,
            if time % 2 == 0 { "even" } else { "odd" },
            at(time),
        );
        if time % 1000 == 0 {
            map.forget_before(MonotonicTime(time.saturating_sub(500)));
        }
        most = most.max(map.heap_bytes());
    }
    assert!(most < 1 << 20, "{most}");
    for time in 0..100_000u64 {
        load(
            &mut map,
            0x1000..0x1100,
            &format!("f{time}"),
            at(200_000 + time),
        );
    }
    assert!(map.gone_count <= GONE_MAX && map.dropped().1 > 0);
    map.forget_before(MonotonicTime(u64::MAX));
    map.unload(0..u64::MAX, at(400_000));
    map.forget_before(MonotonicTime(u64::MAX));
    assert_eq!(map.heap_bytes(), 0);
}

proptest! {
    #[test]
    fn exact_times_equal_painting_every_address_at_every_time(
        events in prop::collection::vec((0u64..120, 1u64..50, 0u64..4), 0..50),
    ) {
        let mut map = map();
        let mut painted: Vec<Vec<Option<String>>> = vec![vec![None; 200]];
        for (time, &(start, len, kind)) in events.iter().enumerate() {
            let when = at(time as u64 + 1);
            let mut now = painted.last().cloned().unwrap_or_default();
            if kind == 0 {
                map.unload(start..start + len, when);
                now[start as usize..(start + len) as usize].fill(None);
            } else {
                let name = format!("n{time}");
                load(&mut map, start..start + len, &name, when);
                now[start as usize..(start + len) as usize].fill(Some(name));
            }
            painted.push(now);
        }
        for (time, row) in painted.iter().enumerate() {
            for (address, expected) in row.iter().enumerate() {
                let found = map.find(address as u64, MonotonicTime(time as u64));
                prop_assert_eq!(name(&found), expected.as_deref().unwrap_or("-"));
                if let Some(steady) = map.steady(address as u64, MonotonicTime(time as u64), MonotonicTime(99)) {
                    let later = painted[time..].iter().all(|row| &row[address] == expected);
                    prop_assert!(later);
                    prop_assert!(steady.is_same(&found));
                }
            }
        }
    }
}
