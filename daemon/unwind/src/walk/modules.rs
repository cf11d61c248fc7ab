//! The modules of all files, within a memory bound, and the rules found in them.
//!
//! One module serves every process that maps its file, and every file with the same content; it
//! counts once. When memory is short, the least recently used module is dropped, and requested
//! again when a frame needs it. Modules in use that do not fit together take turns of half a
//! minute. Rules outlive their module, because a file's code does not change. A module larger than
//! the bound is rejected until the bound grows; this is reported differently from a file without
//! unwind information. Called by the sampler thread only.

use crate::info::module::Module;
use crate::info::rule::Rule;
use hashbrown::HashMap;
use host::ids::{FileId, FileOffset};
use host::sys;
use host::time::MonotonicTime;
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;
use symbolize::budget::Over;

/// Most files with a remembered outcome: as many as the process table knows.
const FILES_MAX: usize = 32_768;

/// Shortest time between two requests for the module of one file.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// How long a module that was asked for is likely to come: what takes longer is read behind others.
const AWAITED_MAX: Duration = Duration::from_secs(2);

/// Shortest time that a module in use is held against another in use. Shorter ones would have each
/// read push out the one before, and none of them found when its frames come.
const HELD_AT_LEAST: Duration = Duration::from_secs(30);

/// A module counts as in use if one of the last drains needed it: a drain is a second, or less on a
/// busy host. Frames with known rules do not need it.
const IN_USE_DRAINS: u32 = 30;

/// Requests kept until the next pass of the sampler.
const WANTED_MAX: usize = 64;

/// Places with cached rules: a power of two. A busy host's samples have some ten thousand distinct
/// addresses in ten minutes; eight bytes each.
const PLACES: usize = LARGE_PAGE / size_of::<u64>();
const PLACE_BITS: u32 = PLACES.trailing_zeros();

/// A large page of x86-64, as much as all places take. Unit: bytes. With small pages a look costs
/// two misses. Under a load of compilers large ones take 7 % off what the sampler takes.
const LARGE_PAGE: usize = 2 << 20;

/// Different rules that are kept. The files of a busy host have some hundred. With more all places
/// are looked up again, which [`ModuleCounts::rules_emptied`] counts.
const RULES_MAX: usize = 1 << 14;

/// Data about a file from the files thread.
#[derive(Debug)]
pub struct Loaded {
    /// The file.
    pub file: FileId,
    /// Its unwind information; `None`: it has none, or could not be read.
    pub module: Result<Option<Arc<Module>>, Over>,
}

impl Loaded {
    /// Memory of the module. Unit: bytes.
    pub fn heap_bytes(&self) -> usize {
        let module = self.module.as_ref().ok().and_then(Option::as_ref);
        module.map_or(0, |module| module.heap_bytes())
    }
}

/// State of a file.
pub enum ModuleState<'a> {
    /// Its module.
    Here(&'a Module),
    /// It has no unwind information.
    Without,
    /// Its unwind information is too large for the bound, or takes too much to read.
    Refused,
    /// Not read so far, or dropped and asked for again.
    Awaited,
}

enum Slot {
    Here {
        module: Arc<Module>,
        bytes: usize,
        since: MonotonicTime,
    },
    Without,
    /// Reading it takes more than one file may, whatever the bound.
    OverBudget,
    Refused {
        bytes: usize,
    },
    Dropped {
        ask_after: MonotonicTime,
        /// When it was asked for, if it has not come.
        asked: Option<MonotonicTime>,
    },
}

struct Entry {
    slot: Slot,
    used: u32,
}

fn address(module: &Arc<Module>) -> usize {
    Arc::as_ptr(module).addr()
}

