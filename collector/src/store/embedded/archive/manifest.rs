//! The manifest of an archive: the one object of a bucket that changes. It says which objects
//! count, and which collector may write.
//!
//! It is written only if it is still the one that the writer read last (`If-Match`), so of two
//! collectors one finds that the other was there. Objects that it does not name do not exist for
//! anybody.

use super::object::Extent;
use crate::store::embedded::file::Facts;
use crate::store::embedded::level::Level;
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

/// Name of the manifest in the bucket.
pub const MANIFEST: &str = "manifest.json";

/// Folder of the objects.
pub const OBJECTS: &str = "objects";

/// Format of the manifest; others are not read.
const FORMAT: u32 = 1;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    format: u32,
    /// The collector that writes.
    pub owner: Owner,
    /// Its run that writes: a copy of its directory is another one.
    pub session: String,
    /// One more with each session. Names of objects start with it.
    pub epoch: u64,
    /// How often it was written.
    pub version: u64,
    /// When it was written last, since the Unix epoch. Unit: seconds.
    pub written_unix_s: i64,
    /// Length of partitions. Unit: seconds.
    pub partition_s: i64,
    /// What is known of hosts.
    pub hosts: Option<HostsObject>,
    /// The partitions, by start.
    pub partitions: Vec<Entry>,
}

/// A collector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Drawn once for a `data_dir`.
    pub id: String,
    /// Name of its machine, for people.
    pub host: String,
}

/// An object with the table of hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostsObject {
    /// Its name.
    pub name: String,
    /// BLAKE3 of its bytes.
    pub hash: String,
}

/// An archived partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Name of its object.
    pub name: String,
    /// Its time, since the Unix epoch. Unit: seconds.
    pub start_s: i64,
    /// First second after it.
    pub end_s: i64,
    /// How fine its data is: the name of a [`Level`].
    level: String,
    /// Which data it has, in hexadecimal digits.
    lineage: String,
    /// How many flushes it has.
    pub flushes: u64,
    /// Labels that identify its services.
    pub service_labels: Vec<String>,
    /// Length of the object.
    pub bytes: u64,
    /// Where its head starts.
    head_offset: u64,
    /// BLAKE3 of its head.
    head_hash: String,
}

impl Manifest {
    /// The manifest of an archive without anything.
    pub fn new(partition_s: i64) -> Manifest {
        Manifest {
            format: FORMAT,
            owner: Owner::default(),
            session: String::new(),
            epoch: 0,
            version: 0,
            written_unix_s: 0,
            partition_s,
            hosts: None,
            partitions: Vec::new(),
        }
    }

    /// As it is written: a line for each partition, for whoever has to read it.
    pub fn encode(&self) -> Vec<u8> {
        let mut text = serde_json::to_string(self).unwrap_or_default();
        text = text.replace(",{\"name\":", ",\n{\"name\":");
        text.push('\n');
        text.into_bytes()
    }

    /// Reads it.
    ///
    /// # Errors
    /// A sentence, if it is something else.
    pub fn decode(bytes: &[u8]) -> Result<Manifest, String> {
        let manifest: Manifest =
            serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if manifest.format != FORMAT {
            return Err(format!("it has format {}, not {FORMAT}", manifest.format));
        }
        for entry in &manifest.partitions {
            let is_known = entry.level().is_some() && entry.extent().is_some();
            let is_ordered = entry.start_s < entry.end_s && entry.head_offset < entry.bytes;
            if !is_known || !is_ordered || !is_object(&entry.name) {
                return Err(format!(
                    "the entry of `{}` is wrong",
                    config::shown(&entry.name)
                ));
            }
        }
        let hosts = manifest.hosts.iter();
        if hosts.into_iter().any(|hosts| !is_object(&hosts.name)) {
            return Err("the entry of hosts is wrong".to_owned());
        }
        Ok(manifest)
    }

    /// The object of some data, whatever its level.
    pub fn find(&self, start_s: i64, lineage: u64) -> Option<&Entry> {
        let mut entries = self.partitions.iter();
        entries.find(|entry| entry.start_s == start_s && entry.lineage() == lineage)
    }

    /// Puts an object in the place of the one of the same data, which is returned.
    pub fn insert(&mut self, entry: Entry) -> Option<Entry> {
        let same = |of: &Entry| of.start_s == entry.start_s && of.lineage == entry.lineage;
        let old = self.partitions.iter().position(same);
        let old = old.map(|at| self.partitions.remove(at));
        let at = |of: &Entry| of.start_s <= entry.start_s;
        let at = self.partitions.partition_point(at);
        self.partitions.insert(at, entry);
        old
    }

