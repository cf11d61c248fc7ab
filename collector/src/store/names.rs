//! Names that agents could not give, as an engine asks for them while it makes an answer.

use super::Limits;
use profile::{Dictionary, FrameId, NameSource, Place};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Places looked up between looks at the clock.
const SLICE: usize = 1024;

/// How long frames that nobody had a name for are not looked up again, unless something new is known: who
/// has the names asks others for them, and again when somebody asks here.
const AGAIN: Duration = Duration::from_secs(30);

/// Knows names of functions by build and address.
pub trait Names: Send + Sync {
    /// Changes whenever more, or something else, is known.
    fn generation(&self) -> u64;

    /// What is called by these names, in the order of the places, and where each came from. What is not
    /// known is looked for elsewhere, for later. May read files.
    fn names(&self, places: &[Place<'_>]) -> Vec<Option<(String, NameSource)>>;
}

/// The names of an engine; none until it is told of them.
#[derive(Default)]
pub(super) struct NamedBy(OnceLock<Arc<dyn Names>>);

/// Up to where the frames of a dictionary were looked up, and with what.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LookedUp {
    generation: u64,
    frames: usize,
    /// When, if some have no name.
    in_vain: Option<Instant>,
}

/// What was found for a dictionary that may have grown since.
pub(super) struct Found {
    upto: LookedUp,
    /// What was found before is not true any more.
    again: bool,
    names: Vec<(FrameId, String, NameSource)>,
    /// The query was over before all were looked up.
    pub cut: bool,
}

/// Frames of a dictionary that have to be looked up.
pub(super) struct Unnamed {
    upto: LookedUp,
    again: bool,
    places: Vec<(FrameId, String)>,
}

impl NamedBy {
    pub fn set(&self, names: Arc<dyn Names>) {
        // The first counts.
        let _ = self.0.set(names);
    }

    /// Frames without a name that were not looked up yet; none where nothing changed. Reads the
    /// dictionary only, which may be locked for it.
    pub fn unnamed(&self, dict: &Dictionary, before: LookedUp) -> Option<Unnamed> {
        let upto = LookedUp {
            generation: self.0.get()?.generation(),
            frames: dict.frames.len(),
            in_vain: before.in_vain,
        };
        let in_vain = before.in_vain.is_some_and(|at| at.elapsed() >= AGAIN);
        let again = upto.generation != before.generation || in_vain;
        if !again && upto.frames == before.frames {
            return None;
        }
        let from = if again { 0 } else { before.frames };
        let new = (from..upto.frames).map(|id| FrameId(id as u32));
        let places = new.filter_map(|id| {
            let frame = dict.frame(id);
            frame.place().map(|_| (id, frame.system_name.to_owned()))
        });
        Some(Unnamed {
            upto,
            again,
            places: places.collect(),
        })
    }

    /// Looks frames up; with no dictionary locked, for it may take a while.
    pub fn find(&self, unnamed: Unnamed, limits: &Limits) -> Found {
        let in_vain = unnamed.upto.in_vain.filter(|_| !unnamed.again);
        let mut found = Found {
            upto: LookedUp {
                in_vain,
                ..unnamed.upto
            },
            again: unnamed.again,
            names: Vec::new(),
            cut: false,
        };
        for slice in unnamed.places.chunks(SLICE) {
            if limits.cancel.is_cancelled() || Instant::now() >= limits.deadline {
                // The next look goes on from here.
                (found.upto.frames, found.cut) = (slice[0].0.0 as usize, true);
                break;
            }
            let places = slice.iter().map(|(_, text)| Place::parse(text));
            let places: Vec<Place<'_>> = places.map(Option::unwrap_or_default).collect();
            let names = self.0.get().map(|known| known.names(&places));
            let names = names.unwrap_or_default();
            if names.iter().any(Option::is_none) {
                found.upto.in_vain = Some(Instant::now());
            }
            let names = names.into_iter().zip(slice);
            found.names.extend(names.filter_map(|(name, (id, _))| {
                let (name, source) = name?;
                Some((*id, name, source))
            }));
        }
        found
    }
}

impl Found {
    /// Calls the frames by what was found.
    pub fn apply(self, dict: &mut Dictionary) -> LookedUp {
        if self.again {
            dict.later.clear();
        }
        for (frame, name, source) in self.names {
            dict.later.set(frame, &name, source);
        }
        self.upto
    }
}
