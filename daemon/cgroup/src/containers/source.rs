//! Where runtimes are asked: their sockets and files.

use super::cri::Cri;
use super::docker::{Docker, Podman};
use super::files::{Bundles, DockerFiles, Storage};
use super::serial_calls::SerialCalls;
use super::socket::Socket;
use super::{Chosen, Runtime};
use agent_config::SOURCE_KINDS;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Where the usual runtimes are found. Sockets first: they know labels that files do not have.
const USUAL: &[(Kind, &str)] = &[
    (Kind::Docker, "/run/docker.sock"),
    (Kind::Podman, "/run/podman/podman.sock"),
    (Kind::Cri, "/run/containerd/containerd.sock"),
    (Kind::Cri, "/run/k3s/containerd/containerd.sock"),
    (Kind::Cri, "/run/crio/crio.sock"),
    (Kind::DockerFiles, "/var/lib/docker"),
    (
        Kind::Bundles,
        "/run/containerd/io.containerd.runtime.v2.task/k8s.io",
    ),
    (
        Kind::Bundles,
        "/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io",
    ),
    (Kind::Bundles, "/run/containers/storage/overlay-containers"),
    (Kind::Storage, "/var/lib/containers/storage"),
];

/// The kind of source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Docker's engine, over HTTP.
    Docker,
    /// Podman's service, over HTTP.
    Podman,
    /// The Container Runtime Interface, over gRPC.
    Cri,
    /// Docker's file for each container.
    DockerFiles,
    /// Bundles, which containerd and CRI-O pass to the program that starts a container.
    Bundles,
    /// Podman's storage, with data about all containers.
    Storage,
}

impl Kind {
    /// In the order of [`SOURCE_KINDS`].
    const ALL: [Kind; 6] = [
        Kind::Docker,
        Kind::Podman,
        Kind::Cri,
        Kind::DockerFiles,
        Kind::Bundles,
        Kind::Storage,
    ];

    fn word(self) -> &'static str {
        SOURCE_KINDS[self as usize]
    }
}

/// A value of the configuration's `containers.sources`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    kind: Kind,
    path: PathBuf,
    /// The operator configured this path and is responsible for its owner.
    named: bool,
}

/// Why a text is no source.
#[derive(Debug, thiserror::Error)]
#[error(
    "failed to read source `{0}`: expected `KIND:/PATH`, where KIND is docker, podman or cri for a \
     socket, or docker-files, bundles or storage for a directory"
)]
pub struct SourceError(String);

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Source, SourceError> {
        let refused = || SourceError(config::shown(text));
        let (word, path) = text.split_once(':').ok_or_else(refused)?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.word() == word);
        let kind = kind.filter(|_| path.starts_with('/')).ok_or_else(refused)?;
        Ok(Source {
            kind,
            path: path.into(),
            named: true,
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.word(), self.path.display())
    }
}

impl Source {
    /// The sources of a list of the configuration; what is none is left out.
    pub fn of_config(list: &[String]) -> Vec<Source> {
        let mut sources = Vec::new();
        for text in list {
            match text.as_str() {
                "auto" => sources.extend(Source::usual()),
                text => sources.extend(text.parse::<Source>().ok()),
            }
        }
        sources
    }

    /// The places where the usual runtimes are found.
    pub fn usual() -> impl Iterator<Item = Source> {
        USUAL.iter().map(|&(kind, path)| Source {
            kind,
            path: path.into(),
            named: false,
        })
    }

    /// The runtime behind this source.
    pub fn runtime(&self, chosen: &Chosen) -> Box<dyn Runtime> {
        let socket = || Socket {
            path: self.path.as_path().into(),
            named: self.named,
            calls: SerialCalls::default(),
        };
        let calls = SerialCalls::default();
        let (dir, chosen) = (self.path.as_path().into(), chosen.clone());
        match self.kind {
            Kind::Docker => Box::new(Docker::new(socket(), chosen)),
            Kind::Podman => Box::new(Podman::new(socket(), chosen)),
            Kind::Cri => Box::new(Cri::new(socket(), chosen)),
            Kind::DockerFiles => Box::new(DockerFiles { dir, calls, chosen }),
            Kind::Bundles => Box::new(Bundles { dir, calls, chosen }),
            Kind::Storage => Box::new(Storage { dir, calls }),
        }
    }
}
