//! Tests valid and invalid parts of windows.

use super::*;
use crate::ingest::limits::DICTIONARY_STACKS;
use proptest::prelude::*;

fn decoder() -> Decoder {
    let host = HostKey {
        host_id: "id".to_owned(),
        boot_id: [1; 16],
    };
    Decoder::new(
        host,
        &HostFacts::default(),
        &BTreeMap::new(),
        Arc::default(),
    )
}

fn held() -> Cost<Reservation> {
    Cost {
        tables: Reservation::default(),
        rows: Reservation::default(),
    }
}

fn facts() -> wire::WindowFacts {
    wire::WindowFacts {
        start_unix_ns: 1,
        duration_ns: 10_000_000_000,
        event: "cpu-clock".to_owned(),
        unit: "nanoseconds".to_owned(),
        period: 3,
        ..wire::WindowFacts::default()
    }
}

#[test]
fn more_cpus_than_any_host_has_are_refused() {
    let mut parts = parts(&[(0, 1, 1, Some(1))], 1);
    parts[0].sample_weights[0] = u64::MAX;
    let decoded = decoder().part(parts.remove(0), held());
    let refused =
        matches!(&decoded, Ok(Decoded::Refused { reason, .. }) if reason.contains("CPUs"));
    assert!(refused);
}

/// A window without rows that brings these stacks.
fn bringing(sequence: u64, stacks: usize) -> wire::WindowPart {
    let hashes = (0..stacks as u128).flat_map(|stack| (stack + 1).to_be_bytes());
    wire::WindowPart {
        sequence,
        last: true,
        stack_hashes: hashes.collect(),
        facts: Some(facts()),
        ..wire::WindowPart::default()
    }
}

#[test]
fn a_stream_remembers_no_more_stacks_than_it_was_told_and_those_of_one_window() {
    let mut decoder = decoder();
    let told = *DICTIONARY_STACKS.end() as usize;
    for sequence in 0.. {
        let brought = decoder.part(bringing(sequence, told / 2), held());
        assert!(decoder.tables.stacks.len() <= STACKS_PER_STREAM_MAX);
        if let Err(fault) = brought {
            let what = "stacks";
            let limit = STACKS_PER_STREAM_MAX;
            assert_eq!(fault, Fault::DictionaryFull { what, limit });
            break;
        }
    }
}

#[test]
fn nothing_of_a_dictionary_is_left_when_a_new_one_starts() {
    let whole = |decoded| match decoded {
        Ok(Decoded::Whole(pending)) => pending.window,
        _ => panic!("the window is not whole"),
    };
    let mut decoder = decoder();
    let first = parts(&[(0, 1, 1, None), (0, 2, 1, None)], 2).remove(0);
    let first = whole(decoder.part(first, held()));
    let mut second = parts(&[(0, 9, 1, None)], 1).remove(0);
    second.new_dictionary = true;
    let second = whole(decoder.part(second, held()));
    assert_eq!(second.rows[0].stack, ContentId([9; 16]));
    // Ids of the first are not known any more, and what an engine remembers of them is gone.
    assert_eq!(decoder.tables.stacks.len(), 2);
    let memo = |window: NewWindow| window.stream.expect("it is of a stream").memo;
    assert_ne!(memo(first), memo(second));
    let mut third = parts(&[(0, 9, 1, None)], 1).remove(0);
    (third.label_sets, third.stack_hashes) = (Vec::new(), Vec::new());
    third.sample_stacks = vec![2];
    let gone = Fault::Id {
        table: "stacks",
        id: 2,
    };
    assert_eq!(decoder.part(third, held()).err(), Some(gone));
}

/// A row: label set and stack by number, count, and weight if it has one.
type Sent = (u8, u8, u16, Option<u16>);

