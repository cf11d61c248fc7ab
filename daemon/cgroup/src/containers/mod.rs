//! Metadata of containers: name, image, pod and chosen labels, as reported by the container
//! runtime.
//!
//! A cgroup path contains the container's id. The runtime that created the container knows the rest
//! and is asked once per container: Docker's and Podman's HTTP interface, the Container Runtime
//! Interface of containerd and CRI-O, both over sockets, and the files that each of them keeps if a
//! socket is missing or not accessible. Each time, the code looks which of these exist.
//!
//! One thread, `fp-containers` ([`ContainerMetadataProvider`]), asks. The symbolizer reads the
//! answers so far, and waits for the first answers of a window at most [`FIRST_WAIT`]. Whatever a
//! runtime does, samples are named and recorded without it.
//!
//! Metadata is kept by id, and ids are never reused: a container that has gone keeps its name, and
//! a renamed one keeps the name under which it was first seen. Anybody who can create cgroups can
//! name one like another's container, because the owner of a cgroup always chooses its path.
//!
//! Anybody who can start a container chooses these texts, so each is bounded and free of characters
//! that act on a terminal ([`clean`]), and the number of labels is bounded.

mod answer;
mod cache;
mod cri;
mod docker;
mod files;
mod http;
mod provider;
mod serial_calls;
mod socket;
mod source;

pub use answer::{ContainerAnswer, bundle, image_info, inspected, pod, stored};
pub use cri::{container_status, pod_status};
pub use provider::{Announcer, ContainerMetadataProvider, Containers, FIRST_WAIT};
pub use source::{Source, SourceError};

use host::health::{Degradation, Severity};
use profile::key;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Most bytes of an answer that are read. A container has some KiB; a file that lists all of a host
/// has some hundred. What is known before the cut is used.
pub const ANSWER_BYTES_MAX: usize = 1 << 20;

/// How long a runtime may take to answer, its connection and all calls for one container included.
pub const ASK_MAX: Duration = Duration::from_secs(1);

/// Longest value kept. Unit: bytes. References of images by digest, the longest of the useful ones,
/// have up to 200; longer values are cut and end in `…`.
pub const VALUE_BYTES_MAX: usize = 256;

/// Most bytes of chosen labels that are kept of one container, names included. Labels beyond it are
/// left out, and counted.
pub const LABEL_BYTES_MAX: usize = 8 << 10;

/// Metadata of a container.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Metadata {
    /// Its name: that of `docker ps`, or the one in the pod.
    pub container_name: Option<Box<str>>,
    /// The image as whoever started it wrote it.
    pub image: Option<Box<str>>,
    /// The pod it is in.
    pub pod: Option<Box<str>>,
    /// The namespace of the pod.
    pub namespace: Option<Box<str>>,
    /// Chosen labels: name with its prefix, value.
    pub labels: Vec<(Box<str>, Box<str>)>,
    /// Chosen labels left out because there were too many bytes of them.
    pub labels_cut: u64,
}

impl Metadata {
    /// The available values, with their label keys.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let own = [
            (key::CONTAINER_NAME, self.container_name.as_deref()),
            (key::IMAGE, self.image.as_deref()),
            (key::POD, self.pod.as_deref()),
            (key::NAMESPACE, self.namespace.as_deref()),
        ];
        let own = own
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)));
        own.chain(self.labels.iter().map(|(key, value)| (&**key, &**value)))
    }

    /// True when nothing is known.
    pub fn is_empty(&self) -> bool {
        self.pairs().next().is_none()
    }

    /// Fills in missing values from `other`.
    fn complete(&mut self, other: Metadata) {
        let fill = |own: &mut Option<Box<str>>, other| {
            if own.is_none() {
                *own = other;
            }
        };
        fill(&mut self.container_name, other.container_name);
        fill(&mut self.image, other.image);
        fill(&mut self.pod, other.pod);
        fill(&mut self.namespace, other.namespace);
        self.labels_cut += other.labels_cut;
        for (name, value) in other.labels {
            self.add_label(name, value);
        }
    }

    /// Adds a chosen label within the bound of one container; of a name given twice the first
    /// stays.
    fn add_label(&mut self, name: Box<str>, value: Box<str>) {
        if self.labels.iter().any(|(known, _)| *known == name) {
            return;
        }
        let held = self
            .labels
            .iter()
            .map(|(name, value)| name.len() + value.len());
        match held.sum::<usize>() + name.len() + value.len() <= LABEL_BYTES_MAX {
            true => self.labels.push((name, value)),
            false => self.labels_cut += 1,
        }
    }
}

