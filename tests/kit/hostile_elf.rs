//! ELF files that run, and cost whoever reads them as much as their author could think of.
//!
//! Each is a small static program for x86-64: it fills its stack with return addresses into one
//! function and spins there until it is killed, or for two minutes. What differs is what the file
//! says about itself.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

/// Address at which the file is loaded.
const LOADED: u64 = 0x40_0000;
/// Offset of the function in which the program spins, and of the code before it.
const FUNCTION: u64 = 0x1100;
const START: u64 = 0x1000;
/// Length of that function.
const FUNCTION_BYTES: u64 = 0x1_0000;
/// Where content of sections starts in the file.
const CONTENT: u64 = 0x2_0000;
/// Length of what is not there: holes of a sparse file.
const HOLE: u64 = 1 << 40;

const SYMBOLS: u32 = 2;
const STRINGS: u32 = 3;
const PROGBITS: u32 = 1;
const COMPRESSED: u64 = 0x800;
const EXECUTABLE: u64 = 0x4;

/// What a file does to its readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hostile {
    /// 8,000 sections share one name of a megabyte that ends nowhere.
    SharedName,
    /// A symbol table of 1 TiB of zeros.
    SparseSymbols,
    /// Three and a half million functions.
    ManyFunctions,
    /// A table of section names of 1 TiB.
    SparseNames,
    /// 1.2 million descriptions of one function, each different.
    RepeatedDescriptions,
    /// An `.eh_frame_hdr` that names one description of 60 KiB four million times.
    DuplicateHeader,
    /// One description of 60 KiB that saves and restores its state again and again.
    DeepDescription,
    /// 600 of those, each different.
    ManyDeepDescriptions,
    /// 12 MiB of code that nothing describes: jumps into each other, calls of everything, pushes
    /// and computed jumps without end, and returns of signal handlers.
    TediousCode,
    /// 65,000 rows of one function, each different and each computed for each frame, from 330 KB.
    ManyRules,
    /// A thousand expressions of 60 KiB, each different.
    ManyExpressions,
    /// Each register of each frame is computed by an expression of a hundred operations.
    LongExpressions,
    /// Unwind information of 1 TiB of zeros.
    SparseFrames,
    /// A compressed section that unpacks to 31 MiB of zeros.
    PackedZeros,
    /// 500 notes of 1 TiB.
    HugeNotes,
    /// Program headers behind 8 TiB of nothing.
    FarHeaders,
    /// A debug link that leads to the file itself.
    OwnDebugLink,
}

impl Hostile {
    /// All of them.
    pub const ALL: &[Hostile] = &[
        Hostile::SharedName,
        Hostile::SparseSymbols,
        Hostile::ManyFunctions,
        Hostile::SparseNames,
        Hostile::RepeatedDescriptions,
        Hostile::DuplicateHeader,
        Hostile::DeepDescription,
        Hostile::ManyDeepDescriptions,
        Hostile::TediousCode,
        Hostile::ManyRules,
        Hostile::ManyExpressions,
        Hostile::LongExpressions,
        Hostile::SparseFrames,
        Hostile::PackedZeros,
        Hostile::HugeNotes,
        Hostile::FarHeaders,
        Hostile::OwnDebugLink,
    ];

