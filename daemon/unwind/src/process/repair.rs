//! Corrects the table from a reading of /proc: at start for processes older than the daemon, later
//! for what lost records left wrong.

use super::*;

/// True if /proc shows the known program: every file it has mapped is where it was reported.
fn agrees(files: &FileTable, known: &Process, scanned: &ScannedProcess) -> bool {
    let is_known = |mapping: &ScannedMapping, identity: &FileIdentity| {
        let found = known.space.find(Avma(mapping.start));
        found.is_some_and(|found| {
            let file = found.backing.file().and_then(|file| files.identity(file));
            file.is_some_and(|file| may_be_one(file, identity))
                && found.offset_of(Avma(mapping.start)) == FileOffset(mapping.file_offset)
        })
    };
    let mut mappings = scanned.mappings.iter();
    known.kernel == scanned.kernel
        && mappings.all(|it| it.identity.is_none_or(|identity| is_known(it, &identity)))
}

/// False if two identities are of different files. /proc has no generation of an inode, and between
/// Linux 6.8 and October 2025 it shows the device of an overlay where records have the layer's.
fn may_be_one(one: &FileIdentity, other: &FileIdentity) -> bool {
    let inode = |identity: &FileIdentity| match *identity {
        FileIdentity::Inode {
            major,
            minor,
            inode,
            ..
        } => Some((major, minor, inode)),
        _ => None,
    };
    match (inode(one), inode(other)) {
        (Some(one), Some(other)) => {
            let on_overlay = one.0 == 0 || other.0 == 0;
            one.2 == other.2 && (on_overlay || one == other)
        }
        (None, None) => one == other,
        _ => true,
    }
}

/// True when /proc shows a thread of this id.
fn has_thread(scanned: &ScannedProcess, tid: Tid) -> bool {
    let found = scanned.threads.binary_search_by_key(&tid, |&(tid, _)| tid);
    found.is_ok()
}

impl ProcessTable {
    /// Adds a process found in /proc. What the record stream reported about it stays.
    pub fn adopt(&mut self, scanned: &ScannedProcess) {
        if !scanned.has_ended() && !self.processes.contains_key(&scanned.pid) {
            self.take_in(scanned, MonotonicTime(0), |_| true);
        }
    }

    /// Remembers who ends from now on, for the scan that was just asked for: it may show them
    /// alive.
    pub fn expect_scan(&mut self) {
        self.exits = Some(HashSet::new());
    }

    /// Sets right what lost records left wrong, by a reading of /proc that started at `asked`, once
    /// every record older than that has been applied: processes and threads that are gone end, and
    /// those that are new or run another program than was known are new. False when another reading
    /// is needed: for those that were forked since `asked` by somebody older, who may have been
    /// known wrongly.
    pub fn repair(&mut self, scan: &Scan, asked: MonotonicTime) -> bool {
        let exits = self.exits.take().unwrap_or_default();
        let found: HashMap<Pid, &ScannedProcess> = scan
            .processes
            .iter()
            .filter(|process| !process.has_ended())
            .map(|process| (process.pid, process))
            .collect();
        let mut others: Vec<Pid> = Vec::new();
        let mut replaced: HashMap<Pid, Process> = HashMap::new();
        // Whoever was known wrongly gave that to those it forked since, so those are looked at
        // again.
        let mut is_uncertain = false;
        for process in self.processes.values_mut() {
            if [Pid(0), REAPED].contains(&process.pid) || process.started >= asked {
                continue;
            }
            let before = process.threads.len();
            match found.get(&process.pid) {
                None if !scan.complete => process.uncounted = false,
                None => {
                    process.threads.retain(|_, thread| thread.since >= asked);
                    process.uncounted = false;
                    self.counts.ends_unseen += u64::from(end_at(process, asked, &mut self.ended));
                }
                Some(scanned) => {
                    let lives_again =
                        !scanned.main_ended && process.ended.is_some_and(|ended| ended < asked);
                    if lives_again || !agrees(&self.files, process, scanned) {
                        others.push(process.pid);
                        continue;
                    }
                    if process.named < asked {
                        process.comm = scanned.comm;
                    }
                    if !scanned.threads_cut {
                        process.threads.retain(|tid, thread| {
                            thread.since >= asked || has_thread(scanned, *tid)
                        });
                    }
                    process.uncounted = scanned.threads_cut;
                    if scanned.main_ended {
                        self.counts.ends_unseen +=
                            u64::from(end_at(process, asked, &mut self.ended));
                    }
                }
            }
            let gone = before - process.threads.len();
            self.threads -= gone;
            self.counts.thread_ends_unseen += gone as u64;
        }
        for pid in others {
            replaced.extend(self.remove(pid).map(|old| (pid, old)));
        }
        let outrun = exits.len() >= EXITS_MAX;
        self.counts.scans_outrun += u64::from(outrun);
        for process in found.into_values() {
            match self.processes.get(&process.pid) {
                Some(known) if known.started >= asked => {}
                Some(_) => self.take_in_threads(process, asked, |tid| {
                    !outrun && !exits.contains(&(process.pid, tid))
                }),
                None if outrun => {}
                None => {
                    let has_ended = |tid: Tid| exits.contains(&(process.pid, tid));
                    let main_ended = has_ended(Tid(process.pid.0));
                    let mut others = process.threads.iter();
                    let are_over = !process.threads_cut && others.all(|&(tid, _)| has_ended(tid));
                    // It may have started threads after it was read.
                    let goes_on = || {
                        let old = replaced.get(&process.pid);
                        old.is_some_and(|old| old.threads.values().any(|it| it.since >= asked))
                    };
                    if main_ended && are_over && !goes_on() {
                        continue;
                    }
                    self.counts.repaired += 1;
                    // It is older than what is reported about it from `asked` on.
                    let started = MonotonicTime(asked.0.saturating_sub(1));
                    self.take_in(process, started, |tid| !has_ended(tid));
                    if main_ended && let Some(process) = self.processes.get_mut(&process.pid) {
                        end_at(process, asked, &mut self.ended);
                    }
                }
            }
        }
        // What came by record since is newer than what was read.
        for old in replaced.into_values() {
            is_uncertain |= old.mapped >= asked;
            let newer = old.threads.into_iter();
            for (tid, thread) in newer.filter(|(_, thread)| thread.since >= asked) {
                self.name_thread(old.pid, tid, thread.comm, thread.since);
            }
            if let Some(process) = self.processes.get_mut(&old.pid) {
                if old.named >= asked {
                    (process.comm, process.named) = (old.comm, old.named);
                }
                if old.ended.is_some_and(|ended| ended >= asked) {
                    end_at(process, asked, &mut self.ended);
                }
            }
        }
        let is_newer =
            |known: &Process, than: MonotonicTime| known.started >= asked && known.started <= than;
        let is_doubtful = |process: &Process| {
            let mut threads = process.threads.values();
            let parent = self.processes.get(&process.parent);
            match process.started >= asked {
                true => {
                    process.uncounted || !parent.is_some_and(|it| is_newer(it, process.started))
                }
                false => threads.any(|thread| thread.since >= asked),
            }
        };
        is_uncertain |= self.processes.values().any(is_doubtful);
        !outrun && !is_uncertain
    }

