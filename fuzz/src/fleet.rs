//! Targets of the way to the collector: what the spool reads back, and what the collector is sent.

use aggregate::recorder::RecorderQuery;
use collector::ingest::Reservation;
use collector::ingest::window::{Cost, Decoded, Decoder, cost, host_facts};
use collector::store::{HostFacts, HostKey};
use export::disk::Dir;
use host::time::WallAnchor;
use pins::Pins;
use profile::Query;
use prost::Message;
use proto::collector as wire;
use segment::file::{Kind, Records, Tail, read_record, scan};
use segment::record;
use segment::window::{self, EncodedLengths, Tables};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

/// A record and its payload: a window that can be read is written as the same.
pub fn segment_records(data: &[u8]) {
    if let Ok((_, payload)) = record::unpack(data) {
        read_window(&payload);
    }
    read_window(data);
}

fn read_window(payload: &[u8]) {
    let mut tables = Tables::default();
    if tables.take(payload).is_err() {
        return;
    }
    let Ok(window) = tables.window(payload) else {
        return;
    };
    let (mut defined, mut body) = (Vec::new(), Vec::new());
    window::encode_tables(&mut defined, &tables.dict, &mut EncodedLengths::default());
    window::encode_body(&mut body, &window);
    let again = window::join(&defined, &body);
    let mut read = Tables::default();
    read.take(&again).expect("our own tables");
    assert_eq!(read.window(&again).expect("our own window"), window);
    assert_eq!(read.dict.stacks.len(), tables.dict.stacks.len());
    assert_eq!(read.dict.label_sets.len(), tables.dict.label_sets.len());
}

/// Files of this process; one after the other uses them.
static FILES: Mutex<()> = Mutex::new(());

/// A file of records: what is found lies inside the file in order, is read or is damaged, and the
/// next start finds the same, complete.
pub fn segment_files(data: &[u8]) {
    const KIND: Kind = Kind {
        magic: *b"FPSEGM\0",
        version: 1,
        extension: "segment",
    };
    let _one = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    // The first byte says whether the file may have been written to until a crash.
    let Some((&check_tail, data)) = data.split_first() else {
        return;
    };
    let check_tail = check_tail & 1 == 1;
    let path = std::env::temp_dir().join(format!("fleetprof-segment-{}", std::process::id()));
    std::fs::write(&path, data).expect("a file of our own");
    let open = || {
        let mut options = std::fs::File::options();
        let file = options.read(true).write(true).open(&path);
        file.expect("it is there")
    };
    if let Ok(found) = scan(&open(), &KIND, check_tail) {
        let len = open().metadata().expect("it is there").len();
        assert_eq!(len, found.bytes);
        let mut end = 0;
        for record in &found.records {
            assert!(record.offset >= end && record.len as usize >= record::HEAD_BYTES);
            end = record.end();
        }
        assert!(end <= len && len <= data.len() as u64);
        assert_eq!(found.tail == Tail::Complete, len == data.len() as u64);
        let records = Records::of(open(), &KIND, len).expect("its header was read");
        for (read, at) in records.zip(&found.records) {
            let alone = read_record(&open(), at.offset, at.len);
            match read {
                Ok((head, payload)) => {
                    assert_eq!(
                        (head.header, payload),
                        (at.header, alone.expect("it was read"))
                    );
                }
                Err(_) => assert!(alone.is_err()),
            }
        }
        if check_tail && let Some(last) = found.records.last() {
            assert!(read_record(&open(), last.offset, last.len).is_ok());
        }
        let again = scan(&open(), &KIND, check_tail).expect("it was read");
        assert_eq!((again.records, again.tail), (found.records, Tail::Complete));
    }
    let _ = std::fs::remove_file(&path);
}