    /// Writes the file, so that everybody may run it.
    ///
    /// # Errors
    /// When the file system refuses it; some hold no files of 8 TiB.
    pub fn write(self, path: &Path) -> io::Result<()> {
        let mut image = Image::default();
        match self {
            Hostile::SharedName => image.nameless = 8000,
            Hostile::SparseSymbols => image.symbols(Content::Hole(HOLE), Content::names()),
            Hostile::ManyFunctions => {
                let functions = (0..3_500_000).flat_map(|number| function(number % FUNCTION_BYTES));
                let functions = Content::Bytes(functions.collect());
                image.symbols(functions, Content::names());
            }
            Hostile::SparseNames => image.names = Some(HOLE),
            Hostile::RepeatedDescriptions => {
                let mut frames = head();
                for number in 0..1_200_000u32 {
                    let [a, b, c, _] = number.to_le_bytes().map(|byte| byte | 0x80);
                    // "The CFA is at rsp + number."
                    describe(&mut frames, &[0x0e, a, b, c, (number >> 21) as u8 & 0x7f]);
                }
                image.frames(Content::Bytes(frames));
            }
            Hostile::DuplicateHeader => {
                let mut frames = head();
                let at = frames.len() as u32;
                describe(&mut frames, &deep(0));
                image.frames(Content::Bytes(frames));
                // Version 1; a pointer of four bytes, a count, and a table relative to the header.
                let mut header = vec![1, 0x1b, 0x03, 0x3b, 0, 0, 0, 0];
                header.extend_from_slice(&(4u32 << 20).to_le_bytes());
                // Headers lie as far behind their frames as both are told to be in memory.
                let place = at.wrapping_sub(HEADER_BEHIND as u32).to_le_bytes();
                let row = [(FUNCTION as u32).to_le_bytes(), place].concat();
                header.extend(row.repeat(4 << 20));
                let mut section = Section::new(".eh_frame_hdr", PROGBITS, Content::Bytes(header));
                section.address = FRAMES_AT + HEADER_BEHIND;
                image.sections.push(section);
            }
            Hostile::DeepDescription => {
                let mut frames = head();
                describe(&mut frames, &deep(0));
                image.frames(Content::Bytes(frames));
            }
            Hostile::ManyDeepDescriptions => {
                let mut frames = head();
                (0..600).for_each(|number| describe(&mut frames, &deep(number)));
                image.frames(Content::Bytes(frames));
            }
            Hostile::TediousCode => {
                let patterns: [&[u8]; 8] = [
                    // jz to the next instruction; jz into the middle of itself.
                    &[0x74, 0x00],
                    &[0x74, 0xff],
                    // jz over a computed jump.
                    &[0x74, 0x02, 0xff, 0xe0],
                    // call of what lies 16 KiB ahead; call rax, zeros.
                    &[0xe8, 0x00, 0x40, 0x00, 0x00],
                    &[0xff, 0xd0, 0x00, 0x00, 0x00, 0x00],
                    // push rax; push rax, pop rax.
                    &[0x50],
                    &[0x50, 0x58],
                    // mov eax, 15; syscall.
                    &[0xb8, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05],
                ];
                let code = patterns.iter().flat_map(|pattern| {
                    let endless = pattern.iter().copied().cycle();
                    endless.take(3 << 19)
                });
                let mut section = Section::new("code", PROGBITS, Content::Bytes(code.collect()));
                section.flags = EXECUTABLE;
                section.address = LOADED + CONTENT;
                image.sections.push(section);
            }
            Hostile::ManyRules => {
                let mut frames = head();
                (0..5).for_each(|number| describe(&mut frames, &rules(number)));
                image.frames(Content::Bytes(frames));
            }
            Hostile::ManyExpressions => {
                let mut frames = head();
                for number in 0..1000u16 {
                    // "The CFA is what this gives": a number, and nothing 60,000 times.
                    let mut expression = [&[0x0a][..], &number.to_le_bytes()].concat();
                    expression.resize(60 << 10, 0x96);
                    let instructions = [&[0x0f, 0x80, 0xe0, 0x03][..], &expression].concat();
                    describe(&mut frames, &instructions);
                }
                image.frames(Content::Bytes(frames));
            }
            Hostile::LongExpressions => {
                // Zero, dropped, fifty times; then a register and a distance.
                let long = |register: u8, distance: u8| {
                    let mut expression = [0x30, 0x13].repeat(50);
                    expression.extend([0x70 + register, distance]);
                    expression
                };
                let cfa = long(7, 8);
                let mut instructions = vec![0x0f, cfa.len() as u8];
                instructions.extend(cfa);
                for register in (0..16).filter(|&register| register != 7) {
                    let value = long(register, 0);
                    instructions.extend([0x16, register, value.len() as u8]);
                    instructions.extend(value);
                }
                let mut frames = head();
                describe(&mut frames, &instructions);
                image.frames(Content::Bytes(frames));
            }
            Hostile::SparseFrames => image.frames(Content::Hole(HOLE)),
            Hostile::PackedZeros => {
                let mut section =
                    Section::new(".debug_frame", PROGBITS, Content::Bytes(zeros(31 << 20)));
                section.flags = COMPRESSED;
                image.sections.push(section);
            }
            Hostile::HugeNotes => image.notes = 500,
            Hostile::FarHeaders => image.headers_at = Some(8 << 40),
            Hostile::OwnDebugLink => {
                let name = path.file_name().unwrap_or_default().as_encoded_bytes();
                let mut link = name.to_vec();
                link.resize((name.len() + 1).next_multiple_of(4) + 4, 0);
                let link = Content::Bytes(link);
                image
                    .sections
                    .push(Section::new(".gnu_debuglink", PROGBITS, link));
            }
        }
        image.write(path)
    }
}

