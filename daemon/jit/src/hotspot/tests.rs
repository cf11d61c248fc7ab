//! Rules of compiled code, and a JVM that nobody prepared.

use super::*;
use crate::code::CodeLookup;
use unwind::info::rule::Rule;

/// `mov %eax,-0x14000(%rsp); push %rbp; sub $0x20,%rsp; nop; add $0x20,%rsp; pop %rbp;
/// cmp 0x340(%r15),%rsp; ja …; ret; hlt`.
const CODE: &[u8] = &[
    0x89, 0x84, 0x24, 0x00, 0xc0, 0xfe, 0xff, // 0
    0x55, // 7
    0x48, 0x83, 0xec, 0x20, // 8
    0x90, // 12
    0x48, 0x83, 0xc4, 0x20, // 13
    0x5d, // 17
    0x49, 0x3b, 0xa7, 0x40, 0x03, 0x00, 0x00, // 18
    0x0f, 0x87, 0x01, 0x00, 0x00, 0x00, // 25
    0xc3, // 31
    0xf4, // 32
];

#[test]
fn a_function_has_rules_from_its_first_instruction_to_its_last() {
    let body = Rule::framed(48).expect("is one");
    let pushed = Rule::frame_pointer_pushed();
    let bare = Rule::return_address_at(0);
    let expected = [
        (0, bare),
        (8, pushed),
        (12, body),
        (17, pushed),
        (18, bare),
        (32, body),
    ];
    assert_eq!(rows(12, 48, CODE).as_deref(), Some(&expected[..]));
}

#[test]
fn without_its_instructions_the_body_of_a_function_has_a_rule() {
    let body = Rule::framed(48).expect("is one");
    let expected = [(0, Rule::return_address_at(0)), (12, body)];
    assert_eq!(rows(12, 48, &[]).as_deref(), Some(&expected[..]));
    // Code that never has no frame.
    assert_eq!(rows(-1, 48, &[]).as_deref(), Some(&[(0, body)][..]));
    assert_eq!(rows(0, 48, &[]).as_deref(), Some(&[(0, body)][..]));
}

#[test]
fn frames_of_impossible_sizes_have_no_rules() {
    for bytes in [i32::MIN, -8, 0, 8, 20] {
        assert_eq!(rows(12, bytes, CODE), None, "{bytes}");
    }
    // Larger than its instructions say: their ends are not its own.
    assert_eq!(rows(12, 1 << 20, CODE).map(|rows| rows.len()), Some(2));
}

/// The structures of a JVM with one heap of code, in the memory of this process.
struct Jvm {
    bytes: Box<[u8; 8192]>,
}

/// Where they are, counted from the start of that memory.
mod place {
    pub const HEAPS: u64 = 0;
    pub const LIST: u64 = 8;
    pub const HEAP: u64 = 64;
    pub const SEGMENTS: u64 = 256;
    pub const METHOD: u64 = 512;
    pub const CONSTANT: u64 = 576;
    pub const POOL: u64 = 640;
    pub const CLASS: u64 = 768;
    pub const METHODS: u64 = 832;
    pub const TEXTS: u64 = 1024;
    pub const CODE: u64 = 4096;
    pub const BLOB: u64 = CODE + 16;
}

