//! Tests rules of real runtimes, of code that is removed, and of hostile input.

use super::*;
use crate::code::When;
use host::ids::Avma;
use host::time::MonotonicTime;

/// What CPython 3.13 writes for each trampoline of 11 bytes: `.eh_frame`, then its header.
#[cfg(target_arch = "x86_64")]
const OF_CPYTHON: &str = "1400000000000000017a5200017810011b0c070890010000140000001c000000d0ffffff\
0b00000000440e10460e0800011b033bccffffff01000000c0ffffffe8ffffff";

/// What V8 of Node 20 wrote for an optimised function of 532 bytes.
#[cfg(target_arch = "x86_64")]
const OF_V8: &str = "1800000000000000037a4c520001781002ff1b0c07089001000000002000000020000000c4fdffff\
12020000004f0e108602430d06740d07410e08520c06100000000000011b033bb8ffffff01000000a4fdffffd8ffffff";

/// The same in the registers of arm64: 7 is 31, 6 is 29, the return address of 16 is that of 30.
#[cfg(target_arch = "aarch64")]
const OF_CPYTHON: &str = "1400000000000000017a520001781e011b0c1f089e010000140000001c000000d0ffffff\
0b00000000440e10460e0800011b033bccffffff01000000c0ffffffe8ffffff";

/// The same in the registers of arm64.
#[cfg(target_arch = "aarch64")]
const OF_V8: &str = "1800000000000000037a4c520001781e02ff1b0c1f089e01000000002000000020000000c4fdffff\
12020000004f0e109d02430d1d740d1f410e08520c1d100000000000011b033bb8ffffff01000000a4fdffffd8ffffff";

/// A header alone: frame pointers lead on.
const OF_V8_BARE: &str = "011b033b00000000000000000000000000000000";

const HEADER_BYTES: usize = 20;

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn load(builder: &mut RulesBuilder, start: u64, len: u64, content: &str) {
    let content = bytes(content);
    let unwinding = Unwinding::as_written(&content, HEADER_BYTES);
    builder.load(start..start + len, unwinding);
}

fn rules(builder: &mut RulesBuilder) -> Arc<GeneratedRules> {
    builder.take().expect("others than before")
}

#[test]
fn trampolines_of_cpython_are_one_run_of_three_rules() {
    let mut builder = RulesBuilder::default();
    for at in 0..10_000 {
        load(&mut builder, 0x10000 + at * 272, 11, OF_CPYTHON);
    }
    let rules = rules(&mut builder);
    assert_eq!((rules.len(), rules.rows().len()), (1, 1));
    let (outside, inside) = (Rule::return_address_at(0), Rule::return_address_at(8));
    for piece in [0, 1, 9_999] {
        let rule = |offset: u64| rules.rule(Avma(0x10000 + piece * 272 + offset));
        assert_eq!([rule(0), rule(3), rule(10)], [outside; 3]);
        assert_eq!([rule(4), rule(5), rule(9)], [inside; 3]);
        assert_eq!([rule(11), rule(271)], [Rule::UNKNOWN; 2]);
    }
    assert_eq!(rules.rule(Avma(0xffff)), Rule::UNKNOWN);
    assert_eq!(rules.rule(Avma(0x10000 + 10_000 * 272)), Rule::UNKNOWN);
    assert!(rules.heap_bytes() < 1000, "{}", rules.heap_bytes());
}

#[test]
fn optimised_code_of_v8_is_described_from_its_first_instruction() {
    let mut builder = RulesBuilder::default();
    load(&mut builder, 0x4000, 532, OF_V8);
    let rules = rules(&mut builder);
    assert_eq!(rules.rule(Avma(0x4000)), Rule::return_address_at(0));
    assert_eq!(rules.rule(Avma(0x400f)), Rule::frame_pointer_pushed());
    assert_ne!(rules.rule(Avma(0x4013)), Rule::UNKNOWN);
    assert_eq!(builder.take_counts().taken, 1);
    // 530 of 532 bytes are described.
    assert_ne!(rules.rule(Avma(0x4000 + 529)), Rule::UNKNOWN);
    assert_eq!(rules.rule(Avma(0x4000 + 530)), Rule::UNKNOWN);
}

#[test]
fn a_header_alone_says_nothing_and_is_no_mistake() {
    let mut builder = RulesBuilder::default();
    load(&mut builder, 0x4000, 532, OF_V8_BARE);
    assert!(builder.take().is_none());
    assert_eq!(builder.take_counts(), RuleCounts::default());
}

#[test]
fn information_in_the_order_of_the_specification_is_read_too() {
    let content = bytes(OF_CPYTHON);
    let (frames, header) = content.split_at(content.len() - HEADER_BYTES);
    // Behind the header the frames are 20 bytes further from the code.
    let mut frames = frames.to_vec();
    let at = -(0x30i32 + HEADER_BYTES as i32);
    frames[32..36].copy_from_slice(&at.to_le_bytes());
    let content = [header, &frames].concat();
    let mut builder = RulesBuilder::default();
    let unwinding = Unwinding::as_written(&content, HEADER_BYTES);
    builder.load(0x4000..0x400b, unwinding);
    assert_eq!(
        rules(&mut builder).rule(Avma(0x4005)),
        Rule::return_address_at(8)
    );
}

