//! A rule as it is evaluated: the texts of an entry of `alerts`, parsed.

use super::alerts::{AlertRule, is_plain_name};
use super::measures::{Measure, Quantity};

/// Which side of a bound the condition is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Values above it.
    Above,
    /// Values below it.
    Below,
}

/// What values are held against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// A number.
    Number(f64),
    /// A multiple of the baseline.
    Times(f64),
}

/// Which time the baseline is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// The hour before.
    Hour,
    /// The hour around the same time, so long ago. Unit: nanoseconds.
    Ago(i64),
}

/// What missing or lossy data mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoData {
    /// Nothing changes.
    Keep,
    /// The alert is over.
    Ok,
    /// The condition holds.
    Fire,
}

/// A rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its name.
    pub name: String,
    /// What is measured.
    pub measure: Measure,
    /// Which side fires.
    pub side: Side,
    /// Where it fires.
    pub bound: Bound,
    /// Where it is over: a number, or a multiple where `bound` is one.
    pub clear: f64,
    /// What the baseline is.
    pub baseline: Baseline,
    /// A value below it never fires; where values fire below a baseline, a baseline below it.
    pub at_least: f64,
    /// How long the condition has to hold. Unit: nanoseconds.
    pub hold_ns: u64,
    /// How long it has to be over. Unit: nanoseconds.
    pub keep_ns: u64,
    /// What missing data mean.
    pub no_data: NoData,
    /// A label of notifications.
    pub severity: String,
    /// A sentence for people.
    pub summary: String,
    /// Whether it opens an incident.
    pub opens_incident: bool,
    /// Who is notified.
    pub receivers: Vec<String>,
    /// The condition in words.
    pub condition: String,
}

const DAY_NS: i64 = 86_400_000_000_000;

impl Rule {
    /// Reads an entry, for these receivers.
    ///
    /// # Errors
    /// Which key is wrong, and what to write.
    pub fn parse(entry: &AlertRule, receivers: &[&str]) -> Result<Rule, String> {
        if !is_plain_name(&entry.name) {
            return Err("`name` needs letters, digits, `_`, `.` and `-`".to_owned());
        }
        let (quantity, side, bound) = condition(&entry.when, &entry.function)?;
        let is_baseline = matches!(bound, Bound::Times(_));
        let (Bound::Number(number) | Bound::Times(number)) = bound;
        let decimal = |name: &str, text: &Option<String>| {
            let text = text.as_deref();
            let read = |text: &str| text.parse::<f64>();
            let read = text.map(read).transpose();
            read.map_err(|_| format!("`{name}` is not a number"))
        };
        let clear = decimal("clear", &entry.clear)?.unwrap_or(number);
        let is_behind = match side {
            Side::Above => clear > number,
            Side::Below => clear < number,
        };
        if is_behind {
            return Err(format!(
                "`clear` is {clear}, where the condition still holds: it must be on the other \
                 side of {number}"
            ));
        }
        let default = match (is_baseline, &quantity) {
            (false, _) => 0.0,
            (true, Quantity::Cores) => 0.1,
            (true, Quantity::Share { .. }) => 1.0,
        };
        let at_least = decimal("at_least", &entry.at_least)?;
        if at_least.is_some() && side == Side::Below && !is_baseline {
            return Err("`at_least` says nothing where values fire below a number".to_owned());
        }
        let to: Vec<String> = match entry.to.as_str() {
            "" => receivers.iter().map(|&name| name.to_owned()).collect(),
            "none" => Vec::new(),
            names => names
                .split(',')
                .map(|name| name.trim().to_owned())
                .collect(),
        };
        if let Some(unknown) = to.iter().find(|name| !receivers.contains(&name.as_str())) {
            let known = match receivers {
                [] => "there is no receiver".to_owned(),
                _ => format!("there are: {}", receivers.join(", ")),
            };
            return Err(format!("`to` names the receiver `{unknown}`; {known}"));
        }
        Ok(Rule {
            name: entry.name.clone(),
            condition: in_words(entry),
            measure: Measure::new(quantity, &entry.selector, &entry.by, entry.over)?,
            side,
            bound,
            clear,
            baseline: match entry.baseline.as_str() {
                "yesterday" => Baseline::Ago(DAY_NS),
                "last_week" => Baseline::Ago(7 * DAY_NS),
                _ => Baseline::Hour,
            },
            at_least: at_least.unwrap_or(default),
            hold_ns: ns(entry.hold),
            keep_ns: ns(entry.keep_firing),
            no_data: match entry.no_data.as_str() {
                "ok" => NoData::Ok,
                "fire" => NoData::Fire,
                _ => NoData::Keep,
            },
            severity: entry.severity.clone(),
            summary: entry.summary.clone(),
            opens_incident: entry.incident,
            receivers: to,
        })
    }

