//! Decides which words are return addresses of calls that can have led to generated code.
//!
//! A word that a finished call left on a stack looks like one of a call in progress. The call
//! itself tells them apart: generated code is never a fixed call target. It is called through a
//! pointer, or a called function jumps to it: assembler with several entries that is described as
//! one function (`lj_vm_call` of LuaJIT). A call to the start of any other function leads only to
//! that function, unless that jumps on through a pointer. Calls through a linkage table may lead to
//! a function that jumps on, or to any other, so for them it is unknown.
//!
//! The sampler reads no files: it asks `fp-files`, and scans no further until the answer arrives.

use crate::arch::{self, CALL_BYTES, Called, PointerCall};
use hashbrown::HashMap;
use host::ids::{FileId, FileOffset};
use host::time::MonotonicTime;
use std::time::Duration;
use symbolize::elf::{Headers, ReadAt, Segment};
use symbolize::function_start;

/// Words remembered. Unit: places in files, of 32 bytes. Beyond it all are forgotten and asked for
/// again. A process with generated code has some dozen.
const KNOWN_MAX: usize = 8192;

/// Words asked for at each pass of the sampler, and those of one file.
const WANTED_MAX: usize = 64;
const WANTED_OF_FILE_MAX: usize = 16;

/// An answer that has not come by then was lost.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// How much of a called function is examined. Unit: bytes. A function that directly jumps on
/// through a pointer does so within a few bytes.
const CALLED_BYTES: usize = 64;

/// A place in a file that a word returns to.
pub type ReturnSite = (FileId, FileOffset);

/// The call before a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallSite {
    /// There is none, or it leads to a function that leads to nothing else.
    Over,
    /// It can have led to generated code.
    Leads,
    /// It may have.
    Unclear,
}

/// What is known of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// It was asked for, or will be.
    Asked(MonotonicTime),
    Looked(CallSite),
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looked {
    /// The requested value.
    pub place: ReturnSite,
    /// The call before it.
    pub site: CallSite,
}

/// What is known of them.
#[derive(Debug, Default)]
pub struct CallSites {
    known: HashMap<ReturnSite, Known>,
    wanted: Vec<ReturnSite>,
}

impl CallSites {
    /// The call before a place; `None` while that is not known, for which it is asked.
    pub fn known(&mut self, place: ReturnSite, now: MonotonicTime) -> Option<CallSite> {
        match self.known.get(&place) {
            Some(&Known::Looked(site)) => return Some(site),
            Some(&Known::Asked(at)) if now.since(at) < ANSWER_MAX => return None,
            Some(Known::Asked(_)) | None => {}
        }
        let of_file = self.wanted.iter().filter(|wanted| wanted.0 == place.0);
        if self.wanted.len() < WANTED_MAX && of_file.count() < WANTED_OF_FILE_MAX {
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
            self.known.insert(place, Known::Asked(now));
            self.wanted.push(place);
        }
        None
    }

    /// Asks for what was missed; what `send` refuses is asked for when it is missed again.
    pub fn ask(&mut self, mut send: impl FnMut(ReturnSite) -> bool) {
        for place in self.wanted.drain(..) {
            if !send(place) {
                self.known.remove(&place);
            }
        }
    }

    /// Takes an answer.
    pub fn install(&mut self, looked: Looked) {
        if let Some(known) = self.known.get_mut(&looked.place) {
            *known = Known::Looked(looked.site);
        }
    }
}

/// The call before `offset`; `None` when the file cannot be read there.
pub fn look<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    offset: FileOffset,
) -> Option<CallSite> {
    let mut code = [0; CALL_BYTES];
    let Some(at) = offset.0.checked_sub(CALL_BYTES as u64) else {
        return Some(CallSite::Over);
    };
    image.read_exact_at(&mut code, at).ok()?;
    let segments = &headers.segments;
    let address = segments.iter().find_map(|segment| {
        let into = offset.0.checked_sub(segment.offset)?;
        let inside = segment.executable && into <= segment.file_size;
        inside.then(|| segment.address.wrapping_add(into))
    });
    let Some(address) = address else {
        return Some(CallSite::Over);
    };
    let Some(target) = direct_target(&code, address, segments) else {
        return Some(by_pointer(&code, address, headers));
    };
    let called = called(image, segments, target)?;
    Some(match function_start(image, headers, target) {
        Some(start) if start == target && !called.jumps_on => CallSite::Over,
        Some(start) if start != target && !called.is_stub => CallSite::Leads,
        _ => CallSite::Unclear,
    })
}

/// Where the call goes that ends before `address`, if it goes to a fixed address of the file.
fn direct_target(code: &[u8; CALL_BYTES], address: u64, segments: &[Segment]) -> Option<u64> {
    let target = arch::direct_target(code, address)?;
    let mut code = segments.iter().filter(|segment| segment.executable);
    let inside = code.any(|segment| target.wrapping_sub(segment.address) < segment.file_size);
    inside.then_some(target)
}

