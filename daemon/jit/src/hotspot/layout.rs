//! Where a JVM keeps what its stacks need: read from the tables that it publishes of itself.
//!
//! `libjvm.so` exports tables of its structures' fields (`gHotSpotVMStructs`) and sizes
//! (`gHotSpotVMTypes`) for tools that look at a JVM from outside. Offsets differ between versions,
//! so nothing is taken from anywhere else: without a field that is needed, the JVM is left alone.
//! Seen: OpenJDK 17.

use super::memory::Memory;
use hashbrown::HashMap;
use std::time::Duration;
use symbolize::budget::FileBudget;
use symbolize::elf;
use symbolize::files::Image;
use symbolize::open::{self, base_name};
use unwind::process::maps::{self, Map};

/// Most entries read of a table. Unit: entries. OpenJDK 17 has 2,700 fields and 1,100 types.
const ENTRIES_MAX: u64 = 16_384;

/// Longest name of a structure or a field. Unit: bytes.
const NAME_BYTES_MAX: usize = 256;

/// Length of an entry of the table of fields, and of that of types. Unit: bytes.
const FIELD_BYTES: u64 = 48;
const TYPE_BYTES: u64 = 40;

/// Reads for both tables. Each name is read once.
const READS_MAX: u32 = 65_536;
const BYTES_MAX: usize = 4 << 20;

/// Most memory and CPU time for the library's symbols. OpenJDK 17 takes 0.3 MiB and 2 ms.
const FILE_BYTES_MAX: usize = 8 << 20;
const FILE_CPU_MAX: Duration = Duration::from_millis(100);

/// Offsets of fields within their structures, and addresses of two variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub code_heaps: u64,
    pub interpreter_code: u64,
    pub array_len: u64,
    pub array_data: u64,
    pub heap_memory: u64,
    pub heap_segments: u64,
    pub heap_log2_segment: u64,
    pub space_low: u64,
    pub space_high: u64,
    pub heap_block_bytes: u64,
    pub blob_name: u64,
    pub blob_frame_size: u64,
    pub blob_frame_complete: u64,
    pub blob_code_begin: u64,
    pub blob_code_end: u64,
    pub nmethod_method: u64,
    pub nmethod_compile_id: u64,
    pub method_const: u64,
    pub const_constants: u64,
    pub const_name: u64,
    pub const_signature: u64,
    pub constants_bytes: u64,
    pub constants_holder: u64,
    pub klass_name: u64,
    pub klass_methods: u64,
    pub symbol_length: u64,
    pub symbol_body: u64,
    pub stubs_buffer: u64,
    pub stubs_limit: u64,
}

/// What the tables say.
#[derive(Debug, Default)]
struct Tables {
    /// By structure and field: offset, address of a static one.
    fields: HashMap<(Box<str>, Box<str>), (u64, u64)>,
    sizes: HashMap<Box<str>, u64>,
}

impl Layout {
    /// Looks into the process `pid`. `Ok(None)` when it is no JVM whose tables have all that is
    /// needed. May wait forever: for helpers only.
    ///
    /// # Errors
    /// `Err` when its JVM has not started yet.
    pub fn look(pid: u32) -> Result<Option<Layout>, NotStarted> {
        let Some((fields, types)) = places(pid) else {
            return Ok(None);
        };
        let Ok(memory) = Memory::open(pid, READS_MAX, BYTES_MAX) else {
            return Ok(None);
        };
        let Some(tables) = Tables::read(&memory, fields, types) else {
            return Ok(None);
        };
        let Some(layout) = Layout::of(&tables) else {
            return Ok(None);
        };
        match memory.word(layout.code_heaps) {
            Some(0) => Err(NotStarted),
            Some(_) => Ok(Some(layout)),
            None => Ok(None),
        }
    }

