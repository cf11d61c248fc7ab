//! Packed times at which the samples of a part were taken. They are stored with the part's rows,
//! under a budget of their own.
//!
//! A moment is a varint `ticks since the previous moment`, a varint `row << 1 | explicit weight`,
//! and the weight if it is not the period. Rows are indices into the part's [`Block`]; they stay
//! valid when the dictionary is collected, because a block is then packed again in the same order.
//! At 99 Hz on two busy CPUs a moment takes 4 bytes.

use super::block::Block;
use super::{Part, Recorder, varint};
use crate::batch::RawTimestamp;
use host::time::MonotonicTime;
use profile::SampleKey;

/// Times are kept in steps of this. Unit: nanoseconds. A heat map's finest column is a thousand
/// times as long, and an exact nanosecond would take 2 bytes more a sample.
const TICK_NS: u64 = 1000;

/// The times of one part's samples. The default: none are known.
#[derive(Debug, Default)]
pub(super) struct Times {
    bytes: Box<[u8]>,
    count: u32,
    /// Weight of those without one.
    period: u64,
    /// Samples of the part whose time did not fit.
    refused: u64,
    known: bool,
}

/// When a sample of which row was taken, and its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Timestamp {
    pub time: MonotonicTime,
    pub row: u32,
    pub weight: u64,
}

impl Times {
    /// Packs the timestamps of a part that starts at `start`. Their rows are places in `given`; a
    /// row that `block` does not have was folded away, and its timestamps are counted as refused.
    pub(super) fn seal(
        timestamps: &[RawTimestamp],
        given: &[SampleKey],
        refused: u64,
        start: MonotonicTime,
        block: &Block,
    ) -> Times {
        let places = places(given, block);
        let place = |row: u32| places.get(row as usize).copied().flatten();
        let found = timestamps.iter().map(|timestamp| {
            place(timestamp.row).map(|row| Timestamp {
                time: timestamp.time,
                row,
                weight: timestamp.weight,
            })
        });
        Times::pack(found, refused, start, block.period())
    }

    /// Concatenates the times of parts that were merged into `block`. Samples of a part without
    /// times are counted as refused.
    pub(super) fn merge<'a>(
        parts: impl Iterator<Item = &'a Part> + Clone,
        start: MonotonicTime,
        block: &Block,
    ) -> Times {
        if !parts.clone().any(|part| part.times.known) {
            return Times::default();
        }
        let refused = |part: &Part| match part.times.known {
            true => part.times.refused,
            false => part.quality.taken,
        };
        let refused = parts.clone().map(refused).sum();
        let found = parts.flat_map(|part| {
            let places = places(&part.block.keys(), block);
            part.times.iter(part.start).map(move |timestamp| {
                let row = places.get(timestamp.row as usize).copied().flatten();
                row.map(|row| Timestamp { row, ..timestamp })
            })
        });
        Times::pack(found, refused, start, block.period())
    }

    fn pack(
        timestamps: impl Iterator<Item = Option<Timestamp>>,
        refused: u64,
        start: MonotonicTime,
        period: u64,
    ) -> Times {
        let mut refused = refused;
        let mut list: Vec<Timestamp> = Vec::new();
        for timestamp in timestamps {
            match timestamp {
                Some(timestamp) => list.push(timestamp),
                None => refused += 1,
            }
        }
        // They come nearly in order: sorted already but for those that came late.
        list.sort_by_key(|timestamp| timestamp.time);
        let mut bytes = Vec::with_capacity(list.len() * 4);
        let mut at = 0;
        for timestamp in &list {
            let tick = timestamp.time.0.saturating_sub(start.0) / TICK_NS;
            varint::put(&mut bytes, tick - at);
            at = tick;
            let explicit = timestamp.weight != period;
            varint::put(
                &mut bytes,
                u64::from(timestamp.row) << 1 | u64::from(explicit),
            );
            if explicit {
                varint::put(&mut bytes, timestamp.weight);
            }
        }
        Times {
            bytes: bytes.into_boxed_slice(),
            count: list.len() as u32,
            period,
            refused,
            known: true,
        }
    }

    /// The timestamps in order of time, of a part that starts at `start`.
    pub(super) fn iter(&self, start: MonotonicTime) -> impl Iterator<Item = Timestamp> + '_ {
        let mut rest = &*self.bytes;
        let mut tick = 0u64;
        std::iter::from_fn(move || {
            tick = tick.saturating_add(varint::take(&mut rest)?);
            let head = varint::take(&mut rest)?;
            let weight = match head & 1 {
                0 => self.period,
                _ => varint::take(&mut rest)?,
            };
            Some(Timestamp {
                time: MonotonicTime(start.0.saturating_add(tick.saturating_mul(TICK_NS))),
                row: (head >> 1) as u32,
                weight,
            })
        })
    }

    /// True when it is known when each sample was taken, those refused aside.
    pub(super) fn are_known(&self) -> bool {
        self.known
    }

    /// Samples whose time did not fit.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Heap memory held, in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// For each of `keys` its place in the block; `None` when it is not there.
