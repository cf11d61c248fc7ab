//! What each function or module cost: the sum that tables and diffs are made of.

use crate::dictionary::Dictionary;
use crate::frame::{Frame, FrameKind};
use crate::sample::Value;
use crate::stack::StackId;
use crate::strings::StrId;
use hashbrown::HashMap;

/// Cost of one function, or module, in `N` profiles that share a dictionary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FunctionCost<const N: usize> {
    pub function: StrId,
    pub module: StrId,
    /// Lowest kind seen: a function that also was inlined counts as what it is elsewhere.
    pub kind: FrameKind,
    /// Samples with the function as leaf.
    pub own: [Value; N],
    /// Samples with the function anywhere; a stack where it stands twice counts once.
    pub total: [Value; N],
}

/// Sums costs by (function, module), in no particular order.
pub(crate) fn sum_functions<const N: usize>(
    dict: &Dictionary,
    stacks: impl IntoIterator<Item = (StackId, [Value; N])>,
) -> Vec<FunctionCost<N>> {
    sum(dict, stacks, |frame| (frame.function, frame.module))
}

/// Sums costs by module, in no particular order; `function` is the empty string.
pub(crate) fn sum_modules<const N: usize>(
    dict: &Dictionary,
    stacks: impl IntoIterator<Item = (StackId, [Value; N])>,
) -> Vec<FunctionCost<N>> {
    sum(dict, stacks, |frame| (StrId::EMPTY, frame.module))
}

fn sum<const N: usize>(
    dict: &Dictionary,
    stacks: impl IntoIterator<Item = (StackId, [Value; N])>,
    row: impl Fn(Frame) -> (StrId, StrId),
) -> Vec<FunctionCost<N>> {
    let mut by_stack: HashMap<StackId, [Value; N]> = HashMap::new();
    for (stack, values) in stacks {
        add(
            by_stack.entry(stack).or_insert([Value::default(); N]),
            &values,
        );
    }

    let mut costs: Vec<FunctionCost<N>> = Vec::new();
    let mut rows: HashMap<(StrId, StrId), usize> = HashMap::new();
    let row_of_frame: Vec<usize> = dict
        .frames
        .iter()
        .map(|frame| {
            let (function, module) = row(frame);
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

    // The number of the stack a row was last counted for: recursion counts once.
    let mut counted_for = vec![0usize; costs.len()];
    for (at, (&stack, values)) in by_stack.iter().enumerate() {
        for (depth, frame) in dict.stacks.leaf_first(stack).enumerate() {
            let row = row_of_frame[frame.0 as usize];
            if depth == 0 {
                add(&mut costs[row].own, values);
            }
            if counted_for[row] != at + 1 {
                counted_for[row] = at + 1;
                add(&mut costs[row].total, values);
            }
        }
    }
    // Frames of the dictionary that no sample has.
    costs.retain(|cost| cost.total.iter().any(|&value| value != Value::default()));
    costs
}

fn add<const N: usize>(sums: &mut [Value; N], values: &[Value; N]) {
    for (sum, &value) in sums.iter_mut().zip(values) {
        *sum += value;
    }
}