    /// All names of objects that it has.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let partitions = self.partitions.iter().map(|entry| entry.name.as_str());
        partitions.chain(self.hosts.iter().map(|hosts| hosts.name.as_str()))
    }
}

impl Entry {
    /// The entry of an object.
    pub fn new(
        name: String,
        (start_s, end_s): (i64, i64),
        level: Level,
        facts: &Facts,
        extent: &Extent,
    ) -> Entry {
        Entry {
            name,
            start_s,
            end_s,
            level: level.name().to_owned(),
            lineage: format!("{:016x}", facts.lineage),
            flushes: facts.flushes,
            service_labels: facts.service_labels.clone(),
            bytes: extent.bytes,
            head_offset: extent.head_offset,
            head_hash: HEXLOWER.encode(&extent.head_hash),
        }
    }

    /// How fine its data is.
    pub fn level(&self) -> Option<Level> {
        Level::ALL
            .into_iter()
            .find(|level| level.name() == self.level)
    }

    /// Which data it has.
    pub fn lineage(&self) -> u64 {
        u64::from_str_radix(&self.lineage, 16).unwrap_or(0)
    }

    /// What it says of the object's bytes.
    pub fn extent(&self) -> Option<Extent> {
        let hash = HEXLOWER.decode(self.head_hash.as_bytes()).ok()?;
        Some(Extent {
            bytes: self.bytes,
            head_offset: self.head_offset,
            head_hash: hash.try_into().ok()?,
        })
    }
}

/// Name of an object: the epoch of who wrote it, a number that the epoch gives once, what it is.
pub fn object_name(epoch: u64, number: u64, what: &str) -> String {
    format!("{OBJECTS}/{epoch:08}-{number:08}-{what}")
}

/// The epoch of who wrote an object, by its name.
pub fn epoch_of(name: &str) -> Option<u64> {
    let name = name.strip_prefix(OBJECTS)?.strip_prefix('/')?;
    name.split('-').next()?.parse().ok()
}

/// True for what [`object_name`] makes: such names are names of files as well.
fn is_object(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let name_only = name
        .strip_prefix(OBJECTS)
        .and_then(|name| name.strip_prefix('/'));
    epoch_of(name).is_some() && name_only.is_some_and(|name| name.bytes().all(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(start_s: i64, lineage: u64, flushes: u64) -> Entry {
        let extent = Extent {
            bytes: 100,
            head_offset: 40,
            head_hash: [7; 32],
        };
        let name = object_name(1, flushes, "p");
        let range = (start_s, start_s + 600);
        let facts = Facts {
            lineage,
            flushes,
            ..Facts::default()
        };
        Entry::new(name, range, Level::Minutes, &facts, &extent)
    }

    #[test]
    fn an_object_replaces_the_one_of_the_same_data_alone() {
        let mut manifest = Manifest::new(600);
        assert_eq!(manifest.insert(entry(600, 5, 1)), None);
        assert_eq!(manifest.insert(entry(0, 5, 2)), None);
        assert_eq!(manifest.insert(entry(600, 6, 3)), None);
        assert_eq!(manifest.insert(entry(600, 5, 4)), Some(entry(600, 5, 1)));
        let starts: Vec<_> = manifest.partitions.iter().map(|of| of.start_s).collect();
        assert_eq!(starts, [0, 600, 600]);
        assert_eq!(manifest.find(600, 5).map(|of| of.flushes), Some(4));
        assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
    }

    #[test]
    fn a_manifest_that_names_other_files_is_refused() {
        for name in [
            "objects/../../etc/passwd",
            "objects/1-1-p/x",
            "other",
            "objects/x-1-p",
        ] {
            let mut manifest = Manifest::new(600);
            manifest.insert(Entry {
                name: name.to_owned(),
                ..entry(0, 1, 1)
            });
            assert!(Manifest::decode(&manifest.encode()).is_err(), "{name}");
        }
        let text = String::from_utf8(Manifest::new(600).encode()).unwrap();
        let newer = text.replace("\"format\":1", "\"format\":2");
        let error = Manifest::decode(newer.as_bytes()).unwrap_err();
        assert!(error.contains("format 2"), "{error}");
    }

    #[test]
    fn the_epoch_of_an_object_is_in_its_name() {
        let name = object_name(12, 3, "1768435200-minutes");
        assert_eq!(epoch_of(&name), Some(12));
        assert!(is_object(&name));
        assert_eq!(epoch_of("objects/elsewhere"), None);
    }
}
