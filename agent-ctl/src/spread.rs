//! How certain the changes in a comparison are, as judged by a collector: by how much shares vary
//! between parts of the ranges, about which sampling alone says nothing.

use crate::collector::Samples;
use crate::source::Source;
use crate::when::Range;
use profile::{FunctionChange, Profile, ShareChange, StackEnd, error_95};
use proto::collector::{DiffRequest, DiffResponse};
use std::collections::HashMap;

/// Most functions of which the spread is asked for: as many as a collector gives.
const ROWS_MAX: u32 = 10_000;

/// Fewest parts of a range that say how much a share moves between them.
const PARTS_MIN: u32 = 2;

/// A change with its error.
#[derive(Clone, Copy)]
pub struct Verdict {
    /// The change.
    pub share: ShareChange,
    /// Half the width of the 95 % interval of its delta.
    pub error_95: f64,
    /// True when it is not chance.
    pub is_significant: bool,
}

impl Verdict {
    /// By the error of sampling alone.
    pub fn of_sampling(share: ShareChange) -> Verdict {
        Verdict {
            share,
            error_95: error_95(share.std_error),
            is_significant: share.is_significant(),
        }
    }
}

/// What the collector measured of shares of self time, by function and module.
#[derive(Default)]
pub struct Spread(HashMap<(String, String), (f64, bool)>);

impl Spread {
    /// Asks for it; nothing where no collector is asked, or it does not know.
    pub async fn ask(source: &mut Source, sides: [(Range, Samples); 2]) -> Spread {
        let Source::Collector(collector) = source else {
            return Spread::default();
        };
        let [before, after] = sides.map(|(range, samples)| Some(samples.selection(range)));
        let request = DiffRequest {
            before,
            after,
            limit: ROWS_MAX,
            ..DiffRequest::default()
        };
        match collector.diff(request).await {
            Ok(answer) => Spread::of(answer),
            Err(error) => {
                let error = format!("{error:#}");
                let why = error.lines().next().unwrap_or_default();
                note!(
                    "agent-ctl: the spread is not known: {}",
                    crate::terminal::clean(why)
                );
                Spread::default()
            }
        }
    }

    fn of(answer: DiffResponse) -> Spread {
        let parts = [&answer.before_sampled, &answer.after_sampled];
        let parts = parts.map(|side| side.as_ref().map_or(0, |side| side.parts));
        if parts.into_iter().any(|parts| parts < PARTS_MIN) {
            return Spread::default();
        }
        let rows = answer.rows.into_iter();
        Spread(
            rows.map(|row| ((row.name, row.module), (row.share_error, row.significant)))
                .collect(),
        )
    }

    /// True when it is known.
    pub fn is_known(&self) -> bool {
        !self.0.is_empty()
    }

    /// How sure a change of self time is.
    pub fn judge(&self, row: &FunctionChange, share: ShareChange) -> Verdict {
        let of_sampling = Verdict::of_sampling(share);
        let key = (row.function.clone(), row.module.clone());
        match self.0.get(&key) {
            Some(&(std_error, is_significant)) => Verdict {
                share,
                error_95: error_95(std_error),
                is_significant,
            },
            // Beyond the rows that a collector gives are those that moved least.
            None if self.is_known() => Verdict {
                is_significant: false,
                ..of_sampling
            },
            None => of_sampling,
        }
    }
}

/// Leaves out what was lost, as a collector does: nobody knows what it was, so shares are of the
/// rest.
pub fn without_lost(profile: &mut Profile) {
    profile.samples.retain(|key, _| key.end != StackEnd::Lost);
}
