//! The facts that hosts report: a small table in memory, and a file that is rewritten completely.

use super::codec::{
    Corrupt, Reader, SectionReader, SectionWriter, encode_bytes, encode_signed, encode_u64,
};
use crate::durable::replace;
use crate::store::{HostFacts, HostKey, HostRecord};
use std::collections::BTreeMap;
use std::path::Path;

/// Most boots of hosts that are remembered; of more, those heard of longest ago are forgotten.
const HOSTS_MAX: usize = 100_000;

/// Records of hosts.
#[derive(Default)]
pub struct HostTable {
    /// By host and boot.
    pub records: BTreeMap<HostKey, HostRecord>,
    /// Last record of the log that is in the file.
    pub saved_record: u64,
    last_record: u64,
    dirty: bool,
}

impl HostTable {
    /// Remembers a host of a record of the log.
    pub fn set(&mut self, record: u64, host: HostRecord) {
        self.last_record = self.last_record.max(record);
        self.dirty = true;
        self.records.insert(host.key.clone(), host);
        if self.records.len() > HOSTS_MAX {
            let oldest = self
                .records
                .values()
                .min_by_key(|host| host.last_seen_unix_ns);
            if let Some(key) = oldest.map(|host| host.key.clone()) {
                self.records.remove(&key);
            }
        }
    }

    /// Forgets hosts not heard of since `unix_ns`.
    pub fn forget_before(&mut self, unix_ns: i64) {
        let before = self.records.len();
        self.records
            .retain(|_, host| host.last_seen_unix_ns >= unix_ns);
        self.dirty |= self.records.len() != before;
    }

    /// Writes the file when something changed.
    pub fn save(&mut self, path: &Path) -> std::io::Result<()> {
        if !self.dirty {
            return Ok(());
        }
        replace(path, &self.encode()?, 0o666)?;
        self.dirty = false;
        self.saved_record = self.last_record;
        Ok(())
    }

    /// All of it, as it stands in the file.
    pub fn encode(&self) -> std::io::Result<Vec<u8>> {
        let mut raw = Vec::new();
        encode_u64(&mut raw, self.last_record);
        encode_u64(&mut raw, self.records.len() as u64);
        for host in self.records.values() {
            encode_host(&mut raw, host);
        }
        // Behind what earlier versions read, which pass over it.
        for host in self.records.values() {
            encode_health(&mut raw, host);
        }
        let mut sealed = Vec::new();
        SectionWriter::new()?.seal(&mut sealed, &raw)?;
        Ok(sealed)
    }

    /// Reads the file.
    pub fn load(bytes: &[u8]) -> Result<HostTable, Corrupt> {
        let mut raw = Vec::new();
        let mut opener = SectionReader::new().map_err(|_| Corrupt("zstd got no memory"))?;
        opener.open(&mut Reader::new(bytes), &mut raw)?;
        let mut input = Reader::new(&raw);
        let last_record = input.decode_u64()?;
        let mut hosts = Vec::new();
        for _ in 0..input.decode_count()? {
            hosts.push(decode_host(&mut input)?);
        }
        for host in &mut hosts {
            decode_health(&mut input, host)?;
        }
        let records = hosts.into_iter().map(|host| (host.key.clone(), host));
        Ok(HostTable {
            records: records.collect(),
            saved_record: last_record,
            last_record,
            ..HostTable::default()
        })
    }
}

/// Appends a record.
pub fn encode_host(out: &mut Vec<u8>, host: &HostRecord) {
    encode_bytes(out, host.key.host_id.as_bytes());
    out.extend_from_slice(&host.key.boot_id);
    let facts = &host.facts;
    for text in [
        &facts.hostname,
        &facts.kernel,
        &facts.arch,
        &facts.agent_version,
    ] {
        encode_bytes(out, text.as_bytes());
    }
    for number in [
        facts.cpus_online.into(),
        facts.memory_bytes,
        facts.spool_windows,
        facts.spool_bytes,
        facts.spool_bytes_max,
        facts.dropped_windows,
    ] {
        encode_u64(out, number);
    }
    encode_u64(out, facts.labels.len() as u64);
    for (name, value) in &facts.labels {
        encode_bytes(out, name.as_bytes());
        encode_bytes(out, value.as_bytes());
    }
    for at in [
        facts.spool_oldest_unix_ns,
        host.first_seen_unix_ns,
        host.last_seen_unix_ns,
        host.clock_ahead_ns,
    ] {
        encode_signed(out, at);
    }
}

