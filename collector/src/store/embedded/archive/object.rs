//! The format of an archived partition: one immutable object, made so that a query reads a part of
//! it.
//!
//! ```text
//! magic      8 bytes
//! pieces     rows of one kind: id, length, body; about a mebibyte each, those of hosts last
//! index      facts of the partition and, for each piece, its rows, place and hash; a section
//! trailer    length of the index (8 bytes), BLAKE3 of everything from `head` to the index's end
//!            (32), magic (8)
//! ```
//!
//! The *head* starts with the first piece of hosts and reaches to the end: what a collector keeps
//! on its disk of every object. Its hash is in the manifest and the hashes of all pieces are in it,
//! so whoever trusts the manifest can check each byte.

use crate::store::embedded::codec::{
    Corrupt, Reader, SectionReader, SectionWriter, encode_bytes, encode_signed, encode_u64,
};
use crate::store::embedded::file::{Facts, FileError, Hours, PartitionFile, Rows};
use std::ops::Range;

/// First and last bytes of an object; the last byte is the version.
const MAGIC: [u8; 8] = *b"FPOBJCT\x01";

/// Length of the trailer. Unit: bytes.
const TRAILER_LEN: usize = 48;

/// Largest piece that is read: a row more than pieces are meant to have. Unit: bytes.
const PIECE_BYTES_MAX: u64 = 1 << 30;

/// The part of a BLAKE3 hash that is kept for a piece: 128 bits.
pub type PieceHash = [u8; 16];

/// A stretch of rows in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What its rows hold.
    pub rows: Rows,
    /// Ids of its first and last row.
    pub ids: (i64, i64),
    /// Where it starts. Unit: bytes.
    pub offset: u64,
    /// Unit: bytes.
    pub len: u64,
    /// Of its bytes.
    pub hash: PieceHash,
}

impl Piece {
    /// Its place in the object.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.len)
    }

    /// True when these bytes are the piece.
    pub fn is(&self, bytes: &[u8]) -> bool {
        bytes.len() as u64 == self.len && hash_of(bytes) == self.hash
    }
}

fn hash_of(bytes: &[u8]) -> PieceHash {
    let mut hash = PieceHash::default();
    hash.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
    hash
}

/// What is known of an object besides its rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// Of the partition.
    pub facts: Facts,
    /// By kind of rows, then id.
    pub pieces: Vec<Piece>,
}

impl Index {
    /// Pieces that may have rows of a kind with ids in `[low, high)`.
    pub fn pieces_of(&self, rows: Rows, low: i64, high: i64) -> &[Piece] {
        let from = self
            .pieces
            .partition_point(|piece| (piece.rows, piece.ids.1) < (rows, low));
        let to = self
            .pieces
            .partition_point(|piece| (piece.rows, piece.ids.0) < (rows, high));
        self.pieces.get(from..to.max(from)).unwrap_or_default()
    }

    /// By chunk: how many parts it was given.
    pub fn chunk_parts(&self) -> impl Iterator<Item = (u16, u64)> {
        let chunks = self.facts.chunks.iter();
        chunks.map(|&(chunk, _, parts)| (chunk, parts))
    }

    /// Memory that it holds. Unit: bytes.
    pub fn heap_bytes(&self) -> usize {
        self.pieces.capacity() * size_of::<Piece>() + self.facts.chunks.capacity() * 24
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let facts = &self.facts;
        encode_u64(out, facts.service_labels.len() as u64);
        for label in &facts.service_labels {
            encode_bytes(out, label.as_bytes());
        }
        for number in [facts.generation, facts.lineage, facts.flushes] {
            encode_u64(out, number);
        }
        encode_u64(out, facts.chunks.len() as u64);
        for &(chunk, record, parts) in &facts.chunks {
            encode_u64(out, chunk.into());
            encode_u64(out, record);
            encode_u64(out, parts);
        }
        encode_u64(out, facts.hours.len() as u64);
        for (&hour, &parts) in &facts.hours {
            encode_u64(out, hour.into());
            encode_u64(out, parts);
        }
        encode_u64(out, self.pieces.len() as u64);
        for piece in &self.pieces {
            out.push(piece.rows as u8);
            encode_signed(out, piece.ids.0);
            encode_signed(out, piece.ids.1);
            encode_u64(out, piece.offset);
            encode_u64(out, piece.len);
            out.extend_from_slice(&piece.hash);
        }
    }

