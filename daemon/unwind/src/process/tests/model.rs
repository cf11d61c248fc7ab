//! Tests the process table against a model of what runs, while records are lost and /proc is read.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Ids in use: few, so that they are used again all the time, for processes and for threads.
const IDS: u32 = 24;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Runs {
    name: u64,
    main_ended: bool,
    threads: BTreeMap<u32, u64>,
    /// Inode of its program.
    program: u64,
}

/// What happens: which kind, to whom, and which of its records are lost.
type Event = (u8, u8, u8, u8);

/// A model of what runs, and a table that gets its records.
struct World {
    runs: BTreeMap<u32, Runs>,
    table: ProcessTable,
    time: u64,
    lost: u8,
}

fn name(number: u64) -> Comm {
    Comm::from_bytes(format!("n{number}").as_bytes())
}

fn program(inode: u64) -> FileIdentity {
    FileIdentity::Inode {
        major: 8,
        minor: 1,
        inode,
        generation: 3,
    }
}

impl World {
    /// One process, which never ends.
    fn new() -> World {
        let first = Runs {
            name: 1,
            main_ended: false,
            threads: BTreeMap::new(),
            program: 1,
        };
        let mut world = World {
            runs: BTreeMap::from([(1, first)]),
            table: ProcessTable::new(),
            time: 1,
            lost: 0,
        };
        for process in world.scan(|_| true).processes {
            world.table.adopt(&process);
        }
        world
    }

    /// Passes a record on, unless it is lost.
    fn record(&mut self, apply: impl FnOnce(&mut ProcessTable, MonotonicTime)) {
        self.time += 1;
        let is_lost = self.lost & 1 != 0;
        self.lost = self.lost.rotate_right(1);
        if !is_lost {
            apply(&mut self.table, MonotonicTime(self.time));
        }
    }

    fn free_id(&self, from: u8) -> Option<u32> {
        let is_used = |id: u32| {
            let mut threads = self.runs.values().flat_map(|runs| runs.threads.keys());
            self.runs.contains_key(&id) || threads.any(|&tid| tid == id)
        };
        (0..IDS)
            .map(|step| 1 + (u32::from(from) + step) % IDS)
            .find(|&id| !is_used(id))
    }

    fn happen(&mut self, (kind, whom, from, lost): Event) {
        self.lost = lost;
        let pids: Vec<u32> = self.runs.keys().copied().collect();
        let pid = pids[whom as usize % pids.len()];
        let mut runs = self.runs[&pid].clone();
        let tids: Vec<u32> = runs.threads.keys().copied().collect();
        let tid = (!tids.is_empty()).then(|| tids[from as usize % tids.len()]);
        // Whoever acts: the main thread, or another where that has ended.
        let actor = if runs.main_ended {
            tid.unwrap_or(pid)
        } else {
            pid
        };
        match kind % 6 {
            0 => {
                let Some(child) = self.free_id(from) else {
                    return;
                };
                let of_child = Runs {
                    name: *runs.threads.get(&actor).unwrap_or(&runs.name),
                    main_ended: false,
                    threads: BTreeMap::new(),
                    program: runs.program,
                };
                self.runs.insert(child, of_child);
                self.record(|table, time| {
                    table.fork(Pid(child), Tid(child), Pid(pid), Tid(actor), time);
                });
            }
            1 => {
                let Some(new) = self.free_id(from) else {
                    return;
                };
                let of_new = *runs.threads.get(&actor).unwrap_or(&runs.name);
                runs.threads.insert(new, of_new);
                self.runs.insert(pid, runs);
                self.record(|table, time| {
                    table.fork(Pid(pid), Tid(new), Pid(pid), Tid(actor), time);
                });
            }
            2 => {
                // By any of its threads: it gets the process's id, and all others end.
                let caller = tid.filter(|_| from.is_multiple_of(2)).unwrap_or(actor);
                for &other in runs.threads.keys().filter(|&&tid| tid != caller) {
                    self.record(|table, time| table.exit(Pid(pid), Tid(other), time));
                }
                if caller != pid && !runs.main_ended {
                    self.record(|table, time| table.exit(Pid(pid), Tid(pid), time));
                }
                let number = self.time + 100;
                let exec = Runs {
                    name: number,
                    main_ended: false,
                    threads: BTreeMap::new(),
                    program: number,
                };
                self.runs.insert(pid, exec);
                self.record(|table, time| {
                    table.comm(Pid(pid), Tid(pid), name(number), true, time);
                });
                self.record(|table, time| table.mmap(&file_map(pid, 0x1000, number), time));
            }
            3 => {
                let number = self.time + 100;
                match runs.threads.get_mut(&actor) {
                    Some(of_thread) => *of_thread = number,
                    None => runs.name = number,
                }
                self.runs.insert(pid, runs);
                self.record(|table, time| {
                    table.comm(Pid(pid), Tid(actor), name(number), false, time);
                });
            }
            4 => {
                let Some(tid) = tid else {
                    return;
                };
                runs.threads.remove(&tid);
                let is_over = runs.main_ended && runs.threads.is_empty();
                self.runs.insert(pid, runs);
                if is_over {
                    self.runs.remove(&pid);
                }
                self.record(|table, time| table.exit(Pid(pid), Tid(tid), time));
            }
            _ => {
                if pid == 1 || runs.main_ended {
                    return;
                }
                // All at once, or the main thread alone.
                if from.is_multiple_of(2) {
                    for &tid in runs.threads.keys() {
                        self.record(|table, time| table.exit(Pid(pid), Tid(tid), time));
                    }
                    runs.threads.clear();
                }
                runs.main_ended = true;
                let is_over = runs.threads.is_empty();
                self.runs.insert(pid, runs);
                if is_over {
                    self.runs.remove(&pid);
                }
                self.record(|table, time| table.exit(Pid(pid), Tid(pid), time));
            }
        }
    }

