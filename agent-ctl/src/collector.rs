//! Calls to a collector.

use crate::connection::{self, Route, Transport};
use crate::fleet::Fleet;
use crate::peer::{Connection, Peer};
use crate::when::{Clock, Range};
use anyhow::{Result, anyhow};
use profile::Profile;
use proto::ProfileAssembler;
use proto::agent::{Cgroup, FrameFilter, FrameFilterOp, LabelMatcher, TimeRange};
use proto::collector::query_service_client::QueryServiceClient;
use proto::collector::{
    CgroupsRequest, DataQuality, DiffRequest, DiffResponse, Host, HostsRequest, LabelNamesRequest,
    LabelValuesRequest, OverviewRequest, OverviewResponse, ProfileRequest, ProfileTypesRequest,
    Selection, SeriesRequest, SeriesResponse, StatusRequest, StatusResponse, TopRequest, TopRow,
};

/// Largest message taken. Unit: bytes. The host table of ten thousand hosts with long labels is
/// below 20 MiB; a profile comes in many small messages.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// An open connection to a collector.
#[derive(Clone)]
pub struct Collector {
    service: QueryServiceClient<Transport>,
    route: Route,
    /// The time of what is kept, when the clock was read; `None`: not known.
    kept: Option<TimeRange>,
    /// Whether whoever asks has a scope, as was told with the clock.
    scoped: bool,
}

/// Which samples.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// All must hold.
    pub matchers: Vec<LabelMatcher>,
    /// In the order in which they are applied.
    pub filters: Vec<FrameFilter>,
    /// The id of a profile type of other senders or of captures; empty: CPU of agents.
    pub profile_type: String,
}

impl Samples {
    /// By labels alone: stacks become one frame, so an answer has few rows.
    pub fn by_labels(matchers: Vec<LabelMatcher>) -> Samples {
        Samples {
            matchers,
            filters: vec![FrameFilter {
                op: FrameFilterOp::Collapse.into(),
                regex: ".*".to_owned(),
            }],
            ..Samples::default()
        }
    }

    /// On the wire.
    pub fn selection(&self, range: Range) -> Selection {
        Selection {
            range: Some(range.into()),
            matchers: self.matchers.clone(),
            selector: String::new(),
            frame_filters: self.filters.clone(),
            profile_type: self.profile_type.clone(),
        }
    }
}

impl Collector {
    /// Connects.
    ///
    /// # Errors
    /// See [`connection::open`].
    pub async fn connect(connection: &Connection, collector: &Peer) -> Result<Collector> {
        let (transport, route) = connection::open(connection, collector).await?;
        let service =
            QueryServiceClient::new(transport).max_decoding_message_size(MESSAGE_BYTES_MAX);
        Ok(Collector {
            service,
            route,
            kept: None,
            scoped: false,
        })
    }

    /// The clock that relative times count from: the collector's own.
    pub async fn clock(&mut self) -> Result<Clock> {
        let call = self.service.status(StatusRequest {});
        let status = self.route.answer("query the collector", call).await?;
        self.kept = status.kept;
        self.scoped = status.scoped;
        Ok(Clock::at(status.now_unix_ns))
    }

    /// True when whoever asks sees a part of the fleet, once the clock was read.
    pub fn is_scoped(&self) -> bool {
        self.scoped
    }

    /// `Status`.
    pub async fn status(&mut self) -> Result<StatusResponse> {
        let call = self.service.status(StatusRequest {});
        self.route.answer("get status", call).await
    }

    /// The data behind an answer. The time it covers is the requested one, without the time before
    /// the oldest and after the newest window.
    fn fleet(&self, what: &str, quality: Option<DataQuality>) -> Result<Fleet> {
        Ok(Fleet::from_answer(what, quality)?.kept(self.kept))
    }

    /// The same of a selection, which may be of a profile type.
    fn fleet_of(&self, what: &str, quality: Option<DataQuality>, is_typed: bool) -> Result<Fleet> {
        match is_typed {
            // What is kept of agents says nothing of what others sent.
            true => Ok(Fleet::from_answer(what, quality)?.of_senders()),
            false => self.fleet(what, quality),
        }
    }

    /// `Hosts`, how many more there are, and what it is made of.
    pub async fn hosts(&mut self, range: Range) -> Result<(Vec<Host>, u64, Fleet)> {
        const WHAT: &str = "list hosts";
        let range = Some(range.into());
        let call = self.service.hosts(HostsRequest { range });
        let answer = self.route.answer(WHAT, call).await?;
        let fleet = self.fleet(WHAT, answer.quality)?;
        Ok((answer.hosts, answer.hosts_left_out, fleet))
    }