    fn decode(input: &mut Reader<'_>) -> Result<Index, Corrupt> {
        let mut facts = Facts::default();
        for _ in 0..input.decode_count()? {
            facts.service_labels.push(input.decode_str()?.to_owned());
        }
        facts.generation = input.decode_u64()?;
        facts.lineage = input.decode_u64()?;
        facts.flushes = input.decode_u64()?;
        for _ in 0..input.decode_count()? {
            let chunk = input.decode_u16()?;
            let (record, parts) = (input.decode_u64()?, input.decode_u64()?);
            facts.chunks.push((chunk, record, parts));
        }
        let mut hours = Hours::new();
        for _ in 0..input.decode_count()? {
            hours.insert(input.decode_u16()?, input.decode_u64()?);
        }
        facts.hours = hours;
        let mut pieces = Vec::new();
        for _ in 0..input.decode_count()? {
            let rows = usize::from(input.decode_exact(1)?[0]);
            let rows = *Rows::ALL.get(rows).ok_or(Corrupt("rows are not known"))?;
            let ids = (input.decode_signed()?, input.decode_signed()?);
            let (offset, len) = (input.decode_u64()?, input.decode_u64()?);
            if len > PIECE_BYTES_MAX {
                return Err(Corrupt("a piece is too large"));
            }
            pieces.push(Piece {
                rows,
                ids,
                offset,
                len,
                hash: input.decode_16()?,
            });
        }
        let is_ordered = pieces.is_sorted_by_key(|piece| (piece.rows, piece.ids));
        match is_ordered && input.is_empty() {
            true => Ok(Index { facts, pieces }),
            false => Err(Corrupt("an index is not in order")),
        }
    }
}

/// What a manifest says of an object's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length of the object. Unit: bytes.
    pub bytes: u64,
    /// Where its head starts.
    pub head_offset: u64,
    /// BLAKE3 of its head, without the trailer.
    pub head_hash: [u8; 32],
}

/// The head of an object, checked.
pub struct Head {
    /// Its index.
    pub index: Index,
    /// Bytes of the pieces with hosts, which start at the head's start.
    hosts: Vec<u8>,
}

impl Head {
    /// Reads what was fetched from `head_offset` to the end.
    pub fn decode(bytes: &[u8], extent: &Extent) -> Result<Head, Corrupt> {
        let body_len = bytes.len().checked_sub(TRAILER_LEN);
        let body_len = body_len.ok_or(Corrupt("an object is cut short"))?;
        let (body, trailer) = bytes.split_at(body_len);
        if trailer[40..] != MAGIC {
            return Err(Corrupt("it is no object of this version"));
        }
        let hash = blake3::hash(body);
        if *hash.as_bytes() != extent.head_hash || trailer[8..40] != extent.head_hash {
            return Err(Corrupt("the head of an object has another hash"));
        }
        let mut index_len = [0; 8];
        index_len.copy_from_slice(&trailer[..8]);
        let index_at = usize::try_from(u64::from_le_bytes(index_len))
            .ok()
            .and_then(|len| body.len().checked_sub(len));
        let (hosts, index) = body.split_at(index_at.ok_or(Corrupt("an index is cut short"))?);
        let mut raw = Vec::new();
        let mut opener = SectionReader::new().map_err(|_| Corrupt("zstd got no memory"))?;
        opener.open(&mut Reader::new(index), &mut raw)?;
        Ok(Head {
            index: Index::decode(&mut Reader::new(&raw))?,
            hosts: hosts.to_vec(),
        })
    }

    /// Reads its hosts.
    pub fn each_host<E: From<FileError>>(
        &self,
        mut host: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        each_row(&self.hosts, |_, body| host(body))
    }
}

