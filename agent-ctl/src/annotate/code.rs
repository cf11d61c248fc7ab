//! The instructions of a function, from the file that was sampled.
//!
//! The file is that of a running process, opened through its mapping or, if that is not allowed,
//! through its path in the root of the process; or it is named by the user. It counts only if it
//! has the build ID of the samples. It is untrusted all the same: each part is bounded before it is
//! read, and nothing is mapped into memory. The unwind information, which stripped files also have,
//! says where a function starts and ends.

use super::regular::PathHandle;
use crate::terminal::clean;
use gimli::{BaseAddresses, EhFrame, EhFrameHdr, LittleEndian, Pointer, UnwindSection};
use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter, Instruction};
use object::LittleEndian as LE;
use object::elf::{
    ELFCLASS64, ELFDATA2LSB, ELFMAG, EM_X86_64, FileHeader64, NT_GNU_BUILD_ID, PF_X,
    PT_GNU_EH_FRAME, PT_LOAD, PT_NOTE, ProgramHeader64, ProgramType,
};
use object::pod::{from_bytes, slice_from_bytes};
use object::read::elf::NoteIterator;
use std::cell::OnceCell;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Most program headers. Linked files have about a dozen.
const SEGMENTS_MAX: u64 = 256;

/// Largest note read. Unit: bytes.
const NOTE_BYTES_MAX: u64 = 64 << 10;

/// Largest table of where functions start, and most unwind information read. Unit: bytes. The
/// largest browsers have 30 MB.
const UNWIND_BYTES_MAX: u64 = 96 << 20;

/// Longest function that is shown by instruction. Unit: bytes. Longer ones are generated.
const FUNCTION_BYTES_MAX: u64 = 64 << 10;

/// Longest list of mappings read of one process. Unit: bytes.
const MAPS_BYTES_MAX: u64 = 16 << 20;

/// Most files looked at that one process has mapped.
const FILES_MAX: usize = 512;

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// Its first byte, as the file counts addresses.
    pub address: u64,
    /// The first byte behind it.
    pub next: u64,
    /// What it says, in the syntax of GNU tools.
    pub text: String,
}

/// An ELF file of known build.
#[derive(Debug)]
pub struct Code {
    file: File,
    len: u64,
    segments: Vec<ProgramHeader64<LE>>,
    /// Read when first asked for; none when there is none that can be read.
    unwind: OnceCell<Option<Unwind>>,
}

/// The data that says where functions start and end.
#[derive(Debug)]
struct Unwind {
    /// `.eh_frame_hdr` and its address.
    header: (Vec<u8>, u64),
    /// `.eh_frame` and its address.
    frames: (Vec<u8>, u64),
}

/// Reads a range of a file that is at most so long.
fn read(file: &File, len: u64, (offset, size): (u64, u64), most: u64) -> Result<Vec<u8>, String> {
    let end = offset.checked_add(size);
    if size > most || end.is_none_or(|end| end > len) {
        return Err("the file is damaged, or too large".to_owned());
    }
    let mut bytes = vec![0; size as usize];
    file.read_exact_at(&mut bytes, offset)
        .map_err(|error| error.to_string())?;
    Ok(bytes)
}

impl Code {
    /// Takes a file if it is of this build.
    ///
    /// # Errors
    /// Why it is of no use.
    fn of(file: File, build_id: &str) -> Result<Code, String> {
        const HEADER: u64 = size_of::<FileHeader64<LE>>() as u64;
        let facts = file.metadata().map_err(|error| error.to_string())?;
        if !facts.is_file() {
            return Err("it is not a regular file".to_owned());
        }
        let len = facts.len();
        let no_elf = || {
            "it is not an x86-64 ELF file, the only architecture that agent-ctl \
            disassembles"
                .to_owned()
        };
        let head = read(&file, len, (0, HEADER), HEADER).map_err(|_| no_elf())?;
        let (header, _) = from_bytes::<FileHeader64<LE>>(&head).map_err(|()| no_elf())?;
        let ident = &header.e_ident;
        let is_known = (ident.magic, ident.class, ident.data) == (ELFMAG, ELFCLASS64, ELFDATA2LSB)
            && header.e_machine.get(LE) == EM_X86_64;
        let entry = u64::from(header.e_phentsize.get(LE));
        if !is_known || entry != size_of::<ProgramHeader64<LE>>() as u64 {
            return Err(no_elf());
        }
        let count = u64::from(header.e_phnum.get(LE));
        let at = (header.e_phoff.get(LE), count * entry);
        let table = read(&file, len, at, SEGMENTS_MAX * entry)?;
        let (segments, _) = slice_from_bytes::<ProgramHeader64<LE>>(&table, count as usize)
            .map_err(|()| no_elf())?;
        let code = Code {
            segments: segments.to_vec(),
            file,
            len,
            unwind: OnceCell::new(),
        };
        match code.build_id() {
            Some(found) if found == build_id => Ok(code),
            Some(_) => Err("it is not the build that was sampled".to_owned()),
            None => Err("it has no build id".to_owned()),
        }
    }

