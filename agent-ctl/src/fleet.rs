//! Shows the data quality of a collector's answer, in a line for people and as JSON, and decides
//! whether it makes the answer partial.

use crate::terminal::clean;
use crate::when::rfc3339;
use crate::{exit, loss, units};
use anyhow::{Context, Result};
use profile::{Coverage, Info, Quality, Value};
use proto::agent::TimeRange;
use proto::collector::DataQuality;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// The warning for an answer with capped sums.
const CAPPED: &str = "weights in this answer exceed 2^64 - 1 and were capped: totals are too small \
    and shares too large; use a shorter range or fewer hosts";

/// An answer is partial when gaps are more than one part in this many of the time of its hosts. The
/// newest windows are always on their way, and in a large fleet a host is always being restarted; a
/// tenth is neither.
const GAP_PART_MAX: u64 = 10;

/// Damaged partitions named in a line. JSON has all.
const DAMAGED_NAMED: usize = 3;

/// See the file.
#[derive(Clone, Debug)]
pub struct Fleet {
    quality: DataQuality,
    /// Of a profile type of other senders: series where agents have hosts.
    of_senders: bool,
}

impl Fleet {
    /// A data quality as it is.
    #[cfg(test)]
    pub fn of(quality: DataQuality) -> Fleet {
        Fleet {
            quality,
            of_senders: false,
        }
    }

    /// The same of a profile type of other senders.
    pub fn of_senders(self) -> Fleet {
        Fleet {
            of_senders: true,
            ..self
        }
    }

    /// The data quality that came with the answer to `what`.
    ///
    /// # Errors
    /// When there is none: without it nobody knows what the answer misses.
    pub fn from_answer(what: &str, quality: Option<DataQuality>) -> Result<Fleet> {
        quality
            .map(|quality| Fleet {
                quality,
                of_senders: false,
            })
            .with_context(|| format!("failed to {what}: the collector did not describe its answer"))
    }

    /// The same, but that it covers no time from before the start of what is kept, and none from
    /// after the end of the newest window; `None`: that is not known.
    pub fn kept(mut self, kept: Option<TimeRange>) -> Fleet {
        let (Some(covered), Some(kept)) = (&mut self.quality.covered, kept) else {
            return self;
        };
        let start = covered.start_unix_ns.max(kept.start_unix_ns);
        let end = covered.end_unix_ns.min(kept.end_unix_ns);
        if start < end {
            (covered.start_unix_ns, covered.end_unix_ns) = (start, end);
        }
        self
    }

    /// The same with the sums of parts of the same unit, and with what any of them misses.
    pub fn made_of(mut self, parts: Vec<Fleet>) -> Fleet {
        let quality = &mut self.quality;
        (quality.total_count, quality.total_weight) = (0, 0);
        quality.pruned_weight = 0;
        quality.named_later.clear();
        for Fleet { quality: part, .. } in parts {
            for (sum, own) in [
                (&mut quality.total_count, part.total_count),
                (&mut quality.total_weight, part.total_weight),
                (&mut quality.pruned_weight, part.pruned_weight),
            ] {
                *sum = sum.saturating_add(own);
            }
            quality.weights_capped |= part.weights_capped;
            quality.damaged.extend(part.damaged);
            quality.not_kept.extend(part.not_kept);
            for later in part.named_later {
                let mut known = quality.named_later.iter_mut();
                match known.find(|known| known.source == later.source) {
                    Some(known) => known.count = known.count.saturating_add(later.count),
                    None => quality.named_later.push(later),
                }
            }
        }
        for names in [&mut quality.damaged, &mut quality.not_kept] {
            names.sort();
            names.dedup();
        }
        self
    }

    /// The time the answer covers.
    pub fn covered(&self) -> TimeRange {
        self.quality.covered.unwrap_or_default()
    }

    /// Length of the time covered. Unit: nanoseconds.
    pub fn covered_ns(&self) -> u64 {
        let TimeRange {
            start_unix_ns: start,
            end_unix_ns: end,
        } = self.covered();
        end.saturating_sub(start).max(0).unsigned_abs()
    }

    /// What was missed while sampling.
    pub fn sampling(&self) -> Quality {
        self.quality.sampling.unwrap_or_default().into()
    }

    /// The kernel's accounting of the same CPU time.
    pub fn coverage(&self) -> Coverage {
        self.quality.coverage.unwrap_or_default().into()
    }