/// The labels of containers, images and pods that become labels of samples: their names as the
/// runtime has them.
pub type Chosen = Arc<[Box<str>]>;

/// Text of a stranger made fit to be a label: hostile characters become U+FFFD, and it is cut at
/// [`VALUE_BYTES_MAX`]. None when nothing is left.
pub fn clean(text: &str) -> Option<Box<str>> {
    let text = text.trim_matches(char::is_whitespace);
    let mut kept = String::with_capacity(text.len().min(VALUE_BYTES_MAX));
    for found in text.chars() {
        let found = match profile::text::is_hostile(found) {
            true => '\u{fffd}',
            false => found,
        };
        if kept.len() + found.len_utf8() > VALUE_BYTES_MAX - '…'.len_utf8() {
            kept.push('…');
            break;
        }
        kept.push(found);
    }
    (!kept.is_empty()).then(|| kept.into())
}

/// Why a container stays without metadata.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The runtime is not there, which is no failure.
    #[error("failed to find `{0}`: the runtime is not installed, or does not run")]
    Absent(Box<Path>),
    /// The socket or file belongs to somebody who could answer what they like.
    #[error("failed to trust `{path}`: its owner is user `{uid}`, not root")]
    Untrusted {
        /// The socket or file.
        path: Box<Path>,
        /// Its owner.
        uid: u32,
    },
    /// Neither a socket nor a regular file.
    #[error("failed to trust `{0}`: it is neither a socket nor a regular file")]
    Strange(Box<Path>),
    /// The daemon's user may not open it.
    #[error(
        "failed to open `{0}`: permission denied\nhint: add the daemon's user to the socket's \
         group (`SupplementaryGroups=`)"
    )]
    Denied(Box<Path>),
    /// Nobody listens, or the file cannot be read.
    #[error("failed to open `{path}`")]
    Unreachable {
        /// The socket or file.
        path: Box<Path>,
        /// Why.
        source: io::Error,
    },
    /// No answer within [`ASK_MAX`].
    #[error("failed to ask the runtime: no answer within {} ms", ASK_MAX.as_millis())]
    Late,
    /// The connection broke, or what came is not the protocol.
    #[error("failed to ask the runtime: {0}")]
    Broken(Box<str>),
    /// The runtime said no.
    #[error("failed to ask the runtime: it answered `{0}`")]
    Refused(Box<str>),
    /// More than [`ANSWER_BYTES_MAX`], and nothing useful before the cut.
    #[error("failed to read the runtime's answer: it is longer than {ANSWER_BYTES_MAX} bytes")]
    TooLong,
    /// It is not what it should be.
    #[error("failed to read the runtime's answer: {0}")]
    Malformed(Box<str>),
}

impl Error {
    /// An error of opening `path`, by kind.
    fn opening(path: &Path, source: io::Error) -> Error {
        let path = path.into();
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Error::Absent(path),
            io::ErrorKind::PermissionDenied => Error::Denied(path),
            _ => Error::Unreachable { path, source },
        }
    }

    /// The cause, as the label of a metric; `None`: the runtime is just not there.
    pub fn cause(&self) -> Option<Cause> {
        Some(match self {
            Error::Absent(_) => return None,
            Error::Untrusted { .. } | Error::Strange(_) => Cause::Untrusted,
            Error::Denied(_) => Cause::Denied,
            Error::Unreachable { .. } => Cause::Unreachable,
            Error::Late => Cause::Late,
            Error::Broken(_) => Cause::Broken,
            Error::Refused(_) => Cause::Refused,
            Error::TooLong => Cause::TooLong,
            Error::Malformed(_) => Cause::Malformed,
        })
    }
}