    fn of_kind(&self, kind: ProgramType) -> impl Iterator<Item = &ProgramHeader64<LE>> {
        let segments = self.segments.iter();
        segments.filter(move |segment| segment.p_type.get(LE) == kind)
    }

    fn build_id(&self) -> Option<String> {
        self.of_kind(PT_NOTE).find_map(|segment| {
            let at = (segment.p_offset.get(LE), segment.p_filesz.get(LE));
            let bytes = read(&self.file, self.len, at, NOTE_BYTES_MAX).ok()?;
            let align = segment.p_align.get(LE);
            let mut notes = NoteIterator::<FileHeader64<LE>>::new(LE, align, &bytes).ok()?;
            while let Ok(Some(note)) = notes.next() {
                if note.name() == b"GNU" && note.n_type(LE) == NT_GNU_BUILD_ID {
                    return Some(profile::build_id_text(note.desc()));
                }
            }
            None
        })
    }

    /// Bytes from an address to another, or to the end of their segment.
    fn bytes(&self, from: u64, to: Option<u64>, most: u64) -> Result<Vec<u8>, String> {
        let nowhere = || format!("no part of the file has {from:#x}");
        let inside = |segment: &&ProgramHeader64<LE>| {
            let start = segment.p_vaddr.get(LE);
            from >= start && from - start < segment.p_filesz.get(LE)
        };
        let segment = self.of_kind(PT_LOAD).find(inside).ok_or_else(nowhere)?;
        let into = from - segment.p_vaddr.get(LE);
        let left = segment.p_filesz.get(LE) - into;
        let size = match to {
            Some(to) => to.saturating_sub(from).min(left),
            None => left.min(most),
        };
        let offset = segment.p_offset.get(LE).checked_add(into);
        read(
            &self.file,
            self.len,
            (offset.ok_or_else(nowhere)?, size),
            most,
        )
    }

    fn unwind(&self) -> Option<Unwind> {
        let unwind = self.of_kind(PT_GNU_EH_FRAME).next()?;
        let (at, size) = (unwind.p_vaddr.get(LE), unwind.p_filesz.get(LE));
        let end = Some(at.saturating_add(size));
        let header = self.bytes(at, end, UNWIND_BYTES_MAX).ok()?;
        let bases = BaseAddresses::default().set_eh_frame_hdr(at);
        let parsed = EhFrameHdr::new(&header, LittleEndian).parse(&bases, 8);
        let Pointer::Direct(frames_at) = parsed.ok()?.eh_frame_ptr() else {
            return None;
        };
        let frames = self.bytes(frames_at, None, UNWIND_BYTES_MAX).ok()?;
        Some(Unwind {
            header: (header, at),
            frames: (frames, frames_at),
        })
    }