/// Reads the rows of pieces.
pub fn each_row<E: From<FileError>>(
    bytes: &[u8],
    mut row_of: impl FnMut(i64, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut input = Reader::new(bytes);
    let corrupt = |damage: Corrupt| FileError::Archive(format!("an object is damaged: {damage}"));
    while !input.is_empty() {
        let id = input.decode_signed().map_err(corrupt)?;
        row_of(id, input.decode_bytes().map_err(corrupt)?)?;
    }
    Ok(())
}

/// Takes the bytes of an object as they are made.
pub trait Sink {
    /// Why it takes no more.
    type Error: From<FileError>;

    /// Appends.
    fn append(&mut self, bytes: &[u8]) -> Result<(), Self::Error>;
}

/// A partition that was written as an object.
pub struct Packed {
    /// What it says of itself.
    pub facts: Facts,
    /// What the manifest has to say of its bytes.
    pub extent: Extent,
    /// Its head.
    pub head: Vec<u8>,
}

/// Writes a partition's file, of which a state is fixed, as an object with pieces of about so many
/// bytes. Holds one and the head in memory.
pub fn pack<S: Sink>(
    file: &PartitionFile,
    piece_bytes: usize,
    sink: &mut S,
) -> Result<Packed, S::Error> {
    let mut writer = Writer {
        sink,
        at: 0,
        rows: Rows::Contents,
        ids: None,
        piece: Vec::new(),
        piece_bytes,
        index: Index {
            facts: file.facts()?,
            pieces: Vec::new(),
        },
        head: None,
    };
    writer.write(&MAGIC)?;
    for rows in Rows::ALL {
        if rows == Rows::Hosts {
            writer.head = Some((writer.at, Vec::new()));
        }
        writer.rows = rows;
        file.each_row(rows, |id, body| writer.row(id, body))?;
        writer.end_piece()?;
    }
    writer.end()
}

struct Writer<'s, S> {
    sink: &'s mut S,
    /// Bytes that were written.
    at: u64,
    rows: Rows,
    ids: Option<(i64, i64)>,
    piece: Vec<u8>,
    /// A piece ends when it has so many.
    piece_bytes: usize,
    index: Index,
    /// Where the head starts, and its bytes.
    head: Option<(u64, Vec<u8>)>,
}

impl<S: Sink> Writer<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), S::Error> {
        self.sink.append(bytes)?;
        self.at += bytes.len() as u64;
        if let Some((_, head)) = &mut self.head {
            head.extend_from_slice(bytes);
        }
        Ok(())
    }

    fn row(&mut self, id: i64, body: &[u8]) -> Result<(), S::Error> {
        encode_signed(&mut self.piece, id);
        encode_bytes(&mut self.piece, body);
        let first = self.ids.map_or(id, |(first, _)| first);
        self.ids = Some((first, id));
        match self.piece.len() >= self.piece_bytes {
            true => self.end_piece(),
            false => Ok(()),
        }
    }

    fn end_piece(&mut self) -> Result<(), S::Error> {
        let Some(ids) = self.ids.take() else {
            return Ok(());
        };
        let piece = std::mem::take(&mut self.piece);
        self.index.pieces.push(Piece {
            rows: self.rows,
            ids,
            offset: self.at,
            len: piece.len() as u64,
            hash: hash_of(&piece),
        });
        self.write(&piece)?;
        self.piece = piece;
        self.piece.clear();
        Ok(())
    }

    fn end(mut self) -> Result<Packed, S::Error> {
        let (mut raw, mut index) = (Vec::new(), Vec::new());
        self.index.encode(&mut raw);
        let sealed = SectionWriter::new().and_then(|mut writer| writer.seal(&mut index, &raw));
        sealed.map_err(FileError::from)?;
        self.write(&index)?;
        let (head_offset, head) = self.head.take().unwrap_or_default();
        let head_hash = *blake3::hash(&head).as_bytes();
        let mut trailer = (index.len() as u64).to_le_bytes().to_vec();
        trailer.extend_from_slice(&head_hash);
        trailer.extend_from_slice(&MAGIC);
        self.head = Some((head_offset, head));
        self.write(&trailer)?;
        let (head_offset, head) = self.head.take().unwrap_or_default();
        let extent = Extent {
            bytes: self.at,
            head_offset,
            head_hash,
        };
        Ok(Packed {
            facts: self.index.facts,
            extent,
            head,
        })
    }
}

/// Any bytes as the head of an object and as a piece, for the fuzzer: they are read or refused.
pub fn read_any(data: &[u8]) {
    let mut bytes = data.to_vec();
    let head_hash = *blake3::hash(data).as_bytes();
    let index_len = data.len() as u64 / 2;
    bytes.extend_from_slice(&index_len.to_le_bytes());
    bytes.extend_from_slice(&head_hash);
    bytes.extend_from_slice(&MAGIC);
    let extent = Extent {
        bytes: bytes.len() as u64,
        head_offset: 0,
        head_hash,
    };
    if let Ok(head) = Head::decode(&bytes, &extent) {
        let _ = head.each_host(|_| Ok::<(), FileError>(()));
    }
    if let Ok(index) = Index::decode(&mut Reader::new(data)) {
        let mut again = Vec::new();
        index.encode(&mut again);
        let _ = index.pieces_of(Rows::Blocks, 0, i64::MAX);
    }
    let _ = each_row(data, |_, _| Ok::<(), FileError>(()));
}