/// What the first instructions of a called function show.
fn called<R: ReadAt + ?Sized>(image: &R, segments: &[Segment], target: u64) -> Option<Called> {
    let segment = segments
        .iter()
        .find(|segment| target.wrapping_sub(segment.address) < segment.file_size)?;
    let mut code = [0; CALLED_BYTES];
    let offset = (target - segment.address).checked_add(segment.offset)?;
    let read = image.read_some_at(&mut code, offset).ok()?;
    Some(arch::called(code.get(..read)?))
}

/// The call through a pointer that ends with these bytes, before `address`. What lies in the table
/// of addresses that the loader fills in is a function of any library.
fn by_pointer(code: &[u8; CALL_BYTES], address: u64, headers: &Headers) -> CallSite {
    match arch::pointer_call(code, address, |at| is_linkage(headers, at)) {
        PointerCall::None => CallSite::Over,
        PointerCall::Linkage => CallSite::Unclear,
        PointerCall::Other => CallSite::Leads,
    }
}

/// True for what may be in a linkage table.
fn is_linkage(headers: &Headers, address: u64) -> bool {
    let table = |name: &[u8]| headers.section(name);
    let tables = [table(b".got"), table(b".got.plt")];
    // Without a name of any, it may be one.
    tables.iter().all(Option::is_none)
        || tables
            .iter()
            .flatten()
            .any(|table| address.wrapping_sub(table.address) < table.size)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "x86_64")]
    use symbolize::elf;

    /// Code that ends with these bytes.
    #[cfg(target_arch = "x86_64")]
    fn ending(bytes: &[u8]) -> [u8; CALL_BYTES] {
        let mut code = [0x90; CALL_BYTES];
        code[CALL_BYTES - bytes.len()..].copy_from_slice(bytes);
        code
    }

    #[cfg(target_arch = "x86_64")]
    const TEXT: Segment = Segment {
        offset: 0,
        file_size: 0x1000,
        address: 0x4000,
        memory_size: 0x1000,
        executable: true,
    };

    #[cfg(target_arch = "x86_64")]
    fn own_headers() -> Headers {
        let program = std::fs::File::open("/proc/self/exe").expect("a program");
        elf::read_headers(&program).expect("headers")
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_call_through_a_register_or_memory_leads_to_generated_code() {
        let headers = own_headers();
        let calls: [(&[u8], CallSite); 7] = [
            (&[0xff, 0xd0], CallSite::Leads),
            (&[0x41, 0xff, 0xd4], CallSite::Leads),
            (&[0xff, 0x10], CallSite::Leads),
            (&[0xff, 0x50, 0x08], CallSite::Leads),
            (&[0x41, 0xff, 0x94, 0x24, 1, 2, 3, 4], CallSite::Leads),
            (&[0xff, 0xe0], CallSite::Over),
            (&[0xc3], CallSite::Over),
        ];
        for (call, site) in calls {
            assert_eq!(
                by_pointer(&ending(call), 0x4800, &headers),
                site,
                "{call:x?}"
            );
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_call_by_a_linkage_table_may_lead_anywhere_and_one_by_a_variable_leads() {
        let headers = own_headers();
        let table = headers.section(b".got").expect("a table").address;
        // call *0x100(%rip)
        let call = ending(&[0xff, 0x15, 0, 1, 0, 0]);
        assert_eq!(
            by_pointer(&call, table - 0x100, &headers),
            CallSite::Unclear
        );
        assert_eq!(by_pointer(&call, 0x10, &headers), CallSite::Leads);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_direct_call_has_a_target_in_code_of_the_file() {
        let call = |distance: i32| {
            let [a, b, c, d] = distance.to_le_bytes();
            direct_target(&ending(&[0xe8, a, b, c, d]), 0x4800, &[TEXT])
        };
        assert_eq!(call(-0x100), Some(0x4700));
        assert_eq!(call(0x900), None);
        assert_eq!(call(-0x900), None);
        assert_eq!(direct_target(&ending(&[0xff, 0xd0]), 0x4800, &[TEXT]), None);
    }

    #[test]
    fn what_no_answer_came_for_is_asked_again() {
        let mut sites = CallSites::default();
        let place = (FileId(1), FileOffset(16));
        let mut asked = 0;
        for now in [
            MonotonicTime(0),
            MonotonicTime(1),
            MonotonicTime(0).plus(ANSWER_MAX),
        ] {
            assert_eq!(sites.known(place, now), None);
            sites.ask(|_| {
                asked += 1;
                true
            });
        }
        assert_eq!(asked, 2);
        let site = CallSite::Leads;
        sites.install(Looked { place, site });
        assert_eq!(sites.known(place, MonotonicTime(9)), Some(site));
    }

    #[test]
    fn places_remembered_and_asked_for_are_bounded() {
        let mut sites = CallSites::default();
        for at in 0..3 * KNOWN_MAX as u64 {
            sites.known((FileId(1), FileOffset(at)), MonotonicTime(0));
            sites.ask(|_| true);
        }
        assert!(sites.known.len() <= KNOWN_MAX);
        for at in 0..100 {
            sites.known((FileId(2), FileOffset(at)), MonotonicTime(0));
        }
        assert_eq!(sites.wanted.len(), WANTED_OF_FILE_MAX);
    }
}