/// A segment of the spool, with acknowledgements: what is found lies inside the file in order, the
/// next start finds the same and tells of no damage again.
pub fn spool_segments(data: &[u8]) {
    const ID: u64 = 1;
    let _one = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let path: PathBuf =
        std::env::temp_dir().join(format!("fleetprof-spool-{}", std::process::id()));
    let Ok(dir) = Dir::open(&path) else {
        return;
    };
    // The first byte says how much of the end are acknowledgements, and whether it is the newest.
    let Some((&how, data)) = data.split_first() else {
        return;
    };
    let acks = data.len().min(usize::from(how >> 1) & !7);
    let (segment, acks) = data.split_at(data.len() - acks);
    let file = |ext: &str| path.join(format!("{ID:016x}.{ext}"));
    std::fs::write(file("seg"), segment).expect("a file of our own");
    std::fs::write(file("ack"), acks).expect("a file of our own");
    let Ok(first) = dir.scan(ID, how & 1 == 1) else {
        // The file is of another version.
        drop(dir);
        let _ = std::fs::remove_dir_all(&path);
        return;
    };
    let len = std::fs::metadata(file("seg")).expect("it is there").len();
    let (mut end, mut tables) = (0, Tables::default());
    for (found, _) in &first.records {
        assert!(found.offset >= end);
        end = found.end();
        assert!(end <= len && end <= segment.len() as u64);
        let file = dir.reader(ID).expect("it is there");
        if let Ok(payload) = read_record(&file, found.offset, found.len)
            && tables.take(&payload).is_ok()
        {
            let _ = tables.window(&payload);
        }
    }
    let second = dir.scan(ID, how & 1 == 1).expect("the disk works");
    assert_eq!(second.identity, first.identity);
    if first.identity.is_some() {
        assert_eq!(second.records, first.records);
        assert!(!second.damaged, "damage is told once");
    }
    drop(dir);
    let _ = std::fs::remove_dir_all(&path);
}

/// What an agent sends: facts of its host and parts of windows. What is taken is within every
/// bound.
pub fn ingest_windows(data: &[u8]) {
    let metrics = Arc::default();
    let host = HostKey {
        host_id: "id".to_owned(),
        boot_id: [1; 16],
    };
    let facts = HostFacts::default();
    let mut decoder = Decoder::new(host, &facts, &BTreeMap::new(), Arc::clone(&metrics));
    let mut rest = data;
    while !rest.is_empty() {
        let Ok(request) = wire::PushRequest::decode_length_delimited(&mut rest) else {
            return;
        };
        let part = match request.body {
            Some(wire::push_request::Body::Part(part)) => part,
            Some(wire::push_request::Body::Facts(facts)) => {
                let facts = host_facts(facts, &metrics);
                assert!(!facts.labels.contains_key("host"));
                decoder.set_facts(&facts);
                continue;
            }
            _ => continue,
        };
        let bytes = cost(&part, decoder.host_bytes());
        assert!(bytes.tables < usize::MAX / 2 && bytes.rows < usize::MAX / 2);
        let held = Cost {
            tables: Reservation::default(),
            rows: Reservation::default(),
        };
        match decoder.part(part, held) {
            Ok(Decoded::Whole(pending)) => {
                let window = &pending.window;
                let sets = window.label_sets.len() as u32;
                assert!(window.rows.iter().all(|row| row.labels < sets));
                assert!(window.accounts.iter().all(|account| account.labels < sets));
                let numbers = window.stream.as_ref().map(|stream| stream.ids.len());
                assert_eq!(numbers, Some(window.rows.len()));
                assert!(window.range.start_unix_ns < window.range.end_unix_ns);
                assert!(
                    window
                        .label_sets
                        .iter()
                        .all(|set| !set.get("host").is_empty())
                );
                assert_eq!(decoder.unfinished(), None);
            }
            Ok(Decoded::More | Decoded::Refused { .. }) => {}
            Err(_) => return,
        }
    }
}

/// Files of a pin and of its capture: what can be read is read the same again by the next start,
/// and a range is asked for without a fall.
pub fn pin_files(data: &[u8]) {
    let _one = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let path: PathBuf = std::env::temp_dir().join(format!("fleetprof-pins-{}", std::process::id()));
    // The first byte says how much of the end is the capture's.
    let Some((&capture, data)) = data.split_first() else {
        return;
    };
    let capture = data.len().min(usize::from(capture) * 8);
    let (pin, capture) = data.split_at(data.len() - capture);
    std::fs::create_dir_all(&path).expect("a directory of our own");
    let file = |ext: &str| path.join(format!("{:016x}.{ext}", 1));
    std::fs::write(file("pin"), pin).expect("a file of our own");
    std::fs::write(file("capture"), capture).expect("a file of our own");
    let open = || Pins::new(path.clone(), 1 << 20, Arc::new(WallAnchor::new()));
    let found = {
        let pins = open();
        let everything = (i64::MIN, i64::MAX);
        let never = AtomicBool::new(false);
        let query = Query::default();
        let asked = RecorderQuery {
            query: &query,
            times: true,
            withhold: profile::Withholding::nothing(),
        };
        if let Ok(Some(answer)) = pins.overlapping(everything, asked, &never) {
            assert!(answer.covered.windows > 0 || answer.profile.samples.is_empty());
        }
        let _ = pins.capture(1);
        pins.list()
    };
    assert_eq!(open().list(), found);
    let _ = std::fs::remove_dir_all(&path);
}
