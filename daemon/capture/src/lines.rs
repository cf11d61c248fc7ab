//! Notices that say for how many samples of a capture with lines the source lines are known.

use profile::{FrameKind, Profile};
use std::collections::BTreeMap;

/// Files named that have no lines, those with most samples.
const FILES_NAMED: usize = 3;

/// A notice that says which part of the samples in native code has a source line, and where the
/// rest is. `None` if no sample is in native code.
pub fn notice(profile: &Profile) -> Option<String> {
    let (mut with, mut all) = (0, 0);
    let mut without: BTreeMap<&str, u64> = BTreeMap::new();
    for (key, value) in &profile.samples {
        let Some((_, leaf)) = profile.dict.stacks.node(key.stack) else {
            continue;
        };
        let leaf = profile.dict.frame(leaf);
        if !matches!(leaf.kind, FrameKind::Native | FrameKind::Inlined) {
            continue;
        }
        all += value.count;
        match leaf.line {
            0 => *without.entry(leaf.module).or_default() += value.count,
            _ => with += value.count,
        }
    }
    if all == 0 {
        return None;
    }
    let text = format!("{with} of {all} samples in native code have a source line");
    let mut without: Vec<(&str, u64)> = without.into_iter().collect();
    without.sort_by_key(|&(module, count)| (std::cmp::Reverse(count), module));
    let named = without.iter().take(FILES_NAMED);
    let mut named: Vec<String> = named
        .map(|&(module, count)| match module {
            "" => format!("unknown files ({count})"),
            _ => format!("{module} ({count})"),
        })
        .collect();
    match without.len().saturating_sub(FILES_NAMED) {
        0 => {}
        1 => named.push("another file".to_owned()),
        more => named.push(format!("{more} other files")),
    }
    Some(match named.is_empty() {
        true => text,
        false => format!(
            "{text}; the rest: no debug information, or over `captures.lines_mib` or the time \
             limit: {}",
            named.join(", ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::{FrameRef, LabelSetId, SampleKey, StackEnd, StackId, Value};

    fn profile_of(leaves: &[(FrameKind, &str, u32, u64)]) -> Profile {
        let mut profile = Profile::default();
        for (at, &(kind, module, line, count)) in leaves.iter().enumerate() {
            let frame = profile.dict.intern_frame(FrameRef {
                kind,
                function: &format!("f{at}"),
                module,
                line,
                ..FrameRef::default()
            });
            let key = SampleKey {
                labels: LabelSetId::default(),
                stack: profile.dict.stacks.child(StackId::EMPTY, frame),
                end: StackEnd::Complete,
            };
            profile.add(key, Value { count, weight: 1 });
        }
        profile
    }

    #[test]
    fn what_has_lines_and_what_has_none_is_told() {
        use FrameKind::{Inlined, Jit, Kernel, Native};
        let all = [(Native, "api", 7, 60), (Inlined, "api", 8, 20)];
        let complete = profile_of(&all);
        let text = "80 of 80 samples in native code have a source line";
        assert_eq!(notice(&complete).as_deref(), Some(text));
        let rest = [
            (Kernel, "", 0, 1000),
            (Jit, "", 0, 1000),
            (Native, "libc.so.6", 0, 9),
            (Native, "libc.so.6", 0, 6),
            (Native, "ld.so", 0, 3),
            (Native, "", 0, 2),
            (Native, "libm.so", 0, 1),
        ];
        let partly = profile_of(&[&all[..], &rest[..]].concat());
        let text = "80 of 101 samples in native code have a source line; the rest: no debug \
                    information, or over `captures.lines_mib` or the time limit: libc.so.6 (15), \
                    ld.so (3), unknown files (2), another file";
        assert_eq!(notice(&partly).as_deref(), Some(text));
        assert_eq!(notice(&profile_of(&rest[..2])), None);
    }
}
