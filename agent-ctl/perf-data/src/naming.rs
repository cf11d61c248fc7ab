//! Names of addresses, and what they say of the end of a stack.

use crate::local::LocalFiles;
use hashbrown::HashMap;
use host::frame::RawFrame;
use host::ids::{FileId, FileOffset, Pid, ProcessId};
use host::time::MonotonicTime;
use jit::code::CodeLookup;
use profile::{Dictionary, FrameId, FrameRef, StackEnd, StackId, StackTrie, UnnamedReason};
use symbolize::Named;
use symbolize::starts::{Start, cut_at_start};

/// The frames of each address: one, or several where functions are inlined.
pub struct Names {
    /// By number of the address: its place in `named`.
    spans: Vec<usize>,
    named: Named,
}

impl Names {
    /// Names all addresses, those of one file together.
    pub fn of(
        addresses: &[RawFrame],
        files: &LocalFiles,
        generated: &HashMap<ProcessId, Pid>,
        dict: &mut Dictionary,
    ) -> Names {
        let mut order: Vec<usize> = (0..addresses.len()).collect();
        order.sort_unstable_by_key(|&at| addresses[at]);
        let mut symbolizer = files.symbolizer();
        let (mut named, mut spans) = (Named::default(), vec![0; addresses.len()]);
        for (at, &address) in order.iter().enumerate() {
            spans[address] = at;
        }
        let groups = order.chunk_by(|&a, &b| group(addresses[a]) == group(addresses[b]));
        for members in groups {
            let frames = members.iter().map(|&at| addresses[at]);
            match addresses[members[0]] {
                RawFrame::File(file, _) => {
                    let offsets: Vec<FileOffset> = frames.filter_map(offset).collect();
                    files.reopen(file);
                    symbolizer.file(file, &offsets, dict, &mut named);
                }
                RawFrame::Kernel(_) => {
                    let all: Vec<u64> = frames.filter_map(kernel).collect();
                    symbolizer.kernel(&all, dict, &mut named);
                }
                RawFrame::Jit(process, _) => {
                    let code = match generated.get(&process) {
                        Some(&pid) => files.code(pid),
                        None => Err(UnnamedReason::JitProcessGone),
                    };
                    for address in frames.filter_map(generated_at) {
                        let found = code.as_ref().map(|code| code.find(address, LATEST));
                        let frame = match found {
                            Ok(CodeLookup::Code(code, offset)) => {
                                jit::names::intern(dict, &code.name, code.place(offset))
                            }
                            Ok(_) => jit::lookup::unnamed(dict, UnnamedReason::JitNotInMap),
                            Err(&reason) => jit::lookup::unnamed(dict, reason),
                        };
                        named.push(&[frame]);
                    }
                }
                RawFrame::Unknown(_)
                | RawFrame::WokenBy(_)
                | RawFrame::WakerCgroup(_)
                | RawFrame::Mark(_) => {
                    for frame in frames {
                        let reason = match frame {
                            RawFrame::Unknown(reason) => reason,
                            _ => UnnamedReason::NoMapping,
                        };
                        let frame = dict.intern_frame(FrameRef {
                            unnamed: reason,
                            function: "[unknown]",
                            ..FrameRef::default()
                        });
                        named.push(&[frame]);
                    }
                }
            }
        }
        Names { spans, named }
    }

    /// The frames of an address, leaf first.
    fn frames(&self, address: FrameId) -> &[FrameId] {
        self.named.frames_of(self.spans[address.0 as usize])
    }

    /// A stack of addresses as one of names, and how it ends now that its functions are known.
    pub fn stack(
        &self,
        stacks: &StackTrie,
        stack: StackId,
        end: StackEnd,
        dict: &mut Dictionary,
    ) -> (StackId, StackEnd) {
        let addresses: Vec<FrameId> = stacks.leaf_first(stack).collect();
        let (len, end) = cut_at_start(&addresses, 0, end, |&address| {
            let outer = self.frames(address).last();
            outer.map_or(Start::No, |&outer| Start::of(dict.frame(outer)))
        });
        let outer_first = addresses[..len].iter().rev();
        let frames = outer_first.flat_map(|&address| self.frames(address).iter().rev().copied());
        (dict.stacks.intern(frames), end)
    }
}

/// Later than every sample: of code at one address the last counts.
const LATEST: MonotonicTime = MonotonicTime(u64::MAX);

/// Addresses that are named together.
#[derive(PartialEq, Eq)]
enum Group {
    File(FileId),
    Kernel,
    Generated(ProcessId),
    Other,
}

fn group(frame: RawFrame) -> Group {
    match frame {
        RawFrame::File(file, _) => Group::File(file),
        RawFrame::Kernel(_) => Group::Kernel,
        RawFrame::Jit(process, _) => Group::Generated(process),
        _ => Group::Other,
    }
}

fn offset(frame: RawFrame) -> Option<FileOffset> {
    match frame {
        RawFrame::File(_, offset) => Some(offset),
        _ => None,
    }
}

fn kernel(frame: RawFrame) -> Option<u64> {
    match frame {
        RawFrame::Kernel(address) => Some(address),
        _ => None,
    }
}

fn generated_at(frame: RawFrame) -> Option<u64> {
    match frame {
        RawFrame::Jit(_, address) => Some(address.0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::ids::Avma;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use symbolize::elf::read_headers;
    use symbolize::files::{FileIdentity, FileSeen, RELATIVES};

    fn seen(id: u32, path: &Path) -> FileSeen {
        FileSeen {
            id: FileId(id),
            identity: FileIdentity::Path,
            path: path.as_os_str().as_bytes().into(),
            pid: Pid(1),
            range: (Avma(0), Avma(0)),
            relatives: [Pid(0); RELATIVES],
        }
    }

    /// Where a program starts.
    fn entry(program: &Path) -> FileOffset {
        let file = std::fs::File::open(program).expect("a program");
        let headers = read_headers(&file).expect("its headers");
        let mut all = headers.segments.iter();
        let code = all.find(|segment| segment.executable).expect("code");
        FileOffset(headers.entry - code.address + code.offset)
    }

    #[test]
    fn more_files_than_are_open_at_a_time_have_names() {
        let program = std::env::current_exe().expect("this program");
        let dir = tempfile::tempdir().expect("a directory");
        let copy = dir.path().join("copy");
        std::fs::copy(&program, &copy).expect("a copy");
        let mut files = LocalFiles::holding(Some(1), true);
        files.see(seen(0, &program));
        files.see(seen(1, &copy));
        let addresses = [0, 1].map(|id| RawFrame::File(FileId(id), entry(&program)));
        let mut dict = Dictionary::default();
        let names = Names::of(&addresses, &files, &HashMap::new(), &mut dict);
        for address in [FrameId(0), FrameId(1)] {
            let frames = names.frames(address).iter();
            let functions: Vec<&str> = frames.map(|&frame| dict.frame(frame).function).collect();
            assert_eq!(functions, ["_start"]);
        }
    }
}
