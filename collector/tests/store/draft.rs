//! Windows as tests write them: labels and stacks as text, together with their definitions.

use super::{BEGIN_NS, NOW_NS, SECOND};
use collector::store::{
    HostKey, LabelSet, NewWindow, Origin, PushOutcome, Row, StackMemo, Store, StreamStacks,
    TimeRange, WindowAccount,
};
use profile::{
    ContentId, Dictionary, FrameKind, FrameRef, Place, Pressure, Quality, Remap, StackEnd, StackId,
    UnnamedReason, Value,
};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use testkit::numbering;

/// Weight of a sample. Unit: nanoseconds.
pub const PERIOD: u64 = 10_101_010;

/// A window and the frames of its stacks.
#[derive(Clone)]
pub struct Draft {
    /// The window.
    pub window: NewWindow,
    /// Its stacks.
    pub stacks: Dictionary,
    host: String,
}

impl Draft {
    /// A window of a host, of 10 s, that starts `start_s` seconds after the start of the tests'
    /// time. `number` tells windows that start together apart, in the order in which the agent
    /// would number them.
    pub fn new(host: &str, number: u64, start_s: i64) -> Draft {
        let start_unix_ns = BEGIN_NS + start_s * SECOND;
        Draft {
            window: NewWindow {
                origin: Origin {
                    host: HostKey {
                        host_id: format!("id-of-{host}"),
                        boot_id: [1; 16],
                    },
                    sequence: numbering::sequence(0, start_s * SECOND) + number,
                },
                range: TimeRange {
                    start_unix_ns,
                    end_unix_ns: start_unix_ns + 10 * SECOND,
                },
                event: "cpu-clock".to_owned(),
                unit: "nanoseconds".to_owned(),
                period: PERIOD,
                quality: Quality::default(),
                label_sets: Vec::new(),
                rows: Vec::new(),
                accounts: Vec::new(),
                pressure: None,
                dropped_before: None,
                stream: None,
            },
            stacks: Dictionary::default(),
            host: host.to_owned(),
        }
    }

    /// The number of another: a window that is sent again by an agent whose wall clock was set.
    pub fn numbered_as(mut self, other: &Draft) -> Draft {
        self.window.origin.sequence = other.window.origin.sequence;
        self
    }

    /// Another length.
    pub fn lasting(mut self, seconds: i64) -> Draft {
        self.window.range.end_unix_ns = self.window.range.start_unix_ns + seconds * SECOND;
        self
    }

    /// Another boot.
    pub fn boot(mut self, boot: u8) -> Draft {
        self.window.origin.host.boot_id = [boot; 16];
        self
    }

    /// What a closure changes in the window.
    pub fn with(mut self, change: impl FnOnce(&mut NewWindow)) -> Draft {
        change(&mut self.window);
        self
    }

    /// Samples of complete stacks: `unit=web,comm=nginx`, `main;work`.
    pub fn row(self, labels: &str, stack: &str, count: u64) -> Draft {
        self.ended(labels, stack, StackEnd::Complete, count)
    }

    /// Samples of stacks that ended otherwise.
    pub fn ended(self, labels: &str, stack: &str, end: StackEnd, count: u64) -> Draft {
        let frames: Vec<_> = stack
            .split(';')
            .filter(|name| !name.is_empty())
            .map(frame)
            .collect();
        let weight = count.saturating_mul(PERIOD);
        let labels = self.labels(labels);
        self.sample(&labels, &frames, end, Value { count, weight })
    }

    /// Samples that were lost.
    pub fn lost(self, labels: &str, count: u64) -> Draft {
        self.ended(labels, "[lost]", StackEnd::Lost, count)
    }

