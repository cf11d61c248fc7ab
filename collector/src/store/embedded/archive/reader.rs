//! Reads an archived partition as its file was read: the same rows in the same order, fetched piece
//! by piece.

use super::ArchivedObject;
use super::cache::{Patience, Ticket};
use super::object::{Index, Piece, each_row};
use crate::store::embedded::file::{FileError, Hours, Rows, hours_of};
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

/// Pieces that are fetched ahead of the one that is read. A query holds as many mebibytes.
const AHEAD: usize = 4;

/// See the module.
pub struct ObjectReader {
    object: Arc<ArchivedObject>,
    index: Arc<Index>,
    patience: Patience,
    /// The piece that was read last: queries of few series read it many times in a row.
    last: RefCell<Option<(u64, Bytes)>>,
}

impl ObjectReader {
    /// A reader for somebody with so much patience.
    pub fn open(object: &Arc<ArchivedObject>, patience: &Patience) -> Result<Self, FileError> {
        Ok(ObjectReader {
            index: object.index()?,
            object: Arc::clone(object),
            patience: patience.clone(),
            last: RefCell::default(),
        })
    }

    /// How many flushes it has.
    pub fn flushes(&self) -> u64 {
        self.index.facts.flushes
    }

    /// Hours with sums of everything.
    pub fn hours_valid(&self) -> Vec<u16> {
        let mut hours: Hours = hours_of(self.index.chunk_parts());
        let marks = &self.index.facts.hours;
        hours.retain(|hour, parts| marks.get(hour) == Some(parts));
        hours.into_keys().collect()
    }

    /// Rows of a kind with ids in `[low, high)`.
    pub fn each_row<E: From<FileError>>(
        &self,
        rows: Rows,
        (low, high): (i64, i64),
        mut row_of: impl FnMut(i64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut pieces = self.index.pieces_of(rows, low, high).iter();
        let mut asked: VecDeque<(Piece, Option<Ticket>)> = VecDeque::new();
        loop {
            while asked.len() < AHEAD
                && let Some(&piece) = pieces.next()
            {
                let last = self.last.borrow();
                let is_here = last.as_ref().is_some_and(|(at, _)| *at == piece.offset);
                let ticket = (!is_here).then(|| self.object.ask(piece));
                asked.push_back((piece, ticket));
            }
            let Some((piece, ticket)) = asked.pop_front() else {
                return Ok(());
            };
            let bytes = self.bytes(piece, ticket)?;
            each_row(&bytes, |id, body| match (low..high).contains(&id) {
                true => row_of(id, body),
                false => Ok(()),
            })?;
        }
    }

    fn bytes(&self, piece: Piece, ticket: Option<Ticket>) -> Result<Bytes, FileError> {
        if let Some((at, bytes)) = &*self.last.borrow()
            && *at == piece.offset
        {
            return Ok(bytes.clone());
        }
        let ticket = ticket.unwrap_or_else(|| self.object.ask(piece));
        let bytes = ticket.wait(&self.patience);
        let bytes = bytes.map_err(|error| self.object.failed(&error))?;
        *self.last.borrow_mut() = Some((piece.offset, bytes.clone()));
        Ok(bytes)
    }
}
