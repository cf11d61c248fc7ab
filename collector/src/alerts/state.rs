//! From what was measured to what an alert does: a state machine without time or disk of its own.
//!
//! Times that must pass are added up from round to round, each at most two intervals, so that a
//! clock that jumps neither fires nor resolves anything.

use super::limits::DARK_NS_MAX;
use crate::config::alert_rule::{Bound, NoData, Rule, Side};
use crate::measure::Reading;
use serde::{Deserialize, Serialize};

/// An answer of three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    Yes,
    No,
    Unknown,
}

/// Where an alert is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The condition holds.
    Pending,
    /// It fired.
    Firing,
    /// Nothing is known, and it has not fired.
    Dark,
}

/// An alert that is not at rest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alert {
    /// Where it is.
    pub phase: Phase,
    /// Since when. Unit: nanoseconds since the Unix epoch.
    pub since: i64,
    /// For how long the condition has held. Unit: nanoseconds.
    pub held_ns: u64,
    /// For how long it has been over.
    pub over_ns: Option<u64>,
    /// For how long nothing was known.
    pub dark_ns: u64,
    /// Number of its firing; 0: none.
    pub episode: u64,
    /// When it fired.
    pub fired: i64,
    /// The last value that was known.
    pub value: Option<f64>,
    /// Where it fires.
    pub threshold: Option<f64>,
    /// What that is a multiple of.
    pub baseline: Option<f64>,
    /// Why nothing is known now; empty: the value is.
    pub missing: String,
}

/// A change that people are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It fired.
    Fired,
    /// It is over.
    Resolved,
}

/// What a round makes of an alert. `None`: it is at rest. A firing that ended is returned as it was
/// last, with [`Change::Resolved`].
pub fn step(
    rule: &Rule,
    before: Option<&Alert>,
    reading: &Reading,
    (now, elapsed_ns): (i64, u64),
) -> (Option<Alert>, Option<Change>) {
    let (fires, clears, baseline) = bounds(rule, reading);
    let known = |alert: &mut Alert| {
        if reading.missing.is_empty() && !reading.is_idle {
            alert.value = Some(reading.low);
        } else if reading.low > 0.0 && !reading.is_idle {
            // At least this.
            alert.value = Some(reading.low);
        }
        alert.threshold = fires.or(alert.threshold);
        alert.baseline = baseline.or(alert.baseline);
    };
    let fresh = |phase| Alert {
        phase,
        since: now,
        held_ns: 0,
        over_ns: None,
        dark_ns: 0,
        episode: 0,
        fired: 0,
        value: None,
        threshold: None,
        baseline: None,
        missing: String::new(),
    };
    if let Some(before) = before.filter(|before| before.phase == Phase::Firing) {
        let mut alert = before.clone();
        let over = is_over(rule, clears, reading);
        match over {
            Is::Unknown => {
                alert.dark_ns = alert.dark_ns.saturating_add(elapsed_ns);
                alert.missing = why(reading);
            }
            Is::Yes | Is::No => {
                alert.dark_ns = 0;
                alert.missing = String::new();
                known(&mut alert);
            }
        }
        let is_over = match (over, rule.no_data) {
            (Is::Yes, _) | (Is::Unknown, NoData::Ok) => true,
            (Is::Unknown, NoData::Keep) => {
                let ends = alert.dark_ns >= DARK_NS_MAX;
                let change = ends.then_some(Change::Resolved);
                return (Some(alert), change);
            }
            (Is::No, _) | (Is::Unknown, NoData::Fire) => false,
        };
        alert.over_ns = match (is_over, alert.over_ns) {
            (false, _) => None,
            (true, None) => Some(0),
            (true, Some(ns)) => Some(ns.saturating_add(elapsed_ns)),
        };
        let ends = alert.over_ns.is_some_and(|ns| ns >= rule.keep_ns);
        return (Some(alert), ends.then_some(Change::Resolved));
    }
    let holds = holds(rule, fires, reading);
    let dark = before.filter(|before| before.phase == Phase::Dark);
    let dark_since = dark.map_or(now, |dark| dark.since);
    let before = before.filter(|before| before.phase == Phase::Pending);
    let mut alert = match (holds, rule.no_data, before) {
        (Is::No, ..) | (Is::Unknown, NoData::Ok, _) => return (None, None),
        (Is::Unknown, NoData::Keep, None) => Alert {
            since: dark_since,
            ..fresh(Phase::Dark)
        },
        (Is::Unknown, NoData::Keep, Some(before)) => {
            let mut alert = before.clone();
            alert.dark_ns = alert.dark_ns.saturating_add(elapsed_ns);
            alert.missing = why(reading);
            let ends = alert.dark_ns >= DARK_NS_MAX;
            return ((!ends).then_some(alert), None);
        }
        (Is::Yes, ..) | (Is::Unknown, NoData::Fire, _) => match before {
            None => fresh(Phase::Pending),
            Some(before) => Alert {
                held_ns: before.held_ns.saturating_add(elapsed_ns),
                dark_ns: 0,
                ..before.clone()
            },
        },
    };
    known(&mut alert);
    alert.missing = match holds {
        Is::Unknown => why(reading),
        Is::Yes | Is::No => String::new(),
    };
    if alert.phase == Phase::Pending && alert.held_ns >= rule.hold_ns {
        alert.phase = Phase::Firing;
        (alert.since, alert.fired) = (now, now);
        return (Some(alert), Some(Change::Fired));
    }
    (Some(alert), None)
}

