//! Sums the samples of one function by source line and by instruction.

use crate::exit::{self, fail};
use crate::terminal::{clean, fit};
use crate::units;
use anyhow::Result;
use profile::{FrameId, FrameKind, Profile, StackEnd, Value, key};
use regex::RegexBuilder;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Functions named where several match, or none does.
const NAMED: usize = 8;

/// Columns of one of them.
const NAME_CELLS: usize = 60;

/// Memory that a pattern may take. Unit: bytes.
const PATTERN_BYTES: usize = 1 << 20;

/// Processes remembered that run a file: one is enough to find it.
const PIDS_MAX: usize = 8;

/// Samples, in the measure that was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Samples of the place itself.
    pub own: u64,
    /// With what is called from there.
    pub total: u64,
}

impl Sums {
    fn add(&mut self, is_own: bool, value: u64) {
        self.total = self.total.saturating_add(value);
        if is_own {
            self.own = self.own.saturating_add(value);
        }
    }
}

/// A place in the source; line 0: not known.
pub type Line<'p> = (&'p str, u32);

/// What is known of one instruction.
#[derive(Clone, Debug, Default)]
pub struct At<'p> {
    /// Its samples.
    pub sums: Sums,
    /// The line of the function that it is of.
    pub line: Line<'p>,
}

/// The instructions of one file.
#[derive(Clone, Debug, Default)]
pub struct Binary<'p> {
    /// Its name.
    pub module: &'p str,
    /// Processes that run it.
    pub pids: BTreeSet<u32>,
    /// By address, as the file counts them: of the instruction, or within that of a call.
    pub places: BTreeMap<u64, At<'p>>,
    /// Samples that are at several of them, for the function calls itself: by those places.
    repeated: BTreeMap<Vec<u64>, u64>,
}

impl<'p> Binary<'p> {
    /// Data about an instruction at these addresses. A sample counts once, even if it is both at
    /// the start of a call and, through an outer call of the function, within it.
    pub fn at(&self, instruction: Range<u64>) -> Option<At<'p>> {
        let mut places = self.places.range(instruction.clone());
        let mut found = places.next()?.1.clone();
        let mut is_one = true;
        for (_, more) in places {
            is_one = false;
            found.sums.own = found.sums.own.saturating_add(more.sums.own);
            found.sums.total = found.sums.total.saturating_add(more.sums.total);
        }
        for (places, value) in self.repeated.iter().filter(|_| !is_one) {
            let here = places.iter().filter(|place| instruction.contains(place));
            let again = here.count().saturating_sub(1) as u64;
            let more = value.saturating_mul(again);
            found.sums.total = found.sums.total.saturating_sub(more);
        }
        Some(found)
    }

    /// Notes a sample that is at these places.
    fn note(&mut self, places: Vec<u64>, value: u64) {
        if places.len() > 1 {
            let sum = self.repeated.entry(places).or_default();
            *sum = sum.saturating_add(value);
        }
    }
}

/// A function and its samples.
#[derive(Debug)]
pub struct Tally<'p> {
    /// Its name.
    pub function: &'p str,
    /// What kinds of code it is.
    pub kinds: BTreeSet<&'static str>,
    /// The files it is in.
    pub modules: BTreeSet<&'p str>,
    /// Its samples.
    pub sums: Sums,
    /// Samples of all that was recorded.
    pub all: u64,
    /// By line.
    pub lines: BTreeMap<Line<'p>, Sums>,
    /// By build id.
    pub binaries: BTreeMap<&'p str, Binary<'p>>,
}

/// Calls `each` with the frames of a stack, leaf first.
fn frames(profile: &Profile, stack: profile::StackId, mut each: impl FnMut(FrameId)) {
    let mut at = stack;
    while let Some((parent, frame)) = profile.dict.stacks.node(at) {
        each(frame);
        at = parent;
    }
}

/// Samples that are of code, and what each counts.
fn samples(
    profile: &Profile,
    measure: &impl Fn(Value) -> u64,
) -> impl Iterator<Item = (profile::SampleKey, u64)> {
    let all = profile.sorted().into_iter();
    let taken = all.filter(|(key, _)| key.end != StackEnd::Lost);
    taken.map(|(key, value)| (key, measure(value)))
}