    /// Where the function of an address starts and ends.
    fn extent(&self, address: u64) -> Result<(u64, u64), String> {
        let none = || format!("the start and end of the function at {address:#x} are not known");
        let unwind = self.unwind.get_or_init(|| self.unwind());
        let Unwind { header, frames } = unwind.as_ref().ok_or_else(none)?;
        let bases = BaseAddresses::default().set_eh_frame_hdr(header.1);
        let bases = bases.set_eh_frame(frames.1);
        let header = EhFrameHdr::new(&header.0, LittleEndian);
        let header = header.parse(&bases, 8).map_err(|_| none())?;
        let table = header.table().ok_or_else(none)?;
        let frames = EhFrame::new(&frames.0, LittleEndian);
        let described = table
            .fde_for_address(&frames, &bases, address, EhFrame::cie_from_offset)
            .map_err(|_| none())?;
        let (start, length) = (described.initial_address(), described.len());
        let end = start.checked_add(length).ok_or_else(none)?;
        match length <= FUNCTION_BYTES_MAX {
            true => Ok((start, end)),
            false => Err(format!(
                "the function at {address:#x} has {length} bytes, too many to show"
            )),
        }
    }

    /// The instructions of the function of an address, in order.
    ///
    /// # Errors
    /// Why they are not known.
    pub fn function(&self, address: u64) -> Result<Vec<Decoded>, String> {
        let (start, end) = self.extent(address)?;
        let is_code = self.of_kind(PT_LOAD).any(|segment| {
            let from = segment.p_vaddr.get(LE);
            segment.p_flags.get(LE).0 & PF_X.0 != 0
                && start >= from
                && start - from < segment.p_filesz.get(LE)
        });
        if !is_code {
            return Err(format!("the file has no code at {address:#x}"));
        }
        let bytes = self.bytes(start, Some(end), FUNCTION_BYTES_MAX)?;
        let mut decoder = Decoder::with_ip(64, &bytes, start, DecoderOptions::NONE);
        let mut formatter = GasFormatter::new();
        formatter.options_mut().set_branch_leading_zeros(false);
        formatter.options_mut().set_uppercase_hex(false);
        let mut instruction = Instruction::default();
        let mut all = Vec::new();
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            let mut text = String::new();
            formatter.format(&instruction, &mut text);
            all.push(Decoded {
                address: instruction.ip(),
                next: instruction.next_ip(),
                text,
            });
        }
        Ok(all)
    }
}

/// Where to look for the file of sampled code.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// It was named.
    pub named: Option<PathBuf>,
    /// The processes that were sampled are of this machine.
    pub local: bool,
}

impl Place {
    /// The file of a build, which these processes run as `module`.
    ///
    /// # Errors
    /// Why there is none.
    pub fn open(
        &self,
        build_id: &str,
        module: &str,
        pids: impl IntoIterator<Item = u32>,
    ) -> Result<Code, String> {
        let shown = clean(module);
        if let Some(path) = &self.named {
            let place = path.to_string_lossy();
            let failed = |why: String| format!("failed to use `{}`: {why}", clean(&place));
            let handle = PathHandle::at(path).map_err(|error| failed(error.to_string()))?;
            let code = handle.open().and_then(|file| Code::of(file, build_id));
            return code.map_err(failed);
        }
        if !self.local {
            return Err(format!(
                "`{shown}` is on another machine: give a copy of the file with --binary"
            ));
        }
        let mut why = "no process is known that runs it".to_owned();
        for pid in pids {
            match of_process(pid, module, build_id) {
                Ok(code) => return Ok(code),
                Err(error) => why = format!("process {pid}: {error}"),
            }
        }
        Err(format!(
            "failed to open `{shown}` ({why}): give a copy with --binary"
        ))
    }
}

/// The file of a build that a process has mapped, most likely under this name: copies of a file
/// have other names and the same build.
fn of_process(pid: u32, module: &str, build_id: &str) -> Result<Code, String> {
    let maps = File::open(format!("/proc/{pid}/maps"));
    let maps = maps.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "it has ended".to_owned(),
        _ => error.to_string(),
    })?;
    let mut text = Vec::new();
    let read = maps.take(MAPS_BYTES_MAX).read_to_end(&mut text);
    read.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&text);
    let mut mapped: Vec<(&str, &str)> = text.lines().filter_map(mapping).collect();
    let is_other = |path: &str| path.rsplit('/').next() != Some(module);
    mapped.sort_by_key(|&(_, path)| is_other(path));
    let mut why = None;
    for (range, path) in mapped.into_iter().take(FILES_MAX) {
        // The mapping leads to the file even when that is deleted; not everybody may follow it. The
        // path is what the process says: it may lead to other files of its root, and no further.
        let inside = Path::new("/proc").join(pid.to_string());
        let handle = PathHandle::at(&inside.join("map_files").join(range))
            .or_else(|_| PathHandle::within(&inside.join("root"), Path::new(path)));
        let opened = handle
            .map_err(|error| error.to_string())
            .and_then(PathHandle::open);
        match opened.and_then(|file| Code::of(file, build_id)) {
            Ok(code) => return Ok(code),
            // It says nothing about another file.
            Err(error) if !is_other(path) => why = Some(error),
            Err(_) => {}
        }
    }
    Err(why.unwrap_or_else(|| "it no longer maps the file".to_owned()))
}