    /// Samples of anything.
    pub fn sample(
        mut self,
        labels: &LabelSet,
        root_first: &[FrameRef<'_>],
        end: StackEnd,
        value: Value,
    ) -> Draft {
        let labels = self.label_set(labels);
        let mut stack = StackId::EMPTY;
        for &frame in root_first {
            let frame = self.stacks.intern_frame(frame);
            stack = self.stacks.stacks.child(stack, frame);
        }
        self.window.rows.push(Row {
            labels,
            stack: self.stacks.content_ids()[stack.0 as usize],
            end,
            value,
        });
        self
    }

    /// The kernel's accounting of a cgroup.
    pub fn account(mut self, cgroup: &str, ns: u64, estimated_ns: u64) -> Draft {
        let labels = self.labels(&format!("cgroup={cgroup}"));
        let labels = self.label_set(&labels);
        self.window.accounts.push(WindowAccount {
            labels,
            ns,
            estimated_ns,
            throttled_ns: None,
            limit_millicores: 0,
        });
        self
    }

    /// How the limit of the cgroup that was accounted last held it back.
    pub fn throttled(mut self, throttled_ns: u64, limit_millicores: u64) -> Draft {
        if let Some(account) = self.window.accounts.last_mut() {
            account.throttled_ns = Some(throttled_ns);
            account.limit_millicores = limit_millicores;
        }
        self
    }

    /// For how long tasks of the host waited for a CPU, for memory and for I/O.
    pub fn pressure(mut self, cpu_ns: u64, memory_ns: u64, io_ns: u64) -> Draft {
        self.window.pressure = Some(Pressure {
            cpu_ns,
            memory_ns,
            io_ns,
        });
        self
    }

    /// A label set from text, with the host.
    pub fn labels(&self, text: &str) -> LabelSet {
        let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
        self.labels_of(pairs)
    }

    /// A label set from pairs, with the host.
    pub fn labels_of<'a>(&self, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> LabelSet {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let host = std::iter::once(("host".to_owned(), self.host.clone()));
        LabelSet::new(host.chain(pairs.into_iter().map(owned)))
    }

    fn label_set(&mut self, labels: &LabelSet) -> u32 {
        let sets = &mut self.window.label_sets;
        let at = sets.iter().position(|set| set == labels);
        let at = at.unwrap_or_else(|| {
            sets.push(labels.clone());
            sets.len() - 1
        });
        at as u32
    }
}

/// A frame from its name: `[…]` is synthetic, `?…` has no symbol, `?BUILD+0xADDRESS` says where its
/// function lies, `query` is one of a runtime that writes a name of its own.
pub fn frame(name: &str) -> FrameRef<'_> {
    let place = name
        .strip_prefix('?')
        .filter(|text| Place::parse(text).is_some());
    if let Some(system_name) = place {
        return FrameRef {
            unnamed: UnnamedReason::NoSymbols,
            function: "[app]",
            module: "app",
            system_name,
            ..FrameRef::default()
        };
    }
    let (kind, module) = match name {
        _ if name.starts_with('[') => (FrameKind::Synthetic, ""),
        _ if name.starts_with("do_") => (FrameKind::Kernel, "[kernel]"),
        "query" => (FrameKind::Jit, "[jit]"),
        _ => (FrameKind::Native, "app"),
    };
    FrameRef {
        kind,
        module,
        unnamed: if name.starts_with('?') {
            UnnamedReason::NoSymbols
        } else {
            UnnamedReason::No
        },
        function: name,
        system_name: if name == "query" {
            "JS:*query db.js"
        } else {
            ""
        },
        ..FrameRef::default()
    }
}

/// The definitions of all stacks of these windows.
pub fn definitions(drafts: &[Draft]) -> Dictionary {
    let mut all = Dictionary::default();
    for draft in drafts {
        let mut remap = Remap::default();
        for (stack, _, _) in draft.stacks.stacks.iter() {
            remap.stack(&draft.stacks, &mut all, stack);
        }
    }
    all
}

thread_local! {
    /// All windows of a test come over one stream, so an engine may remember their stacks, also
    /// from one store to the next.
    static STREAM: RefCell<(HashMap<ContentId, u32>, Arc<StackMemo>)> = RefCell::default();
}

/// The windows alone, every second number as of one stream; the others are of none.
pub fn windows(drafts: &[Draft]) -> Vec<NewWindow> {
    let mut windows: Vec<_> = drafts.iter().map(|draft| draft.window.clone()).collect();
    STREAM.with_borrow_mut(|(numbers, memo)| {
        let of_stream = |window: &&mut NewWindow| window.origin.sequence.is_multiple_of(2);
        for window in windows.iter_mut().filter(of_stream) {
            let mut number = |stack| {
                let next = numbers.len() as u32;
                *numbers.entry(stack).or_insert(next)
            };
            let ids = window.rows.iter().map(|row| number(row.stack)).collect();
            let memo = memo.clone();
            window.stream = Some(StreamStacks { ids, memo });
        }
    });
    windows
}

/// Pushes windows with their definitions.
pub fn push(store: &dyn Store, drafts: &[Draft]) -> Vec<PushOutcome> {
    store
        .push(&windows(drafts), &definitions(drafts), NOW_NS)
        .expect("the store takes windows")
}

/// Pushes windows that must all be taken.
pub fn store_all(store: &dyn Store, drafts: &[Draft]) {
    let taken = push(store, drafts);
    assert_eq!(taken, vec![PushOutcome::Stored; drafts.len()]);
}
