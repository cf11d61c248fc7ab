//! The names of one file: its symbol tables, its debug information, and the frames made so far.

mod go;

use super::budget::{FileBudget, Over};
use super::counters::{SymbolCounters, add, bump};
use super::elf::{ElfError, Headers, Segment, SymbolTable, read_headers};
use super::files::{Found, Image};
use super::go::lines::Source;
use super::lines::{LineSource, SourceFrame};
use super::places::Places;
use super::{FrameSpan, NO_FRAME, Named, SymbolOptions, debug_files, inflate, module_name};
use hashbrown::HashMap;
use host::ids::FileOffset;
use profile::{Dictionary, FrameId, FrameKind, FrameRef, UnnamedReason, names};

/// Largest unpacked `.gnu_debugdata`. Unit: bytes. Those of complete distributions are below 4 MiB.
const MINI_DEBUG_BYTES_MAX: usize = 16 << 20;

/// Frames of inlined functions kept for one address, the innermost.
const INLINED_MAX: usize = 64;

/// A symbol table and where its names are.
struct Table {
    symbols: SymbolTable,
    /// The file the names are in; `None` for the executable itself, which the store keeps open.
    names_in: Option<Image>,
    /// A frame for each symbol, [`NO_FRAME`] until asked for; empty until the first.
    frames: Vec<FrameId>,
    /// Where the last lookup ended.
    hint: usize,
}

/// What is recorded besides functions: see [`SymbolOptions`].
#[derive(Clone, Copy)]
struct Wanted {
    lines: bool,
    inlined_frames: bool,
    go_lines: bool,
}

/// See the head of this file.
pub struct FileNames {
    module: Box<str>,
    headers: Headers,
    tables: Vec<Table>,
    lines: Option<LineSource>,
    /// Where the debug information is read from: the executable (`None`) or another file.
    lines_in: Option<(Option<Image>, Headers)>,
    wanted: Wanted,
    /// The lines of a program in Go that has them in its tables.
    go_lines: Option<Source>,
    /// With lines: frames by offset, since they differ within a function.
    exact: HashMap<u64, FrameSpan>,
    exact_frames: Vec<FrameId>,
    /// Why an address that no symbol covers has no name.
    missing: UnnamedReason,
    /// Places for such addresses; `None` if nothing identifies this file.
    places: Option<Places>,
    /// It has no symbols but those it exports, and its debug file may have them.
    pub lacks_symbols: bool,
    /// A file that was fetched was there when it was read.
    pub has_fetched: bool,
    no_name: HashMap<UnnamedReason, FrameId>,
    /// When it was last used, on the symbolizer's clock.
    pub used: u64,
    /// Memory that the symbolizer counted for it.
    pub counted: usize,
}

impl FileNames {
    /// Reads the symbol tables of an executable, with its separate debug file where it needs one.
    /// Where that is over the budget the file has no names at all: those of some functions would be
    /// given to the addresses of others.
    pub fn read(
        image: &Image,
        found: &Found,
        options: &SymbolOptions,
        budget: &FileBudget<'_>,
        counters: &SymbolCounters,
    ) -> FileNames {
        let headers = match image.unchanged() {
            true => read_headers(image).map_err(|_| UnnamedReason::FileUnreadable),
            false => Err(UnnamedReason::FileChanged),
        };
        let mut names = FileNames {
            module: module_name(&found.path, &found.identity).into(),
            headers: Headers {
                entry: 0,
                is_64: true,
                machine: 0,
                segments: Vec::new(),
                eh_frame_hdr: None,
                dynamic: None,
                go_note: false,
                sections: Vec::new(),
                build_id: Box::default(),
            },
            tables: Vec::new(),
            lines: None,
            lines_in: None,
            wanted: Wanted {
                lines: options.lines,
                inlined_frames: options.inlined_frames,
                go_lines: options.go_lines,
            },
            go_lines: None,
            exact: HashMap::new(),
            exact_frames: Vec::new(),
            missing: UnnamedReason::NoSymbols,
            places: None,
            lacks_symbols: false,
            has_fetched: false,
            no_name: HashMap::new(),
            used: 0,
            counted: 0,
        };
        match headers {
            Ok(headers) => {
                bump(&counters.tables_read);
                names.places = Places::of(&headers);
                names.headers = headers;
                names.read_tables(image, found, options, budget, counters);
            }
            Err(reason) => names.missing = reason,
        }
        if names.missing == UnnamedReason::OverBudget || budget.over().is_some() {
            if budget.over() != Some(Over::Later) {
                bump(&counters.tables_refused);
            }
            names.missing = UnnamedReason::OverBudget;
            names.tables = Vec::new();
            names.lines_in = None;
            names.go_lines = None;
        }
        // Only the segments are needed from here on.
        names.headers.sections = Vec::new();
        names
    }

