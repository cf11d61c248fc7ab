//! A fake collector as agent-ctl sees it: its fleet is made up of three hosts with the samples of
//! the fake agent, and of hosts that are silent or gone.

mod alerts;
mod captures;
mod incidents;
mod overview;
mod pins;
mod views;

use super::samples::{self, Answers, NOW_NS, PERIOD, S, chunks, select};
use super::server::Server;
use profile::{GroupBy, Profile, Quality, SampleKey, TopBy, TopSort, Value, key};
use proto::agent::{Cgroup, Counter, Degradation, Sandbox, Severity, TimeRange};
use proto::collector::alert_service_server::AlertServiceServer;
use proto::collector::capture_service_server::CaptureServiceServer;
use proto::collector::incident_service_server::IncidentServiceServer;
use proto::collector::pin_service_server::PinServiceServer;
use proto::collector::query_service_server::{QueryService, QueryServiceServer};
use proto::collector::view_service_server::ViewServiceServer;
use proto::collector::*;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use tonic::transport::server::Server as Services;
use tonic::{Code, Request, Response, Status};

/// How the fake behaves.
#[derive(Clone, Default)]
pub struct Behaviour {
    /// There are no samples and no hosts.
    pub empty: bool,
    /// Every call but `Status` is refused with this code.
    pub refuse: Option<Code>,
    /// `Status` is refused too.
    pub refuse_status: bool,
    /// Two partitions are damaged.
    pub damaged: bool,
    /// Weights are larger than an answer can say.
    pub capped: bool,
    /// Whoever asks has a scope.
    pub scoped: bool,
    /// Every host is alive and well.
    pub healthy: bool,
    /// Hosts that are well now sent nothing for half of the range.
    pub gaps: bool,
    /// Calls are never answered.
    pub silent: bool,
    /// The bearer token that every call must have.
    pub token: Option<&'static str>,
    /// Answers come without data quality.
    pub without_quality: bool,
    /// The parts of a profile are endlessly empty.
    pub empty_parts: bool,
    /// The data quality of a profile comes twice.
    pub quality_twice: bool,
}

/// Calls with their details, in order.
type Calls = Arc<Mutex<Vec<String>>>;

/// A fake collector that runs until it is dropped.
pub struct FakeCollector {
    address: SocketAddr,
    calls: Calls,
    _server: Server,
}

impl FakeCollector {
    /// Starts one on a port of its own; it accepts when this returns.
    ///
    /// # Panics
    /// When there is no port.
    pub fn start(behaviour: Behaviour) -> FakeCollector {
        FakeCollector::at(([127, 0, 0, 1], 0).into(), behaviour)
    }

