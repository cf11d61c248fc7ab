//! Tests a flush while it commits, and what readers see in memory.

use super::super::block::Sum;
use super::*;
use crate::store::TimeRange;
use profile::Quality;

fn limits() -> Limits {
    Limits {
        hosts: None,
        waiting: true,
        reports: true,
        cancel: crate::store::Cancel::default(),
        deadline: std::time::Instant::now() + std::time::Duration::from_secs(600),
        memory_bytes: 1 << 20,
        nodes: 1,
        lines: 1,
    }
}

#[test]
fn what_is_committed_and_not_forgotten_yet_is_seen_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("0.sqlite");
    let range = (0, 36 * CHUNK_NS as i64);
    let partition = Partition::create(path, folder.path().join("log"), range, &[], None).unwrap();
    let rows = || ChunkRows {
        last_record: 1,
        ..ChunkRows::default()
    };
    write(&partition.mem).active.insert(3, rows());
    let seen = |partition: &Partition| {
        let view = partition.view(&limits(), (0, 9), |_| Facts::Windows, || (), |(), _| true);
        let (view, ()) = view.unwrap();
        let chunks = view.chunks.iter().map(|chunk| chunk.chunk).collect();
        view.close(partition);
        chunks
    };
    let chunks: Vec<u16> = seen(&partition);
    assert_eq!(chunks, [3]);
    partition.flush(|_, _| true).unwrap();
    assert_eq!(seen(&partition), Vec::<u16>::new());
    // As between the commit and the moment after it: the flush is in the file and in memory.
    let frozen = |number| Frozen {
        number,
        chunks: [(3, rows())].into(),
        version: OnceLock::new(),
    };
    write(&partition.mem).frozen = Some(Arc::new(frozen(1)));
    assert_eq!(seen(&partition), Vec::<u16>::new());
    // As before the commit of the next one.
    write(&partition.mem).frozen = Some(Arc::new(frozen(2)));
    assert_eq!(seen(&partition), [3]);
    assert_eq!(partition.flush(|_, _| true).unwrap(), 0);
    assert_eq!(seen(&partition), Vec::<u16>::new());
}

#[test]
fn a_commit_that_only_seemed_to_fail_is_not_written_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("0.sqlite");
    let range = (0, 36 * CHUNK_NS as i64);
    let partition = Partition::create(path, folder.path().join("log"), range, &[], None).unwrap();
    let frozen = Arc::new(Frozen {
        number: 1,
        chunks: [(3, ChunkRows::default())].into(),
        version: OnceLock::new(),
    });
    let host = |name: &str| HostKey {
        host_id: name.to_owned(),
        boot_id: [1; 16],
    };
    let dict = partition.dict(true).unwrap();
    for name in ["before", "between"] {
        write(&dict).host(&host(name));
        write(&partition.mem).frozen = Some(Arc::clone(&frozen));
        *lock(&partition.flushed) = DictVersion::EMPTY;
        partition.flush(|_, _| true).unwrap();
    }
    // What came between the two is not in the file, and the next flush knows.
    assert_eq!(lock(&partition.flushed).hosts, 1);
    let mut parts = 0;
    let file = partition.reader().unwrap();
    let counted = file.each_windows::<FileError>(0, 9, |_, _| {
        parts += 1;
        Ok(())
    });
    assert_eq!((counted.is_ok(), parts), (true, 1));
}

/// A partition that has two windows of one chunk in memory.
fn with_two_windows(folder: &std::path::Path) -> Partition {
    let path = folder.join("0.sqlite");
    let range = (0, 36 * CHUNK_NS as i64);
    let partition = Partition::create(path, folder.join("log"), range, &[], None).unwrap();
    let host = HostKey {
        host_id: "a".to_owned(),
        boot_id: [1; 16],
    };
    for at in [0, 1] {
        let start = at * 10_000_000_000;
        let window = Prepared {
            chunk: 0,
            start: start as u64,
            meta: window_at(start),
            parts: Vec::new(),
        };
        partition.apply(1, 0, &host, &LabelSet::default(), window);
    }
    partition
}

fn window_at(start: i64) -> WindowMeta {
    WindowMeta {
        host: 0,
        sequence: start as u64,
        range: TimeRange {
            start_unix_ns: start,
            end_unix_ns: start + 10_000_000_000,
        },
        host_labels: 0,
        quality: Quality::default(),
        sum: Sum::default(),
        accounts: Vec::new(),
        pressure: None,
        label_sets: Vec::new(),
        dropped: None,
    }
}

fn memory_of(partition: &Partition, facts: Facts) -> MemChunk {
    let (view, ()) = partition
        .view(&limits(), (0, 9), |_| facts, || (), |(), _| false)
        .unwrap();
    let bytes = view.heap_bytes();
    let View { file, mut chunks } = view;
    file.end();
    partition.give_back(file);
    let chunk = chunks.remove(0);
    assert_eq!(
        bytes,
        chunk.windows.capacity() * size_of::<Arc<WindowMeta>>()
    );
    chunk
}

#[test]
fn a_view_has_the_windows_that_were_asked_for_and_copies_none() {
    let folder = tempfile::tempdir().unwrap();
    let partition = with_two_windows(folder.path());
    assert!(memory_of(&partition, Facts::None).summary.is_none());
    for facts in [Facts::None, Facts::Summary] {
        assert!(memory_of(&partition, facts).windows.is_empty());
    }
    let seen = memory_of(&partition, Facts::Windows).windows;
    let mem = read(&partition.mem);
    let own = &mem.active[&0].windows;
    assert_eq!(own.len(), 2);
    assert!(
        seen.iter()
            .zip(own)
            .all(|(seen, own)| Arc::ptr_eq(seen, own))
    );
}

#[test]
fn a_view_shares_the_summary_of_a_chunk_and_does_not_see_later_windows() {
    let folder = tempfile::tempdir().unwrap();
    let partition = with_two_windows(folder.path());
    let seen = memory_of(&partition, Facts::Summary).summary.unwrap();
    assert!(Arc::ptr_eq(&seen, &read(&partition.mem).active[&0].summary));
    let mut mem = write(&partition.mem);
    let chunk = mem.active.get_mut(&0).unwrap();
    Arc::make_mut(&mut chunk.summary).add(&window_at(20_000_000_000));
    let windows = |summary: &Summary| summary.hosts[&(0, 0)].0.windows;
    assert_eq!((windows(&seen), windows(&chunk.summary)), (2, 3));
}

#[test]
fn windows_are_read_where_a_range_divides_a_chunk_only() {
    let slice = |chunk, part| ChunkSlice { chunk, part };
    let slices = [slice(3, Some((10, 20))), slice(4, None)];
    let facts = Facts::of(&slices);
    let asked = [3, 4, 5].map(facts);
    assert_eq!(asked, [Facts::Windows, Facts::Summary, Facts::Summary]);
}