/// Counts of the table and of the rule cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModuleCounts {
    /// Modules taken in.
    pub loaded: u64,
    /// Files without unwind information.
    pub without: u64,
    /// Files with unwind information that takes more memory or time to read than one file may.
    pub over_budget: u64,
    /// Modules dropped to stay under the bound.
    pub evicted: u64,
    /// Dropped modules that were in use: the bound is too small for what runs.
    pub evicted_in_use: u64,
    /// Modules turned away because all that was held was in use, and for a short time only.
    pub crowded_out: u64,
    /// Modules refused because each alone is over half of the bound.
    pub refused: u64,
    /// Files with a module larger than the current bound.
    pub over_bound: u64,
    /// Memory that the largest of them would take. Unit: bytes.
    pub over_bound_bytes: u64,
    /// Modules held now.
    pub held: u64,
    /// Their memory. Unit: bytes.
    pub bytes: u64,
    /// Frames with a cached rule.
    pub rule_hits: u64,
    /// Frames with a rule that was computed.
    pub rule_misses: u64,
    /// Times all rules were forgotten, as there were too many different ones.
    pub rules_emptied: u64,
}

/// See the file.
pub struct Modules {
    entries: HashMap<FileId, Entry>,
    /// Files that share each module held, by its address.
    sharers: HashMap<usize, usize>,
    rules: Rules,
    bytes_max: usize,
    /// Counts drains: the age of uses.
    clock: u32,
    /// The time of the last frame.
    now: MonotonicTime,
    wanted: Vec<FileId>,
    counts: ModuleCounts,
}

impl Modules {
    /// An empty table that holds at most `bytes_max` bytes of unwind information.
    pub fn new(bytes_max: usize) -> Modules {
        Modules {
            entries: HashMap::new(),
            sharers: HashMap::new(),
            rules: Rules::default(),
            bytes_max,
            clock: 0,
            now: MonotonicTime(0),
            wanted: Vec::with_capacity(WANTED_MAX),
            counts: ModuleCounts::default(),
        }
    }

    /// Sets the bound.
    pub fn set_bytes_max(&mut self, bytes_max: usize) {
        if self.bytes_max == bytes_max {
            return;
        }
        self.bytes_max = bytes_max;
        self.make_room(0, Duration::ZERO);
        self.count_refused();
    }

    /// Most bytes of one module: with a larger one there would be no room for the files it calls.
    fn module_bytes_max(&self) -> usize {
        self.bytes_max / 2
    }

    /// Counts again what the bound refuses, after a change of either.
    fn count_refused(&mut self) {
        let most = self.module_bytes_max();
        let refused = self.entries.values().filter_map(|entry| match entry.slot {
            Slot::Refused { bytes } if bytes > most => Some(bytes as u64),
            _ => None,
        });
        let (count, largest) = refused.fold((0, 0), |(count, largest), bytes| {
            (count + 1, bytes.max(largest))
        });
        self.counts.over_bound = count;
        self.counts.over_bound_bytes = largest;
    }

    /// Starts a drain: uses from now on are younger than those before.
    pub fn tick(&mut self) {
        self.clock = self.clock.wrapping_add(1);
    }

    /// Current counts.
    pub fn counts(&self) -> ModuleCounts {
        self.counts
    }

    /// Adds new data about a file.
    pub fn install(&mut self, loaded: Loaded) {
        let mut recount = self.remove(loaded.file);
        let slot = match loaded.module {
            Ok(Some(module)) => self.slot_for(module),
            Ok(None) => {
                self.counts.without += 1;
                Slot::Without
            }
            Err(_) => {
                self.counts.over_budget += 1;
                Slot::OverBudget
            }
        };
        if self.entries.len() >= FILES_MAX {
            self.forget_longest_unused();
        }
        recount |= matches!(slot, Slot::Refused { .. });
        let used = self.clock;
        self.entries.insert(loaded.file, Entry { slot, used });
        if recount {
            self.count_refused();
        }
    }