/// The rows in parts of at most `size`, each with what it uses for the first time.
fn parts(rows: &[Sent], size: usize) -> Vec<wire::WindowPart> {
    let (mut sets, mut stacks) = (Vec::new(), Vec::new());
    let weighted = rows.iter().all(|row| row.3.is_some());
    let mut parts = Vec::new();
    for chunk in rows.chunks(size) {
        let mut part = wire::WindowPart {
            sequence: 7,
            ..wire::WindowPart::default()
        };
        for &(set, stack, count, weight) in chunk {
            let set_id = sets
                .iter()
                .position(|known| *known == set)
                .unwrap_or_else(|| {
                    sets.push(set);
                    let names_values = vec!["comm".to_owned(), format!("c{set}")];
                    part.label_sets.push(wire::Labels { names_values });
                    sets.len() - 1
                });
            let stack_id = stacks.iter().position(|known| *known == stack);
            let stack_id = stack_id.unwrap_or_else(|| {
                stacks.push(stack);
                part.stack_hashes.extend([stack; 16]);
                stacks.len() - 1
            });
            part.sample_label_sets.push(set_id as u32 + 1);
            part.sample_stacks.push(stack_id as u32 + 1);
            part.sample_counts.push(count.into());
            if weighted {
                part.sample_weights.extend(weight.map(u64::from));
            }
        }
        parts.push(part);
    }
    if let Some(last) = parts.last_mut() {
        last.last = true;
        last.facts = Some(facts());
    }
    parts
}

fn decode(parts: Vec<wire::WindowPart>) -> NewWindow {
    let mut decoder = decoder();
    for part in parts {
        if let Decoded::Whole(pending) = decoder.part(part, held()).expect("sound") {
            let mut window = pending.window;
            let numbers = window.stream.take().expect("it is of a stream").ids;
            assert_eq!(window.rows.len(), numbers.len());
            return window;
        }
    }
    panic!("the window is not whole");
}

fn any_column() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(prop_oneof![0u32..4, any::<u32>()], 0..4)
}

prop_compose! {
    fn any_part()(
        sequence in 0u64..3,
        last in any::<bool>(),
        new_dictionary in prop::bool::weighted(0.1),
        has_facts in any::<bool>(),
        sets in prop::collection::vec(prop::collection::vec("[a-c]{0,2}|host", 0..5), 0..3),
        stack_hashes in prop_oneof![
            Just(Vec::new()),
            prop::collection::vec(any::<u8>(), 32),
            prop::collection::vec(any::<u8>(), 0..40),
        ],
        columns in (any_column(), any_column(), any_column()),
        counts in prop::collection::vec(any::<u64>(), 0..4),
        weights in prop::collection::vec(any::<u64>(), 0..4),
        times in (any::<i64>(), any::<u64>(), any::<u64>()),
        accounts in any_column(),
        throttled in (any_column(), any_column(), any::<bool>()),
    ) -> wire::WindowPart {
        let facts = wire::WindowFacts {
            start_unix_ns: times.0,
            duration_ns: times.1,
            period: times.2,
            account_ns: vec![u64::MAX; accounts.len()],
            account_estimated_ns: vec![u64::MAX; accounts.len()],
            account_label_sets: accounts,
            throttling_known: throttled.2,
            throttled_ns: vec![u64::MAX; throttled.0.len()],
            throttled_limits: vec![u64::MAX; throttled.0.len()],
            throttled_accounts: throttled.0,
            throttling_unknown: throttled.1,
            ..facts()
        };
        wire::WindowPart {
            sequence,
            last,
            new_dictionary,
            label_sets: sets.into_iter().map(|names_values| wire::Labels { names_values }).collect(),
            stack_hashes,
            sample_label_sets: columns.0,
            sample_stacks: columns.1,
            sample_ends: columns.2,
            sample_counts: counts,
            sample_weights: weights,
            facts: has_facts.then_some(facts),
        }
    }
}