    fn happens(&mut self, events: &[Event], loses: bool) {
        for &(kind, whom, from, lost) in events {
            self.happen((kind, whom, from, if loses { lost } else { 0 }));
        }
    }

    /// What /proc shows now of some processes.
    fn scan(&self, of: impl Fn(u32) -> bool) -> Scan {
        let runs = self.runs.iter().filter(|&(&pid, _)| of(pid));
        let processes = runs.map(|(&pid, runs)| {
            let mapping = ScannedMapping {
                start: 0x1000,
                end: 0x2000,
                file_offset: 0,
                identity: Some(program(runs.program)),
                private: true,
                path: b"/usr/bin/thing"[..].into(),
            };
            let threads = runs.threads.iter();
            ScannedProcess {
                pid: Pid(pid),
                parent: Pid(1),
                comm: name(runs.name),
                kernel: false,
                mappings: vec![mapping],
                threads: threads
                    .map(|(&tid, &number)| (Tid(tid), Some(name(number))))
                    .collect(),
                threads_cut: false,
                main_ended: runs.main_ended,
            }
        });
        Scan {
            processes: processes.collect(),
            complete: true,
        }
    }

    /// What the table knows, in the words of the model.
    fn known(&mut self) -> BTreeMap<u32, Runs> {
        self.table.sweep(MonotonicTime(u64::MAX));
        let number = |comm: Comm| {
            let text = comm.text();
            text.get(1..)
                .and_then(|text| text.parse().ok())
                .unwrap_or(0)
        };
        let table = &self.table;
        let known = table
            .processes
            .values()
            .filter(|it| ![Pid(0), REAPED].contains(&it.pid));
        let known = known.map(|process| {
            let mapped = process.space().find(Avma(0x1800));
            let file = mapped.and_then(|mapping| mapping.backing.file());
            let is_program = |inode: &u64| {
                file.is_some() && table.files.known(FileKey::of(program(*inode), b"")) == file
            };
            let threads = process.threads.iter();
            let runs = Runs {
                name: number(process.comm),
                main_ended: process.ended.is_some(),
                threads: threads
                    .map(|(tid, thread)| (tid.0, number(thread.comm)))
                    .collect(),
                program: (1..self.time + 200).find(is_program).unwrap_or(0),
            };
            (process.pid.0, runs)
        });
        known.collect()
    }
}

fn events(number: usize) -> impl Strategy<Value = Vec<Event>> {
    proptest::collection::vec(any::<Event>(), 0..number)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn without_losses_the_table_is_what_runs(events in events(120)) {
        let mut world = World::new();
        world.happens(&events, false);
        let expected = world.runs.clone();
        prop_assert_eq!(world.known(), expected);
        prop_assert_eq!(world.table.counts().unannounced, 0);
    }

    /// Records of any kind are lost until /proc is asked for; after it was read the table is what
    /// runs, also of what happened between the question, the reading of each process, and the
    /// answer.
    #[test]
    fn after_losses_and_a_repair_the_table_is_what_runs(
        lossy in events(120),
        before in events(12),
        between in events(12),
        after in events(12),
        later in events(40),
        split in 0..IDS,
    ) {
        let mut world = World::new();
        world.happens(&lossy, true);
        world.table.expect_scan();
        world.happens(&before, false);
        world.time += 1;
        let asked = MonotonicTime(world.time);
        let mut scan = world.scan(|pid| pid <= split);
        world.happens(&between, false);
        scan.processes.extend(world.scan(|pid| pid > split).processes);
        world.happens(&after, false);
        let mut scans = 1;
        let mut is_enough = world.table.repair(&scan, asked);
        while !is_enough {
            // What was forked from a process that was known wrongly takes another look.
            scans += 1;
            prop_assert!(scans < 4);
            world.time += 1;
            world.table.expect_scan();
            let asked = MonotonicTime(world.time);
            is_enough = world.table.repair(&world.scan(|_| true), asked);
        }
        let known = world.known();
        let expected = world.runs.clone();
        prop_assert_eq!(known, expected);
        world.happens(&later, false);
        let expected = world.runs.clone();
        prop_assert_eq!(world.known(), expected);
        let threads: usize = world.runs.values().map(|runs| runs.threads.len()).sum();
        prop_assert_eq!(world.table.threads_len(), threads);
        // Besides the idle task and the process without an id, only running processes are known.
        prop_assert_eq!(world.table.len(), world.runs.len() + 2);
    }
}
