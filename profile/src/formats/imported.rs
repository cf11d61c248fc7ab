//! A profile that was read from a file, and what must be known of it.

use super::TRUNCATED_FRAME;
use crate::frame::FrameKind;
use crate::outcome::StackEnd;
use crate::profile::Profile;
use crate::quality::count_quality;
use crate::sample::Quality;

/// A profile that was read, and what must be known of it.
#[derive(Clone)]
pub struct Import {
    /// It.
    pub profile: Profile,
    /// What was left out, cut or assumed; a sentence each. Text of the file in them is as it stood
    /// there.
    pub notes: Vec<String>,
    /// What the file says about its own quality.
    pub known: Known,
}

/// Which quality counts a file has. A count of 0 means nothing if it is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Known {
    /// That its numbers count samples, and not what they weigh.
    pub samples: bool,
    /// What was lost, and all else that is missed while sampling.
    pub lost: bool,
    /// Which stacks are cut.
    pub truncated: bool,
    /// Which frames have no symbol.
    pub unnamed: bool,
}

impl Known {
    /// Everything, as in files of our own.
    pub const ALL: Known = Known {
        samples: true,
        lost: true,
        truncated: true,
        unnamed: true,
    };

    /// Samples, and nothing of what is missed, as in most files of others.
    pub const SAMPLES: Known = Known {
        samples: true,
        lost: false,
        truncated: false,
        unnamed: false,
    };
}

impl std::fmt::Debug for Import {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Import")
            .field("samples", &self.profile.samples.len())
            .field("notes", &self.notes)
            .finish_non_exhaustive()
    }
}

impl Import {
    /// Counts what the samples say of their quality. What their profile says was lost stays.
    pub fn new(mut profile: Profile, notes: Vec<String>) -> Import {
        let Quality {
            lost,
            throttled,
            malformed,
            ..
        } = profile.info.quality;
        let mut quality = Quality {
            lost,
            throttled,
            malformed,
            ..Quality::default()
        };
        for (&key, value) in &profile.samples {
            count_quality(&mut quality, &profile.dict, key, value.count);
        }
        profile.info.quality = quality;
        Import {
            profile,
            notes,
            known: Known::SAMPLES,
        }
    }

    /// The same with what is known.
    pub fn knowing(self, known: Known) -> Import {
        Import { known, ..self }
    }

    /// Counts stacks that stand under `[truncated]`, where a file has that as a frame like others.
    pub(super) fn count_truncated(mut self) -> Import {
        let profile = &mut self.profile;
        let dict = &profile.dict;
        let frames = dict.frames.as_slice().iter();
        let is_mark: Vec<bool> = frames
            .map(|frame| {
                let name = dict.strings.get(frame.function);
                frame.kind == FrameKind::Synthetic && name == TRUNCATED_FRAME
            })
            .collect();
        // By stack, once each: many may share a long one. A caller has a smaller id than what it
        // called.
        let nodes = dict.stacks.nodes();
        let mut is_cut: Vec<bool> = Vec::with_capacity(nodes.len());
        for (id, &(parent, frame)) in nodes.iter().enumerate() {
            let below = id > 0 && (is_cut[parent.0 as usize] || is_mark[frame.0 as usize]);
            is_cut.push(below);
        }
        let mut truncated = 0u64;
        for (key, value) in &profile.samples {
            if is_cut[key.stack.0 as usize] && key.end != StackEnd::Lost {
                truncated = truncated.saturating_add(value.count);
            }
        }
        profile.info.quality.truncated = truncated;
        self
    }
}