/// Addresses stated for `.eh_frame`, and for `.eh_frame_hdr` behind it.
const FRAMES_AT: u64 = 0x1000_0000;
const HEADER_BEHIND: u64 = 0x1000_0000;

enum Content {
    Bytes(Vec<u8>),
    Hole(u64),
}

impl Content {
    fn names() -> Content {
        Content::Bytes(b"\0spin\0".to_vec())
    }

    fn len(&self) -> u64 {
        match self {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Hole(len) => *len,
        }
    }
}

struct Section {
    name: &'static str,
    kind: u32,
    flags: u64,
    address: u64,
    link: u32,
    content: Content,
}

impl Section {
    fn new(name: &'static str, kind: u32, content: Content) -> Section {
        Section {
            name,
            kind,
            flags: 0,
            address: 0,
            link: 0,
            content,
        }
    }

    fn header(&self, name: u32, offset: u64) -> Vec<u8> {
        let mut header = [name.to_le_bytes(), self.kind.to_le_bytes()].concat();
        let entry = if self.kind == SYMBOLS { 24 } else { 0 };
        for word in [self.flags, self.address, offset, self.content.len()] {
            header.extend_from_slice(&word.to_le_bytes());
        }
        header.extend_from_slice(&self.link.to_le_bytes());
        header.extend_from_slice(&[0; 4]);
        for word in [1u64, entry] {
            header.extend_from_slice(&word.to_le_bytes());
        }
        header
    }
}

#[derive(Default)]
struct Image {
    sections: Vec<Section>,
    /// Further sections, all of the same name without end.
    nameless: usize,
    /// Length of the table of names, where it is a hole.
    names: Option<u64>,
    notes: usize,
    headers_at: Option<u64>,
}

impl Image {
    fn symbols(&mut self, symbols: Content, names: Content) {
        let mut table = Section::new(".symtab", SYMBOLS, symbols);
        // Section 0 is the empty one.
        table.link = self.sections.len() as u32 + 1;
        self.sections.push(Section::new(".strtab", STRINGS, names));
        self.sections.push(table);
    }

    fn frames(&mut self, frames: Content) {
        let mut section = Section::new(".eh_frame", PROGBITS, frames);
        section.address = FRAMES_AT;
        self.sections.push(section);
    }