    /// Weight of everything selected.
    pub fn total_weight(&self) -> u64 {
        self.quality.total_weight
    }

    /// Count and weight of everything selected.
    pub fn total(&self) -> Value {
        Value {
            count: self.quality.total_count,
            weight: self.quality.total_weight,
        }
    }

    /// Unit of weights.
    pub fn unit(&self) -> &str {
        &self.quality.unit
    }

    /// Hosts with windows in the answer, and hosts that were alive.
    pub fn hosts(&self) -> (u64, u64) {
        (self.quality.hosts, self.quality.hosts_alive)
    }

    /// Number of gaps.
    pub fn gaps(&self) -> u64 {
        self.quality.gaps_total
    }

    /// Copies the data quality into the facts about a profile.
    pub fn describe(&self, info: &mut Info) {
        if self.quality.covered.is_some() {
            info.start_unix_ns = self.covered().start_unix_ns;
            info.duration_ns = self.covered_ns();
        }
        if self.quality.sampling.is_some() {
            info.quality = self.sampling();
        }
        if self.quality.coverage.is_some() {
            info.coverage = self.coverage();
        }
    }

    /// Time of the hosts that gaps leave empty, as a share.
    fn gap_share(&self) -> f64 {
        let hosts_ns = self.covered_ns().saturating_mul(self.quality.hosts_alive);
        units::share(self.quality.gap_ns_total, hosts_ns)
    }

    /// Why most of what was selected is missing, because it was lost while sampling.
    pub fn loss(&self) -> Option<String> {
        loss::of_sums(&self.sampling(), &self.coverage())
    }

    /// True when most was lost, when stored data is missing, or too much time of the hosts, and
    /// when sums are larger than an answer can say. Pruned weight is in the answer, under the
    /// callers of what was pruned, so it does not count.
    pub fn is_partial(&self) -> bool {
        self.loss().is_some()
            || !self.quality.damaged.is_empty()
            || !self.quality.not_kept.is_empty()
            || self.quality.weights_capped
            || self.gap_share() > 1.0 / GAP_PART_MAX as f64
    }