#[test]
fn newer_code_takes_the_rules_of_what_it_lies_on() {
    let mut builder = RulesBuilder::default();
    load(&mut builder, 0x4000, 532, OF_V8);
    load(&mut builder, 0x4100, 11, OF_CPYTHON);
    let both = rules(&mut builder);
    assert_eq!(
        both.rule(Avma(0x4000)),
        Rule::UNKNOWN,
        "its code is damaged"
    );
    assert_ne!(both.rule(Avma(0x4100)), Rule::UNKNOWN);
    builder.unload(0x4105..0x4106);
    assert!(rules(&mut builder).is_empty());
    assert!(builder.take().is_none(), "nothing new");
}

#[test]
fn code_that_moves_takes_its_rules_along() {
    let mut builder = RulesBuilder::default();
    load(&mut builder, 0x4000, 11, OF_CPYTHON);
    load(&mut builder, 0x5000, 532, OF_V8);
    builder.relocate(0x4000, 0x5100, 11);
    let rules = rules(&mut builder);
    assert_eq!(rules.rule(Avma(0x4005)), Rule::UNKNOWN);
    assert_eq!(rules.rule(Avma(0x5000)), Rule::UNKNOWN);
    assert_eq!(rules.rule(Avma(0x5105)), Rule::return_address_at(8));
}

#[test]
fn memory_is_bounded_and_what_is_refused_is_counted() {
    let mut builder = RulesBuilder::default();
    let many = PIECES_MAX as u64 + 100;
    for at in 0..many {
        load(&mut builder, 0x10000 + at * 16, 11, OF_CPYTHON);
    }
    assert_eq!(builder.take_counts().refused, 100);
    assert!(builder.heap_bytes() < 8 << 20);
    // What goes makes room.
    builder.unload(0..u64::MAX);
    load(&mut builder, 0x4000, 532, OF_V8);
    assert_eq!(rules(&mut builder).len(), 1);
}

#[test]
fn what_was_looked_at_is_not_looked_at_again() {
    let mut code = CodeMap::new(1 << 20);
    let mut builder = RulesBuilder::default();
    // This is no Python: nothing without a name is looked at here.
    builder.look_at(Pid(std::process::id()), &code);
    assert!(builder.take().is_none());
    assert!(builder.unseen(Pid(1), &code, true).is_none());
    builder.add_trampolines(trampolines::Looked {
        arenas: vec![trampolines::Arena {
            looked_at: 0x1000..0x2000,
            found: vec![],
        }],
        python: false,
    });
    let when = When::at(MonotonicTime(1));
    code.load(0x1800..0x180b, "py::seen", Default::default(), when);
    assert!(builder.unseen(Pid(1), &code, true).is_none());
    code.load(0x3000..0x300b, "py::unseen", Default::default(), when);
    code.load(0x4000..0x400b, "JS:*other", Default::default(), when);
    // Where code of runtimes is not read nothing is looked at.
    let looks = builder.unseen(Pid(1), &code, true).is_some();
    assert_eq!(looks, READS_RUNTIME_CODE);
}

proptest::proptest! {
    #[test]
    fn information_of_strangers_does_no_harm(
        damage in proptest::collection::vec((0usize..90, proptest::num::u8::ANY), 0..10),
        header in 0usize..200,
        start in 0u64..0x1_0000_0000,
        len in 0u64..2000,
        of_v8 in proptest::bool::ANY,
    ) {
        let mut content = bytes(if of_v8 { OF_V8 } else { OF_CPYTHON });
        for (at, value) in damage {
            if let Some(byte) = content.get_mut(at) {
                *byte = value;
            }
        }
        let mut builder = RulesBuilder::default();
        let unwinding = Unwinding::as_written(&content, header);
        builder.load(start..start + len, unwinding);
        let Some(rules) = builder.take() else { return Ok(()) };
        for address in start.saturating_sub(4)..start + len + 4 {
            let known = rules.rule(Avma(address)) != Rule::UNKNOWN;
            proptest::prop_assert!(!known || (start..start + len).contains(&address));
        }
    }

    #[test]
    fn rules_are_those_of_the_latest_piece_at_each_address(
        loads in proptest::collection::vec((0u64..40, proptest::bool::ANY), 0..30),
    ) {
        let mut builder = RulesBuilder::default();
        // Which piece each address belongs to, by its start.
        let mut owners: Vec<Option<u64>> = vec![None; 1000];
        for (place, known) in loads {
            let start = 16 + place * 7;
            let end = start + 11;
            for at in start..end {
                if let Some(old) = owners[at as usize] {
                    let gone = |owner: &mut Option<u64>| if *owner == Some(old) { *owner = None };
                    owners.iter_mut().for_each(gone);
                }
            }
            if known {
                load(&mut builder, start, 11, OF_CPYTHON);
                owners[start as usize..end as usize].fill(Some(start));
            } else {
                builder.unload(start..end);
            }
        }
        let rules = builder.take().unwrap_or_default();
        for (address, owner) in owners.iter().enumerate() {
            let expected = match owner.map(|start| address as u64 - start) {
                None => Rule::UNKNOWN,
                Some(4..10) => Rule::return_address_at(8),
                Some(_) => Rule::return_address_at(0),
            };
            proptest::prop_assert_eq!(rules.rule(Avma(address as u64)), expected);
        }
    }
}

