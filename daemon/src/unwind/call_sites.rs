//! Which words are return addresses of calls that can have led to generated code.
//!
//! A word that a call left behind on a stack looks like one of a call under way. What tells them apart
//! is the call itself: generated code is nobody's fixed target. It is called through a pointer, or
//! jumped to by a function that was called; of those, assembler with several ways in is described as
//! one function (`lj_vm_call` of LuaJIT), and stubs of linkage tables are. A call to the begin of a
//! function leads to that function, and is over.
//!
//! The sampler reads no files: it asks, and takes such a word for nothing until `fp-files` has looked.

use crate::ids::{FileId, FileOffset};
use crate::symbolize::elf::{Headers, ReadAt, Segment};
use crate::symbolize::function_start;
use hashbrown::HashMap;
use iced_x86::{Decoder, DecoderOptions, FlowControl};

/// Words remembered. Unit: places in files, of 32 bytes. Beyond it all are forgotten and asked for
/// again. A process with generated code has some dozen.
const KNOWN_MAX: usize = 8192;

/// Words asked for at each pass of the sampler.
const WANTED_MAX: usize = 64;

/// An answer that has not come by then was lost. Unit: drains, of a second or less.
const ANSWER_MAX: u32 = 60;

/// Longest instruction that calls through a pointer, with a prefix.
const CALL_BYTES: usize = 8;

/// A place in a file that a word returns to.
pub type Place = (FileId, FileOffset);

/// What is known of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// It was asked for in this drain, or will be.
    Asked(u32),
    /// True when its call can lead to generated code.
    Looked(bool),
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looked {
    /// What was asked for.
    pub place: Place,
    /// True when its call can lead to generated code.
    pub leads: bool,
}

/// What is known of them.
#[derive(Debug, Default)]
pub struct CallSites {
    known: HashMap<Place, Known>,
    wanted: Vec<Place>,
    /// Counts drains.
    clock: u32,
}

impl CallSites {
    /// True when the call before a place can have led to generated code; `None` while that is not
    /// known.
    pub fn leads(&mut self, place: Place) -> Option<bool> {
        match self.known.get(&place) {
            Some(&Known::Looked(leads)) => return Some(leads),
            Some(&Known::Asked(at)) if self.clock.wrapping_sub(at) < ANSWER_MAX => return None,
            Some(Known::Asked(_)) | None => {}
        }
        if self.wanted.len() < WANTED_MAX {
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
            self.known.insert(place, Known::Asked(self.clock));
            self.wanted.push(place);
        }
        None
    }

    /// Asks for what was missed; what `send` refuses is asked for when it is missed again.
    pub fn ask(&mut self, mut send: impl FnMut(Place) -> bool) {
        self.clock = self.clock.wrapping_add(1);
        for place in self.wanted.drain(..) {
            if !send(place) {
                self.known.remove(&place);
            }
        }
    }

    /// Takes an answer.
    pub fn install(&mut self, looked: Looked) {
        if let Some(known) = self.known.get_mut(&looked.place) {
            *known = Known::Looked(looked.leads);
        }
    }
}

/// True when the instruction before `offset` is a call that can have led to generated code.
pub fn leads<R: ReadAt + ?Sized>(image: &R, headers: &Headers, offset: FileOffset) -> bool {
    let mut code = [0; CALL_BYTES];
    let read = offset.0.checked_sub(CALL_BYTES as u64);
    let Some(Ok(())) = read.map(|at| image.read_exact_at(&mut code, at)) else {
        return false;
    };
    let segments = &headers.segments;
    let address = segments.iter().find_map(|segment| {
        let into = offset.0.checked_sub(segment.offset)?;
        let inside = segment.executable && into <= segment.file_size;
        inside.then(|| segment.address.wrapping_add(into))
    });
    let Some(address) = address else {
        return false;
    };
    match direct_target(&code, address, segments) {
        Some(target) => function_start(image, headers, target) != Some(target),
        None => calls_by_pointer(&code),
    }
}

/// Where the call goes that ends before `address`, if it goes to a fixed address of the file.
fn direct_target(code: &[u8; CALL_BYTES], address: u64, segments: &[Segment]) -> Option<u64> {
    let [.., 0xe8, a, b, c, d] = *code else {
        return None;
    };
    let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
    let target = address.wrapping_add_signed(distance);
    let mut code = segments.iter().filter(|segment| segment.executable);
    let inside = code.any(|segment| target.wrapping_sub(segment.address) < segment.file_size);
    inside.then_some(target)
}

fn calls_by_pointer(code: &[u8; CALL_BYTES]) -> bool {
    (2..=CALL_BYTES).any(|len| {
        let mut decoder = Decoder::new(64, &code[CALL_BYTES - len..], DecoderOptions::NONE);
        let instruction = decoder.decode();
        instruction.len() == len && instruction.flow_control() == FlowControl::IndirectCall
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Code that ends with these bytes.
    fn ending(bytes: &[u8]) -> [u8; CALL_BYTES] {
        let mut code = [0x90; CALL_BYTES];
        code[CALL_BYTES - bytes.len()..].copy_from_slice(bytes);
        code
    }

    const TEXT: Segment = Segment {
        offset: 0,
        file_size: 0x1000,
        address: 0x4000,
        memory_size: 0x1000,
        executable: true,
    };

    #[test]
    fn a_call_through_a_register_or_memory_is_by_pointer() {
        let calls: [&[u8]; 6] = [
            &[0xff, 0xd0],
            &[0x41, 0xff, 0xd4],
            &[0xff, 0x10],
            &[0xff, 0x50, 0x08],
            &[0xff, 0x15, 1, 2, 3, 4],
            &[0x41, 0xff, 0x94, 0x24, 1, 2, 3, 4],
        ];
        for call in calls {
            assert!(calls_by_pointer(&ending(call)), "{call:x?}");
        }
        let others: [&[u8]; 3] = [&[0xff, 0xe0], &[0xc3], &[0xe8, 1, 2, 3, 4]];
        for other in others {
            assert!(!calls_by_pointer(&ending(other)), "{other:x?}");
        }
    }

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
        for _ in 0..=ANSWER_MAX {
            assert_eq!(sites.leads(place), None);
            sites.ask(|_| {
                asked += 1;
                true
            });
        }
        assert_eq!(asked, 2);
        sites.install(Looked { place, leads: true });
        assert_eq!(sites.leads(place), Some(true));
    }

    #[test]
    fn places_remembered_are_bounded() {
        let mut sites = CallSites::default();
        for at in 0..3 * KNOWN_MAX as u64 {
            sites.leads((FileId(1), FileOffset(at)));
            sites.ask(|_| true);
        }
        assert!(sites.known.len() <= KNOWN_MAX);
    }
}