impl Jvm {
    /// With one compiled method, `LHot;::early(J)J`.
    fn new() -> Jvm {
        let mut jvm = Jvm {
            bytes: Box::new([0; 8192]),
        };
        let at = |place: u64| jvm.bytes.as_ptr() as u64 + place;
        let words = [
            (place::HEAPS, at(place::LIST)),
            (place::LIST, 1),
            (place::LIST + 8, at(place::LIST + 16)),
            (place::LIST + 16, at(place::HEAP)),
            // The heap: low and high, the segments, the size of a segment.
            (place::HEAP, at(place::CODE)),
            (place::HEAP + 8, at(place::CODE + 4096)),
            (place::HEAP + 16, at(place::SEGMENTS)),
            (place::HEAP + 32, 7),
            (place::METHOD, at(place::CONSTANT)),
            (place::CONSTANT, at(place::POOL)),
            // Numbers of the name and the signature.
            (place::CONSTANT + 8, 1 | 2 << 16),
            (place::POOL, at(place::CLASS)),
            (place::POOL + 16 + 8, at(place::TEXTS + 64)),
            (place::POOL + 16 + 16, at(place::TEXTS + 128)),
            (place::CLASS, at(place::TEXTS)),
            (place::CLASS + 8, at(place::METHODS)),
            (place::METHODS, 2),
            (place::METHODS + 16, at(place::METHOD)),
            // The blob: name, code, frame, method and number.
            (place::BLOB, at(place::TEXTS + 192)),
            (place::BLOB + 8, at(place::BLOB + 64)),
            (place::BLOB + 16, at(place::BLOB + 128)),
            (place::BLOB + 24, 6),
            (place::BLOB + 32, 12),
            (place::BLOB + 40, at(place::METHOD)),
            (place::BLOB + 48, 1),
        ];
        for (place, word) in words {
            jvm.put(place, word);
        }
        for (place, text) in [(0, "Hot"), (64, "early"), (128, "(J)J")] {
            jvm.put(place::TEXTS + place, text.len() as u64);
            jvm.write(place::TEXTS + place + 2, text.as_bytes());
        }
        jvm.write(place::TEXTS + 192, b"nmethod\0");
        jvm.write(place::SEGMENTS, &[0xff; 32]);
        jvm.write(place::SEGMENTS, &[0, 1]);
        jvm
    }

    fn at(&self, place: u64) -> u64 {
        self.bytes.as_ptr() as u64 + place
    }

    fn write(&mut self, place: u64, bytes: &[u8]) {
        self.bytes[place as usize..place as usize + bytes.len()].copy_from_slice(bytes);
    }

    fn put(&mut self, place: u64, word: u64) {
        self.write(place, &word.to_le_bytes());
    }

    fn layout(&self) -> Layout {
        Layout {
            code_heaps: self.at(place::HEAPS),
            interpreter_code: self.at(place::HEAP + 40),
            array_len: 0,
            array_data: 8,
            heap_memory: 0,
            heap_segments: 16,
            heap_log2_segment: 32,
            space_low: 0,
            space_high: 8,
            heap_block_bytes: 16,
            blob_name: 0,
            blob_frame_size: 24,
            blob_frame_complete: 32,
            blob_code_begin: 8,
            blob_code_end: 16,
            nmethod_method: 40,
            nmethod_compile_id: 48,
            method_const: 0,
            const_constants: 0,
            const_name: 8,
            const_signature: 10,
            constants_bytes: 16,
            constants_holder: 0,
            klass_name: 0,
            klass_methods: 8,
            symbol_length: 0,
            symbol_body: 2,
            stubs_buffer: 0,
            stubs_limit: 8,
        }
    }

    /// What is known after one more look.
    fn refresh(&self, hotspot: &mut HotSpot, known: &mut CodeMap, addresses: &[u64]) -> bool {
        self.refresh_within(hotspot, known, addresses, &mut (64 << 20))
    }

    fn refresh_within(
        &self,
        hotspot: &mut HotSpot,
        known: &mut CodeMap,
        addresses: &[u64],
        budget: &mut u64,
    ) -> bool {
        hotspot.layout = Known::Yes(Arc::new(self.layout()));
        let found = hotspot.refresh(Pid(std::process::id()), addresses, budget);
        found.is_some_and(|found| {
            let more = found.more;
            found.tell(known, &mut RulesBuilder::default());
            more
        })
    }

    fn name_at(&self, known: &CodeMap, place: u64) -> Option<String> {
        match known.find(self.at(place), MonotonicTime::now()) {
            CodeLookup::Code(code, _) => Some(code.name.to_string()),
            _ => None,
        }
    }
}

fn nothing_known() -> CodeMap {
    CodeMap::new(1 << 20)
}

#[test]
fn compiled_methods_have_the_names_of_their_classes() {
    let (jvm, mut known, mut hotspot) = (Jvm::new(), nothing_known(), HotSpot::default());
    assert!(!jvm.refresh(&mut hotspot, &mut known, &[]));
    let name = jvm.name_at(&known, place::BLOB + 64);
    assert_eq!(name.as_deref(), Some("LHot;::early(J)J"));
    assert_eq!(jvm.name_at(&known, place::BLOB), None, "no code");
    assert_eq!(jvm.name_at(&known, place::METHOD), None, "nobody asked");
}