    fn write(mut self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        file.write_all_at(&code(), START)?;
        let mut names = match self.nameless {
            0 => vec![0],
            // One string for all, and no end.
            _ => vec![b'a'; 1 << 20],
        };
        let mut starts = Vec::new();
        for section in &self.sections {
            starts.push(names.len() as u32);
            names.extend_from_slice(section.name.as_bytes());
            names.push(0);
        }
        let names = match self.names {
            Some(len) => Content::Hole(len),
            None => Content::Bytes(names),
        };
        self.sections.push(Section::new("", STRINGS, names));
        starts.push(0);
        // Holes come last: their places need no room in the file that is written.
        let mut at = CONTENT;
        let mut hole_at = 1u64 << 32;
        let mut headers = vec![0; 64];
        for (section, &name) in self.sections.iter().zip(&starts) {
            let place = match &section.content {
                Content::Bytes(bytes) => {
                    let place = at;
                    file.write_all_at(bytes, place)?;
                    at = (place + bytes.len() as u64).next_multiple_of(16);
                    place
                }
                Content::Hole(len) => {
                    let place = hole_at;
                    hole_at += len;
                    place
                }
            };
            headers.extend(section.header(name, place));
        }
        let names_number = self.sections.len() as u16;
        let nameless = Section::new("", PROGBITS, Content::Bytes(Vec::new())).header(0, 0);
        headers.extend(nameless.repeat(self.nameless));
        file.write_all_at(&headers, at)?;
        let sections_at = at;
        at += headers.len() as u64;

        let segments_at = self.headers_at.unwrap_or(at.next_multiple_of(16));
        let mut segments = segment(1, 5, 0, FUNCTION + FUNCTION_BYTES, 0x1000);
        for _ in 0..self.notes {
            segments.extend(segment(4, 4, 1 << 32, HOLE, 4));
        }
        file.write_all_at(&segments, segments_at)?;
        let sections = headers.len() / 64;
        let header = file_header(
            segments_at,
            segments.len() / 56,
            sections_at,
            sections,
            names_number,
        );
        file.write_all_at(&header, 0)?;
        let end = segments_at + segments.len() as u64;
        let holes = if hole_at > 1 << 32 { hole_at } else { 0 };
        let notes = if self.notes > 0 { (1 << 32) + HOLE } else { 0 };
        file.set_len(end.max(at).max(holes).max(notes))?;
        file.set_permissions(Permissions::from_mode(0o755))
    }
}

fn file_header(
    segments_at: u64,
    segments: usize,
    sections_at: u64,
    sections: usize,
    names: u16,
) -> Vec<u8> {
    let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    // An executable for x86-64.
    header.extend_from_slice(&[2, 0, 62, 0, 1, 0, 0, 0]);
    for word in [LOADED + START, segments_at, sections_at] {
        header.extend_from_slice(&word.to_le_bytes());
    }
    header.extend_from_slice(&[0; 4]);
    for half in [64, 56, segments as u16, 64, sections as u16, names] {
        header.extend_from_slice(&half.to_le_bytes());
    }
    header
}

fn segment(kind: u32, flags: u32, offset: u64, len: u64, align: u64) -> Vec<u8> {
    let mut header = [kind.to_le_bytes(), flags.to_le_bytes()].concat();
    for word in [offset, LOADED + offset, LOADED + offset, len, len, align] {
        header.extend_from_slice(&word.to_le_bytes());
    }
    header
}

/// The program: fills 64 KiB of its stack with addresses in the function, and jumps to its start,
/// where it jumps to itself.
fn code() -> Vec<u8> {
    let mut code = vec![
        0xb8, 37, 0, 0, 0, // mov eax, alarm
        0xbf, 120, 0, 0, 0, // mov edi, 120
        0x0f, 0x05, // syscall
        0x48, 0xbb, // mov rbx, the function
    ];
    code.extend_from_slice(&(LOADED + FUNCTION).to_le_bytes());
    code.extend_from_slice(&[
        0xb9, 0, 0x20, 0, 0, // mov ecx, 8192
        0x48, 0x81, 0xec, 0, 0, 1, 0, // sub rsp, 65536
        0x48, 0x89, 0xe7, // mov rdi, rsp
        0x31, 0xd2, // xor edx, edx
        0x48, 0x8d, 0x44, 0x13, 1, // lea rax, [rbx + rdx + 1]
        0x48, 0x89, 0x07, // mov [rdi], rax
        0x48, 0x83, 0xc7, 8, // add rdi, 8
        0x83, 0xc2, 127, // add edx, 127
        0x81, 0xe2, 0xff, 0x7f, 0, 0, // and edx, 0x7fff
        0xff, 0xc9, // dec ecx
        0x75, 0xe7, // jnz to lea
        0xff, 0xe3, // jmp rbx
    ]);
    code.resize((FUNCTION - START) as usize, 0x90);
    code.extend_from_slice(&[0xeb, 0xfe]);
    code.resize((FUNCTION - START + FUNCTION_BYTES) as usize, 0x90);
    code
}