/// Samples by function.
fn functions<'p>(profile: &'p Profile, measure: &impl Fn(Value) -> u64) -> BTreeMap<&'p str, u64> {
    let mut sums = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (key, value) in samples(profile, measure) {
        seen.clear();
        frames(profile, key.stack, |frame| {
            let frame = profile.dict.frame(frame);
            if frame.kind != FrameKind::Synthetic && seen.insert(frame.function) {
                let sum = sums.entry(frame.function).or_default();
                *sum = u64::saturating_add(*sum, value);
            }
        });
    }
    sums
}

/// The function that is meant: by its name, or the only one that a part of it or a pattern matches.
///
/// # Errors
/// When none matches, or several; with those that may be meant.
pub fn find<'p>(
    profile: &'p Profile,
    given: &str,
    measure: &impl Fn(Value) -> u64,
) -> Result<&'p str> {
    let sums = functions(profile, measure);
    if let Some((&function, _)) = sums.get_key_value(given) {
        return Ok(function);
    }
    let mut pattern = RegexBuilder::new(given);
    let pattern = pattern.size_limit(PATTERN_BYTES).build().ok();
    let matches = |function: &str| {
        function.contains(given)
            || pattern
                .as_ref()
                .is_some_and(|pattern| pattern.is_match(function))
    };
    let mut found: Vec<(&str, u64)> = sums.iter().map(|(&name, &sum)| (name, sum)).collect();
    found.retain(|(function, _)| matches(function));
    match found[..] {
        [(only, _)] => Ok(only),
        [] => Err(none_such(given, &sums)),
        _ => {
            let count = found.len();
            found.sort_by_key(|&(function, sum)| (Reverse(sum), function));
            Err(fail(
                exit::USAGE,
                format!(
                    "failed to annotate `{}`: {} functions match\ngive the name of one: {}",
                    clean(given),
                    units::count(count as u64),
                    listed(&found)
                ),
            ))
        }
    }
}

fn none_such(given: &str, sums: &BTreeMap<&str, u64>) -> anyhow::Error {
    let mut alike: Vec<(&str, u64)> = sums.iter().map(|(&name, &sum)| (name, sum)).collect();
    let likeness = |name: &str| strsim::jaro_winkler(name, given);
    alike.sort_by(|a, b| likeness(b.0).total_cmp(&likeness(a.0)));
    let nearest = match alike.is_empty() {
        true => String::new(),
        false => format!("\nthe nearest are {}", listed(&alike)),
    };
    let given = clean(given);
    fail(
        exit::USAGE,
        format!("failed to annotate `{given}`: no sample has this function{nearest}"),
    )
}

fn listed(functions: &[(&str, u64)]) -> String {
    let named = functions.iter().take(NAMED);
    let mut named: Vec<String> = named
        .map(|(function, _)| format!("`{}`", fit(&clean(function), NAME_CELLS)))
        .collect();
    if functions.len() > NAMED {
        named.push("…".to_owned());
    }
    named.join(", ")
}