    fn slot_for(&mut self, module: Arc<Module>) -> Slot {
        let bytes = module.heap_bytes();
        if bytes > self.module_bytes_max() {
            self.counts.refused += 1;
            return Slot::Refused { bytes };
        }
        let is_held = self.sharers.contains_key(&address(&module));
        if !is_held && !self.make_room(bytes, HELD_AT_LEAST) {
            self.counts.crowded_out += 1;
            let ask_after = self.now.plus(ASK_AGAIN);
            return Slot::Dropped {
                ask_after,
                asked: None,
            };
        }
        self.counts.loaded += 1;
        self.counts.held += 1;
        // Making room may have dropped the last of those that shared it.
        let sharers = self.sharers.entry(address(&module)).or_default();
        if *sharers == 0 {
            self.counts.bytes += bytes as u64;
        }
        *sharers += 1;
        let since = self.now;
        Slot::Here {
            module,
            bytes,
            since,
        }
    }

    /// Forgets a file; true if its module was rejected.
    fn remove(&mut self, file: FileId) -> bool {
        match self.entries.remove(&file).map(|entry| entry.slot) {
            Some(Slot::Here { module, bytes, .. }) => {
                self.counts.held -= 1;
                let sharers = self.sharers.entry(address(&module)).or_default();
                *sharers = sharers.saturating_sub(1);
                if *sharers == 0 {
                    self.sharers.remove(&address(&module));
                    self.counts.bytes -= bytes as u64;
                }
                false
            }
            Some(Slot::Refused { .. }) => true,
            _ => false,
        }
    }

    /// Drops modules until `bytes` more fit: first what is not in use, the longest unused before
    /// all others, then what was held longest, so that modules in use which do not fit together
    /// take turns. What is in use stays for `held_at_least`; false when nothing was dropped for
    /// that.
    fn make_room(&mut self, bytes: usize, held_at_least: Duration) -> bool {
        let limit = self.bytes_max.saturating_sub(bytes) as u64;
        let excess = self.counts.bytes.saturating_sub(limit);
        if excess == 0 {
            return true;
        }
        let (clock, now) = (self.clock, self.now);
        let held = self.entries.iter().filter_map(|(&file, entry)| {
            let Slot::Here {
                ref module,
                bytes,
                since,
            } = entry.slot
            else {
                return None;
            };
            let module = address(module);
            let unused = clock.wrapping_sub(entry.used);
            let held = now.since(since);
            match unused <= IN_USE_DRAINS {
                true if held < held_at_least => None,
                true => Some((true, Reverse(held.as_nanos()), file, bytes, module)),
                false => Some((false, Reverse(u128::from(unused)), file, bytes, module)),
            }
        });
        let mut candidates: Vec<_> = held.collect();
        candidates.sort_unstable_by_key(|&(in_use, age, file, ..)| (in_use, age, file));
        // A module that is shared is gone when all who share it have dropped it.
        let mut sharers = self.sharers.clone();
        let mut enough = 0;
        for &(.., bytes, module) in &candidates {
            let left = sharers.entry(module).or_insert(1);
            *left = left.saturating_sub(1);
            enough += if *left == 0 { bytes as u64 } else { 0 };
        }
        if enough < excess {
            return false;
        }
        for (in_use, _, file, ..) in candidates {
            if self.counts.bytes <= limit {
                break;
            }
            self.drop_module(file, in_use);
        }
        true
    }

    fn drop_module(&mut self, file: FileId, in_use: bool) {
        self.remove(file);
        self.counts.evicted += 1;
        self.counts.evicted_in_use += u64::from(in_use);
        // What is in use was dropped for another in use: back at once, it would take its place.
        let ask_after = match in_use {
            true => self.now.plus(ASK_AGAIN),
            false => MonotonicTime(0),
        };
        let slot = Slot::Dropped {
            ask_after,
            asked: None,
        };
        let used = self.clock;
        self.entries.insert(file, Entry { slot, used });
    }

