//! Reads a partition's file row by row, as it is, for whoever copies it elsewhere.

use super::rewrite::Hours;
use super::{FileError, PartitionFile, blob};

/// Rows of a file by what they hold, each with an id and a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rows {
    /// Contents of the dictionary's stacks.
    Contents,
    /// Samples by group.
    Blocks,
    /// Samples by service.
    ServiceBlocks,
    /// Sums by series.
    Heads,
    /// Sums by service.
    ServiceHeads,
    /// Metadata of windows.
    Windows,
    /// Entries of the dictionary.
    Entries,
    /// Hosts.
    Hosts,
}

impl Rows {
    /// All. What every query reads comes last.
    pub const ALL: [Rows; 8] = [
        Rows::Contents,
        Rows::Blocks,
        Rows::ServiceBlocks,
        Rows::Heads,
        Rows::ServiceHeads,
        Rows::Windows,
        Rows::Entries,
        Rows::Hosts,
    ];

    fn select(self) -> &'static str {
        match self {
            Rows::Contents => "SELECT id, contents FROM dict ORDER BY id",
            Rows::Blocks => "SELECT id, body FROM block ORDER BY id",
            Rows::ServiceBlocks => "SELECT id, body FROM service_block ORDER BY id",
            Rows::Heads => "SELECT id, body FROM head ORDER BY id",
            Rows::ServiceHeads => "SELECT id, body FROM service_head ORDER BY id",
            Rows::Windows => "SELECT id, body FROM windows ORDER BY id",
            Rows::Entries => "SELECT id, entries FROM dict ORDER BY id",
            Rows::Hosts => "SELECT id, body FROM host ORDER BY id",
        }
    }
}

/// What a file says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Labels that identify services.
    pub service_labels: Vec<String>,
    /// Which set of ids it has.
    pub generation: u64,
    /// Which data it has: the same after downsampling.
    pub lineage: u64,
    /// How many flushes are in it.
    pub flushes: u64,
    /// Chunks, each with its last record of the log and the number of its parts.
    pub chunks: Vec<(u16, u64, u64)>,
    /// Hours that were added up, and what had been flushed into them then.
    pub hours: Hours,
}

impl PartitionFile {
    /// Everything that is not in rows.
    pub fn facts(&self) -> Result<Facts, FileError> {
        let opened = self.read_opened()?;
        let parts = self.chunk_parts()?;
        let chunks = opened.records.iter().map(|&(chunk, record)| {
            let parts = parts.get(&chunk).copied().unwrap_or(0);
            (chunk, record, parts)
        });
        Ok(Facts {
            chunks: chunks.collect(),
            hours: self.hours_added_up()?,
            service_labels: opened.service_labels,
            generation: opened.generation,
            lineage: opened.lineage,
            flushes: opened.flushes,
        })
    }

    /// Rows of one kind with their ids, in order.
    pub fn each_row<E: From<FileError>>(
        &self,
        rows: Rows,
        mut row_of: impl FnMut(i64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let prepared = self.connection.prepare_cached(rows.select());
        let mut statement = prepared.map_err(FileError::from)?;
        let mut found = statement.query([]).map_err(FileError::from)?;
        while let Some(row) = found.next().map_err(FileError::from)? {
            let id = row.get(0).map_err(FileError::from)?;
            row_of(id, blob(row, 1)?)?;
        }
        Ok(())
    }
}
