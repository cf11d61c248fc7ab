//! The cost of each function or module: the sums behind tables and diffs.
//!
//! The stack of a wait continues beyond the waiting thread with `[woken by NAME]` and the waker's
//! frames. Its self weight belongs to the frame in which the thread itself waits: the last one
//! before these.

use crate::dictionary::Dictionary;
use crate::frame::{Frame, FrameId, FrameKind};
use crate::sample::Value;
use crate::stack::StackId;
use crate::strings::StrId;
use hashbrown::HashMap;
use std::borrow::Cow;

/// Cost of one function, or module, in `N` profiles that share a dictionary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FunctionCost<const N: usize> {
    pub function: StrId,
    pub module: StrId,
    /// Lowest kind seen: a function that also was inlined counts as what it is elsewhere.
    pub kind: FrameKind,
    /// Samples with the function as leaf; of waits: as the last frame of the thread that waits.
    pub own: [Value; N],
    /// Samples with the function anywhere; a stack where it stands twice counts once.
    pub total: [Value; N],
}

/// What sums need from a dictionary besides its texts: stacks and frames by id.
pub struct Shape<'d> {
    stacks: Cow<'d, [(StackId, FrameId)]>,
    frames: Cow<'d, [Frame]>,
    /// Frames that say of a wait who ended it and how it was, in order.
    marks: Vec<FrameId>,
}

impl Shape<'_> {
    /// The shape of a dictionary.
    pub fn of(dict: &Dictionary) -> Shape<'_> {
        Shape {
            stacks: Cow::Borrowed(dict.stacks.nodes()),
            frames: match dict.later.is_empty() {
                true => Cow::Borrowed(dict.frames.as_slice()),
                false => Cow::Owned(named_later(dict)),
            },
            marks: marks(dict),
        }
    }

    /// A copy, for sums that are made while the dictionary grows.
    pub fn into_owned(self) -> Shape<'static> {
        Shape {
            stacks: Cow::Owned(self.stacks.into_owned()),
            frames: Cow::Owned(self.frames.into_owned()),
            marks: self.marks,
        }
    }

    /// Size of stacks and frames. Unit: bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.stacks) + size_of_val(&*self.frames) + size_of_val(&self.marks[..])
    }

    /// By stack: the stack up to the frame that what it costs is of. `None`: each to its own leaf.
    fn owners(&self) -> Option<Vec<StackId>> {
        if self.marks.is_empty() {
            return None;
        }
        let mut owners: Vec<StackId> = Vec::with_capacity(self.stacks.len());
        let mut marked = vec![false; self.stacks.len()];
        for (id, &(parent, frame)) in self.stacks.iter().enumerate() {
            // A caller has a smaller id than what it called.
            let at = parent.0 as usize;
            let beyond = id > 0 && (marked[at] || self.marks.binary_search(&frame).is_ok());
            marked[id] = beyond;
            owners.push(if beyond {
                owners[at]
            } else {
                StackId(id as u32)
            });
        }
        Some(owners)
    }
}

/// The frames of a dictionary, those that got a name later under the number of that.
fn named_later(dict: &Dictionary) -> Vec<Frame> {
    let mut frames = dict.frames.as_slice().to_vec();
    for (frame, id) in frames.iter_mut().zip(0..) {
        if let Some(name) = dict.later.number(FrameId(id)) {
            frame.function = name;
        }
    }
    frames
}

/// The frames of a dictionary that are marks of waits, in order.
fn marks(dict: &Dictionary) -> Vec<FrameId> {
    let all = dict.frames.as_slice().iter().enumerate();
    let marks = all.filter(|(_, frame)| is_mark(dict, **frame));
    marks.map(|(at, _)| FrameId(at as u32)).collect()
}

/// True for a frame that says of a wait who ended it or how it was: what lies beyond is not of the
/// thread that waits.
pub(crate) fn is_mark(dict: &Dictionary, frame: Frame) -> bool {
    frame.kind == FrameKind::Synthetic && is_mark_text(dict.strings.get(frame.function))
}

/// How the mark starts that says who ended a wait.
pub(crate) const WOKEN_BY: &str = "[woken by ";