fn why(reading: &Reading) -> String {
    match reading.missing.as_str() {
        "" => "the baseline has no data".to_owned(),
        missing => missing.to_owned(),
    }
}

/// Where it fires and where it is over, as far as that is known, and the baseline.
fn bounds(rule: &Rule, reading: &Reading) -> (Option<f64>, Option<f64>, Option<f64>) {
    let least = |bound: f64| match rule.side {
        Side::Above => bound.max(rule.at_least),
        Side::Below => bound,
    };
    match rule.bound {
        Bound::Number(number) => (Some(least(number)), Some(rule.clear), None),
        Bound::Times(factor) => {
            let of = |times: f64| reading.baseline.map(|baseline| least(baseline * times));
            (of(factor), of(rule.clear), reading.baseline)
        }
    }
}

fn holds(rule: &Rule, bound: Option<f64>, reading: &Reading) -> Is {
    if reading.is_idle {
        return Is::No;
    }
    let Some(bound) = bound else {
        // Whatever the baseline is, less than this never fires.
        let is_little = rule.side == Side::Above && reading.high <= rule.at_least;
        return if is_little { Is::No } else { Is::Unknown };
    };
    if rule.side == Side::Below
        && reading
            .baseline
            .is_some_and(|baseline| baseline < rule.at_least)
    {
        return Is::No;
    }
    beyond(rule.side, bound, reading)
}

fn is_over(rule: &Rule, bound: Option<f64>, reading: &Reading) -> Is {
    if reading.is_idle {
        return Is::Yes;
    }
    let Some(bound) = bound else {
        return Is::Unknown;
    };
    match beyond(rule.side, bound, reading) {
        Is::Yes => Is::No,
        Is::No => Is::Yes,
        Is::Unknown => Is::Unknown,
    }
}

