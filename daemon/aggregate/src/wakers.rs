//! Removes the wakers of waits where they must be withheld. This is done on addresses, before they
//! are named.

use super::batch::RawBatch;
use cgroup::CgroupTable;
use host::frame::{Mark, RawFrame};
use host::ids::CgroupId;
use profile::Withholding;
use std::collections::HashMap;

/// Removes withheld wakers from the stacks of a batch.
pub fn hide(batch: &mut RawBatch, withhold: &Withholding, cgroups: &mut CgroupTable) {
    if withhold.is_empty() {
        return;
    }
    let mut known: HashMap<CgroupId, bool> = HashMap::new();
    let containers = cgroups.containers().clone();
    let mut hides = |id: CgroupId| {
        *known.entry(id).or_insert_with(|| {
            let cgroup = cgroups.get(id, None);
            let told = containers.of(&cgroup.labels).unwrap_or_default();
            withhold.hides_labels(|label| cgroup.value(&told, label))
        })
    };
    for stack in &mut batch.stacks {
        let (first, end) = (stack.first as usize, (stack.first + stack.len) as usize);
        let frames = &batch.frames[first..end];
        let found = frames.iter().position(|frame| match frame {
            RawFrame::WakerCgroup(id) => hides(*id),
            _ => false,
        });
        if let Some(at) = found {
            // The waker's name, next to its cgroup, becomes the mark; the frames before it go.
            let mark = (at + 1).min(frames.len() - 1);
            batch.frames[first + mark] = RawFrame::Mark(Mark::WakerWithheld);
            stack.first += mark as u32;
            stack.len -= mark as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::RawStack;
    use profile::StackEnd;

    fn batch() -> RawBatch {
        RawBatch {
            frames: vec![
                RawFrame::Kernel(3),
                RawFrame::WakerCgroup(CgroupId(u64::MAX)),
                RawFrame::WokenBy([b'x'; 15]),
                RawFrame::Kernel(1),
            ],
            stacks: vec![RawStack {
                first: 0,
                len: 4,
                end: StackEnd::Complete,
                generated: false,
            }],
            ..RawBatch::default()
        }
    }

    fn left(withhold: &Withholding) -> Vec<RawFrame> {
        let mut batch = batch();
        hide(&mut batch, withhold, &mut CgroupTable::discover());
        let stack = batch.stacks[0];
        batch.frames[stack.first as usize..(stack.first + stack.len) as usize].to_vec()
    }

    #[test]
    fn a_waker_of_no_known_cgroup_is_not_told() {
        let withhold = Withholding::parse(&["unit=vault.service"]).unwrap();
        let mark = RawFrame::Mark(Mark::WakerWithheld);
        assert_eq!(left(&withhold), [mark, RawFrame::Kernel(1)]);
    }

    #[test]
    fn without_selectors_wakers_stay() {
        assert_eq!(left(Withholding::nothing()), batch().frames);
    }
}