/// A wait that a hard interrupt ended. A thread has a name of 15 bytes at most, so no mark with the
/// name of one reads like this.
pub const WOKEN_BY_HARDIRQ: &str = "[woken by a hard interrupt]";

/// A wait that a soft interrupt ended.
pub const WOKEN_BY_SOFTIRQ: &str = "[woken by a soft interrupt]";

/// Marks as the daemon writes them.
fn is_mark_text(text: &str) -> bool {
    let marks = [
        "[waker unseen]",
        "[still waiting]",
        "[uninterruptible]",
        "[stopped]",
    ];
    text.starts_with(WOKEN_BY) || marks.contains(&text)
}

/// Sums costs by (function, module), in no particular order.
pub(crate) fn sum_functions<const N: usize>(
    shape: &Shape<'_>,
    stacks: impl IntoIterator<Item = (StackId, [Value; N])>,
) -> Vec<FunctionCost<N>> {
    sum(shape, stacks, |frame| (frame.function, frame.module))
}

/// Sums costs by module, in no particular order; `function` is the empty string.
pub(crate) fn sum_modules<const N: usize>(
    shape: &Shape<'_>,
    stacks: impl IntoIterator<Item = (StackId, [Value; N])>,
) -> Vec<FunctionCost<N>> {
    sum(shape, stacks, |frame| (StrId::EMPTY, frame.module))
}

fn sum<const N: usize>(
    shape: &Shape<'_>,
    stacks: impl IntoIterator<Item = (StackId, [Value; N])>,
    row: impl Fn(Frame) -> (StrId, StrId),
) -> Vec<FunctionCost<N>> {
    let mut costs: Vec<FunctionCost<N>> = Vec::new();
    let mut rows: HashMap<(StrId, StrId), usize> = HashMap::new();
    let row_of_frame: Vec<usize> = shape
        .frames
        .iter()
        .map(|frame| {
            let (function, module) = row(*frame);
            let row = *rows.entry((function, module)).or_insert_with(|| {
                costs.push(FunctionCost {
                    function,
                    module,
                    kind: frame.kind,
                    own: [Value::default(); N],
                    total: [Value::default(); N],
                });
                costs.len() - 1
            });
            costs[row].kind = costs[row].kind.min(frame.kind);
            row
        })
        .collect();

    // The empty stack has no frame, and costs nothing.
    let row_of_stack = |stack: StackId| {
        let (_, frame) = shape.stacks[stack.0 as usize];
        row_of_frame.get(frame.0 as usize).copied()
    };
    let owners = shape.owners();
    let totals = totals(&shape.stacks, stacks, |stack, values| {
        let owner = match &owners {
            Some(owners) => owners[stack.0 as usize],
            None => stack,
        };
        if let Some(row) = row_of_stack(owner) {
            add(&mut costs[row].own, values);
        }
    });
    // By stack: marks of the rows on the path to it, its own among them.
    let mut marks = vec![0u128; shape.stacks.len()];
    for (id, &(parent, _)) in shape.stacks.iter().enumerate().skip(1) {
        let values = &totals[id];
        let Some(row) = row_of_stack(StackId(id as u32)).filter(|_| !is_nothing(values)) else {
            continue;
        };
        // A caller has a smaller id than what it called.
        let (above, own) = (marks[parent.0 as usize], mark(row));
        marks[id] = above | own;
        // Recursion counts once. Rows share marks, so where it seems to be the callers are looked
        // at.
        let callers = || callers(&shape.stacks, parent);
        if above & own == own && callers().any(|caller| row_of_stack(caller) == Some(row)) {
            continue;
        }
        add(&mut costs[row].total, values);
    }
    // Frames of the dictionary that no sample has.
    costs.retain(|cost| !is_nothing(&cost.total));
    costs
}

/// By stack: what it and all that it called have; each sample is shown to `each`.
fn totals<const N: usize>(
    stacks: &[(StackId, FrameId)],
    samples: impl IntoIterator<Item = (StackId, [Value; N])>,
    mut each: impl FnMut(StackId, &[Value; N]),
) -> Vec<[Value; N]> {
    let mut totals = vec![[Value::default(); N]; stacks.len()];
    for (stack, values) in samples {
        each(stack, &values);
        add(&mut totals[stack.0 as usize], &values);
    }
    // A caller has a smaller id than what it called.
    for id in (1..stacks.len()).rev() {
        let values = totals[id];
        if !is_nothing(&values) {
            add(&mut totals[stacks[id].0.0 as usize], &values);
        }
    }
    totals
}