/// Walks of copied stacks through generated code at 0x10000, with these rules.
mod walks {
    use super::*;
    use host::bounds::{Bounds, CacheBounds};
    use host::ids::{CgroupId, CpuId, Tid};
    use perf::record::{Callchain, CpuMode, MapFile, Mmap, Sample, UserState};
    use profile::StackEnd;
    use unwind::arch::{self, number};
    use unwind::info::generated::Generated;
    use unwind::info::state::REGISTERS;
    use unwind::process::ProcessTable;
    use unwind::walk::{Depths, StackBuffer, Unwinder};

    const CODE: u64 = 0x10000;
    const SP: u64 = 0x7fff_0000;

    /// Unwinds a sample at `ip` with `words` on its stack and this frame pointer.
    fn walk(
        builder: &mut RulesBuilder,
        ip: u64,
        frame_pointer: u64,
        words: &[u64],
    ) -> (Vec<u64>, StackEnd) {
        let pid = Pid(7);
        let mut table = ProcessTable::new();
        let mapped = Mmap {
            pid,
            start: CODE,
            len: 0x10000,
            file_offset: 0,
            file: MapFile::Inode {
                major: 0,
                minor: 0,
                inode: 0,
                generation: 0,
            },
            private: true,
            path: b"//anon",
        };
        table.mmap(&mapped, MonotonicTime(1));
        let process = table.get(pid).expect("has a mapping").id;
        if let Some(rules) = builder.take() {
            table.set_generated(Generated {
                process,
                pid,
                rules,
            });
        }
        let mut regs = vec![0; REGISTERS * 8];
        let own = [
            (number::FP, frame_pointer),
            (number::SP, SP),
            (number::RA, ip),
        ];
        for (number, value) in own {
            let in_order = arch::ORDER.iter().position(|&register| register == number);
            let at = in_order.expect("the kernel tells it") * 8;
            regs[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
        }
        let stack: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let sample = Sample {
            mode: CpuMode::User,
            ip,
            pid,
            tid: Tid(7),
            time: MonotonicTime(2),
            cpu: CpuId(0),
            period: 1,
            callchain: Callchain::from_bytes(&[]),
            user: Some(UserState {
                is_64: true,
                regs: &regs,
                stack: &stack,
                full: true,
            }),
            raw: None,
            cgroup: CgroupId(1),
        };
        let bounds = Bounds {
            symbols: 0,
            unwind: 1 << 20,
            recorder: 0,
        };
        let depths = Depths {
            chain: 127,
            walk: 64,
        };
        let mut unwinder = Unwinder::new(depths, Arc::new(CacheBounds::new(bounds)));
        let mut out = StackBuffer::default();
        let end = unwinder.unwind(&sample, table.get(pid), &mut out);
        let address = |frame: &host::frame::RawFrame| match frame {
            host::frame::RawFrame::Jit(_, address) => address.0,
            _ => 0,
        };
        (out.frames.iter().map(address).collect(), end)
    }

    fn trampolines() -> RulesBuilder {
        let mut builder = RulesBuilder::default();
        for at in 0..4 {
            load(&mut builder, CODE + at * 16, 11, OF_CPYTHON);
        }
        builder
    }

    #[test]
    fn a_walk_passes_one_trampoline_after_another() {
        // The first is about to return; the others wait for their calls.
        let words = [CODE + 22, 0, CODE + 38, 0, 0];
        let (frames, end) = walk(&mut trampolines(), CODE + 10, 0, &words);
        assert_eq!(frames, [CODE + 10, CODE + 21, CODE + 37]);
        assert_eq!(end, StackEnd::Complete);
    }

    #[test]
    fn without_rules_the_stack_says_that_generated_code_broke_it() {
        let words = [CODE + 22, 0, CODE + 38, 0, 0];
        let (frames, end) = walk(&mut RulesBuilder::default(), CODE + 10, 0, &words);
        assert_eq!((frames.len(), end), (1, StackEnd::GeneratedCode));
    }

    #[test]
    fn a_rule_that_leads_out_of_all_code_gives_way_to_the_frame_pointer() {
        // What lies at the stack pointer is no address of code: the rule is of other code.
        let words = [0x1234, 0x5678, 0, CODE + 0x105, 0];
        let (frames, end) = walk(&mut trampolines(), CODE, SP + 16, &words);
        assert_eq!(frames, [CODE, CODE + 0x104]);
        assert_eq!(end, StackEnd::GeneratedCode);
    }

    #[test]
    fn a_copy_that_ends_first_says_so() {
        let (frames, end) = walk(&mut trampolines(), CODE + 4, 0, &[0]);
        assert_eq!((frames.len(), end), (1, StackEnd::CopyTooSmall));
    }
}
