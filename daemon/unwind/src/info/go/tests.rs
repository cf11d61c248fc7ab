//! Tests rows made from Go's stack depths against the debug information of the same program.

use super::*;
use crate::info::module::Module;
use crate::info::rule::Step;
use crate::info::section::{Bases, Dialect};
use host::ids::FileOffset;
use std::fs::File;
use symbolize::elf::{self, SymbolTable};
use testkit::golang::{Build, build};

/// A program, with its headers; `None`, reported, where it cannot be built.
fn program(how: Build) -> Option<(File, Headers)> {
    let path = match build(how) {
        Ok(path) => path,
        Err(why) => {
            testkit::skip(why);
            return None;
        }
    };
    let image = File::open(path).expect("a program that was built");
    let headers = elf::read_headers(&image).expect("headers");
    Some((image, headers))
}

fn table_of(image: &File, headers: &Headers) -> Table {
    let table = table(image, headers, 0, &FileBudget::default());
    table.expect("within the budget").expect("a program in Go")
}

/// The rules of some functions of a program, by name.
fn functions(image: &File, headers: &Headers, wanted: &[&str]) -> HashMap<String, Rule> {
    let budget = FileBudget::default();
    let tables = go::find(image, headers, &budget).expect("within the budget");
    let tables = tables.expect("tables");
    let symbols = go::symbols(image, &tables, &budget).expect("within the budget");
    let symbols: SymbolTable = symbols.expect("functions");
    let table = table_of(image, headers);
    let mut found = HashMap::new();
    let each = tables.each(image, &budget, |function: &Function| {
        let index = symbols.find(function.start, &mut 0).expect("itself");
        let name = symbols.name(image, index).expect("a name");
        let name = String::from_utf8(name).expect("text");
        if wanted.contains(&&*name) {
            let rule = table.rule(function.start).unwrap_or(Rule::UNKNOWN);
            found.insert(name, rule);
        }
        Ok::<(), Over>(())
    });
    each.expect("within the budget");
    found
}

#[test]
fn depths_are_those_of_the_debug_information_at_every_instruction() {
    let Some((image, headers)) = program(Build::Whole) else {
        return;
    };
    let go = table_of(&image, &headers);
    let budget = FileBudget::default();
    let section = headers.section(b".debug_frame").expect("debug information");
    let place = crate::info::section::SectionRange {
        offset: section.offset,
        len: section.size,
        ends_at_zero: false,
    };
    let debug = Table::read(Dialect::Debug, &image, place, Bases::default(), &budget);
    let debug = debug.expect("within the budget").expect("functions");
    let (mut compared, mut special, mut other) = (0u64, 0u64, Vec::new());
    let each = debug.rows(|range, said| {
        let Step::Saved {
            base,
            offset,
            places,
        } = said.step
        else {
            return;
        };
        // Around the system call of vfork the return address is in a register, and neither says so.
        // Below zero is where assembler takes off what its caller put there.
        if offset <= 0 {
            return;
        }
        for address in range {
            let rule = go.rule(address.into());
            // What the runtime makes up as a call has two words more, of which the debug
            // information says nothing.
            let injected = rule.is_some_and(|rule| rule.signal) && arch::LINK_REGISTER.is_some();
            let more = if injected { 2 } else { 0 };
            match rule.map(|rule| rule.step) {
                Some(Step::Saved {
                    base: own,
                    offset: depth,
                    places: own_places,
                }) => {
                    compared += 1;
                    let said = (base, offset + i32::from(more) * 8, places[0] - more);
                    if (own, depth, own_places[0]) != said {
                        other.push(address);
                    }
                }
                // What stacks start with, switches and returns to.
                Some(_) => special += 1,
                None => other.push(address),
            }
        }
    });
    each.expect("rows that make sense");
    assert!(compared > 300_000, "{compared} instructions");
    assert!(special < 4_000, "{special} of {compared}");
    assert!(
        other.is_empty(),
        "{} of {compared}: {:x?}",
        other.len(),
        &other[..other.len().min(20)]
    );
}

#[test]
fn every_way_to_build_leaves_the_same_functions() {
    for how in Build::ALL {
        let Some((image, headers)) = program(how) else {
            continue;
        };
        let table = table_of(&image, &headers);
        assert!(table.functions() > 1000, "{how:?}: {}", table.functions());
        // Nothing but the segments and what lies in them is needed.
        let bare = Headers {
            sections: Vec::new(),
            ..headers.clone()
        };
        let without = table_of(&image, &bare);
        assert_eq!(without.functions(), table.functions(), "{how:?}");
        let found = functions(&image, &headers, &["main.(*Ledger).Settle", "main.serve"]);
        for (name, rule) in &found {
            let expected = Rule::of_go(0, false).expect("a depth");
            assert_eq!(*rule, expected, "{how:?}: {name} at its first instruction");
        }
        assert_eq!(found.len(), 2, "{how:?}");
    }
}

#[test]
fn the_runtimes_own_functions_start_end_and_switch_stacks() {
    let Some((image, headers)) = program(Build::Stripped) else {
        return;
    };
    let names = [
        "runtime.goexit",
        "runtime.mstart",
        "runtime.rt0_go",
        "runtime.mcall",
        "runtime.systemstack",
        "runtime.morestack",
        "runtime.asyncPreempt",
        "runtime.sigreturn",
        "runtime.sigreturn__sigaction",
        "runtime.sigtramp",
        "runtime.nanotime1",
    ];
    let found = functions(&image, &headers, &names);
    for (name, rule) in &found {
        let right = match &**name {
            "runtime.goexit" | "runtime.mstart" | "runtime.rt0_go" => *rule == Rule::OUTERMOST,
            "runtime.mcall" => rule.step == Step::Switched(Behind::Nobody),
            "runtime.systemstack" => matches!(
                rule.step,
                Step::Switched(Behind::Caller | Behind::CallersCaller)
            ),
            "runtime.morestack" => rule.step == Step::Switched(Behind::Unknown),
            "runtime.asyncPreempt" => rule.signal && matches!(rule.step, Step::Saved { .. }),
            "runtime.sigtramp" => !rule.signal && matches!(rule.step, Step::Saved { .. }),
            "runtime.nanotime1" => rule.step == Step::Switched(Behind::Caller),
            _ => rule.signal && rule.step == Step::Computed,
        };
        assert!(right, "{name}: {rule:?}");
    }
    // What a signal handler returns to has one of two names, or is the kernel's.
    let others = if arch::SIGNAL_RETURN.is_some() { 2 } else { 1 };
    assert!(found.len() >= names.len() - others, "{found:?}");
}

#[test]
fn go_s_own_tables_are_asked_before_others() {
    let Some((image, headers)) = program(Build::Whole) else {
        return;
    };
    let module = Module::of(&image, &headers, &FileBudget::default());
    let module = module.expect("within the budget").expect("this machine's");
    let budget = FileBudget::default();
    let symbols = SymbolTable::read(&image, &headers, b".symtab", &headers.segments, &budget);
    let symbols = symbols.expect("sound").expect("symbols");
    let (address, _) = symbols
        .named(&image, b"runtime.goexit.abi0", &budget)
        .or_else(|| symbols.named(&image, b"runtime.goexit", &budget))
        .expect("every program has it");
    let offset = headers.offset_of(address).expect("code");
    assert_eq!(module.rule(FileOffset(offset)), Rule::OUTERMOST);
}