    /// Forgets a sixteenth of the files.
    fn forget_longest_unused(&mut self) {
        let clock = self.clock;
        let mut ages: Vec<u32> = self
            .entries
            .values()
            .map(|entry| clock.wrapping_sub(entry.used))
            .collect();
        let nth = ages.len() * 15 / 16;
        let (_, &mut limit, _) = ages.select_nth_unstable(nth);
        let old: Vec<FileId> = self
            .entries
            .iter()
            .filter(|(_, entry)| clock.wrapping_sub(entry.used) >= limit)
            .map(|(&file, _)| file)
            .take(FILES_MAX / 16)
            .collect();
        let held = self.counts.held;
        let mut recount = false;
        for file in old {
            recount |= self.remove(file);
        }
        self.counts.evicted += held - self.counts.held;
        if recount {
            self.count_refused();
        }
    }

    /// The module of a file; asks for it when it was dropped or forgotten, or when it was refused
    /// and would fit now: the memory budget changes the bound.
    pub fn get(&mut self, file: FileId, now: MonotonicTime) -> ModuleState<'_> {
        if self.entries.len() >= FILES_MAX && !self.entries.contains_key(&file) {
            self.forget_longest_unused();
        }
        self.now = self.now.max(now);
        let most = self.module_bytes_max();
        let Modules {
            entries,
            wanted,
            clock,
            ..
        } = self;
        // Also asked for when met for the first time: it was announced, but at a time when nobody
        // may have wanted its unwind information. What came meanwhile is not asked for.
        let entry = entries.entry(file).or_insert_with(|| Entry {
            slot: Slot::Dropped {
                ask_after: MonotonicTime(0),
                asked: None,
            },
            used: *clock,
        });
        entry.used = *clock;
        match &mut entry.slot {
            Slot::Here { module, .. } => ModuleState::Here(module),
            Slot::Without => ModuleState::Without,
            Slot::OverBudget => ModuleState::Refused,
            Slot::Refused { bytes } if *bytes > most => ModuleState::Refused,
            slot @ Slot::Refused { .. } => {
                if wanted.len() < WANTED_MAX {
                    wanted.push(file);
                    let ask_after = now.plus(ASK_AGAIN);
                    *slot = Slot::Dropped {
                        ask_after,
                        asked: Some(now),
                    };
                }
                ModuleState::Awaited
            }
            Slot::Dropped { ask_after, asked } => {
                if now >= *ask_after && wanted.len() < WANTED_MAX {
                    wanted.push(file);
                    *ask_after = now.plus(ASK_AGAIN);
                    *asked = Some(now);
                }
                ModuleState::Awaited
            }
        }
    }

    /// True while the module of a file is likely to come soon: it was asked for a moment ago. Not
    /// one that was turned away for lack of room, nor one that was asked for in vain, as those of
    /// owners who have used up their share are.
    pub fn is_awaited(&self, file: FileId) -> bool {
        let slot = self.entries.get(&file).map(|entry| &entry.slot);
        let asked = match slot {
            Some(Slot::Dropped { asked, .. }) => *asked,
            _ => None,
        };
        asked.is_some_and(|asked| self.now.since(asked) < AWAITED_MAX)
    }

    /// Asks for the modules that are still missed. `send` returns false when it cannot be asked for
    /// now: what is left waits for the next time.
    pub fn ask(&mut self, mut send: impl FnMut(FileId) -> bool) {
        while let Some(file) = self.wanted.pop() {
            let entry = self.entries.get(&file);
            let missed = entry.is_some_and(|entry| matches!(entry.slot, Slot::Dropped { .. }));
            if missed && !send(file) {
                self.wanted.push(file);
                break;
            }
        }
    }

    /// The rule of a place, where it was computed before.
    pub fn known_rule(&mut self, file: FileId, offset: FileOffset) -> Option<Rule> {
        let rule = self.rules.get(file, offset)?;
        self.counts.rule_hits += 1;
        Some(rule)
    }

    /// Keeps the rule of a place.
    pub fn keep_rule(&mut self, file: FileId, offset: FileOffset, rule: Rule) {
        self.counts.rule_misses += 1;
        if self.rules.is_full() {
            self.counts.rules_emptied += 1;
            self.rules.clear();
        }
        self.rules.keep(file, offset, rule);
    }
}

