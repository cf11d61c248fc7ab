//! What queries read a partition from: its file, or its object in the archive.

use super::archive::ObjectReader;
use super::file::{FileError, PartitionFile, Rows, ids_of_bundles, ids_of_chunks};
use super::table::Table;

/// See the module.
pub enum ReadFile {
    /// A file on the disk.
    Local(PartitionFile),
    /// An object.
    Archived(ObjectReader),
}

impl ReadFile {
    /// Fixes the state that is read until [`ReadFile::end`]; returns how many flushes are in it.
    pub fn begin(&self) -> Result<u64, FileError> {
        match self {
            ReadFile::Local(file) => file.begin(),
            ReadFile::Archived(object) => Ok(object.flushes()),
        }
    }

    /// Ends reading.
    pub fn end(&self) {
        if let ReadFile::Local(file) = self {
            file.end();
        }
    }

    /// Hours with sums of everything in the file: the rest is read by chunks.
    pub fn hours_valid(&self) -> Result<Vec<u16>, FileError> {
        match self {
            ReadFile::Local(file) => file.hours_valid(),
            ReadFile::Archived(object) => Ok(object.hours_valid()),
        }
    }

    /// Blobs of one chunk with a bundle that is in `[from, to)` and wanted, by bundle. Returns
    /// whether there was one.
    pub fn each_blob<E: From<FileError>>(
        &self,
        table: Table,
        chunk: u16,
        bundles: (u32, u64),
        wanted: impl Fn(u32) -> bool,
        mut blob_of: impl FnMut(u32, &[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let object = match self {
            ReadFile::Local(file) => {
                return file.each_blob(table, chunk, bundles, wanted, blob_of);
            }
            ReadFile::Archived(object) => object,
        };
        let rows = match table {
            Table::Block => Rows::Blocks,
            Table::Head => Rows::Heads,
            Table::ServiceBlock => Rows::ServiceBlocks,
            Table::ServiceHead => Rows::ServiceHeads,
        };
        let mut any = false;
        object.each_row(rows, ids_of_bundles(chunk, bundles), |id, body| {
            let bundle = (id >> 16) as u32;
            if wanted(bundle) {
                blob_of(bundle, body)?;
                any = true;
            }
            Ok::<(), E>(())
        })?;
        Ok(any)
    }

    /// Windows of chunks in `[from, to]`, by chunk.
    pub fn each_windows<E: From<FileError>>(
        &self,
        from: u16,
        to: u16,
        mut blob_of: impl FnMut(u16, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            ReadFile::Local(file) => file.each_windows(from, to, blob_of),
            ReadFile::Archived(object) => {
                object.each_row(Rows::Windows, ids_of_chunks(from, to), |id, body| {
                    blob_of((id >> 48) as u16, body)
                })
            }
        }
    }

    /// Reads the dictionary's batches in order; contents of stacks only when asked for.
    pub fn each_dict(
        &self,
        with_contents: bool,
        mut batch: impl FnMut(&[u8], &[u8]) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        match self {
            ReadFile::Local(file) => file.each_dict(with_contents, batch),
            // Who adds stacks to a dictionary needs contents; nobody adds to an object's.
            ReadFile::Archived(_) if with_contents => Err(FileError::Other(
                "an archived partition is not written to".to_owned(),
            )),
            ReadFile::Archived(object) => {
                let all = (i64::MIN, i64::MAX);
                object.each_row(Rows::Entries, all, |_, entries| batch(entries, &[]))
            }
        }
    }
}