/// Appends what a host says of its work, behind all that [`encode_host`] wrote of it and others.
pub fn encode_health(out: &mut Vec<u8>, host: &HostRecord) {
    encode_bytes(out, &host.facts.health);
}

/// Reads what [`encode_health`] wrote, where it did: earlier versions end here.
pub fn decode_health(input: &mut Reader<'_>, host: &mut HostRecord) -> Result<(), Corrupt> {
    if !input.is_empty() {
        host.facts.health = input.decode_bytes()?.to_vec();
    }
    Ok(())
}

/// Reads what [`encode_host`] wrote.
pub fn decode_host(input: &mut Reader<'_>) -> Result<HostRecord, Corrupt> {
    let text = |input: &mut Reader<'_>| input.decode_str().map(str::to_owned);
    let key = HostKey {
        host_id: text(input)?,
        boot_id: input.decode_16()?,
    };
    let mut facts = HostFacts {
        hostname: text(input)?,
        kernel: text(input)?,
        arch: text(input)?,
        agent_version: text(input)?,
        cpus_online: input.decode_u32()?,
        memory_bytes: input.decode_u64()?,
        spool_windows: input.decode_u64()?,
        spool_bytes: input.decode_u64()?,
        spool_bytes_max: input.decode_u64()?,
        dropped_windows: input.decode_u64()?,
        ..HostFacts::default()
    };
    for _ in 0..input.decode_count()? {
        let name = text(input)?;
        facts.labels.insert(name, text(input)?);
    }
    facts.spool_oldest_unix_ns = input.decode_signed()?;
    Ok(HostRecord {
        key,
        facts,
        first_seen_unix_ns: input.decode_signed()?,
        last_seen_unix_ns: input.decode_signed()?,
        clock_ahead_ns: input.decode_signed()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        let host = HostRecord {
            key: HostKey {
                host_id: "a\n\u{0}".into(),
                boot_id: [7; 16],
            },
            facts: HostFacts {
                labels: [("region".to_owned(), "eu".to_owned())].into(),
                cpus_online: 8,
                spool_oldest_unix_ns: -1,
                health: vec![0, 255],
                ..HostFacts::default()
            },
            first_seen_unix_ns: 1,
            last_seen_unix_ns: i64::MAX,
            clock_ahead_ns: i64::MIN,
        };
        let mut other = host.clone();
        other.key.boot_id = [8; 16];
        other.facts.health.clear();
        let mut book = HostTable::default();
        book.set(8, other.clone());
        book.set(9, host.clone());
        book.save(&path).unwrap();
        let loaded = HostTable::load(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(loaded.records.values().collect::<Vec<_>>(), [&host, &other]);
        assert_eq!(loaded.saved_record, 9);
        assert!(HostTable::load(b"garbage, not a file of hosts").is_err());
    }

    #[test]
    fn a_file_of_a_version_without_health_is_read() {
        let host = HostRecord {
            key: HostKey {
                host_id: "a".into(),
                boot_id: [7; 16],
            },
            facts: HostFacts::default(),
            first_seen_unix_ns: 1,
            last_seen_unix_ns: 2,
            clock_ahead_ns: 3,
        };
        let mut raw = Vec::new();
        encode_u64(&mut raw, 9);
        encode_u64(&mut raw, 1);
        encode_host(&mut raw, &host);
        let mut sealed = Vec::new();
        SectionWriter::new()
            .unwrap()
            .seal(&mut sealed, &raw)
            .unwrap();
        let loaded = HostTable::load(&sealed).unwrap();
        assert_eq!(loaded.records.values().collect::<Vec<_>>(), [&host]);
    }
}