fn places(keys: &[SampleKey], block: &Block) -> Vec<Option<u32>> {
    let rows = block.keys();
    let place = |key| rows.binary_search(key).ok().map(|at| at as u32);
    keys.iter().map(place).collect()
}

impl Recorder {
    /// Forgets the oldest times until the rest has room.
    pub(super) fn forget_times(&mut self) {
        let mut bytes = self.times_bytes();
        let windows = self.windows.iter_mut().map(|window| &mut window.whole);
        let parts = windows.chain(&mut self.open);
        for part in parts {
            if bytes <= self.options.times_bytes {
                return;
            }
            bytes -= part.times.heap_bytes();
            self.totals.times_dropped += u64::from(part.times.count);
            part.times = Times::default();
        }
    }

    /// Memory of all times.
    pub(super) fn times_bytes(&self) -> usize {
        let all = self.windows.iter().map(|window| &window.whole);
        let all = all.chain(&self.open);
        all.map(|part| part.times.heap_bytes()).sum()
    }

    /// Start of the time up to now of which they are known without a gap.
    pub(super) fn times_since(&self) -> Option<MonotonicTime> {
        let windows = self.windows.iter().map(|window| &window.whole);
        let newest_first = windows.chain(&self.open).rev();
        let known = newest_first.take_while(|part| part.times.are_known());
        known.last().map(|part| part.start)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{NEVER, PERIOD, SECOND, options, row};
    use super::super::{
        RecorderAnswer, RecorderOptions, RecorderQuery, WindowPart, WindowRange, query,
    };
    use super::*;
    use profile::{GroupBy, Profile, Quality, Query, Selector};
    use proptest::prelude::*;
    use std::sync::RwLock;

    const WHOLE: WindowRange = WindowRange::Time(MonotonicTime(0), MonotonicTime(u64::MAX));

    fn ask(recorder: &RwLock<Recorder>, which: &Query) -> RecorderAnswer {
        let asked = RecorderQuery {
            query: which,
            times: true,
            withhold: profile::Withholding::nothing(),
        };
        query(recorder, WHOLE, asked, &NEVER).unwrap()
    }

    /// Adds samples of ten seconds: when, and of which function.
    fn add(recorder: &mut Recorder, start_s: u64, closes: bool, samples: &[(u64, &str)]) {
        let mut rows = Vec::new();
        let mut timestamps = Vec::new();
        for &(at, function) in samples {
            timestamps.push(RawTimestamp {
                row: rows.len() as u32,
                time: MonotonicTime(start_s * SECOND + at),
                weight: PERIOD,
            });
            rows.push(row(recorder, "/a", "c", &["main", function], 1));
        }
        recorder.add(WindowPart {
            pressure: None,
            start: MonotonicTime(start_s * SECOND),
            end: MonotonicTime((start_s + 10) * SECOND),
            closes,
            period: PERIOD,
            quality: Quality {
                taken: samples.len() as u64,
                ..Quality::default()
            },
            rows: &mut rows,
            accounts: &[],
            timestamps: &timestamps,
            timestamps_refused: 0,
            timeless: 0,
        });
    }

    fn leaf(profile: &Profile, at: usize) -> String {
        let key = profile.timestamps.list[at].key;
        let (_, frame) = profile.dict.stacks.node(key.stack).unwrap();
        profile.dict.frame(frame).function.to_owned()
    }

    /// Times as they are answered, from the start of what is known, in milliseconds, with their
    /// functions.
    fn shown(recorder: Recorder) -> (Option<u64>, Vec<(u64, String)>) {
        let recorder = RwLock::new(recorder);
        let answer = ask(&recorder, &Query::default());
        let list = &answer.profile.timestamps.list;
        let times =
            (0..list.len()).map(|at| (list[at].at_ns / 1_000_000, leaf(&answer.profile, at)));
        (
            answer.times_from.map(|from| from.0 / SECOND),
            times.collect(),
        )
    }

    const MS: u64 = 1_000_000;

    fn owned(list: &[(u64, &str)]) -> Vec<(u64, String)> {
        list.iter().map(|&(at, name)| (at, name.into())).collect()
    }

    #[test]
    fn each_sample_is_told_with_its_time_over_windows_and_the_open_one() {
        let mut recorder = Recorder::new(options(64 << 20));
        add(
            &mut recorder,
            10,
            true,
            &[(5 * MS, "z"), (7 * MS, "a"), (2 * MS, "late")],
        );
        add(&mut recorder, 20, false, &[(MS, "a")]);
        let expected = [(2, "late"), (5, "z"), (7, "a"), (10_001, "a")];
        assert_eq!(shown(recorder), (Some(10), owned(&expected)));
    }

    #[test]
    fn parts_that_are_added_up_keep_them() {
        let mut recorder = Recorder::new(options(64 << 20));
        add(&mut recorder, 10, false, &[(5 * MS, "z"), (6 * MS, "m")]);
        add(&mut recorder, 20, true, &[(MS, "a"), (2 * MS, "z")]);
        let expected = [(5, "z"), (6, "m"), (10_001, "a"), (10_002, "z")];
        assert_eq!(shown(recorder), (Some(10), owned(&expected)));
    }

    #[test]
    fn a_collection_of_the_dictionary_keeps_them() {
        let mut recorder = Recorder::new(options(64 << 20));
        // Interned first and then unused: every id after it moves.
        row(&mut recorder, "/gone", "gone", &["gone", "gone"], 1);
        add(&mut recorder, 10, true, &[(5 * MS, "z"), (7 * MS, "a")]);
        recorder.collect(None);
        assert_eq!(shown(recorder), (Some(10), owned(&[(5, "z"), (7, "a")])));
    }

    #[test]
    fn what_was_folded_away_is_counted_as_refused() {
        let mut recorder = Recorder::new(options(64 << 20));
        add(
            &mut recorder,
            10,
            true,
            &[(5 * MS, "z"), (6 * MS, "z"), (7 * MS, "a")],
        );
        recorder.cut_all(1);
        let recorder = RwLock::new(recorder);
        let answer = ask(&recorder, &Query::default());
        let timestamps = &answer.profile.timestamps;
        assert_eq!((timestamps.list.len(), timestamps.dropped), (2, 1));
    }

    #[test]
    fn the_oldest_are_forgotten_first_and_counted() {
        let mut recorder = Recorder::new(RecorderOptions {
            times_bytes: 15,
            ..options(64 << 20)
        });
        for number in 1..4 {
            add(
                &mut recorder,
                number * 10,
                true,
                &[(5 * MS, "a"), (7 * MS, "b")],
            );
        }
        let stats = recorder.stats();
        assert!(stats.times_bytes <= 15, "{stats:?}");
        assert_eq!(stats.totals.times_dropped, 2);
        assert_eq!(stats.times_since, Some(MonotonicTime(20 * SECOND)));
        let (since, times) = shown(recorder);
        assert_eq!((since, times.len()), (Some(20), 4));
    }

    #[test]
    fn a_part_without_times_ends_what_is_known() {
        let mut recorder = Recorder::new(options(64 << 20));
        add(&mut recorder, 10, true, &[(MS, "a")]);
        let mut rows = vec![row(&mut recorder, "/a", "c", &["main"], 1)];
        recorder.add(WindowPart {
            pressure: None,
            start: MonotonicTime(20 * SECOND),
            end: MonotonicTime(30 * SECOND),
            closes: true,
            period: PERIOD,
            quality: Quality {
                taken: 1,
                ..Quality::default()
            },
            rows: &mut rows,
            accounts: &[],
            timestamps: &[],
            timestamps_refused: 0,
            timeless: 0,
        });
        add(&mut recorder, 30, true, &[(MS, "b")]);
        assert_eq!(shown(recorder), (Some(30), owned(&[(1, "b")])));
    }

    #[test]
    fn a_question_takes_the_samples_it_selects() {
        let mut recorder = Recorder::new(options(64 << 20));
        add(&mut recorder, 10, true, &[(MS, "a"), (2 * MS, "b")]);
        let none: Selector = r#"cgroup="/other""#.parse().unwrap();
        let query = Query::new(none, Vec::new(), GroupBy::All).unwrap();
        let recorder = RwLock::new(recorder);
        let answer = ask(&recorder, &query);
        assert!(answer.profile.timestamps.list.is_empty());
        assert_eq!(answer.times_from, Some(MonotonicTime(10 * SECOND)));
    }

    #[test]
    fn a_moment_of_a_busy_machine_takes_six_bytes_at_most() {
        let mut recorder = Recorder::new(options(64 << 20));
        let names: Vec<String> = (0..2000).map(|number| format!("f{number}")).collect();
        // 198 a second.
        let samples: Vec<(u64, &str)> = (0..1980u64)
            .map(|at| (at * 5_050_505, &*names[(at * 7919 % 2000) as usize]))
            .collect();
        add(&mut recorder, 10, true, &samples);
        let bytes = recorder.stats().times_bytes;
        println!("{} bytes a moment", bytes as f64 / 1980.0);
        assert!(bytes <= 6 * 1980);
    }

    proptest! {
        #[test]
        fn reads_what_was_packed(
            timestamps in prop::collection::vec((0u64..1 << 40, 0u32..5, any::<u64>()), 0..100)
        ) {
            let given: Vec<Timestamp> = timestamps
                .iter()
                .map(|&(at, row, weight)| Timestamp {
                    time: MonotonicTime(at / TICK_NS * TICK_NS),
                    row,
                    weight,
                })
                .collect();
            let times = Times::pack(given.iter().copied().map(Some), 3, MonotonicTime(0), PERIOD);
            let mut expected = given;
            expected.sort_by_key(|timestamp| timestamp.time);
            prop_assert_eq!(times.iter(MonotonicTime(0)).collect::<Vec<_>>(), expected);
            prop_assert_eq!((times.refused(), times.are_known()), (3, true));
        }
    }
}
