//! Profiles that are allowed to leave the host.

use crate::dictionary::Dictionary;
use crate::frame::{FrameId, FrameKind};
use crate::functions::{WOKEN_BY, WOKEN_BY_HARDIRQ, WOKEN_BY_SOFTIRQ};
use crate::profile::Profile;
use crate::query::{Query, QueryRunner};
use crate::sample::SampleKey;
use crate::stack::StackId;
use crate::withhold::{WAKER, Withholding, synthetic};
use std::collections::HashMap;

impl Withholding {
    /// The profile as it may leave the host. It must have all labels and must not have been
    /// filtered, because what to withhold could not be found in what filters left.
    pub fn release(&self, profile: Profile) -> Released {
        if self.is_empty() {
            return Released(profile);
        }
        let query = Query::default();
        let runner = QueryRunner::withholding(&query, self);
        let profile = match profile.info.is_waiting() {
            // The stack does not say who the waker was: it may be a withheld process.
            true => without_wakers(profile),
            false => profile,
        };
        Released(profile.asked_by(runner))
    }
}

/// The waits of a profile without the threads that ended them. Interrupts stay: they are the
/// kernel's.
fn without_wakers(mut profile: Profile) -> Profile {
    let mut moved: HashMap<StackId, StackId> = HashMap::new();
    let mut path = Vec::new();
    let mut hidden = |dict: &mut Dictionary, key: SampleKey| {
        let stack = *moved.entry(key.stack).or_insert_with(|| {
            dict.stacks.root_first(key.stack, &mut path);
            let names_thread = |&frame: &FrameId| {
                let frame = dict.frame(frame);
                frame.kind == FrameKind::Synthetic
                    && frame.function.starts_with(WOKEN_BY)
                    && ![WOKEN_BY_HARDIRQ, WOKEN_BY_SOFTIRQ].contains(&frame.function)
            };
            match path.iter().position(names_thread) {
                Some(at) => {
                    let own = dict.stacks.intern(path[..at].iter().copied());
                    synthetic(dict, own, WAKER)
                }
                None => key.stack,
            }
        });
        SampleKey { stack, ..key }
    };
    let samples = std::mem::take(&mut profile.samples);
    for (key, value) in samples {
        let key = hidden(&mut profile.dict, key);
        profile.add(key, value);
    }
    let mut timestamps = std::mem::take(&mut profile.timestamps);
    for timestamp in &mut timestamps.list {
        timestamp.key = hidden(&mut profile.dict, timestamp.key);
    }
    profile.timestamps = timestamps;
    profile
}

/// A profile that may leave the host: only [`Withholding::release`] makes one.
#[derive(Clone)]
pub struct Released(Profile);

impl Released {
    /// The profile.
    pub fn profile(&self) -> &Profile {
        &self.0
    }

    /// Leaves out the times of its samples; how many these were.
    pub fn shed_timestamps(&mut self) -> u64 {
        self.0.timestamps.shed()
    }

