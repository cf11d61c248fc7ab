//! Reads windows back from the index: from disk or memory, with the tables of their segment.

use super::ExportState;
use super::spool::{Picked, RecordPlace};
use host::sync::lock;
use profile::Remap;
use segment::file::read_record;
use segment::record::unpack;
use segment::window::{Tables, Window};
use std::fs::File;
use std::io;

/// Segments read side by side: that of the newest windows and that of the backlog. Each holds the
/// tables of one generation.
const READERS_MAX: usize = 2;

/// Why a window cannot be sent.
#[derive(Debug)]
pub enum ReadError {
    /// It was given up meanwhile.
    Gone,
    /// This record of the segment cannot be read, and so nothing from it on.
    Damaged(usize, io::Error),
}

/// Reads one segment, in order.
pub struct Reader {
    segment: u64,
    /// Tables were taken up to this record.
    next: usize,
    /// What the ids of its windows mean.
    pub tables: Tables,
    /// From there into the stream's dictionary.
    pub remap: Remap,
    epoch: u64,
    file: Option<File>,
}

impl Reader {
    fn new(segment: u64) -> Reader {
        Reader {
            segment,
            next: 0,
            tables: Tables::default(),
            remap: Remap::default(),
            epoch: 0,
            file: None,
        }
    }

    fn payload(&mut self, shared: &ExportState, record: usize) -> Result<Vec<u8>, ReadError> {
        let place = lock(&shared.index).place(self.segment, record);
        let damaged = |error| ReadError::Damaged(record, error);
        match place.ok_or(ReadError::Gone)? {
            (_, RecordPlace::Memory(bytes)) => {
                unpack(&bytes).map(|(_, payload)| payload).map_err(damaged)
            }
            (segment, RecordPlace::Disk { offset, len }) => {
                let file = match &self.file {
                    Some(file) => file,
                    None => {
                        let dir = shared.dir().ok_or(ReadError::Gone)?;
                        let file = dir.reader(segment).map_err(damaged)?;
                        self.file.insert(file)
                    }
                };
                read_record(file, offset, len).map_err(damaged)
            }
        }
    }

    fn read(&mut self, shared: &ExportState, record: usize) -> Result<Window, ReadError> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let mut payload = Vec::new();
        while self.next <= record {
            payload = self.payload(shared, self.next)?;
            let taken = self.tables.take(&payload);
            taken.map_err(|error| ReadError::Damaged(self.next, invalid(error)))?;
            self.next += 1;
        }
        if self.next > record + 1 || payload.is_empty() {
            payload = self.payload(shared, record)?;
        }
        let window = self.tables.window(&payload);
        window.map_err(|error| ReadError::Damaged(record, invalid(error)))
    }
}

/// The readers of one stream.
#[derive(Default)]
pub struct Readers(Vec<Reader>);

impl Readers {
    /// Reads a window for the stream's dictionary of this epoch; the reader's tables give its ids
    /// their meaning.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn window(
        &mut self,
        shared: &ExportState,
        picked: &Picked,
        epoch: u64,
    ) -> Result<(Window, &mut Reader), ReadError> {
        let at = self
            .0
            .iter()
            .position(|reader| reader.segment == picked.segment);
        // The one used last is at the end.
        let mut reader = match at {
            Some(at) => self.0.remove(at),
            None => {
                if self.0.len() >= READERS_MAX {
                    self.0.remove(0);
                }
                Reader::new(picked.segment)
            }
        };
        if reader.epoch != epoch {
            reader.remap = Remap::default();
            reader.epoch = epoch;
        }
        // A reader that failed is not used again.
        let window = reader.read(shared, picked.record)?;
        self.0.push(reader);
        let last = self.0.len() - 1;
        Ok((window, &mut self.0[last]))
    }

    /// The one that read the newest window.
    pub fn latest(&mut self) -> Option<&mut Reader> {
        self.0.last_mut()
    }
}
