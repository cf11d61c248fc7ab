//! Tests the sender with a disk that does not answer.

use super::*;
use crate::{Exporter, HostInfo, Options, uplink};
use std::time::Duration;
use testkit::fake::ingest::IngestCollector;

/// Longest that anything here may take. Only a failing test waits for it.
const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn a_disk_that_hangs_holds_up_windows_and_no_other_service() {
    let dir = tempfile::tempdir().unwrap();
    let mut earlier = Run::new(dir.path(), settings());
    earlier.record(&sample(1));
    drop(earlier);
    let collector = IngestCollector::start();
    let options = Options {
        collector: super::super::Target::Configured(collector.address()),
        outside: None,
        dir: dir.path().to_path_buf(),
        settings: settings(),
        identity: (*identity()).clone(),
        host: HostInfo::default(),
    };
    let (exporter, sink, queue) = Exporter::new(options, Arc::new(WallAnchor::new()));
    let exporter = Arc::new(exporter);
    let spooler = Arc::clone(&exporter);
    let spooling = std::thread::spawn(move || spooler.run_spool(&queue));
    until_blocking("opened", || exporter.shared.dir().is_some());
    let spool = exporter.shared.dir().unwrap();
    // Whoever writes the gaps hangs.
    let hung = spool.gaps();
    exporter.shared.note_gaps(Duration::ZERO);
    exporter.shared.wake.notify_one();
    let (ask, mut asked) = tokio::sync::mpsc::channel::<u32>(1);
    let (answer, answered) = sync_channel(1);
    let other = async move {
        while let Some(number) = asked.recv().await {
            answer.send(number).unwrap();
        }
    };
    let services: Vec<uplink::Service> =
        vec![Box::pin(Arc::clone(&exporter).push()), Box::pin(other)];
    let uplink = std::thread::spawn(move || uplink::run(services));
    until_blocking("at the disk", || exporter.shared.notes_due().is_none());
    ask.blocking_send(7).unwrap();
    assert_eq!(answered.recv_timeout(LIMIT), Ok(7));
    assert!(collector.memory().windows.is_empty());
    drop(hung);
    until_blocking("sent", || collector.memory().windows.len() == 1);
    drop((ask, sink));
    exporter.stop(MonotonicTime::now().plus(LIMIT));
    spooling.join().unwrap();
    uplink.join().unwrap().unwrap();
    drop((exporter, spool));
    let later = Run::new(dir.path(), settings());
    assert_eq!(
        later.waiting(),
        0,
        "its acknowledgement is noted at the end"
    );
}