#[test]
fn a_method_that_is_interpreted_has_a_name_once_it_is_asked_for() {
    let (jvm, mut known, mut hotspot) = (Jvm::new(), nothing_known(), HotSpot::default());
    let asked = [jvm.at(place::METHOD), jvm.at(place::TEXTS)];
    jvm.refresh(&mut hotspot, &mut known, &asked);
    let name = jvm.name_at(&known, place::METHOD);
    assert_eq!(name.as_deref(), Some("LHot;::early(J)J_[i]"));
    assert_eq!(jvm.name_at(&known, place::TEXTS), None, "that is none");
}

#[test]
fn a_method_that_its_class_does_not_have_has_no_name() {
    let (mut jvm, mut known, mut hotspot) = (Jvm::new(), nothing_known(), HotSpot::default());
    jvm.put(place::METHODS + 16, 0);
    jvm.refresh(&mut hotspot, &mut known, &[jvm.at(place::METHOD)]);
    assert_eq!(jvm.name_at(&known, place::METHOD), None);
    // Code says what it is of: methods that the JVM makes are in no class's list.
    let name = jvm.name_at(&known, place::BLOB + 64);
    assert_eq!(name.as_deref(), Some("LHot;::early(J)J"));
}

#[test]
fn code_that_took_the_place_of_other_code_has_its_name() {
    let (mut jvm, mut known, mut hotspot) = (Jvm::new(), nothing_known(), HotSpot::default());
    let asked = [jvm.at(place::BLOB + 70)];
    jvm.refresh(&mut hotspot, &mut known, &asked);
    // As large as the other: no segment changes.
    jvm.put(place::BLOB + 48, 2);
    jvm.write(place::TEXTS + 64 + 2, b"later");
    jvm.refresh(&mut hotspot, &mut known, &asked);
    let name = jvm.name_at(&known, place::BLOB + 64);
    assert_eq!(name.as_deref(), Some("LHot;::later(J)J"));
}

#[test]
fn code_that_went_has_no_name() {
    let (mut jvm, mut known, mut hotspot) = (Jvm::new(), nothing_known(), HotSpot::default());
    jvm.refresh(&mut hotspot, &mut known, &[]);
    jvm.write(place::SEGMENTS, &[0xff; 2]);
    jvm.refresh(&mut hotspot, &mut known, &[]);
    assert_eq!(jvm.name_at(&known, place::BLOB + 64), None);
    assert!(hotspot.blobs.is_empty());
}

#[test]
fn no_more_is_read_than_the_budget_allows() {
    let (jvm, mut known, mut hotspot) = (Jvm::new(), nothing_known(), HotSpot::default());
    let mut look = |budget: &mut u64| {
        jvm.refresh_within(&mut hotspot, &mut known, &[], budget);
        jvm.name_at(&known, place::BLOB + 64).is_some()
    };
    // Too few reads for the heaps, then enough for all.
    let (mut little, mut enough) = (2 * READ_COSTS * 5, 1 << 20);
    assert!(!look(&mut little));
    assert_eq!(little, 0, "it was spent");
    assert!(look(&mut enough));
    assert!(((1 << 19)..(1 << 20)).contains(&enough), "{enough}");
}

#[test]
fn structures_that_make_no_sense_are_left_alone() {
    let lies: [(u64, u64); 10] = [
        (place::LIST, 0),
        (place::LIST, 9),
        (place::LIST, u64::MAX),
        (place::LIST + 8, 8),
        (place::HEAP, u64::MAX),
        (place::HEAP + 8, u64::MAX),
        (place::HEAP + 16, 8),
        (place::HEAP + 32, 63),
        (place::TEXTS, 0xffff),
        (place::BLOB + 16, u64::MAX),
    ];
    for (at, lie) in lies {
        let (mut jvm, mut known, mut hotspot) = (Jvm::new(), nothing_known(), HotSpot::default());
        jvm.put(at, lie);
        jvm.refresh(&mut hotspot, &mut known, &[jvm.at(place::METHOD)]);
        let name = jvm.name_at(&known, place::BLOB + 64);
        assert_eq!(name, None, "{lie:#x} at {at}");
    }
    for lie in [u64::from(u32::MAX), 1 << 30] {
        let (mut jvm, mut known, mut hotspot) = (Jvm::new(), nothing_known(), HotSpot::default());
        jvm.put(place::METHODS, lie);
        jvm.refresh(&mut hotspot, &mut known, &[jvm.at(place::METHOD)]);
        let name = jvm.name_at(&known, place::METHOD);
        assert_eq!(name, None, "{lie:#x} methods");
    }
}
