//! The code of a JVM, read from the JVM's own structures: names and unwind rules without a flag, an
//! agent or a restart.
//!
//! HotSpot has all generated code in heaps of blobs. Each blob says where its code lies and how
//! large its frame is, and one of a compiled method has the method, which has its name. A map of
//! segments, a byte for each 128 bytes of a heap, has a zero where a blob starts: as long as no map
//! changes, no blob came or went. Compiled code keeps no frame pointer, and needs none with the
//! size of its frame. Interpreted functions have no code of their own: their frames hold the
//! address of their method, which the unwinder takes for the frame's address
//! (`daemon/unwind/src/walk/engine/interpreted.rs`).
//!
//! Everything belongs to another process and changes while it is read. A blob is read again after
//! its name was, and a method that no code names counts only if its class has it. So an address has
//! the right name, or none. Reading may take forever: for helpers only.

mod layout;
mod memory;
mod methods;

use crate::code::{CodeMap, Lines, When};
use crate::rules::RulesBuilder;
use host::ids::Pid;
use host::time::MonotonicTime;
pub use layout::Layout;
use layout::NotStarted;
use memory::Memory;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;
use std::sync::Arc;
use unwind::arch::READS_RUNTIME_CODE;
use unwind::info::rule::Rule;

/// Most heaps of code. OpenJDK 17 has one or three.
const HEAPS_MAX: i32 = 8;

/// Longest map of segments. Unit: bytes. 512 MiB of code; the JVM reserves 240 MiB by default.
const SEGMENTS_MAX: u64 = 4 << 20;

/// Most blobs that are held of a process. Unit: blobs, of some 120 bytes each.
const BLOBS_MAX: usize = 65_536;

/// Most blobs read at once; the others are read a second later. One takes some 15 µs.
const BLOBS_A_LOOK: usize = 2048;

/// Reads and bytes of one look. A blob with its name takes some 15 reads.
const READS_MAX: u32 = 65_536;
const BYTES_MAX: usize = 32 << 20;

/// What a read and a byte take of the budget for files, which is in bytes that are parsed: a read
/// takes a microsecond, and a byte an eighth of what parsing one does.
const READ_COSTS: u64 = 256;
const BYTES_A_COST: u64 = 8;

/// Longest code of which the ends of functions are looked for. Unit: bytes.
const CODE_BYTES_MAX: u64 = 256 << 10;

/// Longest name of a blob. Unit: bytes.
const NAME_BYTES_MAX: usize = 256;

/// What is known of one process.
#[derive(Debug, Default)]
pub struct HotSpot {
    layout: Known,
    /// How often it was asked.
    asked: u64,
    heaps: Vec<Heap>,
    /// Hash of the maps of segments at the last look that read all blobs.
    digest: Option<u64>,
    blobs: BTreeMap<u64, Blob>,
    interpreter: Option<Range<u64>>,
    /// When the structures were last read.
    read_at: MonotonicTime,
}

