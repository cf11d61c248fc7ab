//! Names that agents could not find, as an engine requests them while it builds an answer.

use super::Limits;
use profile::{Dictionary, FrameId, NameSource, Place};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Frames looked at, or looked up, while a dictionary is locked and between looks at the clock.
const SLICE: usize = 1024;

/// How often the sources of names are informed again which builds lack them.
const WANT: Duration = Duration::from_secs(30);

/// Names of functions of one build, and where they came from.
pub type Found = (NameSource, Vec<Option<String>>);

/// Knows names of functions by build and address.
pub trait Names: Send + Sync {
    /// Another number for each symbol table that a build ever had; none where it has none.
    fn version(&self, build_id: &str) -> Option<u64>;

    /// Names of places in one build, in their order; none where it has no symbols any more. Reads
    /// files.
    fn names(&self, build_id: &str, addresses: &[u64]) -> Option<Found>;

    /// Says that these builds have no symbols here: they may be looked for elsewhere, for later.
    fn want(&self, builds: Vec<String>);
}

/// Answers with names that agents could not give.
pub trait FrameNaming: Send + Sync + 'static {
    /// Names from now on what agents could not, in answers with functions. The first call counts;
    /// by itself a store knows no names.
    fn name_by(&self, _names: Arc<dyn Names>) {}
}

/// The names of an engine; none until they are set.
#[derive(Default)]
pub(super) struct NamedBy(OnceLock<Arc<dyn Names>>);

/// The frames of one dictionary that have no name of their own, by build.
#[derive(Default)]
pub(super) struct Nameless {
    /// How many frames of the dictionary were looked at.
    frames: usize,
    builds: HashMap<Box<str>, Build>,
    /// When it was last informed which builds have no symbols, and how many there were.
    told: Option<(Instant, usize)>,
}

#[derive(Default)]
struct Build {
    frames: Vec<(FrameId, u64)>,
    /// How many of them were looked up in the table of this version.
    looked_up: usize,
    version: Option<u64>,
    /// Some of them may have names.
    named: bool,
}

/// The dictionary of an engine, however it is locked.
pub(super) trait Named {
    fn read<T>(&mut self, look: impl FnOnce(&Dictionary) -> T) -> T;
    fn change(&mut self, change: impl FnOnce(&mut Dictionary));
}

impl Named for &mut Dictionary {
    fn read<T>(&mut self, look: impl FnOnce(&Dictionary) -> T) -> T {
        look(self)
    }

    fn change(&mut self, change: impl FnOnce(&mut Dictionary)) {
        change(self);
    }
}

impl NamedBy {
    pub fn set(&self, names: Arc<dyn Names>) {
        // The first counts.
        let _ = self.0.set(names);
    }

    /// Names what of a dictionary has no name and was not looked up yet, as far as the time goes:
    /// what is left is for the next call. The dictionary is locked for slices only, never while
    /// names are read.
    pub fn name(&self, mut dict: impl Named, unnamed: &mut Nameless, limits: &Limits) {
        let Some(known) = self.0.get() else { return };
        let over = || limits.cancel.is_cancelled() || Instant::now() >= limits.deadline;
        while dict.read(|dict| unnamed.take_in(dict)) {
            if over() {
                return;
            }
        }
        let Nameless { builds, told, .. } = unnamed;
        for (build_id, build) in builds.iter_mut() {
            let version = known.version(build_id);
            if version != build.version {
                // The table was replaced, or is gone: each name is replaced as it is met.
                (build.version, build.looked_up) = (version, 0);
            }
            if version.is_none() && !build.named {
                build.looked_up = build.frames.len();
                continue;
            }
            build.named = true;
            while let Some(slice) = build.next() {
                if over() {
                    return;
                }
                let addresses: Vec<u64> = slice.iter().map(|(_, address)| *address).collect();
                let found = version.and_then(|_| known.names(build_id, &addresses));
                let looked_up = slice.len();
                dict.change(|dict| {
                    let (source, names) = found.unwrap_or((NameSource::Upload, Vec::new()));
                    let mut names = names.into_iter();
                    for (frame, _) in slice {
                        dict.later
                            .set(*frame, names.next().flatten().as_deref(), source);
                    }
                });
                build.looked_up += looked_up;
            }
            build.named = version.is_some();
        }
        let lacking = builds.iter().filter(|(_, build)| build.version.is_none());
        let count = lacking.clone().count();
        if told.is_none_or(|(at, told)| told != count || at.elapsed() >= WANT) {
            *told = Some((Instant::now(), count));
            known.want(lacking.map(|(build_id, _)| build_id.to_string()).collect());
        }
    }
}

impl Nameless {
    /// Adds new frames; false if these were all.
    fn take_in(&mut self, dict: &Dictionary) -> bool {
        let end = dict.frames.len().min(self.frames + SLICE);
        for id in self.frames..end {
            let id = FrameId(id as u32);
            if let Some(Place { build_id, address }) = dict.frame(id).place() {
                if !self.builds.contains_key(build_id) {
                    self.builds.insert(build_id.into(), Build::default());
                }
                if let Some(build) = self.builds.get_mut(build_id) {
                    build.frames.push((id, address));
                }
            }
        }
        self.frames = end;
        end < dict.frames.len()
    }
}

impl Build {
    /// The next frames to look up.
    fn next(&self) -> Option<&[(FrameId, u64)]> {
        let rest = &self.frames[self.looked_up..];
        (!rest.is_empty()).then(|| &rest[..rest.len().min(SLICE)])
    }
}
