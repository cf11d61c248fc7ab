//! Removes the wakers from a profile of waits.
//!
//! The stack of a wait continues beyond the waiting thread with `[woken by NAME]` and the waker's
//! frames. The waker may be any process on the host, so it must not be shown to somebody who may
//! see only a part of the host.

use crate::dictionary::Remap;
use crate::frame::{Frame, FrameId, FrameKind};
use crate::functions::WOKEN_BY;
use crate::profile::Profile;
use crate::stack::StackId;

impl Profile {
    /// The same profile, each wait cut before the frame that says who ended it, with a dictionary
    /// that has nothing of wakers. `None`: nothing in it says who ended a wait.
    pub fn without_wakers(&self) -> Option<Profile> {
        let frames = self.dict.frames.as_slice();
        let is_waker = |frame: &Frame| {
            frame.kind == FrameKind::Synthetic
                && self.dict.strings.get(frame.function).starts_with(WOKEN_BY)
        };
        let wakers: Vec<FrameId> = frames
            .iter()
            .zip(0..)
            .filter(|(frame, _)| is_waker(frame))
            .map(|(_, at)| FrameId(at))
            .collect();
        if wakers.is_empty() {
            return None;
        }
        // By stack: the stack up to the thread that waits. A caller has a smaller id than what it
        // called.
        let nodes = self.dict.stacks.nodes();
        let mut own: Vec<StackId> = Vec::with_capacity(nodes.len());
        for (id, &(parent, frame)) in nodes.iter().enumerate() {
            let above = own.get(parent.0 as usize).copied().unwrap_or(parent);
            let is_cut = id > 0 && (above != parent || wakers.binary_search(&frame).is_ok());
            own.push(match is_cut {
                true => above,
                false => StackId(id as u32),
            });
        }
        let mut bare = Profile {
            info: self.info.clone(),
            ..Profile::default()
        };
        let mut remap = Remap::default().shown();
        for (mut key, value) in self.sorted() {
            key.stack = own[key.stack.0 as usize];
            bare.add_from(&self.dict, &mut remap, key, value);
        }
        bare.timestamps.clone_from(&self.timestamps);
        for timestamp in &mut bare.timestamps.list {
            timestamp.key.stack = own[timestamp.key.stack.0 as usize];
            timestamp.key = remap.key(&self.dict, &mut bare.dict, timestamp.key);
        }
        Some(bare)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::FrameRef;
    use crate::outcome::StackEnd;
    use crate::sample::{SampleKey, Value};
    use crate::timestamps::Timestamp;

    fn waits(stacks: &[(&str, u64)]) -> Profile {
        let mut profile = Profile::default();
        for &(text, count) in stacks {
            let stack = text.split(';').fold(StackId::EMPTY, |stack, function| {
                let kind = match function.starts_with('[') {
                    true => FrameKind::Synthetic,
                    false => FrameKind::Native,
                };
                let frame = profile.dict.intern_frame(FrameRef {
                    function,
                    kind,
                    ..FrameRef::default()
                });
                profile.dict.stacks.child(stack, frame)
            });
            let key = SampleKey {
                labels: profile.dict.intern_labels([("unit", "a")]),
                stack,
                end: StackEnd::Complete,
            };
            let weight = count * 10;
            profile.add(key, Value { count, weight });
            profile.timestamps.list.push(Timestamp {
                at_ns: count,
                key,
                weight,
            });
        }
        profile
    }

    fn shown(profile: &Profile) -> Vec<(String, u64)> {
        let mut path = Vec::new();
        let mut rows: Vec<_> = profile
            .sorted()
            .into_iter()
            .map(|(key, value)| {
                profile.dict.stacks.root_first(key.stack, &mut path);
                let names = path.iter().map(|&id| profile.dict.frame(id).function);
                (names.collect::<Vec<_>>().join(";"), value.count)
            })
            .collect();
        rows.sort();
        rows
    }

    #[test]
    fn waits_end_where_their_thread_waits_and_keep_their_weight() {
        let profile = waits(&[
            ("main;poll;[woken by canary];secret;entry", 3),
            ("main;poll;[woken by other];thing", 2),
            ("main;[uninterruptible];[woken by canary]", 1),
            ("[woken by canary];secret", 7),
            ("main;run", 5),
        ]);
        let bare = profile.without_wakers().expect("it has wakers");
        let expected = [
            ("", 7),
            ("main;[uninterruptible]", 1),
            ("main;poll", 5),
            ("main;run", 5),
        ];
        let expected = expected.map(|(stack, count)| (stack.to_owned(), count));
        assert_eq!(shown(&bare), expected);
        assert_eq!(bare.total(), profile.total());
        assert_eq!(bare.timestamps.list.len(), 5);
        for timestamp in &bare.timestamps.list {
            assert!(bare.samples.contains_key(&timestamp.key));
        }
        for text in ["canary", "secret", "thing"] {
            let mut frames = bare.dict.frames.as_slice().iter();
            let named = frames.any(|frame| bare.dict.strings.get(frame.function).contains(text));
            assert!(!named, "{text}");
        }
    }

    #[test]
    fn what_has_no_wakers_stays_as_it_is() {
        assert!(
            waits(&[("main;[waker unseen]", 1)])
                .without_wakers()
                .is_none()
        );
    }
}