fn is_nothing<const N: usize>(values: &[Value; N]) -> bool {
    values.iter().all(|&value| value == Value::default())
}

/// A stack and its callers, from the leaf to the root.
fn callers(stacks: &[(StackId, FrameId)], from: StackId) -> impl Iterator<Item = StackId> + '_ {
    let caller = |stack: &StackId| Some(stacks[stack.0 as usize].0);
    std::iter::successors(Some(from), caller).take_while(|stack| *stack != StackId::EMPTY)
}

/// Two of 128 bits that stand for a row.
fn mark(row: usize) -> u128 {
    let mixed = (row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    1 << (mixed >> 57) | 1 << ((mixed >> 50) & 127)
}

fn add<const N: usize>(sums: &mut [Value; N], values: &[Value; N]) {
    for (sum, &value) in sums.iter_mut().zip(values) {
        *sum += value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::FrameRef;

    /// Own and total weight by function, of stacks root first.
    fn costs(stacks: &[(&[&str], u64)]) -> Vec<(String, u64, u64)> {
        let mut dict = Dictionary::default();
        let mut samples = Vec::new();
        for &(frames, weight) in stacks {
            let frames: Vec<FrameId> = frames
                .iter()
                .map(|&function| {
                    let kind = match function.starts_with('[') {
                        true => FrameKind::Synthetic,
                        false => FrameKind::Native,
                    };
                    dict.intern_frame(FrameRef {
                        kind,
                        function,
                        ..FrameRef::default()
                    })
                })
                .collect();
            let value = Value { count: 1, weight };
            samples.push((dict.stacks.intern(frames), [value]));
        }
        let sums = sum_functions(&Shape::of(&dict), samples);
        let mut rows: Vec<_> = sums
            .iter()
            .map(|row| {
                let name = dict.strings.get(row.function).to_owned();
                (name, row.own[0].weight, row.total[0].weight)
            })
            .collect();
        rows.sort();
        rows
    }

    fn row<'a>(rows: &'a [(String, u64, u64)], name: &str) -> &'a (String, u64, u64) {
        let row = rows.iter().find(|(found, ..)| found == name);
        row.expect("there is a row")
    }

    #[test]
    fn a_wait_is_of_where_the_thread_waits_not_of_who_woke_it() {
        let rows = costs(&[
            (&["main", "poll", "[woken by b]", "write", "entry"], 5),
            (&["main", "poll", "[uninterruptible]", "[waker unseen]"], 2),
            (&["main", "read", "[still waiting]"], 3),
        ]);
        let of = |name| {
            let (_, own, total) = row(&rows, name);
            (*own, *total)
        };
        assert_eq!(of("poll"), (7, 7));
        assert_eq!(of("read"), (3, 3));
        assert_eq!((of("entry"), of("write")), ((0, 5), (0, 5)));
        assert_eq!(of("[woken by b]"), (0, 5));
        assert_eq!(rows.iter().map(|(_, own, _)| own).sum::<u64>(), 10);
    }

    #[test]
    fn a_function_that_calls_itself_counts_once_however_many_others_it_calls() {
        // More functions than marks, so that most of them seem to be callers of themselves.
        let names: Vec<String> = (0..200).map(|at| format!("f{at}")).collect();
        let straight: Vec<&str> = names.iter().map(String::as_str).collect();
        let twice: Vec<&str> = straight.iter().chain(&straight).copied().collect();
        let rows = costs(&[(&straight, 3), (&twice, 4)]);
        assert_eq!(rows.len(), names.len());
        for (name, own, total) in &rows {
            let is_leaf = name == "f199";
            assert_eq!((*own, *total), (if is_leaf { 7 } else { 0 }, 7), "{name}");
        }
    }

    #[test]
    fn frames_that_stand_for_others_are_no_marks_of_waits() {
        let rows = costs(&[(&["main", "[other]"], 4), (&["[lost]"], 1)]);
        assert_eq!(row(&rows, "[other]").1, 4);
        assert_eq!(row(&rows, "[lost]").1, 1);
    }
}
