//! A flush while it commits.

use super::*;

#[test]
fn what_is_committed_and_not_forgotten_yet_is_seen_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("0.sqlite");
    let range = (0, 36 * CHUNK_NS as i64);
    let partition = Partition::create(path, folder.path(), range, &[], None).unwrap();
    let rows = || ChunkRows {
        last_record: 1,
        ..ChunkRows::default()
    };
    write(&partition.mem).active.insert(3, rows());
    let seen = |partition: &Partition| {
        let view = partition.view((0, 9), |_| Facts::Windows, || (), |(), _| true);
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
        marks: OnceLock::new(),
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
    let partition = Partition::create(path, folder.path(), range, &[], None).unwrap();
    let frozen = Arc::new(Frozen {
        number: 1,
        chunks: [(3, ChunkRows::default())].into(),
        marks: OnceLock::new(),
    });
    let host = |name: &str| HostKey {
        host_id: name.to_owned(),
        boot_id: [1; 16],
    };
    let dict = partition.dict(true).unwrap();
    for name in ["before", "between"] {
        write(&dict).host(&host(name));
        write(&partition.mem).frozen = Some(Arc::clone(&frozen));
        *lock(&partition.flushed) = Marks::EMPTY;
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
