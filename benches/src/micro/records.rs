//! Parsing records that the kernel wrote: captured by `perf record` with the fields that the daemon
//! asks for, parsed by the daemon's parser and by that of perf-event2.

use super::Lines;
use anyhow::{Context, ensure};
use perf::record::{self, Layout, Record};
use perf_event::data::endian::Little;
use perf_event::data::parse::{ParseConfig, Parser};
use perf_event_open_sys::bindings as sys;
use std::process::Command;
use std::time::Duration;
use testkit::process::{program, run};
use testkit::require::is_root;

/// Fields of a sample that the daemon's layout has in any case.
const FIELDS: u64 = (sys::PERF_SAMPLE_IDENTIFIER
    | sys::PERF_SAMPLE_IP
    | sys::PERF_SAMPLE_TID
    | sys::PERF_SAMPLE_TIME
    | sys::PERF_SAMPLE_CPU
    | sys::PERF_SAMPLE_PERIOD
    | sys::PERF_SAMPLE_CALLCHAIN
    | sys::PERF_SAMPLE_CGROUP) as u64;
const COPIES: u64 = (sys::PERF_SAMPLE_REGS_USER | sys::PERF_SAMPLE_STACK_USER) as u64;
/// Fields that perf adds on its own to copies of stacks, for data addresses.
const ADDED: u64 = (sys::PERF_SAMPLE_ADDR | sys::PERF_SAMPLE_DATA_SRC) as u64;
/// Where `PERF_SAMPLE_ADDR` is in a sample with these fields: after header, identifier, ip, tid,
/// time.
const ADDR_AT: usize = 40;
/// Types from here on are perf's own, not the kernel's.
const USER_TYPES: u32 = 64;

/// Records as they lay in the rings.
struct Captured {
    bytes: Vec<u8>,
    records: Vec<std::ops::Range<usize>>,
    sample_type: u64,
    user_regs: u64,
}

/// Captures two seconds of every CPU while a shell starts programs. Without `-B` perf looks for
/// build ids at its end, which nobody needs here and at which perf 6.1 has been seen to fail.
fn capture(call_graph: &str) -> anyhow::Result<Captured> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("perf.data");
    let line = format!(
        r#"exec perf record -q -B -F 1999 -a -e cpu-clock --call-graph {call_graph} -P -T \
           --sample-cpu --sample-identifier --all-cgroups -o "$1" \
           sh -c 'end=$(($(date +%s) + 2)); while [ $(date +%s) -lt $end ]; do ls / >/dev/null; done'"#
    );
    let mut command = Command::new("sh");
    command.args(["-c", &line, "sh"]).arg(&data);
    let out = run(&mut command, Duration::from_secs(60));
    ensure!(
        out.code == Some(0),
        "perf record: {}",
        out.stderr.lines().last().unwrap_or_default()
    );
    read(std::fs::read(&data)?).context("perf.data is not as expected")
}

/// Reads the header, the one attribute and the records of a perf.data file.
fn read(bytes: Vec<u8>) -> Option<Captured> {
    let word = |at: usize| {
        let word = bytes.get(at..at + 8)?;
        Some(u64::from_ne_bytes(word.try_into().ok()?))
    };
    if bytes.get(..8)? != b"PERFILE2" {
        return None;
    }
    let attribute = word(24)? as usize;
    let (begin, len) = (word(40)? as usize, word(48)? as usize);
    let (sample_type, user_regs) = (word(attribute + 24)?, word(attribute + 80)?);
    let (mut records, mut at) = (Vec::new(), begin);
    while at + 8 <= begin + len {
        let header = word(at)?;
        let (kind, size) = (header as u32, (header >> 48) as usize);
        if size < 8 {
            return None;
        }
        if kind < USER_TYPES {
            records.push(at..at + size);
        }
        at += size;
    }
    Some(Captured {
        bytes,
        records,
        sample_type,
        user_regs,
    })
}

impl Captured {
    /// Takes the fields that perf added out of every sample, as if the kernel had not been asked
    /// for them: the address, and the data source, which is the word before the last.
    fn without_added(self) -> Captured {
        if self.sample_type & ADDED != ADDED {
            return self;
        }
        let (mut bytes, mut records) = (Vec::with_capacity(self.bytes.len()), Vec::new());
        for range in self.records {
            let record = &self.bytes[range];
            let begin = bytes.len();
            if record::is_sample(record) && record.len() > ADDR_AT + 24 {
                let source_at = record.len() - 16;
                bytes.extend_from_slice(&record[..ADDR_AT]);
                bytes.extend_from_slice(&record[ADDR_AT + 8..source_at]);
                bytes.extend_from_slice(&record[source_at + 8..]);
                let size = (record.len() - 16) as u16;
                bytes[begin + 6..begin + 8].copy_from_slice(&size.to_ne_bytes());
            } else {
                bytes.extend_from_slice(record);
            }
            records.push(begin..bytes.len());
        }
        Captured {
            bytes,
            records,
            sample_type: self.sample_type & !ADDED,
            user_regs: self.user_regs,
        }
    }

