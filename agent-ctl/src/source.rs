//! The source of answers: through [`Source`], commands send the same queries to an agent or a
//! collector and get the same answers, plus what a fleet adds.

use crate::client::Client;
use crate::collector::{Collector, Samples};
use crate::fleet::Fleet;
use crate::loss;
use crate::peer::{Connection, Kind, Peer};
use crate::when::{Clock, Range};
use anyhow::Result;
use profile::{Coverage, Profile, Quality};
use proto::agent::{Cgroup, ListCgroupsRequest, QueryProfileRequest, TimeRange};
use proto::collector::ProfileRequest;

/// An agent or a collector, connected.
pub enum Source {
    /// The agent of one host.
    Agent(Client),
    /// The collector of a fleet.
    Collector(Collector),
}

/// What profile is asked for.
#[derive(Clone, Debug)]
pub struct Question {
    /// The range of time.
    pub range: Range,
    /// Which samples.
    pub samples: Samples,
    /// Labels to keep.
    pub group_by: Vec<String>,
    /// Up to this moment, not only closed windows. A collector has closed windows only.
    pub fresh: bool,
    /// Most stacks in the answer of a collector; 0: as many as it gives unasked.
    pub max_nodes: u32,
    /// With the time of each sample, as far as it is known. A collector has none.
    pub times: bool,
}

impl Question {
    /// Only labels matter.
    pub fn of_labels(range: Range, samples: Samples) -> Question {
        Question {
            range,
            samples,
            group_by: Vec::new(),
            fresh: true,
            max_nodes: 0,
            times: false,
        }
    }
}

/// A profile.
pub struct Answer {
    /// It.
    pub profile: Profile,
    /// What it is made of; `None` of an agent.
    pub fleet: Option<Fleet>,
}

/// CPU time by cgroup, as a list with all parents.
#[derive(Default)]
pub struct Tree {
    /// By path.
    pub cgroups: Vec<Cgroup>,
    /// The time it covers.
    pub covered: TimeRange,
    /// What was missed while sampling.
    pub quality: Quality,
    /// Samples of all cgroups.
    pub samples: u64,
    /// Over all cgroups.
    pub total_weight: u64,
    /// Unit of weights.
    pub unit: String,
    /// cgroups that a bound left out.
    pub rows_left_out: u64,
    /// What it is made of; `None` of an agent.
    pub fleet: Option<Fleet>,
}

impl Tree {
    /// Why most of it is missing; `None` when it is not.
    pub fn loss(&self) -> Option<String> {
        match &self.fleet {
            Some(fleet) => fleet.loss(),
            None => loss::of_sums(&self.quality, &Coverage::default()),
        }
    }
}

impl Source {
    /// Connects.
    ///
    /// # Errors
    /// See [`crate::connection::open`].
    pub async fn connect(connection: &Connection, peer: &Peer) -> Result<Source> {
        Ok(match peer.kind {
            Kind::Agent => Source::Agent(Client::connect(connection, peer).await?),
            Kind::Collector => Source::Collector(Collector::connect(connection, peer).await?),
        })
    }

    /// The clock that relative times count from.
    pub async fn clock(&mut self) -> Result<Clock> {
        match self {
            Source::Agent(client) => client.clock().await,
            Source::Collector(collector) => collector.clock().await,
        }
    }

    /// Start and end of what is kept; `None`: nothing is, or nobody knows.
    pub async fn kept(&mut self) -> Result<Option<(i64, i64)>> {
        Ok(match self {
            Source::Agent(client) => {
                let recorder = client.status().await?.recorder;
                recorder.map(|of| (of.oldest_unix_ns, of.newest_unix_ns))
            }
            Source::Collector(collector) => {
                let kept = collector.status().await?.kept;
                kept.map(|kept| (kept.start_unix_ns, kept.end_unix_ns))
            }
        })
    }

    /// One merged profile.
    pub async fn profile(&mut self, question: Question) -> Result<Answer> {
        let Question {
            range,
            samples,
            group_by,
            fresh,
            max_nodes,
            times,
        } = question;
        match self {
            Source::Agent(client) => {
                let request = QueryProfileRequest {
                    range: Some(range.into()),
                    matchers: samples.matchers,
                    frame_filters: samples.filters,
                    group_by,
                    fresh,
                    times,
                    pin_capture: 0,
                };
                let profile = client.query(request).await?;
                Ok(Answer {
                    profile,
                    fleet: None,
                })
            }
            Source::Collector(collector) => {
                let request = ProfileRequest {
                    selection: Some(samples.selection(range)),
                    group_by,
                    max_nodes,
                };
                let (profile, fleet) = collector.profile(request).await?;
                Ok(Answer {
                    profile,
                    fleet: Some(fleet),
                })
            }
        }
    }

    /// CPU time by cgroup. An agent answers for all samples, whatever `samples` says.
    pub async fn cgroups(&mut self, range: Range, samples: &Samples) -> Result<Tree> {
        match self {
            Source::Agent(client) => {
                let range = Some(range.into());
                let answer = client.cgroups(ListCgroupsRequest { range }).await?;
                let quality = Quality::from(answer.quality.unwrap_or_default());
                Ok(Tree {
                    cgroups: answer.cgroups,
                    covered: answer.covered.unwrap_or_default(),
                    samples: quality.taken,
                    quality,
                    total_weight: answer.total_weight,
                    unit: answer.unit,
                    rows_left_out: 0,
                    fleet: None,
                })
            }
            Source::Collector(collector) => {
                let selection = samples.selection(range);
                let (cgroups, rows_left_out, fleet) = collector.cgroups(selection).await?;
                Ok(Tree {
                    cgroups,
                    covered: fleet.covered(),
                    quality: fleet.sampling(),
                    samples: fleet.total().count,
                    total_weight: fleet.total_weight(),
                    unit: fleet.unit().to_owned(),
                    rows_left_out,
                    fleet: Some(fleet),
                })
            }
        }
    }
}