    /// Names the alert of a group, the same in every process.
    pub fn fingerprint(&self, group: &str) -> String {
        let mut hash = blake3::Hasher::new();
        for part in [self.name.as_str(), "\0", group] {
            hash.update(part.as_bytes());
        }
        hash.finalize().to_hex()[..16].to_owned()
    }
}

fn ns(seconds: u64) -> u64 {
    seconds.saturating_mul(1_000_000_000)
}

/// Reads `when`.
fn condition(when: &str, function: &str) -> Result<(Quantity, Side, Bound), String> {
    let wrong = |why: &str| {
        format!("`when` {why}: write `cores > 4`, `cores > baseline x 1.5` or `share > 12%`")
    };
    let at = when
        .find(['>', '<'])
        .ok_or_else(|| wrong("compares nothing"))?;
    let side = match when[at..].starts_with('>') {
        true => Side::Above,
        false => Side::Below,
    };
    let quantity = match (when[..at].trim(), function) {
        ("cores", "") => Quantity::Cores,
        ("cores", _) => return Err("`function` is only for `share`".to_owned()),
        ("share", "") => return Err("`function` is missing: a share is of a function".to_owned()),
        ("share", function) => Quantity::of_function(function)?,
        (other, _) => {
            let near = config::shown(other);
            return Err(wrong(&format!("has the unknown quantity `{near}`")));
        }
    };
    let right = when[at + 1..].trim();
    let bound = match right.strip_prefix("baseline") {
        Some(factor) => {
            let factor = factor.trim().trim_start_matches(['x', '×', '*']).trim();
            let factor = number(factor).ok_or_else(|| wrong("has no factor of the baseline"))?;
            Bound::Times(factor)
        }
        None => {
            let text = match quantity {
                Quantity::Share { .. } => right.strip_suffix('%').unwrap_or(right).trim(),
                Quantity::Cores => right,
            };
            Bound::Number(number(text).ok_or_else(|| wrong("has no number"))?)
        }
    };
    if let (Quantity::Share { .. }, Bound::Number(percent)) = (&quantity, bound)
        && percent > 100.0
    {
        return Err(wrong("has a share of more than 100%"));
    }
    Ok((quantity, side, bound))
}

fn number(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let number: f64 = text.parse().ok().filter(|_| plain)?;
    number.is_finite().then_some(number)
}

