//! The condition of a trigger: a quantity and the threshold above which it holds.

use config::{nearest_word, parse_seconds, show_seconds, shown};
use std::fmt;
use std::time::Duration;

/// Longest time that `rises … in` may look back. Unit: seconds. A reading a second is kept for it.
const RISE_MAX_S: u64 = 600;

/// Shortest: less has too few readings for a mean. Unit: seconds.
const RISE_MIN_S: u64 = 5;

/// What is measured once a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// CPU time used, as a part of all CPUs.
    CpuShare,
    /// CPU time used, in CPUs.
    Cpus,
    /// Periods a second in which the bandwidth limit stopped the cgroup.
    NrThrottled,
    /// Tasks that run or wait for a CPU, by CPU.
    RunQueue,
    /// Pressure stall information.
    Pressure(Pressure),
}

/// A number of a pressure file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pressure {
    /// `cpu`, `memory`, `io`.
    pub resource: &'static str,
    /// `some`, `full`.
    pub kind: &'static str,
    /// `avg10`, `avg60`, `avg300`.
    pub average: &'static str,
    word: &'static str,
}

macro_rules! pressures {
    ($($resource:literal $kind:literal),*) => {
        &[$(
            pressures!(@ $resource $kind "avg10"),
            pressures!(@ $resource $kind "avg60"),
            pressures!(@ $resource $kind "avg300"),
        )*]
    };
    (@ $resource:literal $kind:literal $average:literal) => {
        Pressure {
            resource: $resource,
            kind: $kind,
            average: $average,
            word: concat!("psi.", $resource, ".", $kind, ".", $average),
        }
    };
}

const PRESSURES: &[Pressure] = pressures!(
    "cpu" "some", "cpu" "full", "memory" "some", "memory" "full", "io" "some", "io" "full"
);

const PLAIN: [(Quantity, &str); 4] = [
    (Quantity::CpuShare, "cpu_share"),
    (Quantity::Cpus, "cpus"),
    (Quantity::NrThrottled, "nr_throttled"),
    (Quantity::RunQueue, "run_queue"),
];

impl Quantity {
    /// As it is written.
    pub fn word(self) -> &'static str {
        if let Quantity::Pressure(pressure) = self {
            return pressure.word;
        }
        let found = PLAIN.iter().find(|(known, _)| *known == self);
        found.map_or("", |(_, word)| *word)
    }

    fn parse(text: &str) -> Result<Quantity, ConditionError> {
        let plain = PLAIN.iter().map(|&(quantity, word)| (quantity, word));
        let pressure = |pressure: &Pressure| (Quantity::Pressure(*pressure), pressure.word);
        let all: Vec<(Quantity, &'static str)> =
            plain.chain(PRESSURES.iter().map(pressure)).collect();
        if let Some((quantity, _)) = all.iter().find(|(_, word)| *word == text) {
            return Ok(*quantity);
        }
        let words: Vec<&'static str> = all.iter().map(|(_, word)| *word).collect();
        Err(ConditionError::Quantity {
            given: shown(text),
            nearest: nearest_word(&words, text),
        })
    }

    /// The smallest mean to compare with: compared with almost nothing, any value is a large
    /// increase.
    pub fn floor(self) -> f64 {
        match self {
            Quantity::CpuShare => 0.02,
            Quantity::Cpus => 0.1,
            Quantity::NrThrottled => 1.0,
            Quantity::RunQueue => 0.5,
            Quantity::Pressure(_) => 2.0,
        }
    }

    /// The unit that may follow the number of a condition.
    fn unit(self) -> &'static str {
        match self {
            Quantity::NrThrottled => "/s",
            Quantity::Pressure(_) => "%",
            _ => "",
        }
    }
}

/// When a trigger fires.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Condition {
    /// What is measured.
    pub quantity: Quantity,
    /// Above this it holds: a value, or with [`Condition::rise`] a multiple.
    pub above: f64,
    /// Compared with the mean of so much time before.
    pub rise: Option<Duration>,
}

/// Why a text is no condition.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum ConditionError {
    /// No such quantity.
    #[error("there is no quantity `{given}`{}", hint(*nearest))]
    Quantity {
        /// As given.
        given: String,
        /// The one that looks most like it.
        nearest: Option<&'static str>,
    },
    /// It has neither of the two forms.
    #[error("expected `QUANTITY > NUMBER` or `QUANTITY rises > NUMBERx in TIME`")]
    Form,
    /// The number.
    #[error("`{given}` is not a number {expected}")]
    Number {
        /// As given.
        given: String,
        /// The valid form.
        expected: &'static str,
    },
    /// The time of `rises`.
    #[error(
        "`{0}` is not a time from {low} to {high}",
        low = show_seconds(RISE_MIN_S),
        high = show_seconds(RISE_MAX_S)
    )]
    Time(String),
}

