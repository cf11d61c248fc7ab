//! Parses a trigger of the configuration: its target, condition and limits.

use super::condition::{Condition, ConditionError, Quantity};
use super::target::{Target, TargetError};
use super::{Trigger, TriggerCapture};
use std::collections::BTreeSet;
use std::time::Duration;

/// Most triggers. Each is looked at once a second; with
/// `CGROUPS_MAX` cgroups each, all of them read some thousand small
/// files a second, a percent of one CPU.
pub const TRIGGERS_MAX: usize = 32;

/// A trigger, ready to be looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Its name, which is unique.
    pub name: String,
    /// Its target.
    pub target: Target,
    /// The condition.
    pub condition: Condition,
    /// How long it has to hold.
    pub hold: Duration,
    /// The trigger is armed again once the value is not above this.
    pub clear: f64,
    /// Shortest time between two firings for one target.
    pub cooldown: Duration,
    /// Most firings on one day.
    pub max_per_day: u32,
    /// Past that is pinned.
    pub keep_before: Duration,
    /// Future that is pinned.
    pub keep_after: Duration,
    /// The capture that the trigger also starts; `None`: it only pins.
    pub capture: Option<TriggerCapture>,
}

/// Why a trigger cannot be.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum RuleError {
    /// Its name.
    #[error("has a trigger with the name `{0}`: use 1 to 64 letters, digits, `_`, `.` and `-`")]
    Name(String),
    /// Two of the same name.
    #[error("has two triggers with the name `{0}`: give each a name of its own")]
    Twice(String),
    /// Its condition.
    #[error("`{name}`: failed to read `when: {text}`: {source}")]
    When {
        /// Name of the trigger.
        name: String,
        /// As given.
        text: String,
        /// What is wrong.
        source: ConditionError,
    },
    /// Its target.
    #[error("`{name}`: failed to read `target: {text}`: {source}")]
    Target {
        /// Name of the trigger.
        name: String,
        /// As given.
        text: String,
        /// What is wrong.
        source: TargetError,
    },
    /// The host alone has this quantity.
    #[error("`{name}`: only the host has `{quantity}`: set `target: host`")]
    HostOnly {
        /// Name of the trigger.
        name: String,
        /// As written.
        quantity: &'static str,
    },
    /// A cgroup alone has this quantity.
    #[error("`{name}`: only cgroups have `{quantity}`: set `target` to a cgroup or unit")]
    CgroupOnly {
        /// Name of the trigger.
        name: String,
        /// As written.
        quantity: &'static str,
    },
    /// It would be armed again where it fires.
    #[error(
        "`{name}`: `clear` is {clear}, above the {above} at which the trigger fires: set a \
        lower value"
    )]
    Clear {
        /// Name of the trigger.
        name: String,
        /// As given.
        clear: f64,
        /// The limit in the condition.
        above: f64,
    },
}

impl RuleError {
    /// The key of the trigger that says it.
    fn key(&self) -> &'static str {
        match self {
            RuleError::Name(_) | RuleError::Twice(_) => "name",
            RuleError::When { .. } => "when",
            RuleError::Target { .. }
            | RuleError::HostOnly { .. }
            | RuleError::CgroupOnly { .. } => "target",
            RuleError::Clear { .. } => "clear",
        }
    }
}

impl Rule {
    /// The rules of the configuration.
    ///
    /// # Errors
    /// The first that cannot be.
    pub fn all(triggers: &[Trigger]) -> Result<Vec<Rule>, RuleError> {
        match Rule::faults(triggers).into_iter().next() {
            Some((.., error)) => Err(error),
            None => triggers.iter().map(Rule::of).collect(),
        }
    }

    /// All that cannot be, each with the place of its trigger and the key that says it.
    pub fn faults(triggers: &[Trigger]) -> Vec<(usize, &'static str, RuleError)> {
        let mut names = BTreeSet::new();
        let mut faults = Vec::new();
        for (at, trigger) in triggers.iter().enumerate() {
            if !names.insert(trigger.name.as_str()) {
                let error = RuleError::Twice(config::shown(&trigger.name));
                faults.push((at, "name", error));
            }
            if let Err(error) = Rule::of(trigger) {
                faults.push((at, error.key(), error));
            }
        }
        faults
    }

    fn of(trigger: &Trigger) -> Result<Rule, RuleError> {
        let name = trigger.name.clone();
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
        if !(1..=64).contains(&name.len()) || !name.bytes().all(plain) {
            return Err(RuleError::Name(config::shown(&name)));
        }
        let condition = Condition::parse(&trigger.when).map_err(|source| RuleError::When {
            name: name.clone(),
            text: config::shown(&trigger.when),
            source,
        })?;
        let target = Target::parse(&trigger.target).map_err(|source| RuleError::Target {
            name: name.clone(),
            text: config::shown(&trigger.target),
            source,
        })?;
        let quantity = condition.quantity.word();
        match (condition.quantity, &target) {
            (Quantity::RunQueue, target) if *target != Target::Host => {
                return Err(RuleError::HostOnly { name, quantity });
            }
            (Quantity::NrThrottled, Target::Host) => {
                return Err(RuleError::CgroupOnly { name, quantity });
            }
            _ => {}
        }
        let above = condition.above;
        let clear = trigger.clear.as_deref().and_then(|text| text.parse().ok());
        let clear: f64 = clear.unwrap_or(above);
        if clear > above {
            return Err(RuleError::Clear { name, clear, above });
        }
        Ok(Rule {
            name,
            target,
            condition,
            hold: trigger.hold.into(),
            clear,
            cooldown: trigger.cooldown.into(),
            max_per_day: trigger.max_per_day,
            keep_before: trigger.keep_before.into(),
            keep_after: trigger.keep_after.into(),
            capture: trigger.capture.clone(),
        })
    }
}
