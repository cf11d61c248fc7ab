//! The target for what runtimes write of the code they generate.

use host::ids::Avma;
use host::time::MonotonicTime;
use jit::code::{CodeLookup, CodeMap, When};
use jit::dump::{DumpCounts, DumpError, DumpReader};
use jit::rules::RulesBuilder;
use std::sync::Arc;
use unwind::info::generated::GeneratedRules;

/// Most memory that a target allows what it reads. Unit: bytes. Small, so that bounds are met
/// often.
const BYTES_MAX: usize = 1 << 20;

/// What came of a file.
struct Read {
    outcome: Result<(), DumpError>,
    counts: DumpCounts,
    code: CodeMap,
    rules: Option<Arc<GeneratedRules>>,
}

fn read(data: &[u8], piece: usize) -> Read {
    let mut reader = DumpReader::default();
    let mut code = CodeMap::new(BYTES_MAX);
    let mut rules = RulesBuilder::default();
    let when = When::between(MonotonicTime(1 << 40), MonotonicTime(u64::MAX / 2));
    let mut outcome = Ok(());
    for bytes in data.chunks(piece) {
        outcome = reader.feed(bytes, when, &mut code, &mut rules);
        assert!(reader.heap_bytes() <= 8 * BYTES_MAX);
    }
    let rules = rules.take();
    Read {
        outcome,
        counts: reader.take_counts(),
        code,
        rules,
    }
}

/// Jitdumps: the same code and rules whatever pieces the file is read in, memory within the bound,
/// and rules of code alone.
pub fn jitdump(data: &[u8]) {
    let (whole, pieces) = (read(data, data.len().max(1)), read(data, 7));
    assert_eq!(whole.outcome, pieces.outcome);
    assert_eq!(whole.counts, pieces.counts);
    assert_eq!(whole.code.len(), pieces.code.len());
    assert!(whole.code.heap_bytes() <= 2 * BYTES_MAX);
    let all = whole.code.iter().zip(pieces.code.iter());
    for ((range, code), (other, same)) in all {
        assert!(range.start < range.end && range == other);
        assert_eq!(code.name, same.name);
        assert!(!code.name.contains(char::is_control));
        let found = whole.code.find(range.start, MonotonicTime(u64::MAX / 2));
        assert!(matches!(found, CodeLookup::Code(..)));
        for at in (0..range.end - range.start).take(64) {
            assert_eq!(code.place(at), same.place(at));
        }
        if let (Some(rules), Some(others)) = (&whole.rules, &pieces.rules) {
            for address in range.clone().take(64) {
                assert_eq!(rules.rule(Avma(address)), others.rule(Avma(address)));
            }
        }
    }
}