    fn of(tables: &Tables) -> Option<Layout> {
        let field = |structure: &str, name: &str| Some(tables.field(structure, name)?.0);
        let variable = |structure, name| Some(tables.field(structure, name)?.1);
        let either = |one: Option<u64>, other: Option<u64>| one.or(other);
        Some(Layout {
            code_heaps: variable("CodeCache", "_heaps")?,
            interpreter_code: variable("AbstractInterpreter", "_code")?,
            array_len: either(
                field("GrowableArrayBase", "_len"),
                field("GenericGrowableArray", "_len"),
            )?,
            array_data: field("GrowableArray<int>", "_data")?,
            heap_memory: field("CodeHeap", "_memory")?,
            heap_segments: field("CodeHeap", "_segmap")?,
            heap_log2_segment: field("CodeHeap", "_log2_segment_size")?,
            space_low: field("VirtualSpace", "_low")?,
            space_high: field("VirtualSpace", "_high")?,
            heap_block_bytes: *tables.sizes.get("HeapBlock")?,
            blob_name: field("CodeBlob", "_name")?,
            blob_frame_size: field("CodeBlob", "_frame_size")?,
            blob_frame_complete: field("CodeBlob", "_frame_complete_offset")?,
            blob_code_begin: field("CodeBlob", "_code_begin")?,
            blob_code_end: field("CodeBlob", "_code_end")?,
            nmethod_method: either(
                field("CompiledMethod", "_method"),
                field("nmethod", "_method"),
            )?,
            nmethod_compile_id: field("nmethod", "_compile_id")?,
            method_const: field("Method", "_constMethod")?,
            const_constants: field("ConstMethod", "_constants")?,
            const_name: field("ConstMethod", "_name_index")?,
            const_signature: field("ConstMethod", "_signature_index")?,
            constants_bytes: *tables.sizes.get("ConstantPool")?,
            constants_holder: field("ConstantPool", "_pool_holder")?,
            klass_name: field("Klass", "_name")?,
            klass_methods: field("InstanceKlass", "_methods")?,
            symbol_length: field("Symbol", "_length")?,
            symbol_body: field("Symbol", "_body")?,
            stubs_buffer: field("StubQueue", "_stub_buffer")?,
            stubs_limit: field("StubQueue", "_buffer_limit")?,
        })
    }
}

/// A JVM that is about to start: to be looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotStarted;

/// Addresses of the two tables' variables in the process.
fn places(pid: u32) -> Option<(u64, u64)> {
    let mappings = maps::executable(crate::target::maps_of(pid).ok()?);
    let is_jvm = |map: &&Map| map.is_file() && base_name(&map.path).starts_with(b"libjvm.so");
    let library = mappings.iter().find(is_jvm)?;
    let file = open::open_mapping(pid, library.start, library.end).ok()?;
    let image = Image::open(file).ok()?;
    let headers = elf::read_headers(&image).ok()?;
    let moved = library
        .start
        .wrapping_sub(headers.address_of(library.file_offset)?);
    let variable = |name| {
        let budget = FileBudget::new(FILE_BYTES_MAX, FILE_CPU_MAX);
        let found = elf::exported_variable(&image, &headers, name, &budget)?;
        Some(found.wrapping_add(moved))
    };
    Some((
        variable(b"gHotSpotVMStructs")?,
        variable(b"gHotSpotVMTypes")?,
    ))
}

impl Tables {
    /// Reads both; `None` where one makes no sense.
    fn read(memory: &Memory, fields: u64, types: u64) -> Option<Tables> {
        let mut tables = Tables::default();
        // The same name has the same address nearly always.
        let mut names: HashMap<u64, Box<str>> = HashMap::new();
        let mut name_at = |at: u64| -> Option<Box<str>> {
            if let Some(known) = names.get(&at) {
                return Some(known.clone());
            }
            let name = memory.text(at, NAME_BYTES_MAX)?;
            names.insert(at, name.clone());
            Some(name)
        };
        let word = |entry: &[u8], at: usize| {
            let bytes = entry.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_le_bytes(bytes))
        };
        let (fields, types) = (memory.word(fields)?, memory.word(types)?);
        for number in 0..ENTRIES_MAX {
            let at = fields.checked_add(number * FIELD_BYTES)?;
            let entry = memory.bytes(at, FIELD_BYTES as usize)?;
            let structure = word(&entry, 0)?;
            if structure == 0 {
                break;
            }
            let key = (name_at(structure)?, name_at(word(&entry, 8)?)?);
            let value = (word(&entry, 32)?, word(&entry, 40)?);
            tables.fields.insert(key, value);
        }
        for number in 0..ENTRIES_MAX {
            let at = types.checked_add(number * TYPE_BYTES)?;
            let entry = memory.bytes(at, TYPE_BYTES as usize)?;
            let name = word(&entry, 0)?;
            if name == 0 {
                break;
            }
            tables.sizes.insert(name_at(name)?, word(&entry, 32)?);
        }
        Some(tables)
    }

    fn field(&self, structure: &str, name: &str) -> Option<(u64, u64)> {
        let key = (Box::from(structure), Box::from(name));
        self.fields.get(&key).copied()
    }
}
