//! What a start must know about unchanged partitions: one file for all of them.
//!
//! Without it a start reads the head of each partition and its hosts, which takes seconds for a
//! year of hundreds of hosts. It is a copy of what partitions contain: a file that differs from
//! when the manifest was written is read again, and if files are missing that age and disk budget
//! do not explain, all are read, as without a manifest.

use super::codec::{
    Corrupt, Reader, SectionReader, SectionWriter, encode_bytes, encode_signed, encode_u64,
};
use super::host_index::HostIndex;
use super::level::Level;
use super::manifest_entry::{Entry, Identity};
use super::partition::Partition;
use crate::durable::replace;
use crate::sync::{lock, read};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock};

/// Format of the file; others are not read.
const VERSION: u64 = 3;

/// A partition written to so shortly before the manifest is read again at the next start: a later
/// change may have left its file with the same time and size. Unit: nanoseconds; clocks of file
/// systems go in steps of up to 10 ms.
const RACY_NS: i128 = 1_000_000_000;

/// See the module.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Partitions by start.
    pub entries: BTreeMap<i64, Entry>,
    /// Archived partitions without a file, by start and lineage.
    pub archived: BTreeSet<(i64, u64)>,
    /// Hosts of all of them.
    pub hosts: HostIndex,
}

/// Writes the manifest of all partitions; none may be flushed or replaced meanwhile. A damaged
/// partition, or one with an SQLite log that is not empty, is read at the next start.
pub fn save(
    path: &Path,
    partitions: &[Arc<Partition>],
    archived: &[Arc<Partition>],
    hosts: &RwLock<HostIndex>,
) -> std::io::Result<()> {
    let mut raw = Vec::new();
    encode_u64(&mut raw, VERSION);
    encode_u64(&mut raw, partitions.len() as u64);
    for partition in partitions {
        encode_entry(&mut raw, partition);
    }
    encode_u64(&mut raw, archived.len() as u64);
    for partition in archived {
        encode_signed(&mut raw, partition.start);
        encode_u64(&mut raw, partition.lineage);
    }
    // Pushes wait for no disk.
    read(hosts).encode(&mut raw);
    let mut sealed = Vec::new();
    SectionWriter::new()?.seal(&mut sealed, &raw)?;
    replace(path, &sealed, 0o666)
}

fn encode_entry(out: &mut Vec<u8>, partition: &Partition) {
    encode_signed(out, partition.start);
    encode_signed(out, partition.end);
    let is_damaged = partition.damaged.load(Ordering::Acquire);
    let identity = Identity::of(&partition.path).filter(|_| !is_damaged);
    encode_u64(out, identity.is_some().into());
    if let Some(identity) = identity {
        encode_u64(out, identity.inode);
        encode_u64(out, identity.len);
        out.extend_from_slice(&identity.modified_ns.to_le_bytes());
    }
    encode_u64(out, partition.level as u64);
    encode_u64(out, partition.generation);
    encode_u64(out, partition.lineage);
    encode_u64(out, partition.flushes());
    encode_u64(out, partition.service_labels.len() as u64);
    for label in &partition.service_labels {
        encode_bytes(out, label.as_bytes());
    }
    let records = lock(&partition.records);
    encode_u64(out, records.len() as u64);
    for (&chunk, &record) in records.iter() {
        encode_u64(out, chunk.into());
        encode_u64(out, record);
    }
}

/// Removes the manifest, so that the next start reads every partition.
pub fn forget(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Reads the manifest. `None` when there is none, or none that can be read: all that it has is in
/// the partitions too.
pub fn load(path: &Path) -> Option<Manifest> {
    let written = std::fs::metadata(path).ok()?;
    let written = i128::from(written.mtime()) * 1_000_000_000 + i128::from(written.mtime_nsec());
    let decoded = std::fs::read(path)
        .map_err(|error| error.to_string())
        .and_then(|bytes| decode(&bytes).map_err(|damage| damage.to_string()));
    let mut manifest = match decoded {
        Ok(manifest) => manifest,
        Err(error) => {
            let path = path.display();
            tracing::warn!(
                "failed to read `{path}`: {error}; the collector reads every partition \
                instead"
            );
            return None;
        }
    };
    for entry in manifest.entries.values_mut() {
        let is_settled = |of: &Identity| of.modified_ns.saturating_add(RACY_NS) < written;
        entry.identity = entry.identity.filter(is_settled);
    }
    Some(manifest)
}

fn decode(bytes: &[u8]) -> Result<Manifest, Corrupt> {
    let mut raw = Vec::new();
    let mut opener = SectionReader::new().map_err(|_| Corrupt("zstd got no memory"))?;
    opener.open(&mut Reader::new(bytes), &mut raw)?;
    let mut input = Reader::new(&raw);
    if input.decode_u64()? != VERSION {
        return Err(Corrupt("it has another version"));
    }
    let mut manifest = Manifest::default();
    for _ in 0..input.decode_count()? {
        let (start, entry) = decode_entry(&mut input)?;
        manifest.entries.insert(start, entry);
    }
    for _ in 0..input.decode_count()? {
        let of = (input.decode_signed()?, input.decode_u64()?);
        manifest.archived.insert(of);
    }
    manifest.hosts = HostIndex::decode(&mut input)?;
    Ok(manifest)
}

fn decode_entry(input: &mut Reader<'_>) -> Result<(i64, Entry), Corrupt> {
    let (start, end) = (input.decode_signed()?, input.decode_signed()?);
    let identity = match input.decode_u64()? {
        0 => None,
        _ => Some(Identity {
            inode: input.decode_u64()?,
            len: input.decode_u64()?,
            modified_ns: i128::from_le_bytes(input.decode_16()?),
        }),
    };
    let level = input.decode_u64()?;
    let mut levels = Level::ALL.into_iter();
    let mut entry = Entry {
        identity,
        level: levels
            .find(|of| *of as u64 == level)
            .ok_or(Corrupt("a level is not known"))?,
        end,
        generation: input.decode_u64()?,
        lineage: input.decode_u64()?,
        flushes: input.decode_u64()?,
        service_labels: Vec::new(),
        records: BTreeMap::new(),
    };
    for _ in 0..input.decode_count()? {
        entry.service_labels.push(input.decode_str()?.to_owned());
    }
    for _ in 0..input.decode_count()? {
        entry
            .records
            .insert(input.decode_u16()?, input.decode_u64()?);
    }
    Ok((start, entry))
}