/// A symbol of a function that starts so far into the code.
fn function(into: u64) -> Vec<u8> {
    // The name, a global function, the section it is in.
    let mut symbol = vec![1, 0, 0, 0, 0x12, 0, 1, 0];
    symbol.extend_from_slice(&(LOADED + FUNCTION + into).to_le_bytes());
    symbol.extend_from_slice(&1u64.to_le_bytes());
    symbol
}

/// An `.eh_frame` with the head of all descriptions: the CFA is at rsp + 8, the return address
/// below it.
fn head() -> Vec<u8> {
    let content = [0, 0, 0, 0, 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1];
    [&(content.len() as u32).to_le_bytes()[..], &content].concat()
}

/// Adds a description of the function.
fn describe(frames: &mut Vec<u8>, instructions: &[u8]) {
    let back = frames.len() as u32 + 4;
    frames.extend_from_slice(&(20 + instructions.len() as u32).to_le_bytes());
    frames.extend_from_slice(&back.to_le_bytes());
    frames.extend_from_slice(&(LOADED + FUNCTION).to_le_bytes());
    frames.extend_from_slice(&FUNCTION_BYTES.to_le_bytes());
    frames.extend_from_slice(instructions);
}

/// 60 KiB: the state is saved, the next byte has another CFA, the state is restored; so for 12,000
/// bytes.
fn deep(number: u32) -> Vec<u8> {
    let mut instructions = vec![0x2e, number as u8 & 0x7f, 0x2e, (number >> 7) as u8 & 0x7f];
    instructions.extend([0x0a, 0x0e, 16, 0x41, 0x0b].repeat(12_000));
    instructions
}

/// 13,000 rows of as many bytes: each register is a distance from the CFA, and each row has another
/// CFA.
fn rules(part: u32) -> Vec<u8> {
    let mut instructions: Vec<u8> = (0..16).flat_map(|register| [0x14, register, 2]).collect();
    for number in (0..13_000).map(|number| part * 13_000 + number) {
        let [a, b] = [number, number >> 7].map(|bits| bits as u8 | 0x80);
        // The next byte; "the CFA is at rsp + number".
        instructions.extend([0x41, 0x0e, a, b, (number >> 14) as u8 & 0x7f]);
    }
    instructions
}

/// A compressed section of so many zeros: its header, then zlib's format with the fixed code of
/// deflate.
fn zeros(len: u64) -> Vec<u8> {
    let matches = (len - 1) / 258;
    let len = matches * 258 + 1;
    let mut section = [1u32.to_le_bytes(), [0; 4]].concat();
    section.extend_from_slice(&len.to_le_bytes());
    section.extend_from_slice(&1u64.to_le_bytes());
    section.extend_from_slice(&[0x78, 0x9c]);
    let (mut bits, mut count) = (0u32, 0);
    let mut put = |value: u32, width: u32| {
        bits |= value << count;
        count += width;
        while count >= 8 {
            section.push(bits as u8);
            bits >>= 8;
            count -= 8;
        }
    };
    // The last block, of the fixed code; codes are written from their highest bit on.
    put(0b011, 3);
    put(0b0000_1100, 8);
    for _ in 0..matches {
        // 258 bytes, one byte back.
        put(0b1010_0011, 8);
        put(0, 5);
    }
    put(0, 7);
    put(0, 7);
    // Adler-32 of zeros.
    let sum = ((len % 65521) as u32) << 16 | 1;
    section.extend_from_slice(&sum.to_be_bytes());
    section
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn each_file_is_a_program_that_spins() {
        if cfg!(not(target_arch = "x86_64")) {
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        for &hostile in Hostile::ALL {
            let path = dir.path().join("program");
            hostile
                .write(&path)
                .unwrap_or_else(|e| panic!("{hostile:?}: {e}"));
            let mut child = crate::process::spawn(&mut Command::new(&path)).expect("it runs");
            std::thread::sleep(Duration::from_millis(50));
            child.kill().expect("it is there");
            let status = child.wait().expect("it ends");
            assert_eq!(status.signal(), Some(9), "{hostile:?}: {status}");
            std::fs::remove_file(&path).expect("removed");
        }
    }
}