    fn layout(&self) -> Layout {
        Layout {
            cgroup: true,
            user_regs: self.user_regs,
            user_stack: self.sample_type & u64::from(sys::PERF_SAMPLE_STACK_USER) != 0,
            raw: false,
            fixed_period: 0,
        }
    }

    /// By the daemon's parser: what the callchains add up to, and records that did not parse.
    fn ours(&self, layout: &Layout) -> (u64, u64) {
        let (mut sum, mut failed) = (0u64, 0);
        for range in &self.records {
            match record::parse(&self.bytes[range.clone()], layout) {
                Ok(Record::Sample(sample)) => {
                    let words = sample.callchain.iter();
                    sum = words.fold(sum, u64::wrapping_add);
                }
                Ok(_) => {}
                Err(_) => failed += 1,
            }
        }
        (sum, failed)
    }

    /// By that of perf-event2.
    fn theirs(&self, config: &ParseConfig<Little>) -> (u64, u64) {
        let (mut sum, mut failed) = (0u64, 0);
        for range in &self.records {
            let mut parser = Parser::new(&self.bytes[range.clone()], config.clone());
            match parser.parse::<perf_event::data::Record<'_>>() {
                Ok(perf_event::data::Record::Sample(sample)) => {
                    let words = sample.callchain().unwrap_or_default();
                    sum = words.iter().copied().fold(sum, u64::wrapping_add);
                }
                Ok(_) => {}
                Err(_) => failed += 1,
            }
        }
        (sum, failed)
    }
}

/// Both parsers on records without and with copies of user stacks.
pub fn measure(lines: &mut Lines) -> anyhow::Result<()> {
    if !is_root() || program("perf").is_none() {
        lines.note("records: skipped, capturing takes root and perf".to_owned());
        return Ok(());
    }
    for (what, call_graph, fields) in [
        ("frame pointers", "fp", FIELDS),
        ("16 KiB copies", "dwarf,16384", FIELDS | COPIES),
    ] {
        let captured = capture(call_graph)?.without_added();
        if captured.sample_type != fields {
            let found = captured.sample_type;
            lines.note(format!(
                "records, {what}: skipped, perf recorded fields {found:#x} instead of {fields:#x}"
            ));
            continue;
        }
        let mut attributes = sys::perf_event_attr::default();
        attributes.sample_type = captured.sample_type;
        attributes.sample_regs_user = captured.user_regs;
        attributes.set_sample_id_all(1);
        let config = ParseConfig::<Little>::from(attributes);
        let layout = captured.layout();
        let records = captured.records.len() as u64;
        lines.run(&format!("{what}, fleetprofd"), "record", records, || {
            captured.ours(&layout)
        });
        lines.run(&format!("{what}, perf-event2"), "record", records, || {
            captured.theirs(&config)
        });
        let (ours, theirs) = (captured.ours(&layout), captured.theirs(&config));
        lines.note(format!(
            "records, {what}: of {records} not parsed: fleetprofd {}, perf-event2 {}",
            ours.1, theirs.1
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_loses_the_fields_that_perf_added() {
        let words: [u64; 10] = [
            sys::PERF_RECORD_SAMPLE as u64 | 80 << 48,
            1,
            2,
            3,
            4,
            0xadd7,
            6,
            7,
            0xda7a,
            44,
        ];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let captured = Captured {
            records: std::iter::once(0..bytes.len()).collect(),
            bytes,
            sample_type: FIELDS | ADDED,
            user_regs: 0,
        };
        let cut = captured.without_added();
        let header = sys::PERF_RECORD_SAMPLE as u64 | 64 << 48;
        let expected = [header, 1, 2, 3, 4, 6, 7, 44].map(u64::to_ne_bytes);
        assert_eq!((cut.bytes, cut.sample_type), (expected.concat(), FIELDS));
        assert_eq!(cut.records.first(), Some(&(0..64)));
    }

    #[test]
    fn what_is_no_recording_is_refused() {
        assert!(read(b"PERFILE1".to_vec()).is_none());
        assert!(read(b"PERFILE2\x68\0\0\0\0\0\0\0".to_vec()).is_none());
    }
}