    fn take_in(
        &mut self,
        scanned: &ScannedProcess,
        started: MonotonicTime,
        may: impl Fn(Tid) -> bool,
    ) {
        let mut space = AddressSpace::within(&self.space_bytes);
        for mapping in &scanned.mappings {
            let backing = self.backing(
                mapping.identity,
                mapping.private,
                &mapping.path,
                (scanned.pid, started),
                has_many(&space),
            );
            let mapping = Mapping {
                start: mapping.start,
                end: mapping.end,
                file_offset: mapping.file_offset,
                backing,
            };
            if self.has_no_room_for(&space, true) {
                space = space.refused();
                self.counts.spaces_forgotten += 1;
                break;
            }
            if !space.insert(mapping) {
                self.counts.mappings_refused += 1;
            }
        }
        self.create(
            scanned.pid,
            scanned.parent,
            scanned.comm,
            scanned.kernel,
            started,
            Rc::new(space),
        );
        for mapping in &scanned.mappings {
            if let Some(identity) = mapping.identity {
                let range = (Avma(mapping.start), Avma(mapping.end));
                self.note_dump(scanned.pid, range, &mapping.path, identity);
            }
        }
        self.take_in_threads(scanned, started, may);
        if let Some(process) = self.processes.get_mut(&scanned.pid) {
            process.uncounted |= scanned.threads_cut;
            if scanned.main_ended {
                end_at(process, started, &mut self.ended);
            }
        }
    }

    /// Adds the threads of a known process as they were at `asked`, if they `may` still run.
    fn take_in_threads(
        &mut self,
        scanned: &ScannedProcess,
        asked: MonotonicTime,
        may: impl Fn(Tid) -> bool,
    ) {
        let Some(process) = self.processes.get(&scanned.pid) else {
            return;
        };
        let of_process = process.comm;
        // Whatever is reported about them from `asked` on is newer.
        let since = MonotonicTime(asked.0.saturating_sub(1));
        for &(tid, comm) in &scanned.threads {
            let known = self.processes.get(&scanned.pid);
            let known = known.and_then(|process| process.threads.get(&tid));
            match (known, comm) {
                (None, _) if may(tid) => {
                    self.name_thread(scanned.pid, tid, comm.unwrap_or(of_process), since);
                }
                (Some(known), Some(comm)) if known.since < asked => {
                    self.name_thread(scanned.pid, tid, comm, since);
                }
                _ => {}
            }
        }
    }
}