/// Rules by place, each place where its hash says, in the place of whatever was there.
///
/// Every frame is looked up here, and most lookups miss the CPU's caches. So an entry is one word:
/// the upper bits say which place it is of, the lower ones are the number of its rule.
struct Rules {
    /// Above: the hash of the place, without the [`PLACE_BITS`] that say where the word is. Below,
    /// in as many bits: the number of the rule. 0: none.
    words: Box<[u64]>,
    /// The first that is used: where a large page starts.
    first: usize,
    /// By number; the first is nobody's.
    rules: Vec<Rule>,
    numbers: HashMap<Rule, u32>,
}

const _: () = assert!(
    RULES_MAX < PLACES,
    "a number fits where the hash has left off"
);

impl Default for Rules {
    fn default() -> Self {
        // The kernel gives no memory to pages that are never touched.
        let words: Box<[u64]> = vec![0; 2 * PLACES].into();
        let address = words.as_ptr().addr();
        let first = (address.next_multiple_of(LARGE_PAGE) - address) / size_of::<u64>();
        let used = first..first + PLACES;
        sys::want_large_pages(words.get(used).unwrap_or_default());
        Rules {
            words,
            first,
            rules: vec![Rule::UNKNOWN],
            numbers: HashMap::new(),
        }
    }
}

impl Rules {
    /// Index of a place, and what distinguishes it from other places there. Files of more than four
    /// gigabytes have none.
    fn hash(file: FileId, offset: FileOffset) -> Option<(usize, u64)> {
        let offset = u32::try_from(offset.0).ok()?;
        let key = u64::from(file.0) << 32 | u64::from(offset);
        // Fibonacci hashing: the upper bits of the product depend on all bits of the key. No two
        // keys have the same product, as the factor is odd.
        let product = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let at = (product >> (u64::BITS - PLACE_BITS)) as usize;
        Some((at, product << PLACE_BITS))
    }

    fn get(&self, file: FileId, offset: FileOffset) -> Option<Rule> {
        let (at, owner) = Rules::hash(file, offset)?;
        let number = self.words[self.first + at] ^ owner;
        // The number of another's rule is far beyond all.
        match number {
            0 => None,
            number => self.rules.get(usize::try_from(number).ok()?).copied(),
        }
    }

    fn is_full(&self) -> bool {
        self.rules.len() > RULES_MAX
    }

    fn clear(&mut self) {
        self.words[self.first..][..PLACES].fill(0);
        self.rules.truncate(1);
        self.numbers.clear();
    }