    /// Starts one at an address.
    ///
    /// # Panics
    /// When it is taken.
    pub fn at(address: SocketAddr, behaviour: Behaviour) -> FakeCollector {
        let listener = TcpListener::bind(address).expect("a port");
        let address = listener.local_addr().expect("an address");
        let calls = Calls::default();
        FakeCollector {
            address,
            calls: calls.clone(),
            _server: serve(listener, behaviour, calls),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Each call: its name, a space, and its details.
    ///
    /// # Panics
    /// After the fake panicked.
    pub fn all_calls(&self) -> Vec<String> {
        self.calls.lock().expect("no panic").clone()
    }

    /// The details of each call of this name.
    ///
    /// # Panics
    /// As [`Self::all_calls`].
    pub fn calls(&self, name: &str) -> Vec<String> {
        let name = format!("{name} ");
        let calls = self.all_calls().into_iter();
        calls
            .filter_map(|call| call.strip_prefix(&name).map(str::to_owned))
            .collect()
    }
}

/// The fake's services.
#[derive(Clone)]
struct Fake {
    behaviour: Behaviour,
    calls: Calls,
}

/// The hosts, the third with a hostile name, and by how much the last of the samples is larger
/// there.
pub const HOSTS: [(&str, u64); 3] = [("web-1", 1), ("web-2", 1), ("db\x1b[31m\u{202e}", 10)];

/// All samples of the fleet.
fn everything(empty: bool) -> Profile {
    let mut all = Profile {
        info: samples::profile(1).info,
        ..Profile::default()
    };
    all.info.quality = Quality::default();
    for (host, scale) in HOSTS.into_iter().filter(|_| !empty) {
        let one = samples::profile(scale);
        all.info.quality += one.info.quality;
        for (sample, value) in one.sorted() {
            let own = one.dict.labels(sample.labels);
            let labels = all.dict.intern_labels(own.chain([(key::HOST, host)]));
            let mut frames = Vec::new();
            one.dict.stacks.root_first(sample.stack, &mut frames);
            let moved = frames
                .into_iter()
                .map(|frame| all.dict.intern_frame(one.dict.frame(frame)))
                .collect::<Vec<_>>();
            let stack = all.dict.stacks.intern(moved);
            let end = sample.end;
            all.add(SampleKey { labels, stack, end }, value);
        }
    }
    all
}

impl Fake {
    async fn admit(&self, call: &str, details: String) -> Result<(), Status> {
        let what = format!("{call} {details}");
        self.calls.lock().expect("no panic").push(what);
        if self.behaviour.silent {
            std::future::pending::<()>().await;
        }
        match self.behaviour.refuse {
            Some(_) if call == "status" && !self.behaviour.refuse_status => Ok(()),
            Some(code) => Err(Status::new(code, "the fake refuses\x1b[2J")),
            None => Ok(()),
        }
    }

    fn quality_of_answer(&self, profile: &Profile) -> Option<DataQuality> {
        (!self.behaviour.without_quality).then(|| self.quality(profile))
    }

    fn quality(&self, profile: &Profile) -> DataQuality {
        let gap = HostGap {
            host_id: "id-web-2".into(),
            hostname: "web-2\x07".into(),
            start_unix_ns: NOW_NS - 60 * S,
            end_unix_ns: NOW_NS,
            cause: "absent".into(),
        };
        let total = profile.total();
        DataQuality {
            covered: Some(TimeRange {
                start_unix_ns: NOW_NS - 300 * S,
                end_unix_ns: NOW_NS,
            }),
            resolution_ns: 10 * S as u64,
            hosts: if self.behaviour.empty { 0 } else { 3 },
            hosts_alive: 4,
            windows: 90,
            gaps: vec![gap],
            gaps_total: 1,
            gap_ns_total: 60 * S as u64,
            sampling: Some(profile.info.quality.into()),
            coverage: Some(profile.info.coverage.into()),
            total_count: total.count,
            total_weight: total.weight,
            unit: profile.info.unit.clone(),
            pruned_weight: total.weight / 200,
            damaged: match self.behaviour.damaged {
                true => vec!["2026-11-20\x1b[2J".into(), "2026-11-19".into()],
                false => Vec::new(),
            },
            weights_capped: self.behaviour.capped,
            named_later: Vec::new(),
            not_kept: Vec::new(),
        }
    }

    fn selected(
        &self,
        selection: &Option<Selection>,
        group_by: &[String],
    ) -> Result<Profile, Status> {
        let selection = selection.clone().unwrap_or_default();
        let mut profile = select(
            &everything(self.behaviour.empty),
            &selection.matchers,
            &selection.frame_filters,
            group_by,
        )?;
        let mut parts = selection.profile_type.split(':').skip(1);
        if let (Some(counted), Some(unit)) = (parts.next(), parts.next()) {
            profile.info.event = counted.to_owned();
            profile.info.unit = unit.to_owned();
        }
        Ok(profile)
    }
}

/// The matchers of a selection as text, and its filters.
fn shown(selection: &Option<Selection>) -> String {
    let selection = selection.clone().unwrap_or_default();
    let matchers = selection.matchers.iter();
    let matchers = matchers.map(|m| format!("{} {:?} {}", m.label, m.op(), m.value));
    let filters = selection.frame_filters.iter();
    let filters = filters.map(|f| format!("{:?} {}", f.op(), f.regex));
    let of_type = Some(selection.profile_type.clone()).filter(|id| !id.is_empty());
    matchers
        .chain(filters)
        .chain(of_type)
        .collect::<Vec<_>>()
        .join(", ")
}

fn host(id: &str, name: &str, age_s: i64) -> Host {
    Host {
        host_id: id.into(),
        boot_id: "00".repeat(16),
        facts: Some(HostFacts {
            hostname: name.into(),
            kernel: "6.12.0".into(),
            arch: "x86_64".into(),
            cpus_online: 8,
            memory_bytes: 16 << 30,
            agent_version: "0.1.0".into(),
            labels: [("region".to_owned(), "eu\x1b]0;x\x07".to_owned())].into(),
            spool: Some(SpoolState::default()),
            ..HostFacts::default()
        }),
        first_seen_unix_ns: NOW_NS - 86_400 * S,
        last_seen_unix_ns: NOW_NS - age_s * S,
        connected: age_s < 60,
        windows: 30,
        weight: 450 * S as u64,
        unit: "nanoseconds".into(),
        coverage: Some(samples::profile(1).info.coverage.into()),
        ..Host::default()
    }
}

fn hosts(behaviour: &Behaviour) -> Vec<Host> {
    let mut web_1 = host("id-web-1", "web-1", 4);
    if behaviour.gaps {
        web_1.gap_ns = 150 * S as u64;
    }
    if behaviour.healthy {
        return vec![web_1];
    }
    let rebooted = Host {
        boot_id: "11".repeat(16),
        windows: 3,
        ..host("id-web-1", "web-1", 7200)
    };
    let web_2 = Host {
        gap_ns: 60 * S as u64,
        ..host("id-web-2", "web-2", 600)
    };
    let mut db = Host {
        clock_ahead_ns: 90 * S,
        warnings: vec!["its clock is 90 s ahead\x1b[2J".into()],
        unit: "cycles".into(),
        ..host("id-db", HOSTS[2].0, 2)
    };
    if let Some(facts) = &mut db.facts {
        facts.spool = Some(SpoolState {
            windows: 12,
            bytes: 1 << 20,
            bytes_max: 1 << 30,
            oldest_unix_ns: NOW_NS - 120 * S,
            dropped_windows: 3,
        });
    }
    let twin = Host {
        weight: 0,
        windows: 0,
        ..host("id-of-another-web-2", "web-2", 3 * 86_400)
    };
    vec![web_1, rebooted, web_2, db, twin]
}

#[tonic::async_trait]
impl QueryService for Fake {
    type ProfileStream = Answers<ProfileResponse>;

    async fn label_names(
        &self,
        _: Request<LabelNamesRequest>,
    ) -> Result<Response<LabelNamesResponse>, Status> {
        self.admit("label_names", String::new()).await?;
        let names = [
            "cgroup",
            "comm",
            "container",
            "host",
            "pid",
            "region",
            "service",
            "unit",
        ];
        Ok(Response::new(LabelNamesResponse {
            names: names.map(str::to_owned).into(),
            quality: None,
        }))
    }

    async fn profile_types(
        &self,
        _: Request<proto::collector::ProfileTypesRequest>,
    ) -> Result<Response<proto::collector::ProfileTypesResponse>, Status> {
        self.admit("profile_types", String::new()).await?;
        Ok(Response::new(proto::collector::ProfileTypesResponse {
            ids: vec!["memory:inuse_space:bytes:space:bytes".to_owned()],
        }))
    }

    async fn label_values(
        &self,
        request: Request<LabelValuesRequest>,
    ) -> Result<Response<LabelValuesResponse>, Status> {
        let request = request.into_inner();
        let details = format!("{} {}", request.name, request.prefix);
        self.admit("label_values", details).await?;
        let all = everything(self.behaviour.empty);
        let values: std::collections::BTreeSet<String> = all
            .samples
            .keys()
            .filter_map(|sample| all.dict.label(sample.labels, &request.name))
            .filter(|value| value.starts_with(&request.prefix))
            .map(str::to_owned)
            .collect();
        Ok(Response::new(LabelValuesResponse {
            values: values.into_iter().collect(),
            more: false,
            quality: None,
        }))
    }

    /// Two lines of four steps, of which the third has no data and half of the second was lost.
    async fn series(
        &self,
        request: Request<SeriesRequest>,
    ) -> Result<Response<SeriesResponse>, Status> {
        let request = request.into_inner();
        let details = format!(
            "[{}] by {:?} accounted {}",
            shown(&request.selection),
            request.group_by,
            request.accounted
        );
        self.admit("series", details).await?;
        let step_ns = request.step_ns.max(10 * S as u64);
        let selection = request.selection.as_ref();
        let of_agents = selection.is_none_or(|of| of.profile_type.is_empty());
        let line = |host: &str, cores: [u64; 4]| SeriesLine {
            labels: match request.group_by.first() {
                Some(label) => [(label.clone(), host.to_owned())].into(),
                None => Default::default(),
            },
            weights: cores.map(|cores| cores * step_ns).into(),
            total_weight: cores.iter().sum::<u64>() * step_ns,
            rest: false,
        };
        let step = |hosts, lost_weight| SeriesStep {
            covered_ns: hosts * step_ns,
            hosts,
            weight: 100,
            lost_weight,
        };
        let lines = match self.behaviour.empty {
            true => Vec::new(),
            false => vec![
                line(HOSTS[0].0, [2, 2, 0, 4]),
                line(HOSTS[2].0, [1, 1, 0, 1]),
            ],
        };
        Ok(Response::new(SeriesResponse {
            start_unix_ns: NOW_NS - 4 * step_ns as i64,
            step_ns,
            lines,
            quality: self.quality_of_answer(&self.selected(&request.selection, &[])?),
            rest_lines: 0,
            steps: vec![step(2, 0), step(2, 50), step(0, 0), step(2, 0)],
            accounted: request.accounted && of_agents,
        }))
    }

    async fn profile(
        &self,
        request: Request<ProfileRequest>,
    ) -> Result<Response<Self::ProfileStream>, Status> {
        let request = request.into_inner();
        let details = format!(
            "[{}] by {:?} nodes {}",
            shown(&request.selection),
            request.group_by,
            request.max_nodes
        );
        self.admit("profile", details).await?;
        let profile = self.selected(&request.selection, &request.group_by)?;
        if self.behaviour.empty_parts {
            let nothing = std::iter::repeat_with(|| Ok(ProfileResponse::default()));
            return Ok(Response::new(Box::pin(tokio_stream::iter(nothing))));
        }
        let first = ProfileResponse {
            quality: self.quality_of_answer(&profile),
            chunk: None,
        };
        let chunks = chunks(profile).map(|chunk| ProfileResponse {
            quality: None,
            chunk: Some(chunk),
        });
        // Without data quality the first message has nothing to say.
        let skipped = if self.behaviour.without_quality { 1 } else { 0 };
        let quality_twice = self.behaviour.quality_twice.then(|| first.clone());
        let first = quality_twice.into_iter().chain([first]);
        let answers: Vec<_> = first.skip(skipped).chain(chunks).map(Ok).collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(answers))))
    }

    async fn top(&self, request: Request<TopRequest>) -> Result<Response<TopResponse>, Status> {
        let request = request.into_inner();
        let details = format!("[{}] by {}", shown(&request.selection), request.by);
        self.admit("top", details).await?;
        let by = match request.by.as_str() {
            "function" => TopBy::Function,
            label => TopBy::Label(label.to_owned()),
        };
        let profile = self.selected(&request.selection, &["*".to_owned()])?;
        let sort = match request.sort_by_total {
            true => TopSort::Total,
            false => TopSort::Own,
        };
        let all = profile.top(&by, sort, usize::MAX).rows;
        let limit = request.limit as usize;
        let row = |row: &profile::TopRow| TopRow {
            name: row.name.clone(),
            module: row.module.clone(),
            kind: match by {
                TopBy::Function => row.kind as u32,
                _ => 255,
            },
            self_count: row.own.count,
            self_weight: row.own.weight,
            total_count: row.total.count,
            total_weight: row.total.weight,
        };
        Ok(Response::new(TopResponse {
            rows: all.iter().take(limit).map(row).collect(),
            rows_left_out: all.len().saturating_sub(limit) as u64,
            quality: self.quality_of_answer(&profile),
        }))
    }

    /// Shares move by ten percentage points between the parts of its ranges.
    async fn diff(&self, request: Request<DiffRequest>) -> Result<Response<DiffResponse>, Status> {
        let request = request.into_inner();
        let details = format!("[{}] [{}]", shown(&request.before), shown(&request.after));
        self.admit("diff", details).await?;
        let side = |selection| self.selected(selection, &[]);
        let (before, after) = (side(&request.before)?, side(&request.after)?);
        let diff = profile::Diff::new(&before, &after, &GroupBy::Keys(Vec::new()));
        let diff = diff.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let row = |row: &profile::FunctionChange| {
            let delta = diff.share(row.own).delta;
            DiffRow {
                name: row.function.clone(),
                module: row.module.clone(),
                share_change: delta,
                share_error: 0.1,
                significant: delta.abs() > 0.4,
                ..DiffRow::default()
            }
        };
        let sampled = Sampled {
            parts: 6,
            ..Sampled::default()
        };
        Ok(Response::new(DiffResponse {
            rows: diff.functions.iter().map(row).collect(),
            rows_left_out: 0,
            before: self.quality_of_answer(&before),
            after: self.quality_of_answer(&after),
            before_sampled: Some(sampled),
            after_sampled: Some(sampled),
            hosts_differ: false,
        }))
    }

    async fn overview(
        &self,
        request: Request<OverviewRequest>,
    ) -> Result<Response<OverviewResponse>, Status> {
        let asked = request.into_inner();
        let details = format!(
            "[{}] baseline={} label={} limit={} functions={}",
            shown(&asked.selection),
            asked.baseline.is_some(),
            asked.service_label,
            asked.limit,
            !asked.without_functions
        );
        self.admit("overview", details).await?;
        let profile = everything(self.behaviour.empty);
        let quality = self.quality_of_answer(&profile);
        Ok(Response::new(overview::overview(&self.behaviour, quality)))
    }

    async fn hosts(&self, _: Request<HostsRequest>) -> Result<Response<HostsResponse>, Status> {
        self.admit("hosts", String::new()).await?;
        let profile = everything(self.behaviour.empty);
        let hosts = match self.behaviour.empty {
            true => Vec::new(),
            false => hosts(&self.behaviour),
        };
        Ok(Response::new(HostsResponse {
            // As a collector does: gaps are those of the hosts.
            quality: self.quality_of_answer(&profile).map(|quality| DataQuality {
                covered: quality.covered,
                hosts: quality.hosts,
                hosts_alive: hosts.len() as u64,
                gap_ns_total: hosts.iter().map(|host| host.gap_ns).sum(),
                damaged: quality.damaged,
                ..DataQuality::default()
            }),
            hosts,
            hosts_left_out: 0,
        }))
    }

    async fn cgroups(
        &self,
        request: Request<CgroupsRequest>,
    ) -> Result<Response<CgroupsResponse>, Status> {
        let selection = request.into_inner().selection;
        self.admit("cgroups", format!("[{}]", shown(&selection)))
            .await?;
        if selection
            .as_ref()
            .is_some_and(|one| !one.frame_filters.is_empty())
        {
            return Err(Status::invalid_argument("cgroups are without stacks"));
        }
        let profile = self.selected(&selection, &["*".to_owned()])?;
        let mut by_path: BTreeMap<String, Cgroup> = BTreeMap::new();
        for (sample, value) in profile.sorted() {
            let label = |name| profile.dict.label(sample.labels, name).unwrap_or("");
            let path = label(key::CGROUP);
            add(&mut by_path, path, value, true);
            let own = by_path.get_mut(path).expect("it was added");
            own.unit = label(key::UNIT).into();
            own.container = label(key::CONTAINER).into();
            let mut rest = path;
            while let Some(at) = rest.rfind('/').filter(|_| rest != "/") {
                rest = if at == 0 { "/" } else { &rest[..at] };
                add(&mut by_path, rest, value, false);
            }
        }
        Ok(Response::new(CgroupsResponse {
            cgroups: by_path.into_values().collect(),
            rows_left_out: 7,
            quality: self.quality_of_answer(&profile),
        }))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        self.admit("status", String::new()).await?;
        let degradations = match self.behaviour.damaged {
            false => Vec::new(),
            true => vec![Degradation {
                id: "partition".into(),
                message: "partition 2026-11-20 is damaged\x1b[2J".into(),
                remedy: "restore it from a backup".into(),
                severity: Severity::Warning.into(),
                ..Degradation::default()
            }],
        };
        if self.behaviour.scoped {
            return Ok(Response::new(StatusResponse {
                version: "0.1.0".into(),
                store: "embedded".into(),
                store_version: "SQLite 3.51".into(),
                started_unix_ns: NOW_NS - 7260 * S,
                now_unix_ns: NOW_NS,
                scoped: true,
                ..StatusResponse::default()
            }));
        }
        Ok(Response::new(StatusResponse {
            version: "0.1.0\x07".into(),
            store: "embedded".into(),
            store_version: "SQLite 3.51".into(),
            started_unix_ns: NOW_NS - 7260 * S,
            now_unix_ns: NOW_NS,
            kept: (!self.behaviour.empty).then_some(TimeRange {
                start_unix_ns: NOW_NS - 86_400 * S,
                end_unix_ns: NOW_NS,
            }),
            store_bytes: 3 << 30,
            store_bytes_max: 20 << 30,
            streams: 3,
            degradations,
            counters: vec![Counter {
                name: "fleetprof_collector_refused_total".into(),
                labels: "cause=\"future\"".into(),
                value: 12,
            }],
            sandbox: Some(Sandbox {
                on: true,
                seccomp: true,
                landlock_abi: 7,
                confined: vec!["all".into()],
                listens_confined: true,
                connects_confined: true,
                ..Sandbox::default()
            }),
            ..StatusResponse::default()
        }))
    }
}

