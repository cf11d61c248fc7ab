//! The files behind executable mappings: one id for each distinct file, and who must be told of it.

use crate::ids::{Avma, FileId, Pid};
use crate::process::space::Mapping;
use crate::symbolize::files::{FileIdentity, FileSeen, RELATIVES};
use crate::time::Mono;
use hashbrown::HashMap;
use std::time::Duration;

/// Files known at once. A host that replaces images all day meets a few thousand distinct ones;
/// beyond the bound the files that no live process maps are forgotten.
const FILES_MAX: usize = 32_768;

/// When a file that is still being sampled is announced again: the first process may have been gone
/// before it could be opened. The store ignores what it already has.
const ANNOUNCE_AGAIN: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(600)];

struct Entry {
    identity: FileIdentity,
    path: Box<[u8]>,
    announced: u8,
    announce_after: Mono,
}

/// Ids of files by identity.
#[derive(Default)]
pub struct FileTable {
    ids: HashMap<FileIdentity, FileId>,
    entries: HashMap<FileId, Entry>,
    next: u32,
    /// Files forgotten at the bound.
    pub forgotten: u64,
}

impl FileTable {
    /// The id of a file.
    pub fn id_of(&mut self, identity: FileIdentity, path: &[u8]) -> FileId {
        if let Some(&id) = self.ids.get(&identity) {
            return id;
        }
        let id = FileId(self.next);
        self.next += 1;
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path).into();
        let entry = Entry {
            identity,
            path,
            announced: 0,
            announce_after: Mono(0),
        };
        self.ids.insert(identity, id);
        self.entries.insert(id, entry);
        id
    }

    /// True when files should be forgotten before more are added.
    pub fn is_full(&self) -> bool {
        self.entries.len() >= FILES_MAX
    }

    /// Forgets the files that `used` does not name.
    pub fn retain(&mut self, used: impl Fn(FileId) -> bool) {
        let before = self.entries.len();
        self.entries.retain(|&id, _| used(id));
        self.ids.retain(|_, &mut id| used(id));
        self.forgotten += (before - self.entries.len()) as u64;
    }

    /// Tells the store of a file that has samples, unless it was told lately. `send` returns false
    /// when the queue is full: the next sample tries again.
    pub fn announce(
        &mut self,
        id: FileId,
        mapping: &Mapping,
        pid: Pid,
        relatives: impl FnOnce() -> [Pid; RELATIVES],
        now: Mono,
        send: impl FnOnce(FileSeen) -> bool,
    ) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        if now < entry.announce_after {
            return;
        }
        let seen = FileSeen {
            id,
            identity: entry.identity,
            path: entry.path.clone(),
            pid,
            range: (Avma(mapping.start), Avma(mapping.end)),
            relatives: relatives(),
        };
        if send(seen) {
            let wait = ANNOUNCE_AGAIN.get(entry.announced as usize);
            entry.announce_after = wait.map_or(Mono(u64::MAX), |&wait| now.plus(wait));
            entry.announced = entry.announced.saturating_add(1);
        }
    }
}
