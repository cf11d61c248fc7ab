//! The sampler and its neighbours, driven by a test instead of a thread.

use aggregate::batch::RawBatch;
use host::bounds::{Bounds, CacheBounds};
use host::heartbeat::Heartbeat;
use jit::notice::Notice;
use sampler::workers::file_loader::{FileLoader, Handover, Modules};
use sampler::{CAPTURE_BATCHES, Queues, Sampler, SamplerHandle, SamplerStart};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use symbolize::SymbolCounters;
use symbolize::files::FileStore;
use unwind::info::generated::Generated;
use unwind::walk::{Depths, Unwinder};

/// The sampler, and the ends of its queues that tests use.
pub struct Driven {
    pub sampler: Sampler,
    pub batches: Receiver<RawBatch>,
    pub recycle: SyncSender<RawBatch>,
    /// The files that were seen, for a symbolizer.
    pub store: Arc<FileStore>,
    /// What `fp-files` does, with no debug files of its own.
    files: JoinHandle<()>,
    /// Nobody reads them.
    _notices: Receiver<Notice>,
}

impl Driven {
    /// Starts, without looks at the memory of threads. Also where rules for generated code go.
    pub fn new(start: SamplerStart, shared: Arc<SamplerHandle>) -> (Driven, SyncSender<Generated>) {
        let (batches, handed_over) = sync_channel(2 + CAPTURE_BATCHES);
        let (recycle, recycled) = sync_channel(2 + CAPTURE_BATCHES);
        for _ in 0..2 {
            recycle.send(RawBatch::default()).expect("there is room");
        }
        let (file_loader, requests) = sync_channel(1024);
        let (scans, scanned) = sync_channel(1);
        let (loaded, modules) = sync_channel(64);
        let handover = Arc::new(Handover {
            wanted: AtomicBool::new(true),
            ..Handover::default()
        });
        let for_loader = Modules {
            loaded,
            handover: Arc::clone(&handover),
            debug_dirs: Vec::new(),
            derive: true,
        };
        let store = Arc::new(FileStore::new(None, Arc::new(SymbolCounters::default())));
        let of_files = Arc::clone(&store);
        let files = std::thread::spawn(move || {
            let heartbeat = Heartbeat::default();
            FileLoader::default().run(&requests, &of_files, &scans, &for_loader, &heartbeat);
        });
        let (rules, generated) = sync_channel(1);
        let (code, notices) = sync_channel(16);
        let queues = Queues {
            batches,
            recycled,
            file_loader,
            scanned,
            modules: (modules, handover),
            generated,
            code,
            looks: None,
        };
        let driven = Driven {
            sampler: Sampler::new(start, queues, shared).expect("failed to make a sampler"),
            batches: handed_over,
            recycle,
            store,
            files,
            _notices: notices,
        };
        (driven, rules)
    }

    /// Ends the sampler and its neighbours.
    pub fn end(self) {
        drop(self.sampler);
        drop(self.store);
        self.files.join().expect("`fp-files` ends well");
    }
}

/// An unwinder with the usual depths that may keep so many bytes of unwind information.
pub fn unwinder(unwind: usize) -> Unwinder {
    let bounds = Bounds {
        symbols: 0,
        unwind,
        recorder: 0,
    };
    let depths = Depths {
        chain: 127,
        walk: 512,
    };
    Unwinder::new(depths, Arc::new(CacheBounds::new(bounds)))
}
