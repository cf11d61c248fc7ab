//! Frames that arrived with a push, and which of them each dictionary has.
//!
//! Stacks are looked up by the content id computed from their frames; the agent's own ids are not
//! trusted. Callers may be named by content alone. They are looked up in the dictionary and in its
//! neighbours when a window needs them. If one is not found, the answer counts as not received for
//! this dictionary.

use super::dict::{Adopted, Dict};
use crate::store::Defined;
use crate::sync::read;
use hashbrown::HashMap;
use profile::{ContentId, StackId};
use proto::convert::STACK_DEPTH_MAX;
use std::sync::{Arc, RwLock};

/// No other place.
const NONE: u32 = u32::MAX;

/// Where a stack is defined.
struct DefinitionSite {
    source: u32,
    stack: StackId,
    /// Index of the next place of the same content: agents may send the same stack at the same
    /// time, and what one of them takes for known is of no concern to the others.
    next: u32,
}

/// What a dictionary has of one source.
#[derive(Default)]
struct Use {
    adopted: Adopted,
    /// All callers that should be known are, or not; not looked for yet.
    callers: Option<bool>,
}

/// Whether a stack is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// With all its callers.
    Usable,
    /// It is not.
    Absent,
    /// Its callers are not known.
    LacksCallers,
}

/// See the module.
pub struct Definitions<'d> {
    sources: &'d [Arc<Defined>],
    places: Vec<DefinitionSite>,
    /// Index in `places`.
    by_id: HashMap<ContentId, u32>,
    /// By dictionary and source.
    uses: HashMap<u64, Vec<Use>>,
}

impl<'d> Definitions<'d> {
    /// What was asked for in these.
    pub fn new(sources: &'d [Arc<Defined>]) -> Definitions<'d> {
        let stacks = sources.iter().map(|source| source.wanted().len()).sum();
        let mut places: Vec<DefinitionSite> = Vec::with_capacity(stacks);
        let mut by_id = HashMap::with_capacity(stacks);
        for (source, of) in (0..).zip(sources) {
            for &stack in of.wanted() {
                let at = places.len() as u32;
                let before = by_id.insert(of.content(stack), at);
                places.push(DefinitionSite {
                    source,
                    stack,
                    next: before.unwrap_or(NONE),
                });
            }
        }
        Definitions {
            sources,
            places,
            by_id,
            uses: HashMap::new(),
        }
    }

    /// Looks for the callers of a stack that should be known in `target`, and in `neighbours`, from
    /// which they are copied. In a dictionary that `is_full` nothing is looked for: it takes no
    /// more.
    pub fn settle(
        &mut self,
        content: ContentId,
        target: &mut Dict,
        neighbours: &[Arc<RwLock<Dict>>],
        is_full: bool,
    ) -> Settled {
        let mut quiesce = Settled::Absent;
        let uses = uses(&mut self.uses, target, self.sources.len());
        let mut at = self.by_id.get(&content).copied().unwrap_or(NONE);
        while let Some(place) = self.places.get(at as usize) {
            let source = &self.sources[place.source as usize];
            let of = &mut uses[place.source as usize];
            let callers = of.callers.get_or_insert_with(|| {
                is_full || find_callers(source, target, &mut of.adopted, neighbours)
            });
            if *callers {
                return Settled::Usable;
            }
            quiesce = Settled::LacksCallers;
            at = place.next;
        }
        quiesce
    }

    /// Adds a stack, when it is defined and was settled before.
    pub fn adopt(&mut self, content: ContentId, target: &mut Dict) -> Option<StackId> {
        let uses = uses(&mut self.uses, target, self.sources.len());
        let mut at = self.by_id.get(&content).copied().unwrap_or(NONE);
        while let Some(place) = self.places.get(at as usize) {
            let of = &mut uses[place.source as usize];
            if of.callers == Some(true) {
                let source = &self.sources[place.source as usize];
                return target.adopt_defined(source, &mut of.adopted, place.stack);
            }
            at = place.next;
        }
        None
    }
}

/// Not by partition: one that is set aside while a push waits is followed by one with other ids.
fn uses<'u>(
    all: &'u mut HashMap<u64, Vec<Use>>,
    target: &Dict,
    sources: usize,
) -> &'u mut Vec<Use> {
    let uses = all.entry(target.identity()).or_default();
    uses.resize_with(sources, Use::default);
    uses
}