    /// `Cgroups`, how many more there are, and what it is made of.
    pub async fn cgroups(&mut self, selection: Selection) -> Result<(Vec<Cgroup>, u64, Fleet)> {
        const WHAT: &str = "list cgroups";
        let selection = Some(selection);
        let call = self.service.cgroups(CgroupsRequest { selection });
        let answer = self.route.answer(WHAT, call).await?;
        let fleet = self.fleet(WHAT, answer.quality)?;
        Ok((answer.cgroups, answer.rows_left_out, fleet))
    }

    /// `Top`, how many more rows there are, and what it is made of.
    pub async fn top(&mut self, request: TopRequest) -> Result<(Vec<TopRow>, u64, Fleet)> {
        const WHAT: &str = "get top";
        let call = self.service.top(request);
        let answer = self.route.answer(WHAT, call).await?;
        let fleet = self.fleet(WHAT, answer.quality)?;
        Ok((answer.rows, answer.rows_left_out, fleet))
    }

    /// `ProfileTypes`.
    pub async fn profile_types(&mut self, range: Range) -> Result<Vec<String>> {
        let range = Some(range.into());
        let call = self.service.profile_types(ProfileTypesRequest { range });
        Ok(self.route.answer("list profile types", call).await?.ids)
    }

    /// `LabelNames` of all samples in a range; `profile_type`: as in [`Samples`].
    pub async fn label_names(&mut self, range: Range, profile_type: &str) -> Result<Vec<String>> {
        let samples = Samples {
            profile_type: profile_type.to_owned(),
            ..Samples::default()
        };
        let selection = Some(samples.selection(range));
        let call = self.service.label_names(LabelNamesRequest { selection });
        Ok(self.route.answer("list labels", call).await?.names)
    }

    /// `LabelValues` of all samples in a range that start like this.
    pub async fn label_values(
        &mut self,
        range: Range,
        name: &str,
        prefix: &str,
        limit: u32,
    ) -> Result<Vec<String>> {
        let call = self.service.label_values(LabelValuesRequest {
            selection: Some(Samples::default().selection(range)),
            name: name.to_owned(),
            prefix: prefix.to_owned(),
            limit,
        });
        Ok(self.route.answer("list values", call).await?.values)
    }

    /// `Series`, and what it is made of.
    pub async fn series(&mut self, request: SeriesRequest) -> Result<(SeriesResponse, Fleet)> {
        const WHAT: &str = "get a series";
        let is_typed = is_typed(&request.selection);
        let call = self.service.series(request);
        let answer = self.route.answer(WHAT, call).await?;
        let fleet = self.fleet_of(WHAT, answer.quality.clone(), is_typed)?;
        Ok((answer, fleet))
    }

    /// `Diff`.
    pub async fn diff(&mut self, request: DiffRequest) -> Result<DiffResponse> {
        let call = self.service.diff(request);
        self.route.answer("compare", call).await
    }

    /// `Overview`, and what its range is made of.
    pub async fn overview(
        &mut self,
        request: OverviewRequest,
    ) -> Result<(OverviewResponse, Fleet)> {
        const WHAT: &str = "make an overview";
        let call = self.service.overview(request);
        let answer = self.route.answer(WHAT, call).await?;
        let fleet = self.fleet(WHAT, answer.now.clone())?;
        Ok((answer, fleet))
    }

    /// `Profile`, put together, and what it is made of. The facts about the profile are those of
    /// its data quality, which every answer of a collector is held to.
    pub async fn profile(&mut self, request: ProfileRequest) -> Result<(Profile, Fleet)> {
        const WHAT: &str = "query profile";
        let is_typed = is_typed(&request.selection);
        let call = self.service.profile(request);
        let mut stream = self.route.answer(WHAT, call).await?;
        let mut assembler = ProfileAssembler::new();
        let mut quality = None;
        while let Some(response) = self.route.part(WHAT, stream.message()).await? {
            let has_quality = response.quality.is_some();
            if has_quality && quality.is_some() {
                return Err(anyhow!(
                    "failed to {WHAT}: the collector sent its data quality twice"
                ));
            }
            quality = quality.or(response.quality);
            match response.chunk {
                Some(chunk) => assembler.push(chunk)?,
                None if has_quality => {}
                // Else a stream of nothing would never end.
                None => return Err(anyhow!("failed to {WHAT}: the collector sent nothing")),
            }
        }
        let mut profile = assembler.finish()?;
        let fleet = self.fleet_of(WHAT, quality, is_typed)?;
        fleet.describe(&mut profile.info);
        Ok((profile, fleet))
    }
}

/// True for a selection of a profile type of other senders.
fn is_typed(selection: &Option<Selection>) -> bool {
    let selection = selection.as_ref();
    selection.is_some_and(|selection| is_of_senders(&selection.profile_type))
}

/// True for the id of a profile type of other senders: those of captures are of hosts.
pub fn is_of_senders(profile_type: &str) -> bool {
    !profile_type.is_empty() && !profile_type.starts_with("captured:")
}