/// Range and path of a line of `maps` with code.
fn mapping(line: &str) -> Option<(&str, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (rights, _) = rest.split_once(' ')?;
    let path = rest.find('/').map(|at| &rest[at..])?;
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    rights.contains('x').then_some((range, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This program: where one of its own functions is, and its build id.
    fn own() -> (PathBuf, String) {
        let path = std::env::current_exe().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        use object::Object;
        let file = object::File::parse(&*bytes).unwrap();
        let id = file.build_id().unwrap().map(profile::build_id_text);
        (path, id.unwrap_or_default())
    }

    #[test]
    fn a_file_counts_only_if_it_is_the_build_that_was_sampled() {
        let (path, build_id) = own();
        let named = Place {
            named: Some(path.clone()),
            local: false,
        };
        assert!(named.open(&build_id, "x", []).is_ok());
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        super::super::regular::tests::fifo(&pipe);
        let named_pipe = Place {
            named: Some(pipe),
            local: false,
        };
        let error = named_pipe.open(&build_id, "x", []).unwrap_err();
        assert!(error.ends_with("it is not a regular file"), "{error}");
        let other = "ab".repeat(20);
        let error = named.open(&other, "x", []).unwrap_err();
        assert!(
            error.ends_with("it is not the build that was sampled"),
            "{error}"
        );
        let here = Place {
            named: None,
            local: true,
        };
        let module = path.file_name().unwrap().to_str().unwrap();
        for name in [module, "a copy"] {
            assert!(here.open(&build_id, name, [std::process::id()]).is_ok());
        }
        let error = here
            .open(&other, "other\x1b", [std::process::id()])
            .unwrap_err();
        assert!(
            error.starts_with("failed to open `other\\x1b` (process "),
            "{error}"
        );
        let error = here.open(&build_id, module, [u32::MAX]).unwrap_err();
        assert!(error.contains("it has ended"), "{error}");
        let error = Place::default().open(&build_id, "x", []).unwrap_err();
        assert!(error.contains("another machine"), "{error}");
    }

    #[test]
    fn damaged_files_have_a_reason_and_no_panic() {
        let (path, build_id) = own();
        let bytes = std::fs::read(path).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("damaged");
        let code = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            Code::of(File::open(&path).unwrap(), &build_id)
        };
        let whole = code(&bytes).unwrap();
        let entry = u64::from_le_bytes(*bytes[24..].first_chunk().unwrap());
        assert!(whole.function(entry).is_ok());
        assert!(whole.function(0).is_err() && whole.function(u64::MAX).is_err());
        for len in [0, 10, 64, 200] {
            assert!(code(&bytes[..len]).is_err(), "{len}");
        }
        // The first kilobyte has the headers: whatever stands there, nothing falls.
        for at in 0..1024 {
            let mut head = bytes[..8 << 10].to_vec();
            head[at] ^= 0xff;
            if let Ok(code) = code(&head) {
                let _ = code.function(entry);
            }
        }
    }

    #[test]
    fn mappings_with_code_are_found() {
        let line = "55d0-55e0 r-xp 00001000 fe:00 42    /usr/bin/my program (deleted)";
        assert_eq!(mapping(line), Some(("55d0-55e0", "/usr/bin/my program")));
        assert_eq!(
            mapping("55d0-55e0 r--p 00001000 fe:00 42    /usr/bin/a"),
            None
        );
        assert_eq!(mapping("55d0-55e0 r-xp 00000000 00:00 0    [vdso]"), None);
        assert_eq!(mapping(""), None);
    }
}