    fn keep(&mut self, file: FileId, offset: FileOffset, rule: Rule) {
        let Some((at, owner)) = Rules::hash(file, offset) else {
            return;
        };
        let rules = &mut self.rules;
        let number = *self.numbers.entry(rule).or_insert_with(|| {
            rules.push(rule);
            rules.len() as u32 - 1
        });
        self.words[self.first + at] = owner | u64::from(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_found_for_its_own_place_alone() {
        let mut modules = Modules::new(1 << 20);
        let rule = Rule::return_address_at(0);
        modules.keep_rule(FileId(1), FileOffset(0x1000), rule);
        assert_eq!(
            modules.known_rule(FileId(1), FileOffset(0x1000)),
            Some(rule)
        );
        assert_eq!(modules.known_rule(FileId(2), FileOffset(0x1000)), None);
        assert_eq!(modules.known_rule(FileId(1), FileOffset(0x1001)), None);
        assert_eq!(
            modules.known_rule(FileId(1), FileOffset(0x1000 + (1 << 32))),
            None
        );
    }

    #[test]
    fn too_many_different_rules_are_all_forgotten_which_is_counted() {
        let mut modules = Modules::new(1 << 20);
        let rule = |number: usize| Rule::of_go(number as i32 * 8, false).expect("a depth");
        let place = |number: usize| (FileId(1), FileOffset(number as u64));
        for number in 0..=RULES_MAX {
            let (file, offset) = place(number);
            modules.keep_rule(file, offset, rule(number));
        }
        assert_eq!(modules.counts().rules_emptied, 1);
        let mut known = |number| modules.known_rule(place(number).0, place(number).1);
        assert_eq!(known(RULES_MAX), Some(rule(RULES_MAX)));
        assert_eq!(known(0), None);
    }

    #[test]
    fn a_module_is_asked_for_at_once_and_only_while_it_is_missed() {
        let mut modules = Modules::new(1 << 20);
        let mut asked = Vec::new();
        let _ = modules.get(FileId(1), MonotonicTime(1));
        let _ = modules.get(FileId(2), MonotonicTime(1));
        modules.install(Loaded {
            file: FileId(2),
            module: Ok(None),
        });
        modules.ask(|_| false);
        modules.ask(|file| {
            asked.push(file);
            true
        });
        let _ = modules.get(FileId(1), MonotonicTime(2));
        modules.ask(|_| panic!("asked again at once"));
        assert_eq!(asked, [FileId(1)]);
    }

    fn loaded(file: u32, bytes: usize) -> Loaded {
        Loaded {
            file: FileId(file),
            module: Ok(Some(Arc::new(Module::of_size(bytes)))),
        }
    }

    #[test]
    fn a_module_of_two_files_counts_once_and_stays_while_one_has_it() {
        let mut modules = Modules::new(4 * MIB);
        let module = Arc::new(Module::of_size(MIB));
        for file in [1, 2] {
            modules.install(Loaded {
                file: FileId(file),
                module: Ok(Some(Arc::clone(&module))),
            });
        }
        let bytes = module.heap_bytes() as u64;
        let counted = |modules: &Modules| (modules.counts().held, modules.counts().bytes);
        assert_eq!(counted(&modules), (2, bytes));
        modules.drop_module(FileId(1), false);
        assert_eq!(counted(&modules), (1, bytes));
        assert!(is_here(&mut modules, 2, MonotonicTime(SECOND)));
        modules.drop_module(FileId(2), false);
        assert_eq!(counted(&modules), (0, 0));
        assert!(modules.sharers.is_empty());
    }

    fn is_here(modules: &mut Modules, file: u32, now: MonotonicTime) -> bool {
        matches!(modules.get(FileId(file), now), ModuleState::Here(_))
    }

    fn asked(modules: &mut Modules) -> Vec<FileId> {
        let mut asked = Vec::new();
        modules.ask(|file| {
            asked.push(file);
            true
        });
        asked
    }

    const SECOND: u64 = 1_000_000_000;
    const MIB: usize = 1 << 20;

    #[test]
    fn a_module_over_half_of_the_bound_is_refused_and_not_taken_for_none() {
        let mut modules = Modules::new(4 * MIB);
        modules.install(loaded(1, 3 * MIB));
        assert!(matches!(
            modules.get(FileId(1), MonotonicTime(1)),
            ModuleState::Refused
        ));
        assert_eq!(modules.counts().without, 0);
        assert_eq!(modules.counts().over_bound, 1);
        assert!(modules.counts().over_bound_bytes >= 3 * MIB as u64 - 64);
        assert_eq!(asked(&mut modules), []);
    }

    #[test]
    fn a_file_that_takes_too_much_to_read_is_not_asked_for_again() {
        let mut modules = Modules::new(4 * MIB);
        modules.install(Loaded {
            file: FileId(1),
            module: Err(Over::Time),
        });
        modules.set_bytes_max(64 * MIB);
        assert!(matches!(
            modules.get(FileId(1), MonotonicTime(1)),
            ModuleState::Refused
        ));
        assert_eq!(asked(&mut modules), []);
        assert_eq!(modules.counts().over_budget, 1);
    }

    #[test]
    fn a_refused_module_is_asked_for_again_when_the_bound_has_grown() {
        let mut modules = Modules::new(4 * MIB);
        modules.install(loaded(1, 3 * MIB));
        modules.set_bytes_max(8 * MIB);
        assert_eq!(modules.counts().over_bound, 0);
        assert!(matches!(
            modules.get(FileId(1), MonotonicTime(1)),
            ModuleState::Awaited
        ));
        assert_eq!(asked(&mut modules), [FileId(1)]);
        modules.install(loaded(1, 3 * MIB));
        assert!(is_here(&mut modules, 1, MonotonicTime(2)));
    }

    #[test]
    fn a_module_is_awaited_for_a_moment_after_it_was_asked_for() {
        let mut modules = Modules::new(4 * MIB);
        assert!(!modules.is_awaited(FileId(1)));
        assert!(!is_here(&mut modules, 1, MonotonicTime(SECOND)));
        assert!(modules.is_awaited(FileId(1)));
        assert!(!is_here(&mut modules, 1, MonotonicTime(2 * SECOND)));
        assert!(modules.is_awaited(FileId(1)));
        // No answer came.
        assert!(!is_here(&mut modules, 1, MonotonicTime(3 * SECOND)));
        assert!(!modules.is_awaited(FileId(1)));
        // It is asked for again.
        assert!(!is_here(&mut modules, 1, MonotonicTime(31 * SECOND)));
        assert!(modules.is_awaited(FileId(1)));
        modules.install(loaded(1, MIB));
        assert!(!modules.is_awaited(FileId(1)));
    }

    #[test]
    fn what_is_not_in_use_goes_first() {
        let mut modules = Modules::new(4 * MIB);
        modules.install(loaded(1, MIB * 3 / 2));
        modules.install(loaded(2, MIB * 3 / 2));
        for _ in 0..=IN_USE_DRAINS {
            modules.tick();
            assert!(is_here(&mut modules, 2, MonotonicTime(SECOND)));
        }
        modules.install(loaded(3, MIB * 3 / 2));
        let here = [1, 2, 3].map(|file| is_here(&mut modules, file, MonotonicTime(SECOND)));
        assert_eq!(here, [false, true, true]);
        assert_eq!(modules.counts().evicted_in_use, 0);
        assert_eq!(asked(&mut modules), [FileId(1)]);
    }

    #[test]
    fn modules_in_use_that_do_not_fit_together_take_turns_of_half_a_minute() {
        let mut modules = Modules::new(4 * MIB);
        let (mut reads, mut seconds_here) = (0, [0; 3]);
        for second in 0..300 {
            modules.tick();
            for file in [0, 1, 2] {
                let here = is_here(&mut modules, file, MonotonicTime(second * SECOND));
                seconds_here[file as usize] += u32::from(here);
            }
            for file in asked(&mut modules) {
                reads += 1;
                modules.install(loaded(file.0, MIB * 3 / 2));
            }
        }
        // Two fit: of three each is there two thirds of the time.
        for seconds in seconds_here {
            assert!((150..=250).contains(&seconds), "{seconds_here:?}");
        }
        assert!(reads <= 3 * 10, "{reads} reads");
        assert!(modules.counts().evicted_in_use > 0);
    }

    #[test]
    fn a_smaller_bound_is_kept_at_once() {
        let mut modules = Modules::new(8 * MIB);
        for file in 0..6 {
            modules.install(loaded(file, MIB));
        }
        modules.set_bytes_max(3 * MIB);
        assert!(modules.counts().bytes <= 3 * MIB as u64);
        assert_eq!(modules.counts().held + modules.counts().evicted, 6);
    }
}