    /// The profile, to be sent.
    pub fn into_inner(self) -> Profile {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::{FrameFilter, FrameFilterOp};
    use crate::frame::FrameRef;
    use crate::labels::key;
    use crate::merge::GroupBy;
    use crate::outcome::StackEnd;
    use crate::sample::Value;
    use crate::timestamps::Timestamp;
    use crate::withhold::FRAME;

    const VAULT: [(&str, &str); 4] = [
        (key::CGROUP, "/system.slice/vault.service"),
        (key::UNIT, "vault.service"),
        (key::COMM, "secretd"),
        (key::PID, "7"),
    ];
    const SHOP: [(&str, &str); 3] = [
        (key::CGROUP, "/system.slice/shop.service"),
        (key::UNIT, "shop.service"),
        (key::COMM, "shop"),
    ];

    fn of(texts: &[&str]) -> Withholding {
        Withholding::parse(texts).unwrap()
    }

    fn add(profile: &mut Profile, labels: &[(&str, &str)], frames: &[(FrameKind, &str)]) {
        let mut stack = StackId::EMPTY;
        for &(kind, function) in frames {
            let frame = profile.dict.intern_frame(FrameRef {
                kind,
                function,
                ..FrameRef::default()
            });
            stack = profile.dict.stacks.child(stack, frame);
        }
        let key = SampleKey {
            labels: profile.dict.intern_labels(labels.iter().copied()),
            stack,
            end: StackEnd::BrokenChain,
        };
        let (count, weight) = (3, 30);
        profile.add(key, Value { count, weight });
        let at_ns = 1;
        profile
            .timestamps
            .list
            .push(Timestamp { at_ns, key, weight });
    }

    fn profile() -> Profile {
        let mut profile = Profile::default();
        let native = FrameKind::Native;
        add(
            &mut profile,
            &VAULT,
            &[(native, "main"), (native, "unseal")],
        );
        add(&mut profile, &SHOP, &[(native, "main"), (native, "sell")]);
        profile
    }

    /// Everything that a profile says, as text.
    fn said(profile: &Profile) -> String {
        let strings = (0..profile.dict.strings.len() as u32).map(crate::strings::StrId);
        let strings = strings.map(|id| profile.dict.strings.get(id));
        strings.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_withheld_sample_keeps_its_weight_and_cgroup_and_says_nothing_else() {
        let released = of(&["unit=vault.service"]).release(profile());
        let shown = released.profile();
        assert_eq!(shown.total(), profile().total());
        assert_eq!(shown.timestamps.list.len(), 2);
        let said = said(shown);
        assert!(said.contains("sell") && said.contains("shop"), "{said}");
        assert!(
            said.contains(FRAME) && said.contains("vault.service"),
            "{said}"
        );
        for secret in ["unseal", "secretd", "pid"] {
            assert!(!said.contains(secret), "{secret}: {said}");
        }
    }

    #[test]
    fn without_selectors_everything_is_as_it_was() {
        let released = Withholding::nothing().release(profile());
        assert_eq!(said(released.profile()), said(&profile()));
    }

    #[test]
    fn filters_and_matchers_tell_nothing_of_what_is_withheld() {
        let withheld = of(&["unit=vault.service"]);
        let profile = profile();
        let count = |selector: &str, filters: Vec<FrameFilter>| {
            let query = Query::new(selector.parse().unwrap(), filters, GroupBy::All).unwrap();
            let runner = QueryRunner::withholding(&query, &withheld);
            profile.asked_by(runner).total().count
        };
        assert_eq!(count("comm=secretd", Vec::new()), 0);
        assert_eq!(count("pid=7", Vec::new()), 0);
        assert_eq!(count("unit=vault.service", Vec::new()), 3);
        let keep = |pattern| vec![FrameFilter::new(FrameFilterOp::Keep, pattern).unwrap()];
        assert_eq!(count("", keep("unseal")), 0);
        assert_eq!(count("", keep("main")), 3);
        assert_eq!(count("", keep("withheld")), 3);
    }

    #[test]
    fn a_wait_does_not_say_who_ended_it_where_that_may_be_withheld() {
        let mut waits = Profile::default();
        waits.info.event = crate::profile::OFF_CPU.to_owned();
        let (native, mark) = (FrameKind::Native, FrameKind::Synthetic);
        let waker = [
            (native, "main"),
            (mark, "[woken by secretd]"),
            (native, "unseal"),
        ];
        add(&mut waits, &SHOP, &waker);
        // Named by itself like what stays.
        let forged = [
            (native, "main"),
            (mark, "[woken by x interrupt]"),
            (native, "unseal"),
        ];
        add(&mut waits, &SHOP, &forged);
        let interrupt = [(native, "main"), (mark, "[woken by a hard interrupt]")];
        add(&mut waits, &SHOP, &interrupt);
        let released = of(&["unit=vault.service"]).release(waits);
        let said = said(released.profile());
        assert!(
            said.contains(WAKER) && said.contains("hard interrupt"),
            "{said}"
        );
        assert!(
            !said.contains("unseal") && !said.contains("secretd"),
            "{said}"
        );
        assert!(!said.contains("x interrupt"), "{said}");
    }
}