    /// Who sent what the answer is made of.
    pub fn heading(&self) -> &'static str {
        match self.of_senders {
            true => "senders",
            false => "fleet",
        }
    }

    /// The line that goes with every answer.
    pub fn line(&self) -> String {
        let quality = &self.quality;
        let span = |ns| units::duration(Duration::from_nanos(ns));
        let steps = span(quality.resolution_ns);
        let pruned = units::percent(quality.pruned_weight, quality.total_weight);
        if self.of_senders {
            // They promise nothing, so there are no gaps.
            let series = units::count(quality.hosts);
            return format!("{series} series, steps of {steps}, pruned {pruned}");
        }
        let gaps = match quality.gaps_total {
            0 => "no gaps".to_owned(),
            gaps => {
                let word = if gaps == 1 { "gap" } else { "gaps" };
                let all = span(quality.gap_ns_total);
                let share = self.gap_share() * 100.0;
                let longest = quality.gaps.first().map_or(String::new(), |gap| {
                    let ns = gap.end_unix_ns.saturating_sub(gap.start_unix_ns).max(0);
                    format!(
                        "; longest {} of {}, {}",
                        span(ns.unsigned_abs()),
                        clean(&gap.hostname),
                        clean(&gap.cause)
                    )
                });
                let gaps = units::count(gaps);
                format!("{gaps} {word} ({all}, {share:.1} % of the time of hosts{longest})")
            }
        };
        let later = quality.named_later.iter().map(|later| {
            let share = units::percent(later.count, quality.total_count);
            format!(", {share} named by {}", clean(&later.source))
        });
        format!(
            "{} of {} hosts, steps of {steps}, {gaps}, pruned {pruned}{}",
            units::count(quality.hosts),
            units::count(quality.hosts_alive),
            later.collect::<String>(),
        )
    }

    /// What is wrong with the store, when something is.
    pub fn damage(&self) -> Option<String> {
        let damaged = &self.quality.damaged;
        let names: Vec<_> = damaged.iter().map(|name| clean(name)).collect();
        let (named, more) = match names.get(DAMAGED_NAMED..) {
            Some(more) if !more.is_empty() => (
                names[..DAMAGED_NAMED].join(", "),
                format!(" and {} more", more.len()),
            ),
            _ => (names.join(", "), String::new()),
        };
        (!damaged.is_empty()).then(|| {
            format!(
                "missing here, because they are damaged or the archive does not give them: \
                partitions {named}{more}"
            )
        })
    }

    /// Says to standard error what the answer is made of.
    pub fn note(&self) {
        note!("{} {}", self.heading(), self.line());
        self.note_damage();
    }

    /// Says to standard error what is wrong with the store, and with the sums of the answer.
    pub fn note_damage(&self) {
        if let Some(damage) = self.damage() {
            note!("agent-ctl: {damage}");
        }
        for missing in &self.quality.not_kept {
            note!("agent-ctl: {}", clean(missing));
        }
        if self.quality.weights_capped {
            note!("agent-ctl: {CAPPED}");
        }
    }

    /// All of it for scripts.
    pub fn json(&self) -> Json {
        let DataQuality {
            covered: _,
            resolution_ns,
            hosts,
            hosts_alive,
            windows,
            gaps,
            gaps_total,
            gap_ns_total,
            sampling: _,
            coverage: _,
            total_count,
            total_weight,
            unit,
            pruned_weight,
            damaged,
            weights_capped,
            named_later,
            not_kept,
        } = self.quality.clone();
        let named_later = named_later.into_iter();
        let named_later = named_later.map(|later| (later.source, later.count));
        let gap = |gap: proto::collector::HostGap| Gap {
            host_id: gap.host_id,
            host: gap.hostname,
            start: rfc3339(gap.start_unix_ns),
            end: rfc3339(gap.end_unix_ns),
            cause: gap.cause,
        };
        Json {
            start: rfc3339(self.covered().start_unix_ns),
            end: rfc3339(self.covered().end_unix_ns),
            resolution_ns,
            hosts,
            hosts_alive,
            windows,
            gaps: gaps.into_iter().map(gap).collect(),
            gaps_total,
            gap_ns_total,
            gap_share: self.gap_share(),
            quality: self.sampling(),
            coverage: self.coverage(),
            coverage_share: self.coverage().share(),
            total_count,
            total_weight,
            pruned_weight,
            pruned_share: units::share(pruned_weight, total_weight),
            unit,
            damaged,
            weights_capped,
            named_later: named_later.collect(),
            not_kept,
            partial: self.is_partial(),
        }
    }
}

/// The code of an answer: partial when it is empty, or its data quality says so.
pub fn code(empty: bool, fleet: Option<&Fleet>) -> u8 {
    if empty || fleet.is_some_and(Fleet::is_partial) {
        exit::PARTIAL
    } else {
        exit::OK
    }
}

/// Data quality as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Json {
    start: String,
    end: String,
    resolution_ns: u64,
    hosts: u64,
    hosts_alive: u64,
    windows: u64,
    gaps: Vec<Gap>,
    gaps_total: u64,
    gap_ns_total: u64,
    gap_share: f64,
    quality: Quality,
    coverage: Coverage,
    coverage_share: Option<f64>,
    total_count: u64,
    total_weight: u64,
    pruned_weight: u64,
    pruned_share: f64,
    unit: String,
    damaged: Vec<String>,
    weights_capped: bool,
    /// Samples with a leaf that the collector named, by the source of the name.
    named_later: BTreeMap<String, u64>,
    not_kept: Vec<String>,
    partial: bool,
}

#[derive(Clone, Debug, Serialize)]
struct Gap {
    host_id: String,
    host: String,
    start: String,
    end: String,
    cause: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::collector::HostGap;

    const S: u64 = 1_000_000_000;

    fn sound() -> DataQuality {
        DataQuality {
            covered: Some(TimeRange {
                start_unix_ns: 0,
                end_unix_ns: 300 * S as i64,
            }),
            resolution_ns: 10 * S,
            hosts: 4,
            hosts_alive: 5,
            total_weight: 1000,
            ..DataQuality::default()
        }
    }

