//! Decides what somebody with a scope may see of a pin.
//!
//! A pin has everything that ran on its host, with all labels except the host's. If the complete
//! host is in the scope, all of the pin is shown. Otherwise only the samples in the scope are
//! shown, and the pin is listed only if it has some. What the trigger saw is shown if all samples
//! of its cgroup are in the scope. To find that out, the pin's samples are read, and the result is
//! cached.

use super::Inner;
use crate::access::{Caller, Scope};
use crate::evidence::{ProfileKind, ReadError, refused};
use crate::query::Failed;
use crate::store::Limits;
use crate::sync::lock;
use profile::{LabelMatcher, LabelSetId, MatchOp, Profile, StackEnd, key};
use proto::collector::HostPin;
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

/// Outcomes that are remembered. All are forgotten when there are more: each costs a look at one
/// pin.
const REMEMBERED_MAX: usize = 16_384;

/// The visible parts of a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// Nothing, not even that it is there.
    Nothing,
    /// Its samples in the scope, and when and where it fired.
    Samples,
    /// Its samples in the scope, and what the trigger saw.
    Trigger,
    /// All.
    Whole,
}

/// Outcomes by pin, when it came, and scope.
pub(super) type Remembered = HashMap<(u64, i64, u64, String), Sight>;

/// Labels of hosts by their ids.
pub(super) type HostLabels = HashMap<String, BTreeMap<String, String>>;

impl Sight {
    /// The parts of the pin that may be shown; `None` if nothing of it may.
    pub fn shown(self, mut pin: HostPin) -> Option<HostPin> {
        match self {
            Sight::Nothing => return None,
            Sight::Samples => {
                if let Some(pin) = &mut pin.pin {
                    pin.trigger.clear();
                    pin.cause.clear();
                    pin.cgroup.clear();
                }
            }
            Sight::Trigger | Sight::Whole => {}
        }
        Some(pin)
    }
}

impl Inner {
    /// Decides what `caller` may see of a pin. May read the pin.
    pub(super) fn sight(
        &self,
        caller: &Caller,
        pin: &HostPin,
        labels: &HostLabels,
        limits: &Limits,
    ) -> Result<Sight, Failed> {
        let Some(scope) = &caller.scope else {
            return Ok(Sight::Whole);
        };
        let none = BTreeMap::new();
        let labels = labels.get(&pin.host_id).unwrap_or(&none);
        if !scope.may_take_of(&pin.hostname, labels) {
            return Ok(Sight::Nothing);
        }
        if scope.is_of_hosts() {
            return Ok(Sight::Whole);
        }
        let facts = pin.pin.as_ref();
        let captured = facts.map_or(0, |pin| pin.capture_bytes);
        let known = (pin.id, pin.received_unix_ns, captured, scope.text.clone());
        if let Some(sight) = lock(&self.sights).get(&known) {
            return Ok(*sight);
        }
        let cgroup = facts.map_or("", |pin| &pin.cgroup);
        let mut seen = Seen::default();
        for part in [ProfileKind::Minutes, ProfileKind::Captured] {
            let gone = || limits.cancel.is_cancelled() || Instant::now() >= limits.deadline;
            match self.files()?.read(pin.id, part, limits.memory_bytes, gone) {
                Ok(profile) => seen.look(scope, &profile, cgroup),
                // Without a capture, or removed a moment ago.
                Err(ReadError::Unknown { .. }) => {}
                Err(ReadError::Cancelled) => {
                    return Err(refused(ReadError::Cancelled));
                }
                // What cannot be read shows nothing.
                Err(error) => {
                    tracing::warn!(pin = pin.id, %error, "failed to read a pin");
                    return Ok(Sight::Nothing);
                }
            }
        }
        let sight = seen.sight();
        let mut sights = lock(&self.sights);
        if sights.len() >= REMEMBERED_MAX {
            sights.clear();
        }
        sights.insert(known, sight);
        Ok(sight)
    }
}

/// Which samples were found in a pin.
#[derive(Default)]
struct Seen {
    /// In the scope.
    own: bool,
    /// Some are of the trigger's cgroup; some of these are not in the scope.
    of_trigger: bool,
    others_of_trigger: bool,
}

impl Seen {
    fn look(&mut self, scope: &Scope, profile: &Profile, cgroup: &str) {
        let within = scope.within_host();
        let trigger = LabelMatcher::new(key::CGROUP, MatchOp::Subtree, cgroup).ok();
        let mut known: HashMap<LabelSetId, (bool, bool)> = HashMap::new();
        for sample in profile.samples.keys() {
            // Little is known about a lost sample; it is shown only that it was lost.
            if sample.end == StackEnd::Lost {
                continue;
            }
            let (own, of_trigger) = *known.entry(sample.labels).or_insert_with(|| {
                let path = profile.dict.label(sample.labels, key::CGROUP);
                let path = path.unwrap_or("");
                let of_trigger = trigger
                    .as_ref()
                    .is_some_and(|trigger| trigger.matches(path));
                (within.matches(&profile.dict, sample.labels), of_trigger)
            });
            self.own |= own;
            self.of_trigger |= of_trigger;
            self.others_of_trigger |= of_trigger && !own;
        }
    }

    fn sight(&self) -> Sight {
        match (self.own, self.of_trigger && !self.others_of_trigger) {
            (false, _) => Sight::Nothing,
            (true, false) => Sight::Samples,
            (true, true) => Sight::Trigger,
        }
    }
}