proptest! {
    #[test]
    fn parts_say_the_same_however_they_are_cut(
        rows in prop::collection::vec(
            (0u8..5, 0u8..9, 1u16.., prop::option::weighted(0.9, 1u16..)), 1..40),
        size in 1usize..40,
    ) {
        let cut = decode(parts(&rows, size));
        prop_assert_eq!(&cut, &decode(parts(&rows, rows.len())));
        let sent: u64 = rows.iter().map(|row| u64::from(row.2)).sum();
        let kept: u64 = cut.rows.iter().map(|row| row.value.count).sum();
        prop_assert_eq!(sent, kept);
    }

    #[test]
    fn any_parts_are_taken_or_refused(parts in prop::collection::vec(any_part(), 1..6)) {
        let mut decoder = decoder();
        for part in parts {
            match decoder.part(part, held()) {
                Ok(Decoded::Whole(pending)) => {
                    let window = pending.window;
                    let sets = window.label_sets.len() as u32;
                    prop_assert!(window.rows.iter().all(|row| row.labels < sets));
                    prop_assert!(window.accounts.iter().all(|account| account.labels < sets));
                    prop_assert!(window.range.start_unix_ns < window.range.end_unix_ns);
                    prop_assert!(window.label_sets.iter().all(|set| set.get("host") == "id"));
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
    }
}

/// Accounts of three cgroups in a last part, changed by the test.
fn accounts(change: impl FnOnce(&mut wire::WindowFacts)) -> Result<Decoded, Fault> {
    let mut facts = wire::WindowFacts {
        account_label_sets: vec![1, 2, 3],
        account_ns: vec![10, 20, 30],
        account_estimated_ns: vec![0; 3],
        ..facts()
    };
    change(&mut facts);
    let of_cgroup = |path: &str| wire::Labels {
        names_values: vec!["cgroup".to_owned(), path.to_owned()],
    };
    let part = wire::WindowPart {
        label_sets: ["/a", "/b", "/c"].map(of_cgroup).to_vec(),
        facts: Some(facts),
        ..bringing(1, 0)
    };
    decoder().part(part, held())
}

fn throttling(decoded: Result<Decoded, Fault>) -> Vec<(Option<u64>, u64)> {
    let Ok(Decoded::Whole(pending)) = decoded else {
        panic!("the window is not taken");
    };
    let accounts = pending.window.accounts.iter();
    accounts
        .map(|of| (of.throttled_ns, of.limit_millicores))
        .collect()
}

#[test]
fn only_what_an_agent_looked_at_is_known_to_be_unthrottled() {
    assert_eq!(throttling(accounts(|_| ())), [(None, 0); 3]);
    let known = accounts(|facts| {
        facts.throttling_known = true;
        facts.throttled_accounts = vec![1];
        facts.throttled_ns = vec![77];
        facts.throttled_limits = vec![200];
        facts.throttling_unknown = vec![2];
    });
    assert_eq!(
        throttling(known),
        [(Some(0), 0), (Some(77), 200), (None, 0)]
    );
}

#[test]
fn throttled_accounts_that_are_not_there_are_a_fault() {
    let odd = |place: u32, times: usize| {
        accounts(|facts| {
            facts.throttled_accounts = vec![place];
            facts.throttled_ns = vec![1; times];
            facts.throttled_limits = vec![1];
        })
    };
    assert!(odd(2, 1).is_ok());
    assert!(matches!(odd(3, 1), Err(Fault::Columns { .. })));
    assert!(matches!(odd(0, 2), Err(Fault::Columns { .. })));
}

#[test]
fn nobody_waits_for_longer_than_a_window_lasts() {
    let decoded = accounts(|facts| {
        facts.pressure = Some(wire::Pressure {
            cpu_ns: 5,
            memory_ns: u64::MAX,
            io_ns: 0,
        });
    });
    let Ok(Decoded::Whole(pending)) = decoded else {
        panic!("the window is not taken");
    };
    let pressure = pending.window.pressure.unwrap();
    assert_eq!(
        (pressure.cpu_ns, pressure.memory_ns, pressure.io_ns),
        (5, 10_000_000_000, 0)
    );
}