    #[test]
    fn an_answer_in_parts_has_their_sums_and_misses_what_any_of_them_does() {
        let part = |weight, not_kept: &[&str]| {
            Fleet::of(DataQuality {
                total_count: 2,
                total_weight: weight,
                pruned_weight: 1,
                not_kept: not_kept.iter().map(|text| (*text).to_owned()).collect(),
                ..sound()
            })
        };
        let parts = vec![
            part(30, &[]),
            part(20, &["no comm"]),
            part(u64::MAX, &["no comm"]),
        ];
        let all = Fleet::of(sound()).made_of(parts);
        assert_eq!((all.total().count, all.total_weight()), (6, u64::MAX));
        assert_eq!((all.quality.pruned_weight, all.hosts()), (3, (4, 5)));
        assert_eq!(all.quality.not_kept, ["no comm"]);
        assert!(all.is_partial());
        assert!(!Fleet::of(sound()).made_of(vec![part(1, &[])]).is_partial());
    }

    #[test]
    fn a_sound_answer_is_said_in_a_line() {
        let fleet = Fleet::of(sound());
        assert_eq!(
            fleet.line(),
            "4 of 5 hosts, steps of 10 s, no gaps, pruned 0.0 %"
        );
        assert_eq!((fleet.is_partial(), fleet.damage()), (false, None));
    }

    #[test]
    fn other_senders_have_series_and_no_gaps() {
        let senders = Fleet::of(sound()).of_senders();
        assert_eq!(senders.heading(), "senders");
        assert_eq!(senders.line(), "4 series, steps of 10 s, pruned 0.0 %");
    }

    #[test]
    fn time_of_which_nothing_is_kept_is_not_covered() {
        let covered = |start: u64, end: u64| {
            let kept = TimeRange {
                start_unix_ns: (start * S) as i64,
                end_unix_ns: (end * S) as i64,
            };
            let TimeRange {
                start_unix_ns: start,
                end_unix_ns: end,
            } = Fleet::of(sound()).kept(Some(kept)).covered();
            (start / S as i64, end / S as i64)
        };
        assert_eq!(covered(0, 900), (0, 300));
        assert_eq!(covered(260, 900), (260, 300));
        // The newest window is not closed yet.
        assert_eq!(covered(0, 290), (0, 290));
        // The answer ends before the range that is kept, so nothing is cut off.
        assert_eq!(covered(800, 900), (0, 300));
    }

    #[test]
    fn gaps_are_said_with_the_longest() {
        let gap = HostGap {
            hostname: "w\x1b1".into(),
            end_unix_ns: 90 * S as i64,
            cause: "absent".into(),
            ..HostGap::default()
        };
        let fleet = Fleet::of(DataQuality {
            gaps: vec![gap],
            gaps_total: 2,
            gap_ns_total: 120 * S,
            pruned_weight: 5,
            ..sound()
        });
        assert_eq!(
            fleet.line(),
            "4 of 5 hosts, steps of 10 s, 2 gaps (2 min, 8.0 % of the time of hosts; longest 1 min 30 s \
             of w\\x1b1, absent), pruned 0.5 %"
        );
        assert!(!fleet.is_partial());
    }

    #[test]
    fn many_gaps_or_damage_make_an_answer_partial() {
        let gaps = DataQuality {
            gaps_total: 1,
            gap_ns_total: 151 * S,
            ..sound()
        };
        assert!(Fleet::of(gaps).is_partial());
        let names = ["a", "b", "c", "d", "e"];
        let damaged = Fleet::of(DataQuality {
            damaged: names.map(str::to_owned).into(),
            ..sound()
        });
        assert!(damaged.is_partial());
        assert_eq!(
            damaged.damage().as_deref(),
            Some(
                "missing here, because they are damaged or the archive does not give them: \
                 partitions a, b, c and 2 more"
            )
        );
    }

    #[test]
    fn sums_that_were_cut_make_an_answer_partial() {
        let capped = Fleet::of(DataQuality {
            total_weight: u64::MAX,
            weights_capped: true,
            ..sound()
        });
        assert!(capped.is_partial() && capped.json().weights_capped);
        assert!(!Fleet::of(sound()).json().weights_capped);
    }

    #[test]
    fn absurd_numbers_do_no_harm() {
        let fleet = Fleet::of(DataQuality {
            covered: Some(TimeRange {
                start_unix_ns: i64::MIN,
                end_unix_ns: i64::MAX,
            }),
            hosts_alive: u64::MAX,
            gap_ns_total: u64::MAX,
            gaps_total: u64::MAX,
            pruned_weight: u64::MAX,
            ..DataQuality::default()
        });
        assert!(!fleet.line().is_empty());
    }
}