impl<'p> Tally<'p> {
    /// Adds the samples of a function up.
    pub fn of(
        profile: &'p Profile,
        function: &'p str,
        measure: &impl Fn(Value) -> u64,
    ) -> Tally<'p> {
        let mut tally = Tally {
            function,
            kinds: BTreeSet::new(),
            modules: BTreeSet::new(),
            sums: Sums::default(),
            all: 0,
            lines: BTreeMap::new(),
            binaries: BTreeMap::new(),
        };
        let (mut lines, mut places) = (BTreeSet::new(), BTreeSet::new());
        for (key, value) in samples(profile, measure) {
            tally.all = tally.all.saturating_add(value);
            let pid = profile.dict.label(key.labels, key::PID);
            let pid: Option<u32> = pid.and_then(|pid| pid.parse().ok());
            let mut leaf = None;
            lines.clear();
            places.clear();
            frames(profile, key.stack, |frame| {
                let frame = profile.dict.frame(frame);
                let is_leaf = leaf.is_none();
                // Code that was inlined is at the same instruction as what it was inlined into.
                let place = frame.instruction();
                let at_leaf = *leaf.get_or_insert(place) == place;
                if frame.kind == FrameKind::Synthetic || frame.function != function {
                    return;
                }
                tally.kinds.insert(frame.kind.word());
                tally.modules.insert(frame.module);
                if lines.is_empty() {
                    tally.sums.add(is_leaf, value);
                }
                let line = (frame.file, frame.line);
                // Once a sample, however often the function calls itself.
                if lines.insert(line) {
                    tally.lines.entry(line).or_default().add(is_leaf, value);
                }
                let Some(place) = place.filter(|place| places.insert(*place)) else {
                    return;
                };
                let binary = tally.binaries.entry(place.build_id).or_default();
                binary.module = frame.module;
                if binary.pids.len() < PIDS_MAX {
                    binary.pids.extend(pid);
                }
                let at = binary.places.entry(place.address).or_default();
                at.sums.add(at_leaf, value);
                at.line = line;
            });
            // They are in order, those of one build together.
            let mut left = places.iter().peekable();
            while let Some(first) = left.next() {
                let mut of_build = vec![first.address];
                while let Some(more) = left.next_if(|place| place.build_id == first.build_id) {
                    of_build.push(more.address);
                }
                if let Some(binary) = tally.binaries.get_mut(first.build_id) {
                    binary.note(of_build, value);
                }
            }
        }
        tally
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::{FrameRef, LabelSetId, SampleKey, StackId};

    /// A sample of a function that is at these addresses, the leaf first, below `main`.
    fn add(profile: &mut Profile, addresses: &[(&str, u64)], count: u64) {
        let mut stack = StackId::EMPTY;
        let calls = addresses.iter().rev().map(|&(build_id, address)| {
            let place = profile::Place { build_id, address };
            ("walk", place.to_string())
        });
        for (function, place) in [("main", String::new())].into_iter().chain(calls) {
            let frame = profile.dict.intern_frame(FrameRef {
                kind: FrameKind::Native,
                function,
                system_name: &place,
                ..FrameRef::default()
            });
            stack = profile.dict.stacks.child(stack, frame);
        }
        let key = SampleKey {
            labels: LabelSetId::default(),
            stack,
            end: StackEnd::Complete,
        };
        profile.add(key, Value { count, weight: 1 });
    }

    #[test]
    fn a_function_that_calls_itself_counts_once_at_each_instruction() {
        let (build, other) = ("aa".repeat(20), "bb".repeat(20));
        let (build, other) = (&*build, &*other);
        let mut profile = Profile::default();
        // At the call itself, and within it by the outer calls: each of five bytes from 0x10.
        add(
            &mut profile,
            &[(build, 0x10), (build, 0x14), (build, 0x14)],
            3,
        );
        add(&mut profile, &[(build, 0x10)], 4);
        add(
            &mut profile,
            &[(build, 0x20), (build, 0x14), (other, 0x14)],
            5,
        );
        let tally = Tally::of(&profile, "walk", &|value: Value| value.count);
        assert_eq!((tally.sums.own, tally.sums.total), (12, 12));
        let binary = &tally.binaries[build];
        let at = |range| binary.at(range).map(|at| (at.sums.own, at.sums.total));
        assert_eq!(at(0x10..0x15), Some((7, 12)));
        assert_eq!(at(0x10..0x11), Some((7, 7)));
        assert_eq!(at(0x20..0x22), Some((5, 5)));
        assert_eq!(at(0x22..0x25), None);
        let of_other = tally.binaries[other].at(0x10..0x15);
        assert_eq!(of_other.map(|at| at.sums.total), Some(5));
    }

    #[test]
    fn where_nothing_is_near_nothing_is_named() {
        let error = find(&Profile::default(), "walk", &|value: Value| value.count).unwrap_err();
        let text = "failed to annotate `walk`: no sample has this function";
        assert_eq!(error.to_string(), text);
    }
}
