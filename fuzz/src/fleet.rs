//! Targets of the way to the collector: what the spool reads back, and what the collector is sent.

use aggregate::recorder::RecorderQuery;
use collector::ingest::Reservation;
use collector::ingest::window::{Cost, Decoded, Decoder, cost, host_facts};
use collector::store::{HostFacts, HostKey};
use export::disk::{self, Dir};
use export::record::{self, Lens, Tables};
use host::time::WallAnchor;
use pins::Pins;
use profile::Query;
use prost::Message;
use proto::collector as wire;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

/// The payload of a spool's record, packed and not: a window that can be read is written as the
/// same.
pub fn spool_records(data: &[u8]) {
    if let Ok(payload) = disk::unpack(data) {
        read_record(&payload);
    }
    read_record(data);
}

fn read_record(payload: &[u8]) {
    let mut tables = Tables::default();
    if tables.take(payload).is_err() {
        return;
    }
    let Ok(window) = tables.window(payload) else {
        return;
    };
    let (mut defined, mut body) = (Vec::new(), Vec::new());
    record::encode_tables(&mut defined, &tables.dict, &mut Lens::default());
    record::encode_body(&mut body, &window);
    let again = record::join(&defined, &body);
    let mut read = Tables::default();
    read.take(&again).expect("our own tables");
    assert_eq!(read.window(&again).expect("our own window"), window);
    assert_eq!(read.dict.stacks.len(), tables.dict.stacks.len());
    assert_eq!(read.dict.label_sets.len(), tables.dict.label_sets.len());
}

/// The spool of this process; one after the other uses it.
static SPOOL: Mutex<()> = Mutex::new(());

/// A segment of the spool, with acknowledgements: what is found lies inside the file in order, the
/// next start finds the same and tells of no damage again.
pub fn spool_segments(data: &[u8]) {
    const ID: u64 = 1;
    let _one = SPOOL.lock().unwrap_or_else(PoisonError::into_inner);
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
    let first = dir.scan(ID, how & 1 == 1).expect("the disk works");
    let len = std::fs::metadata(file("seg")).expect("it is there").len();
    let (mut end, mut tables) = (0, Tables::default());
    for found in &first.records {
        assert!(found.offset >= end && found.len as usize >= disk::RECORD_HEAD);
        end = found.offset + u64::from(found.len);
        assert!(end <= len && end <= segment.len() as u64);
        let file = dir.reader(ID).expect("it is there");
        if let Ok(payload) = disk::read_record(&file, found.offset, found.len)
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
    let mut decoder = Decoder::new(host, &HostFacts::default(), Arc::clone(&metrics));
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
    let _one = SPOOL.lock().unwrap_or_else(PoisonError::into_inner);
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