    fn read_tables(
        &mut self,
        image: &Image,
        found: &Found,
        options: &SymbolOptions,
        budget: &FileBudget<'_>,
        counters: &SymbolCounters,
    ) {
        let wants_lines = options.lines || options.inlined_frames;
        let has_symbols = self.add_table(image, None, b".symtab", budget);
        let has_lines = self.headers.section(b".debug_info").is_some();
        let mut debug = None;
        if !has_symbols || wants_lines && !has_lines {
            let path = super::open::without_deleted(&found.path);
            let held = found.debug.as_ref();
            let dirs = &options.debug_dirs;
            debug = debug_files::find(held, dirs, &self.headers, image, path, budget);
        }
        if let Some((debug, headers)) = &debug {
            bump(&counters.debug_files_used);
            if !has_symbols {
                self.add_table(debug, Some(headers), b".symtab", budget);
            }
        } else if !has_symbols {
            self.add_mini_debug_info(image, budget);
        }
        if self.tables.is_empty() && self.missing != UnnamedReason::OverBudget {
            self.add_go_functions(image, budget);
        }
        if self.missing == UnnamedReason::OverBudget {
            return;
        }
        self.lacks_symbols = self.tables.is_empty();
        if !self.tables.is_empty() {
            self.missing = UnnamedReason::NotInSymbols;
        }
        self.add_table(image, None, b".dynsym", budget);
        if wants_lines {
            self.lines_in = match debug {
                Some((debug, headers)) if !has_lines => Some((Some(debug), headers)),
                _ if has_lines => Some((None, self.headers.clone())),
                _ => None,
            };
        }
        if wants_lines || options.go_lines {
            self.add_go_lines(image, budget);
        }
    }

    /// Reads the debug information unless that was done; gives it up when it cannot be read.
    fn take_lines(
        &mut self,
        image: Option<&Image>,
        bytes_max: usize,
        counters: &SymbolCounters,
    ) -> Option<LineSource> {
        if self.lines.is_some() {
            return self.lines.take();
        }
        let (other, headers) = self.lines_in.as_ref()?;
        let image = other.as_ref().or(image).filter(|image| image.unchanged())?;
        match LineSource::new(image, headers, self.wanted.inlined_frames, bytes_max) {
            Ok(lines) => lines,
            Err(_) => {
                bump(&counters.lines_refused);
                self.lines_in = None;
                None
            }
        }
    }