fn hint(nearest: Option<&str>) -> String {
    nearest.map_or_else(
        || {
            "; quantities are cpu_share, cpus, nr_throttled, run_queue and \
             psi.RESOURCE.KIND.AVERAGE, such as psi.cpu.some.avg10"
                .to_owned()
        },
        |word| format!("; did you mean `{word}`?"),
    )
}

impl Condition {
    /// Reads `cpu_share > 0.9` or `cpu_share rises > 3x in 60s`.
    ///
    /// # Errors
    /// [`ConditionError`].
    pub fn parse(text: &str) -> Result<Condition, ConditionError> {
        let spaced = text.replace('>', " > ");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        let quantity = match words.first() {
            Some(word) => Quantity::parse(word)?,
            None => return Err(ConditionError::Form),
        };
        match words[1..] {
            [">", value] => {
                let bare = value.strip_suffix(quantity.unit()).unwrap_or(value);
                let above = number(bare, value, "such as 0.9, not negative")?;
                Ok(Condition {
                    quantity,
                    above,
                    rise: None,
                })
            }
            ["rises", ">", times, "in", time] => {
                let expected = "above 1 with an x, such as 3x";
                let refuse = || ConditionError::Number {
                    given: shown(times),
                    expected,
                };
                let bare = times.strip_suffix('x').ok_or_else(refuse)?;
                let above = number(bare, times, expected)?;
                if above <= 1.0 {
                    return Err(refuse());
                }
                let seconds = parse_seconds(time)
                    .filter(|seconds| (RISE_MIN_S..=RISE_MAX_S).contains(seconds))
                    .ok_or_else(|| ConditionError::Time(shown(time)))?;
                Ok(Condition {
                    quantity,
                    above,
                    rise: Some(Duration::from_secs(seconds)),
                })
            }
            _ => Err(ConditionError::Form),
        }
    }
}

fn number(text: &str, given: &str, expected: &'static str) -> Result<f64, ConditionError> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let parsed = text.parse::<f64>().ok();
    let found = parsed.filter(|value| plain && text.len() <= 18 && value.is_finite());
    found.ok_or_else(|| ConditionError::Number {
        given: shown(given),
        expected,
    })
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, above) = (self.quantity.word(), self.above);
        match self.rise {
            None => write!(f, "{word} > {above}{}", self.quantity.unit()),
            Some(time) => write!(
                f,
                "{word} rises > {above}x in {}",
                show_seconds(time.as_secs())
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_read_back_as_they_are_written() {
        for text in [
            "cpu_share > 0.9",
            "cpus > 3",
            "nr_throttled > 5/s",
            "run_queue > 2",
            "psi.cpu.some.avg10 > 40%",
            "psi.memory.full.avg300 > 0.5%",
            "psi.io.some.avg60 > 10%",
            "cpu_share rises > 3x in 1m",
        ] {
            assert_eq!(Condition::parse(text).unwrap().to_string(), text);
        }
        let loose = Condition::parse("nr_throttled>5").unwrap();
        assert_eq!(loose, Condition::parse("nr_throttled > 5/s").unwrap());
        let minute = Condition::parse("cpu_share rises > 3x in 60s").unwrap();
        assert_eq!(minute.rise, Some(Duration::from_secs(60)));
    }

    #[test]
    fn what_is_wrong_is_said_with_what_would_be_right() {
        let check = |text: &str, expected: &str| {
            let error = Condition::parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        };
        check("cpu_shar > 1", "did you mean `cpu_share`?");
        check(
            "psi.cpu.some.avg11 > 1",
            "did you mean `psi.cpu.some.avg10`?",
        );
        check("§ > 1", "quantities are cpu_share");
        check("", "expected `QUANTITY > NUMBER`");
        check("cpus < 1", "expected `QUANTITY > NUMBER`");
        check("cpus > -1", "`-1` is not a number");
        check("cpus > inf", "`inf` is not a number");
        check("cpus > 1.2.3", "`1.2.3` is not a number");
        check(
            "cpus rises > 3 in 60s",
            "`3` is not a number above 1 with an x",
        );
        check("cpus rises > 1x in 60s", "`1x` is not a number above 1");
        check("cpus rises > 3x in 60", "`60` is not a time from 5s to 10m");
        check("cpus rises > 3x in 1h", "`1h` is not a time");
    }
}
