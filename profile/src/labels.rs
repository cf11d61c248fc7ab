//! Label sets: what a sample belongs to (cgroup, unit, container, process, thread).

use crate::strings::StrId;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// The label names the agent writes. Absent means not known or not applicable; never an empty
/// value.
pub mod key {
    /// cgroup path in its hierarchy, `/` for the root.
    pub const CGROUP: &str = "cgroup";
    /// systemd slice: `system.slice`.
    pub const SLICE: &str = "slice";
    /// systemd unit: `nginx.service`, `session-3.scope`.
    pub const UNIT: &str = "unit";
    /// Container id, 64 hex digits (shorter where the runtime uses others).
    pub const CONTAINER: &str = "container";
    /// Container runtime: `docker`, `containerd`, `cri-o`, `podman`.
    pub const RUNTIME: &str = "runtime";
    /// Kubernetes pod uid.
    pub const POD_UID: &str = "pod_uid";
    /// Name of the container, as its runtime has it.
    pub const CONTAINER_NAME: &str = "container_name";
    /// Image of the container, as whoever started it wrote it.
    pub const IMAGE: &str = "image";
    /// Name of the pod.
    pub const POD: &str = "pod";
    /// Namespace of the pod.
    pub const NAMESPACE: &str = "namespace";
    /// Prefix of labels that a container has from its runtime or image.
    pub const CONTAINER_LABEL: &str = "container.label/";
    /// Prefix of labels that a pod has.
    pub const POD_LABEL: &str = "pod.label/";
    /// Name of the process (comm of its main thread).
    pub const COMM: &str = "comm";
    /// Name of the thread.
    pub const THREAD: &str = "thread";
    /// Process id as the host sees it, decimal.
    pub const PID: &str = "pid";
    /// What the kernel was doing on the CPU: `task`, `softirq`, `hardirq` or `idle`.
    pub const CONTEXT: &str = "context";
    /// Host name; set where profiles of several hosts meet.
    pub const HOST: &str = "host";

    /// The labels that say which cgroup, in the order they are shown.
    pub const OF_CGROUP: [&str; 10] = [
        CGROUP,
        SLICE,
        UNIT,
        CONTAINER,
        RUNTIME,
        POD_UID,
        CONTAINER_NAME,
        IMAGE,
        POD,
        NAMESPACE,
    ];

    /// Whether a label says which cgroup: one of [`OF_CGROUP`], or chosen of its container or pod.
    /// Losses and the kernel's accounting are known by these alone.
    pub fn is_of_cgroup(name: &str) -> bool {
        OF_CGROUP.contains(&name)
            || name.starts_with(CONTAINER_LABEL)
            || name.starts_with(POD_LABEL)
    }
}

/// A label set of one [`LabelSetTable`]. Id 0 is the empty set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct LabelSetId(pub u32);

/// Label sets stored once; each is sorted by key id and has a key at most once.
#[derive(Clone)]
pub struct LabelSetTable {
    pairs: Vec<(StrId, StrId)>,
    /// End of each set in `pairs`; it starts where the one before ends.
    ends: Vec<u32>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Default for LabelSetTable {
    fn default() -> Self {
        let mut table = LabelSetTable {
            pairs: Vec::new(),
            ends: Vec::new(),
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
        };
        table.intern(&mut []);
        table
    }
}

impl LabelSetTable {
    /// Returns the id of this set, adding it when it is new. Sorts `set`; of equal keys the first
    /// given stays.
    pub fn intern(&mut self, set: &mut [(StrId, StrId)]) -> LabelSetId {
        set.sort_by_key(|&(key, _)| key);
        let mut unique = 0;
        for at in 0..set.len() {
            if unique == 0 || set[unique - 1].0 != set[at].0 {
                set[unique] = set[at];
                unique += 1;
            }
        }
        let set = &set[..unique];
        let hash = self.hasher.hash_one(set);
        let found = self
            .index
            .find(hash, |&id| slice(&self.pairs, &self.ends, id) == set);
        if let Some(&id) = found {
            return LabelSetId(id);
        }
        let id = self.ends.len() as u32;
        self.pairs.extend_from_slice(set);
        self.ends.push(self.pairs.len() as u32);
        let (pairs, ends, hasher) = (&self.pairs, &self.ends, &self.hasher);
        self.index
            .insert_unique(hash, id, |&id| hasher.hash_one(slice(pairs, ends, id)));
        LabelSetId(id)
    }

    /// Returns the id of this set when it is known. Sorts `set`, which has no key twice.
    pub fn find(&self, set: &mut [(StrId, StrId)]) -> Option<LabelSetId> {
        set.sort_by_key(|&(key, _)| key);
        let hash = self.hasher.hash_one(&*set);
        let same = |&id: &u32| slice(&self.pairs, &self.ends, id) == set;
        self.index.find(hash, same).map(|&id| LabelSetId(id))
    }

    /// The pairs of a set, sorted by key id.
    ///
    /// # Panics
    /// When `id` is not of this table.
    pub fn get(&self, id: LabelSetId) -> &[(StrId, StrId)] {
        slice(&self.pairs, &self.ends, id.0)
    }

    /// Number of sets, the empty one included.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True when only the empty set is there.
    pub fn is_empty(&self) -> bool {
        self.ends.len() <= 1
    }

    /// Every set in id order.
    pub fn iter(&self) -> impl Iterator<Item = &[(StrId, StrId)]> {
        (0..self.ends.len() as u32).map(|id| slice(&self.pairs, &self.ends, id))
    }

    /// Number of pairs in all sets together.
    pub fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// Heap memory held, in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.pairs.capacity() * size_of::<(StrId, StrId)>()
            + self.ends.capacity() * 4
            + self.index.allocation_size()
    }
}

fn slice<'a>(pairs: &'a [(StrId, StrId)], ends: &[u32], id: u32) -> &'a [(StrId, StrId)] {
    let id = id as usize;
    let start = if id == 0 { 0 } else { ends[id - 1] as usize };
    &pairs[start..ends[id] as usize]
}