#[derive(Debug, Default)]
enum Known {
    /// It was not looked for, or its JVM had not started.
    #[default]
    NotYet,
    /// It is none, or none that is known.
    No,
    Yes(Arc<Layout>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Heap {
    range: Range<u64>,
    segments_at: u64,
    log2_segment: u32,
}

impl Heap {
    /// How many it has.
    fn segments(&self) -> u64 {
        (self.range.end - self.range.start) >> self.log2_segment
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Blob {
    code: Range<u64>,
    frame: Frame,
    /// From where on the frame has that size, counted from the start of the code.
    complete_at: i32,
    /// Method and number of a compilation.
    compiled: Option<(u64, i32)>,
    /// None when its method has none that is certain.
    name: Option<Arc<str>>,
    /// The ends of its functions have rules.
    ends_known: bool,
}

/// What lies between the stack pointer and the return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    /// It is below the saved frame pointer, as in stubs and the interpreter.
    ByPointer,
    /// Nothing: the code jumps to another.
    Nothing,
    /// So many bytes, with the return address.
    Bytes(i32),
}

/// Rules from an offset on.
type RuleRows = Vec<(u32, Rule)>;

/// What one look found.
#[derive(Debug)]
pub struct Changes {
    when: When,
    interpreter: Option<Range<u64>>,
    /// There is more to read.
    pub more: bool,
    came: Vec<Blob>,
    went: Vec<Range<u64>>,
    methods: Vec<(u64, String)>,
    /// Rules of code, with the ends of its functions.
    refined: Vec<(Range<u64>, RuleRows)>,
}

impl HotSpot {
    /// Reads what changed, and names the methods among `addresses`; `None` where the process is no
    /// JVM. `budget` becomes less by what that took; unit: bytes.
    pub fn refresh(&mut self, pid: Pid, addresses: &[u64], budget: &mut u64) -> Option<Changes> {
        let layout = self.layout(pid)?;
        let reads = (*budget / (2 * READ_COSTS)).min(READS_MAX.into()) as u32;
        let bytes = (*budget / 2)
            .saturating_mul(BYTES_A_COST)
            .min(BYTES_MAX as u64) as usize;
        let memory = Memory::open(pid.0, reads, bytes).ok()?;
        let started = MonotonicTime::now();
        let mut found = Changes {
            when: When::at(started),
            interpreter: None,
            more: false,
            came: Vec::new(),
            went: Vec::new(),
            methods: Vec::new(),
            refined: Vec::new(),
        };
        found.more = self.look(&memory, &layout, &mut found).unwrap_or(false);
        for &address in addresses {
            if memory.is_spent() {
                break;
            }
            self.look_at(&memory, &layout, address, &mut found);
        }
        found.when = When::between(self.read_at, MonotonicTime::now());
        found.interpreter.clone_from(&self.interpreter);
        self.read_at = started;
        let (reads, bytes) = memory.taken();
        let costs = u64::from(reads) * READ_COSTS + bytes as u64 / BYTES_A_COST;
        *budget = budget.saturating_sub(costs);
        Some(found)
    }

    /// Memory held, in bytes, about. Names are shared with nobody.
    pub fn heap_bytes(&self) -> usize {
        let names = self.blobs.values().filter_map(|blob| blob.name.as_deref());
        let names = names.map(str::len);
        self.blobs.len() * (size_of::<Blob>() + 24) + names.sum::<usize>()
    }

    fn layout(&mut self, pid: Pid) -> Option<Arc<Layout>> {
        // Frames of other architectures were not looked at.
        if !READS_RUNTIME_CODE {
            return None;
        }
        self.asked += 1;
        if matches!(self.layout, Known::NotYet) && self.asked.is_power_of_two() {
            self.layout = match Layout::look(pid.0) {
                Ok(Some(layout)) => Known::Yes(Arc::new(layout)),
                // A program may load a JVM later.
                Ok(None) if self.asked < 64 => Known::NotYet,
                Ok(None) => Known::No,
                Err(NotStarted) => Known::NotYet,
            };
        }
        match &self.layout {
            Known::Yes(layout) => Some(Arc::clone(layout)),
            Known::NotYet | Known::No => None,
        }
    }

    /// Reads the heaps; `Some(true)` if there are more blobs than were read.
    fn look(&mut self, memory: &Memory, layout: &Layout, found: &mut Changes) -> Option<bool> {
        self.heaps = heaps(memory, layout)?;
        self.interpreter = interpreter(memory, layout).or(self.interpreter.take());
        let mut hasher = DefaultHasher::new();
        let mut starts = Vec::new();
        for heap in &self.heaps {
            let map = memory.bytes(heap.segments_at, heap.segments() as usize)?;
            hasher.write_u64(heap.range.start);
            hasher.write(&map);
            let zeros = map.iter().enumerate().filter(|(_, byte)| **byte == 0);
            let start = |at: usize| heap.range.start + ((at as u64) << heap.log2_segment);
            starts.extend(zeros.map(|(at, _)| start(at).wrapping_add(layout.heap_block_bytes)));
        }
        let digest = hasher.finish();
        if self.digest == Some(digest) {
            return Some(false);
        }
        let there: hashbrown::HashSet<u64> = starts.iter().copied().collect();
        self.blobs.retain(|start, blob| {
            let stays = there.contains(start);
            if !stays {
                found.went.push(blob.code.clone());
            }
            stays
        });
        let new = starts.into_iter();
        let mut new = new.filter(|start| !self.blobs.contains_key(start));
        let batch: Vec<u64> = new.by_ref().take(BLOBS_A_LOOK).collect();
        let more = new.next().is_some();
        let mut complete = !more;
        for start in batch {
            if self.blobs.len() >= BLOBS_MAX {
                break;
            }
            match self.blob(memory, layout, start) {
                Some(blob) => {
                    found.came.push(blob.clone());
                    self.blobs.insert(start, blob);
                }
                None => complete = false,
            }
        }
        // One that could not be read is tried again.
        self.digest = complete.then_some(digest);
        Some(more && self.blobs.len() < BLOBS_MAX)
    }

    /// Reads a blob and its name; `None` where it changed meanwhile, or makes no sense.
    fn blob(&self, memory: &Memory, layout: &Layout, start: u64) -> Option<Blob> {
        let at = |offset: u64| start.checked_add(offset);
        let name = memory.word(at(layout.blob_name)?)?;
        let name = memory.text(name, NAME_BYTES_MAX)?;
        let code =
            memory.word(at(layout.blob_code_begin)?)?..memory.word(at(layout.blob_code_end)?)?;
        let inside = |heap: &Heap| heap.range.start <= code.start && code.end <= heap.range.end;
        if code.start < start || code.is_empty() || !self.heaps.iter().any(inside) {
            return None;
        }
        let is_method = matches!(&*name, "nmethod" | "native nmethod");
        let words = memory.int(at(layout.blob_frame_size)?)?;
        // Stubs that compiled code calls, such as `_new_instance_Java`, are compiled as it is;
        // others keep a frame pointer.
        let framed = is_method || name.starts_with('_');
        let frame = match words.checked_mul(8) {
            Some(bytes) if framed && bytes >= 16 => Frame::Bytes(bytes),
            _ if name.starts_with("vtable chunks") => Frame::Nothing,
            _ => Frame::ByPointer,
        };
        let compiled = || {
            let method = memory.word(at(layout.nmethod_method)?)?;
            Some((method, memory.int(at(layout.nmethod_compile_id)?)?))
        };
        let (compiled, name) = match is_method {
            false => (None, Some(name.into())),
            true => {
                let before = compiled()?;
                let name = methods::name_of_compiled(memory, layout, before.0);
                if compiled()? != before {
                    return None;
                }
                (Some(before), name.map(Arc::from))
            }
        };
        Some(Blob {
            code,
            frame,
            complete_at: memory.int(at(layout.blob_frame_complete)?)?,
            compiled,
            name,
            ends_known: false,
        })
    }

    /// Looks at one address of a sample: whether what is known of it still holds, or the method
    /// that it is.
    fn look_at(&mut self, memory: &Memory, layout: &Layout, address: u64, found: &mut Changes) {
        if !self.heaps.iter().any(|heap| heap.range.contains(&address)) {
            if address.is_multiple_of(8)
                && let Some(name) = methods::name(memory, layout, address)
            {
                found.methods.push((address, format!("{name}_[i]")));
            }
            return;
        }
        let Some((&start, blob)) = self.blobs.range(..=address).next_back() else {
            return;
        };
        if !blob.code.contains(&address) {
            return;
        }
        let mut blob = blob.clone();
        if let Some(compiled) = blob.compiled {
            let method = memory.word(start.wrapping_add(layout.nmethod_method));
            let number = memory.int(start.wrapping_add(layout.nmethod_compile_id));
            if method.zip(number) != Some(compiled) {
                // Other code lies there, as long as the old one.
                found.went.push(blob.code.clone());
                self.blobs.remove(&start);
                self.digest = None;
                let Some(other) = self.blob(memory, layout, start) else {
                    return;
                };
                blob = other;
                found.came.push(blob.clone());
            }
        }
        if !blob.ends_known
            && let Frame::Bytes(bytes) = blob.frame
            && blob.code.end - blob.code.start <= CODE_BYTES_MAX
        {
            let length = (blob.code.end - blob.code.start) as usize;
            if let Some(code) = memory.bytes(blob.code.start, length)
                && let Some(rows) = rows(blob.complete_at, bytes, &code)
            {
                found.refined.push((blob.code.clone(), rows));
            }
            blob.ends_known = true;
        }
        self.blobs.insert(start, blob);
    }
}

impl Changes {
    /// Puts them into what is known of the process.
    pub fn tell(self, code: &mut CodeMap, rules: &mut RulesBuilder) {
        let when = self.when;
        for range in self.went {
            code.unload(range.clone(), when);
            rules.unload(range);
        }
        for blob in self.came {
            match &blob.name {
                Some(name) => drop(code.load(blob.code.clone(), name, Lines::default(), when)),
                None => code.unload(blob.code.clone(), when),
            }
            let rows = match blob.frame {
                Frame::Bytes(bytes) => rows(blob.complete_at, bytes, &[]),
                Frame::Nothing => Some(vec![(0, Rule::return_address_at(0))]),
                Frame::ByPointer => None,
            };
            if let Some(rows) = rows {
                rules.describe(blob.code, &rows);
            }
        }
        for (range, rows) in self.refined {
            rules.describe(range, &rows);
        }
        for (method, name) in self.methods {
            code.load(method..method + 1, &name, Lines::default(), when);
        }
        rules.interpret(self.interpreter);
    }
}

/// The heaps of code.
fn heaps(memory: &Memory, layout: &Layout) -> Option<Vec<Heap>> {
    let list = memory.word(layout.code_heaps)?;
    let count = memory.int(list.checked_add(layout.array_len)?)?;
    let data = memory.word(list.checked_add(layout.array_data)?)?;
    if !(1..=HEAPS_MAX).contains(&count) {
        return None;
    }
    let heaps = (0..count as u64).map(|number| {
        let heap = memory.word(data.checked_add(8 * number)?)?;
        let low_of = |space: u64| memory.word(heap.checked_add(space + layout.space_low)?);
        let high_of = |space: u64| memory.word(heap.checked_add(space + layout.space_high)?);
        let log2_segment = memory.int(heap.checked_add(layout.heap_log2_segment)?)?;
        let range = low_of(layout.heap_memory)?..high_of(layout.heap_memory)?;
        if range.start > range.end || !(4..=20).contains(&log2_segment) {
            return None;
        }
        let heap = Heap {
            range,
            segments_at: low_of(layout.heap_segments)?,
            log2_segment: log2_segment as u32,
        };
        (heap.segments() <= SEGMENTS_MAX).then_some(heap)
    });
    heaps.collect()
}

/// The interpreter's code.
fn interpreter(memory: &Memory, layout: &Layout) -> Option<Range<u64>> {
    let stubs = memory.word(layout.interpreter_code).filter(|&at| at != 0)?;
    let start = memory.word(stubs.checked_add(layout.stubs_buffer)?)?;
    let length = memory.int(stubs.checked_add(layout.stubs_limit)?)?;
    let end = start.checked_add(u64::try_from(length).ok()?)?;
    (start < end).then_some(start..end)
}

/// The rules of compiled code with a frame of so many bytes from `complete_at` on. `code`: its
/// instructions, in which the ends of functions are looked for; empty when they are not known.
///
/// At its start there is `push %rbp; sub $N,%rsp`, or `sub $N,%rsp; mov %rbp,N-16(%rsp)`; at each
/// end `add $N,%rsp; pop %rbp`, a check and `ret`. Seen with OpenJDK 17.
fn rows(complete_at: i32, frame_bytes: i32, code: &[u8]) -> Option<RuleRows> {
    const PUSH: u8 = 0x55;
    const POP: u8 = 0x5d;
    const RETURN: u8 = 0xc3;
    /// How far behind `pop` a return is looked for: a check is in between.
    const CHECK_BYTES: usize = 32;
    let body = Rule::framed(frame_bytes)?;
    let Ok(complete) = u32::try_from(complete_at) else {
        return Some(vec![(0, body)]);
    };
    let mut rows = vec![(0, Rule::return_address_at(0))];
    let size = frame_bytes - 16;
    let imm8 = i8::try_from(size).ok().map(|size| size as u8);
    let adjust = |opcode: u8| match imm8 {
        Some(imm8) => vec![0x48, 0x83, opcode, imm8],
        None => [&[0x48, 0x81, opcode][..], &size.to_le_bytes()].concat(),
    };
    let start = code.get(..complete as usize).unwrap_or_default();
    let sub = adjust(0xec);
    if let Some(before) = start.strip_suffix(&*sub)
        && before.last() == Some(&PUSH)
    {
        rows.push((before.len() as u32, Rule::frame_pointer_pushed()));
    }
    rows.retain(|row| row.0 < complete.max(1));
    if complete == 0 {
        rows.clear();
    }
    rows.push((complete, body));
    let add = adjust(0xc4);
    let mut at = complete as usize;
    while let Some(found) = find(code.get(at..).unwrap_or_default(), &add) {
        let popped = at + found + add.len();
        at = popped;
        if code.get(popped) != Some(&POP) {
            continue;
        }
        let behind = popped + 1;
        let rest = &code[behind..code.len().min(behind + CHECK_BYTES)];
        let Some(returns) = rest.iter().position(|&byte| byte == RETURN) else {
            continue;
        };
        at = behind + returns + 1;
        rows.push((popped as u32, Rule::frame_pointer_pushed()));
        rows.push((behind as u32, Rule::return_address_at(0)));
        rows.push((at as u32, body));
    }
    Some(rows)
}

fn find(code: &[u8], wanted: &[u8]) -> Option<usize> {
    code.windows(wanted.len()).position(|bytes| bytes == wanted)
}

#[cfg(test)]
mod tests;