/// Whether a value is on this side of a bound, wherever it lies between its limits.
fn beyond(side: Side, bound: f64, reading: &Reading) -> Is {
    let (surely, possibly) = match side {
        Side::Above => (reading.low > bound, reading.high > bound),
        Side::Below => (reading.high < bound, reading.low < bound),
    };
    match (surely, possibly) {
        (true, _) => Is::Yes,
        (false, true) => Is::Unknown,
        (false, false) => Is::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AlertRule;

    const STEP: u64 = 30_000_000_000;

    fn rule(change: impl FnOnce(&mut AlertRule)) -> Rule {
        let mut entry = AlertRule {
            name: "a".to_owned(),
            when: "cores > 4".to_owned(),
            ..AlertRule::default()
        };
        change(&mut entry);
        Rule::parse(&entry, &[]).expect("a rule")
    }

    /// Changes by round.
    fn play(rule: &Rule, readings: &[Reading]) -> Vec<(usize, Change)> {
        let (mut alert, mut changes) = (None, Vec::new());
        for (at, reading) in readings.iter().enumerate() {
            let now = at as i64 * STEP as i64;
            let (after, change) = step(rule, alert.as_ref(), reading, (now, STEP));
            changes.extend(change.map(|change| (at, change)));
            alert = after.filter(|_| change != Some(Change::Resolved));
        }
        changes
    }

    fn values(list: &[f64]) -> Vec<Reading> {
        let reading = |value: &f64| match value.is_nan() {
            true => Reading::unknown("nobody sent anything"),
            false => Reading::known(*value),
        };
        list.iter().map(reading).collect()
    }

    const GONE: f64 = f64::NAN;

    #[test]
    fn it_fires_once_the_condition_held_for_long_enough() {
        let rule = rule(|of| of.hold = 60);
        let fired = [(2, Change::Fired)];
        assert_eq!(play(&rule, &values(&[5.0, 5.0, 5.0, 5.0])), fired);
        let broken = play(&rule, &values(&[5.0, 5.0, 1.0, 5.0, 5.0]));
        assert_eq!(broken, [], "a break starts it again");
    }

    #[test]
    fn it_is_over_below_clear_and_for_long_enough() {
        let rule = rule(|of| {
            of.clear = Some("3".into());
            of.keep_firing = 60;
        });
        // 3.5 is no longer above 4, and not yet over.
        let flapping = values(&[5.0, 3.5, 5.0, 2.0, 5.0, 2.0, 2.0, 2.0]);
        let expected = [(0, Change::Fired), (7, Change::Resolved)];
        assert_eq!(play(&rule, &flapping), expected);
    }

    #[test]
    fn missing_data_is_never_zero() {
        let keep = rule(|of| of.keep_firing = 0);
        assert_eq!(
            play(&keep, &values(&[5.0, GONE, GONE])),
            [(0, Change::Fired)]
        );
        let below = rule(|of| (of.when, of.keep_firing) = ("cores < 1".into(), 0));
        assert_eq!(play(&below, &values(&[GONE, GONE])), []);
        let ok = rule(|of| (of.no_data, of.keep_firing) = ("ok".into(), 0));
        let resolved = [(0, Change::Fired), (1, Change::Resolved)];
        assert_eq!(play(&ok, &values(&[5.0, GONE])), resolved);
        let fire = rule(|of| of.no_data = "fire".into());
        assert_eq!(play(&fire, &values(&[1.0, GONE])), [(1, Change::Fired)]);
    }

    #[test]
    fn what_is_known_in_part_fires_where_that_part_is_enough() {
        let partly = |low: f64| Reading {
            low,
            ..Reading::unknown("1 of 2 hosts sent nothing")
        };
        let rule = rule(|_| ());
        assert_eq!(play(&rule, &[partly(5.0)]), [(0, Change::Fired)]);
        assert_eq!(play(&rule, &[partly(3.0)]), []);
    }

    #[test]
    fn an_alert_without_data_is_resolved_after_hours_and_not_before() {
        let rule = rule(|_| ());
        let mut readings = values(&[5.0]);
        readings.extend(values(&vec![GONE; 6 * 120 + 5]));
        let changes = play(&rule, &readings);
        assert_eq!(changes, [(0, Change::Fired), (720, Change::Resolved)]);
    }

    #[test]
    fn a_baseline_decides_with_its_multiple_and_its_least_value() {
        let rule = rule(|of| {
            of.when = "cores > baseline x 1.5".into();
            of.clear = Some("1.2".into());
            of.keep_firing = 0;
        });
        let against = |value: f64, baseline: Option<f64>| Reading {
            baseline,
            ..Reading::known(value)
        };
        let two = Some(2.0);
        let readings = [
            against(2.9, two),
            against(3.1, two),
            against(2.5, two),
            against(2.3, two),
        ];
        let expected = [(1, Change::Fired), (3, Change::Resolved)];
        assert_eq!(play(&rule, &readings), expected);
        assert_eq!(
            play(&rule, &[against(9.0, None)]),
            [],
            "nothing to compare with"
        );
        assert_eq!(
            play(&rule, &[against(0.09, Some(0.0))]),
            [],
            "too little to matter"
        );
        assert_eq!(play(&rule, &[against(0.2, Some(0.0))]).len(), 1);
    }

    #[test]
    fn an_idle_selection_is_no_alert_and_ends_one() {
        let rule = rule(|of| of.keep_firing = 0);
        let idle = Reading {
            is_idle: true,
            ..Reading::unknown("3 samples")
        };
        let changes = play(&rule, &[Reading::known(5.0), idle]);
        assert_eq!(changes, [(0, Change::Fired), (1, Change::Resolved)]);
    }

    #[test]
    fn an_alert_without_data_says_since_when() {
        let rule = rule(|_| ());
        let gone = Reading::unknown("nobody sent anything");
        let (alert, _) = step(&rule, None, &gone, (7, STEP));
        let (alert, _) = step(&rule, alert.as_ref(), &gone, (9, STEP));
        assert_eq!(
            alert.map(|alert| (alert.phase, alert.since)),
            Some((Phase::Dark, 7))
        );
    }

    #[test]
    fn time_that_did_not_pass_does_not_count() {
        let rule = rule(|of| of.hold = 60);
        let (alert, _) = step(&rule, None, &Reading::known(5.0), (0, 0));
        // The clock jumped by a day, and the round before was a moment ago.
        let day = 86_400_000_000_000;
        let (alert, change) = step(&rule, alert.as_ref(), &Reading::known(5.0), (day, STEP));
        assert_eq!((change, alert.map(|a| a.held_ns)), (None, Some(STEP)));
    }
}