/// True when all callers that should be known are there, and nothing becomes deeper by them than
/// stacks that come with all their frames.
fn find_callers(
    source: &Defined,
    target: &mut Dict,
    adopted: &mut Adopted,
    neighbours: &[Arc<RwLock<Dict>>],
) -> bool {
    let mut copied: Vec<Adopted> = Vec::new();
    copied.resize_with(neighbours.len(), Adopted::default);
    for (stack, reach) in source.known() {
        let content = source.content(stack);
        let own = target.find_stack(content).or_else(|| {
            let mut all = neighbours.iter().zip(&mut copied);
            all.find_map(|(neighbour, copied)| {
                let neighbour = read(neighbour);
                let there = neighbour.find_stack(content)?;
                Some(target.adopt_from(&neighbour, copied, there))
            })
        });
        match own {
            Some(own) if target.depth(own).saturating_add(reach) <= STACK_DEPTH_MAX => {
                adopted.note(stack, own);
            }
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use hashbrown::HashSet;
    use profile::{Dictionary, FrameRef};
    use proto::collector::Need;
    use proto::{Definer, TableAssembler};

    /// A stack so deep, of functions called `name`.
    fn chain(name: &str, depth: u16) -> (Dictionary, StackId) {
        let mut dict = Dictionary::default();
        let frame = dict.intern_frame(FrameRef {
            function: name,
            ..FrameRef::default()
        });
        let leaf = dict.stacks.intern((0..depth).map(|_| frame));
        (dict, leaf)
    }

    /// The deepest stack of `dict`, with so many of its frames: the others are said to be known.
    fn defined(dict: &Dictionary, frames: u32) -> Arc<Defined> {
        let ids = dict.content_ids();
        let content = |stack: StackId| ids[stack.0 as usize];
        let leaf = StackId(dict.stacks.len() as u32 - 1);
        let mut definer = Definer::new(true);
        definer.sent(1, [StackId(leaf.0 - frames)].into_iter());
        definer.answered(dict, 1, true);
        let mut tables = TableAssembler::new(1 << 20, true);
        for message in definer.define(dict, content, &Need::default(), &[leaf], 1 << 10) {
            tables.push(&message).unwrap();
        }
        let tables = tables.finish().unwrap();
        assert_eq!(tables.nodes.len(), frames as usize);
        let wanted: HashSet<ContentId> = [content(leaf)].into();
        Arc::new(Defined::new(tables, &wanted).unwrap())
    }

    fn content(of: &Defined) -> ContentId {
        of.content(of.wanted()[0])
    }

    /// Settles and adopts what one source defines; what became of it, and how deep it is then.
    fn take(
        sources: &[Arc<Defined>],
        target: &mut Dict,
        neighbours: &[Arc<RwLock<Dict>>],
    ) -> (Settled, Option<u16>) {
        let mut definitions = Definitions::new(sources);
        let content = content(&sources[0]);
        let quiesce = definitions.settle(content, target, neighbours, false);
        let own = definitions.adopt(content, target);
        if let Some(own) = own {
            assert_eq!(target.tables.content_ids()[own.0 as usize], content);
            assert_eq!(target.find_stack(content), Some(own));
        }
        (quiesce, own.map(|own| target.depth(own)))
    }

    fn empty() -> Dict {
        Dict::new(&[], true)
    }

    #[test]
    fn callers_are_found_in_the_dictionary_and_in_its_neighbours() {
        let (dict, _) = chain("work", 6);
        let part = [defined(&dict, 2)];
        assert_eq!(
            take(&part, &mut empty(), &[]),
            (Settled::LacksCallers, None)
        );
        let mut known = empty();
        let whole = [defined(&dict, 6)];
        let usable = (Settled::Usable, Some(6));
        assert_eq!(take(&whole, &mut known, &[]), usable);
        assert_eq!(take(&part, &mut known, &[]), usable);
        let neighbours = [Arc::new(RwLock::new(empty())), Arc::new(RwLock::new(known))];
        assert_eq!(take(&part, &mut empty(), &neighbours), usable);
        let mut other = Definitions::new(&part);
        let absent = other.settle(ContentId([7; 16]), &mut empty(), &neighbours, false);
        assert_eq!(absent, Settled::Absent);
    }

    #[test]
    fn what_one_agent_takes_for_known_spoils_no_definition_of_another() {
        let (dict, _) = chain("work", 6);
        let (part, whole) = (defined(&dict, 2), defined(&dict, 6));
        for sources in [[part.clone(), whole.clone()], [whole, part]] {
            let taken = take(&sources, &mut empty(), &[]);
            assert_eq!(taken, (Settled::Usable, Some(6)));
        }
    }

    #[test]
    fn no_stack_becomes_deeper_piece_by_piece_than_at_once() {
        let most = STACK_DEPTH_MAX;
        let mut target = empty();
        let deep = [defined(&chain("work", most).0, most.into())];
        assert_eq!(take(&deep, &mut target, &[]), (Settled::Usable, Some(most)));
        let beyond = [defined(&chain("work", most + 1).0, 1)];
        let lacks = (Settled::LacksCallers, None);
        assert_eq!(take(&beyond, &mut target, &[]), lacks);
        let all = [defined(&chain("work", most).0, 1)];
        assert_eq!(take(&all, &mut target, &[]), (Settled::Usable, Some(most)));
    }
}