fn add(by_path: &mut BTreeMap<String, Cgroup>, path: &str, value: Value, own: bool) {
    let cgroup = by_path.entry(path.to_owned()).or_insert_with(|| Cgroup {
        path: path.to_owned(),
        ..Cgroup::default()
    });
    if own {
        cgroup.self_count += value.count;
        cgroup.self_weight += value.weight;
    }
    cgroup.total_count += value.count;
    cgroup.total_weight += value.weight;
    cgroup.expected_ns += value.count * PERIOD / 99 * 100;
}

/// Serves a fake collector on a port.
fn serve(listener: TcpListener, behaviour: Behaviour, calls: Calls) -> Server {
    let token = behaviour.token.map(|token| format!("Bearer {token}"));
    let admitted = move |request: Request<()>| {
        let given = request.metadata().get("authorization");
        match &token {
            Some(token) if given.is_none_or(|given| given != token.as_str()) => {
                Err(Status::unauthenticated("no token, or a wrong one"))
            }
            _ => Ok(request),
        }
    };
    let fake = Fake { behaviour, calls };
    let query = QueryServiceServer::with_interceptor(fake.clone(), admitted.clone());
    let captures = CaptureServiceServer::with_interceptor(fake.clone(), admitted.clone());
    let pins = PinServiceServer::with_interceptor(fake.clone(), admitted.clone());
    let alerts = AlertServiceServer::with_interceptor(fake.clone(), admitted.clone());
    let incidents = IncidentServiceServer::with_interceptor(fake.clone(), admitted.clone());
    let views = ViewServiceServer::with_interceptor(fake, admitted);
    let services = Services::builder()
        .add_service(query)
        .add_service(captures)
        .add_service(pins)
        .add_service(alerts)
        .add_service(incidents)
        .add_service(views);
    Server::tcp(listener, services)
}