/// Why an ask failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its owner is not root.
    Untrusted,
    /// The daemon may not open it.
    Denied,
    /// Nobody listens.
    Unreachable,
    /// No answer in time.
    Late,
    /// The connection broke.
    Broken,
    /// The runtime said no.
    Refused,
    /// The answer was too long.
    TooLong,
    /// The answer made no sense.
    Malformed,
}

impl Cause {
    /// All, in the order of [`ProviderCounts::failed`].
    pub const ALL: [Cause; 8] = [
        Cause::Untrusted,
        Cause::Denied,
        Cause::Unreachable,
        Cause::Late,
        Cause::Broken,
        Cause::Refused,
        Cause::TooLong,
        Cause::Malformed,
    ];

    /// One word, for metrics.
    pub fn word(self) -> &'static str {
        match self {
            Cause::Untrusted => "untrusted",
            Cause::Denied => "denied",
            Cause::Unreachable => "unreachable",
            Cause::Late => "late",
            Cause::Broken => "broken",
            Cause::Refused => "refused",
            Cause::TooLong => "too_long",
            Cause::Malformed => "malformed",
        }
    }
}

/// Counters of lookups. Relaxed everywhere, because no other data depends on them.
#[derive(Debug, Default)]
pub struct ProviderCounts {
    /// Containers asked for.
    pub asked: AtomicU64,
    /// Containers asked for that somebody knew.
    pub found: AtomicU64,
    /// Containers that no runtime knew, or none could report; they are looked up again later.
    pub unknown: AtomicU64,
    /// Calls that failed, by [`Cause::ALL`].
    pub failed: [AtomicU64; Cause::ALL.len()],
    /// Containers with samples recorded before the answer arrived.
    pub late: AtomicU64,
    /// Containers that were not asked for because too many waited, to be asked for later.
    pub deferred: AtomicU64,
    /// Containers forgotten because too many were known.
    pub evicted: AtomicU64,
    /// Chosen labels left out because a container had too many bytes of them.
    pub labels_cut: AtomicU64,
    /// Containers known now.
    pub known: AtomicU64,
}

impl ProviderCounts {
    /// A degradation for containers without names because the daemon may not ask their runtime and
    /// no other source has them.
    pub fn degradation(&self) -> Option<Degradation> {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let denied = read(&self.failed[Cause::Denied as usize]);
        let unnamed = read(&self.asked).saturating_sub(read(&self.found));
        (denied > 0 && unnamed > 0).then(|| {
            Degradation::new(
                "containers_unnamed",
                Severity::Info,
                format!(
                    "{unnamed} times a container got no name and image: the daemon's user may not \
                     open the socket of the container runtime. Samples are complete and have the \
                     container id"
                ),
                "add the daemon's user to the socket's group (systemctl edit fleetprofd: \
                 SupplementaryGroups=docker), or set containers.metadata: false",
            )
        })
    }

    fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    fn fail(&self, cause: Cause) {
        ProviderCounts::add(&self.failed[cause as usize], 1);
    }
}

/// The future result of [`Runtime::inspect`].
pub type Inspection<'a> =
    Pin<Box<dyn Future<Output = Result<Option<Metadata>, Error>> + Send + 'a>>;

/// Somebody who may know containers: a runtime's socket, or the files it keeps.
pub trait Runtime: Send + Sync {
    /// Whether this source can know containers of the runtime named in the cgroup path's label;
    /// `None`: the path does not name one.
    fn serves(&self, runtime: Option<&str>) -> bool;

    /// Asks for a container by its id, which has hexadecimal digits alone; None: not one of its
    /// own. Nobody waits longer than [`ASK_MAX`].
    fn inspect<'a>(&'a self, id: &'a str) -> Inspection<'a>;
}

/// Whether these are the digits of a container's id, and nothing that means more in a path or a
/// URL.
fn is_id(id: &str) -> bool {
    (12..=64).contains(&id.len()) && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests;