    /// The image, if its debug information may have names for these offsets that are not known yet.
    pub fn to_look_through<'i>(
        &'i self,
        image: Option<&'i Image>,
        offsets: &[FileOffset],
    ) -> Option<&'i Image> {
        let other = match (&self.lines_in, self.go_lines) {
            (Some((other, _)), _) => other.as_ref(),
            (None, Some(_)) => None,
            (None, None) => return None,
        };
        let is_new = |offset: &FileOffset| !self.exact.contains_key(&offset.0);
        offsets.iter().any(is_new).then_some(())?;
        other.or(image)
    }

    /// Additional memory for naming these offsets: that of the debug information if it has to be
    /// read. If that and the symbols together do not fit into `bytes_max`, it is not read, because
    /// it would be freed at once, and read again for every batch.
    pub fn bytes_to_read(
        &mut self,
        image: Option<&Image>,
        offsets: &[FileOffset],
        bytes_max: usize,
        counters: &SymbolCounters,
    ) -> usize {
        let (None, Some(from)) = (&self.lines, self.to_look_through(image, offsets)) else {
            return 0;
        };
        let headers = self.lines_in.as_ref().map(|(_, headers)| headers);
        // Go's own are read as they are needed.
        let bytes = headers.and_then(|headers| LineSource::bytes_for(from, headers));
        let bytes = bytes.unwrap_or(0);
        if bytes.saturating_add(self.heap_bytes()) > bytes_max {
            bump(&counters.lines_refused);
            self.lines_in = None;
            return 0;
        }
        bytes
    }

    /// Its build id in hexadecimal, if it has one.
    pub fn build_id(&self) -> Option<&str> {
        self.places.as_ref().map(Places::build_id)
    }

    /// True while the debug information is in memory.
    pub fn has_lines(&self) -> bool {
        self.lines.is_some()
    }

    /// Frees the debug information; what was learned from it stays, and it is read again when more
    /// is asked.
    pub fn drop_lines(&mut self) {
        self.lines = None;
    }

    /// Reads one table; false when there is none. `headers` are those of `image` when that is not
    /// the executable.
    fn add_table(
        &mut self,
        image: &Image,
        headers: Option<&Headers>,
        section: &[u8],
        budget: &FileBudget<'_>,
    ) -> bool {
        let code: &[Segment] = &self.headers.segments;
        let names_in = headers.map(|_| image.clone());
        let headers = headers.unwrap_or(&self.headers);
        match SymbolTable::read(image, headers, section, code, budget) {
            Ok(Some(symbols)) => {
                self.tables.push(Table {
                    symbols,
                    names_in,
                    frames: Vec::new(),
                    hint: 0,
                });
                true
            }
            Ok(None) => false,
            Err(error) => {
                self.note(&error);
                false
            }
        }
    }

    /// Notes why there are no names; what a file cost is said before anything else.
    fn note(&mut self, error: &ElfError) {
        if self.missing != UnnamedReason::OverBudget {
            self.missing = match error.is_over_budget() {
                true => UnnamedReason::OverBudget,
                false => UnnamedReason::FileUnreadable,
            };
        }
    }

    fn add_mini_debug_info(&mut self, image: &Image, budget: &FileBudget<'_>) {
        let Some(section) = self.headers.section(b".gnu_debugdata") else {
            return;
        };
        let is_64 = self.headers.is_64;
        let packed = inflate::content(image, section, is_64, MINI_DEBUG_BYTES_MAX, budget);
        let unpacked = packed
            .and_then(|packed| inflate::mini_debug_info(&packed, MINI_DEBUG_BYTES_MAX, budget));
        let unpacked = match unpacked {
            Ok(unpacked) => unpacked.keep(),
            // What is damaged is as good as not there.
            Err(error) if error.is_over_budget() => return self.note(&error),
            Err(_) => return,
        };
        let image = Image::Memory(unpacked.into());
        if let Ok(headers) = read_headers(&image) {
            self.add_table(&image, Some(&headers), b".symtab", budget);
        }
    }

    /// Names offsets: appends a span for each. `image` is the executable, when it is still open.
    /// Debug information that has to be read may take `lines_bytes_max`; without, it is not looked
    /// through now, and what is not known from before has no lines.
    pub fn name(
        &mut self,
        image: Option<&Image>,
        offsets: &[FileOffset],
        lines_bytes_max: Option<usize>,
        dict: &mut Dictionary,
        out: &mut Named,
        counters: &SymbolCounters,
    ) {
        if let Some(bytes_max) = lines_bytes_max {
            self.find_lines(image, offsets, bytes_max, dict, counters);
        }
        let mut reader = Reader {
            image,
            checked: None,
        };
        let (mut named, mut unnamed) = (0, 0);
        for offset in offsets {
            if let Some(span) = self.exact.get(&offset.0) {
                out.push(&self.exact_frames[span.first as usize..][..span.len as usize]);
                named += 1;
                continue;
            }
            let outcome = self.symbol(offset.0, &mut reader, dict, counters);
            let frame = match outcome {
                Ok(frame) => {
                    named += 1;
                    frame
                }
                Err(reason) => {
                    unnamed += 1;
                    self.without_name(reason, *offset, &mut reader, dict, counters)
                }
            };
            out.push(&[frame]);
        }
        add(&counters.addresses_named, named);
        add(&counters.addresses_unnamed, unnamed);
    }

    /// The frame of the symbol that covers an offset.
    fn symbol(
        &mut self,
        offset: u64,
        reader: &mut Reader<'_>,
        dict: &mut Dictionary,
        counters: &SymbolCounters,
    ) -> Result<FrameId, UnnamedReason> {
        let address = self.headers.address_of(offset).ok_or(self.missing)?;
        let found = self.tables.iter_mut().find_map(|table| {
            let index = table.symbols.find(address, &mut table.hint)?;
            Some((table, index))
        });
        let (table, index) = found.ok_or(self.missing)?;
        let slot = index as usize;
        if table
            .frames
            .get(slot)
            .is_some_and(|&frame| frame != NO_FRAME)
        {
            return Ok(table.frames[slot]);
        }
        let symbol = match &table.names_in {
            Some(debug) => table
                .symbols
                .name(debug, index)
                .ok_or(UnnamedReason::FileUnreadable)?,
            None => table
                .symbols
                .name(reader.get()?, index)
                .ok_or(UnnamedReason::FileUnreadable)?,
        };
        bump(&counters.names_read);
        if table.frames.is_empty() {
            table.frames.resize(table.symbols.len(), NO_FRAME);
        }
        table.frames[slot] = dict.intern_frame(FrameRef {
            kind: FrameKind::Native,
            function: &names::readable(&symbol),
            module: &self.module,
            ..FrameRef::default()
        });
        Ok(table.frames[slot])
    }

    /// The offsets that `exact` does not have, with their addresses.
    fn not_seen(&self, offsets: &[FileOffset]) -> Vec<(u64, u64)> {
        let new = offsets
            .iter()
            .filter(|offset| !self.exact.contains_key(&offset.0));
        new.filter_map(|offset| Some((offset.0, self.headers.address_of(offset.0)?)))
            .collect()
    }

    /// Fills `exact` for offsets not seen yet.
    fn find_lines(
        &mut self,
        image: Option<&Image>,
        offsets: &[FileOffset],
        lines_bytes_max: usize,
        dict: &mut Dictionary,
        counters: &SymbolCounters,
    ) {
        let (new, addresses): (Vec<u64>, Vec<u64>) = self.not_seen(offsets).into_iter().unzip();
        if new.is_empty() {
            return;
        }
        let Some(lines) = self.take_lines(image, lines_bytes_max, counters) else {
            return;
        };
        let mut reader = Reader {
            image,
            checked: None,
        };
        let outcome = lines.places(&addresses, |index, places| {
            let symbol = self.symbol(new[index], &mut reader, dict, counters).ok();
            self.keep_exact(new[index], places, self.wanted.lines, symbol, dict);
        });
        match outcome {
            Ok(()) => self.lines = Some(lines),
            // The library is not asked again about such a file.
            Err(error) => {
                self.lines_in = None;
                bump(&counters.lines_refused);
                if matches!(error, super::lines::LinesError::Panicked) {
                    bump(&counters.library_panics);
                }
            }
        }
    }

    /// Keeps the frames of an offset: of the function itself and of what was inlined into it after,
    /// or of its symbol where there are none.
    fn keep_exact(
        &mut self,
        offset: u64,
        places: &[SourceFrame],
        lines: bool,
        symbol: Option<FrameId>,
        dict: &mut Dictionary,
    ) {
        let first = self.exact_frames.len() as u32;
        match (places.split_first(), symbol) {
            (Some((function, inlined)), _) => {
                for one in inlined.iter().rev().take(INLINED_MAX) {
                    let frame = self.place(FrameKind::Inlined, None, (one, lines), dict);
                    self.exact_frames.push(frame);
                }
                let frame = self.place(FrameKind::Native, symbol, (function, lines), dict);
                self.exact_frames.push(frame);
            }
            // Not asked for again.
            (None, Some(symbol)) => self.exact_frames.push(symbol),
            (None, None) => return,
        }
        let len = self.exact_frames.len() as u32 - first;
        self.exact.insert(offset, FrameSpan { first, len });
    }

    /// A frame with its source place, if `lines` are wanted; called as `symbol`, else as the debug
    /// information says.
    fn place(
        &self,
        kind: FrameKind,
        symbol: Option<FrameId>,
        (place, lines): (&SourceFrame, bool),
        dict: &mut Dictionary,
    ) -> FrameId {
        let named = symbol.map(|frame| dict.frame(frame).function.to_owned());
        let function = named.as_deref().unwrap_or(&place.function);
        let (file, line, start_line) = match lines {
            true => (&*place.file, place.line, place.start_line),
            false => ("", 0, 0),
        };
        let function = if function.is_empty() {
            "[unknown]"
        } else {
            function
        };
        let module = &self.module;
        dict.intern_frame(FrameRef {
            kind,
            function,
            module,
            file,
            line,
            start_line,
            ..FrameRef::default()
        })
    }

    /// Puts frames in the place of those named from span `first` on, as many as `offsets`, that
    /// also say where their instruction lies.
    pub fn tell_instructions(
        &self,
        offsets: &[FileOffset],
        first: usize,
        dict: &mut Dictionary,
        out: &mut Named,
    ) {
        let Some(build_id) = self.build_id() else {
            return;
        };
        for (offset, span) in offsets.iter().zip(&out.spans[first..]) {
            let Some(address) = self.headers.address_of(offset.0) else {
                continue;
            };
            let place = profile::Place { build_id, address }.to_string();
            let at = dict.strings.intern(&place);
            for frame in &mut out.frames[span.first as usize..][..span.len as usize] {
                let mut told = dict.frames.get(*frame);
                told.system_name = at;
                *frame = dict.frames.intern(told);
            }
        }
    }

    fn without_name(
        &mut self,
        reason: UnnamedReason,
        offset: FileOffset,
        reader: &mut Reader<'_>,
        dict: &mut Dictionary,
        counters: &SymbolCounters,
    ) -> FrameId {
        let module = &self.module;
        if let Some(places) = &mut self.places {
            let (image, why) = (|| reader.get().ok(), (&**module, reason));
            let frame = places.frame(image, &self.headers, offset, why, dict);
            if let Some(frame) = frame {
                return frame;
            }
            bump(&counters.places_refused);
        }
        *self
            .no_name
            .entry(reason)
            .or_insert_with(|| super::unnamed(dict, FrameKind::Native, module, reason))
    }

    /// Drops every frame id held.
    pub fn forget_frames(&mut self) {
        self.tables
            .iter_mut()
            .for_each(|table| table.frames = Vec::new());
        self.exact.clear();
        self.exact_frames.clear();
        self.places.as_mut().map(Places::forget_frames);
        self.no_name.clear();
    }

    /// Memory held, in bytes.
    pub fn heap_bytes(&self) -> usize {
        let tables = self.tables.iter().map(|table| {
            let copy = match &table.names_in {
                Some(Image::Memory(bytes)) => bytes.len(),
                _ => 0,
            };
            table.symbols.heap_bytes() + table.frames.capacity() * size_of::<FrameId>() + copy
        });
        tables.sum::<usize>()
            + self.exact.allocation_size()
            + self.exact_frames.capacity() * size_of::<FrameId>()
            + self.places.as_ref().map_or(0, Places::heap_bytes)
            + self.lines.as_ref().map_or(0, LineSource::heap_bytes)
            + size_of::<FileNames>()
    }
}

/// The executable, looked at once a batch: was it written to since its symbols were read?
struct Reader<'a> {
    image: Option<&'a Image>,
    checked: Option<bool>,
}

impl<'a> Reader<'a> {
    fn get(&mut self) -> Result<&'a Image, UnnamedReason> {
        let image = self.image.ok_or(UnnamedReason::Limit)?;
        match *self.checked.get_or_insert_with(|| image.unchanged()) {
            true => Ok(image),
            false => Err(UnnamedReason::FileChanged),
        }
    }
}