/// The condition as people say it.
fn in_words(entry: &AlertRule) -> String {
    let mut text = match entry.function.as_str() {
        "" => entry.when.clone(),
        function => entry
            .when
            .replacen("share", &format!("share of {function}"), 1),
    };
    if entry.when.contains("baseline") {
        text += match entry.baseline.as_str() {
            "yesterday" => " (yesterday)",
            "last_week" => " (last week)",
            _ => " (hour before)",
        };
    }
    if entry.hold > 0 {
        text += &format!(" for {}", config::show_seconds(entry.hold));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(change: impl FnOnce(&mut AlertRule)) -> AlertRule {
        let mut entry = AlertRule {
            name: "api".to_owned(),
            selector: "unit=\"api.service\"".to_owned(),
            when: "cores > 4".to_owned(),
            ..AlertRule::default()
        };
        change(&mut entry);
        entry
    }

    fn parse(change: impl FnOnce(&mut AlertRule)) -> Result<Rule, String> {
        Rule::parse(&entry(change), &["oncall", "chat"])
    }

    #[test]
    fn conditions_are_on_cores_or_shares_against_numbers_or_baselines() {
        let rule = |when: &str, function: &str| {
            let rule = parse(|of| (of.when, of.function) = (when.into(), function.into()));
            let rule = rule.expect(when);
            (rule.measure.unit(), rule.side, rule.bound)
        };
        assert_eq!(
            rule("cores > 4", ""),
            ("cores", Side::Above, Bound::Number(4.0))
        );
        assert_eq!(
            rule("cores<0.5", ""),
            ("cores", Side::Below, Bound::Number(0.5))
        );
        for when in [
            "cores > baseline x 1.5",
            "cores > baseline × 1.5",
            "cores>baseline*1.5",
        ] {
            assert_eq!(rule(when, "").2, Bound::Times(1.5), "{when}");
        }
        let share = ("percent", Side::Above, Bound::Number(12.0));
        assert_eq!(rule("share > 12%", "malloc"), share);
        assert_eq!(rule("share > 12 %", "/^je_/"), share);
        assert_eq!(rule("share > 12", "operator new"), share);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_key() {
        type Case<'a> = (&'static str, &'a dyn Fn(&mut AlertRule));
        let cases: [Case<'_>; 14] = [
            ("`name`", &|of| of.name = "a b".into()),
            ("`selector`", &|of| of.selector = "unit=~\"(\"".into()),
            ("`when`", &|of| of.when = "cores".into()),
            ("`when`", &|of| of.when = "cores > many".into()),
            ("`when`", &|of| of.when = "cores > 1e99".into()),
            ("`when`", &|of| of.when = "cors > 1".into()),
            ("`when`", &|of| of.when = "cores > baseline".into()),
            ("`function`", &|of| of.when = "share > 1%".into()),
            ("`function`", &|of| of.function = "malloc".into()),
            ("`clear`", &|of| of.clear = Some("5".into())),
            ("`at_least`", &|of| {
                (of.when, of.at_least) = ("cores < 2".into(), Some("1".into()));
            }),
            ("`by`", &|of| of.by = "*".into()),
            ("`to`", &|of| of.to = "oncall,pager".into()),
            ("`when`", &|of| {
                (of.when, of.function) = ("share > 101%".into(), "malloc".into());
            }),
        ];
        for (at, (key, change)) in cases.into_iter().enumerate() {
            let why = parse(|of| change(of)).expect_err(key);
            assert!(why.starts_with(key), "case {at}: {why}");
        }
    }

    #[test]
    fn receivers_are_all_some_or_none() {
        let to = |text: &str| parse(|of| of.to = text.into()).expect("valid").receivers;
        assert_eq!(to(""), ["oncall", "chat"]);
        assert_eq!(to("chat"), ["chat"]);
        assert!(to("none").is_empty());
    }

    #[test]
    fn an_alert_has_the_labels_that_are_certain() {
        let rule = parse(|of| {
            of.selector = "unit=\"api.service\",zone!=a,host=~\"w.*\"".into();
            of.by = "host".into();
        });
        let rule = rule.expect("valid");
        let labels = rule.measure.labels("web-1");
        let pairs: Vec<_> = labels
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_str()))
            .collect();
        assert_eq!(pairs, [("host", "web-1"), ("unit", "api.service")]);
        assert!(
            rule.measure
                .selector_of("web-1")
                .ends_with("host=\"web-1\"")
        );
        assert_ne!(rule.fingerprint("a"), rule.fingerprint("b"));
        assert_eq!(rule.fingerprint("a").len(), 16);
    }
}
