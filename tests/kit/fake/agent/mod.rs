//! A fake agent as agent-ctl sees it: `AgentService` on a unix socket. Its answers are made up,
//! with hostile names among them; nothing here shows that the real agent works.

mod captures;

use super::samples::{Answers, NOW_NS, PERIOD, S, chunks, profile, select, timed};
use super::server::Server;
use profile::{Profile, Quality, SampleKey, StackEnd, StackId, Value};
use proto::agent::agent_service_server::{AgentService, AgentServiceServer};
use proto::agent::*;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::{Server as Services, UdsConnectInfo};
use tonic::{Code, Request, Response, Status};

/// How the fake behaves.
#[derive(Clone, Default)]
pub struct Behaviour {
    /// There are no samples.
    pub empty: bool,
    /// Every call is refused with this code.
    pub refuse: Option<Code>,
    /// Streams end after this many profiles.
    pub stream_ends_after: Option<usize>,
    /// Real time between profiles of a stream.
    pub stream_interval: Duration,
    /// Degradations are told.
    pub degraded: bool,
    /// Reports something that is worth a word and no fault.
    pub noted: bool,
    /// Processes with generated code.
    pub generated: bool,
    /// The configuration is invalid when reloaded.
    pub invalid_config: bool,
}

/// Two pins: one with a capture, one that is still added to, of a cgroup with a hostile name.
pub(super) fn pins() -> Vec<proto::agent::Pin> {
    let range = |from: i64, to: i64| TimeRange {
        start_unix_ns: NOW_NS + from * S,
        end_unix_ns: NOW_NS + to * S,
    };
    vec![
        proto::agent::Pin {
            id: 12,
            trigger: "pressure".into(),
            cause: "psi.cpu.some.avg10 > 40% for 10s: it was 51.2".into(),
            cgroup: "/user.slice/a\u{202e}b\n".into(),
            fired_unix_ns: NOW_NS - 60 * S,
            range: Some(range(-360, 60)),
            bytes: 812_345,
            open: true,
            ..proto::agent::Pin::default()
        },
        proto::agent::Pin {
            id: 3,
            trigger: "api-throttled".into(),
            cause: "nr_throttled > 5/s: it was 9.8".into(),
            fired_unix_ns: NOW_NS - 86_400 * S,
            range: Some(range(-86_700, -86_280)),
            bytes: 3_400_000,
            capture_bytes: 1_200_000,
            ..proto::agent::Pin::default()
        },
    ]
}

/// A fake agent that runs until it is dropped, on a socket in a directory of its own.
pub struct FakeAgent {
    dir: tempfile::TempDir,
    _server: Server,
}

impl FakeAgent {
    /// Starts one; it accepts when this returns.
    ///
    /// # Panics
    /// When there is no place for its socket.
    pub fn start(behaviour: Behaviour) -> FakeAgent {
        let dir = tempfile::tempdir().expect("a directory");
        let server = serve(&dir.path().join(SOCKET), behaviour);
        FakeAgent {
            dir,
            _server: server,
        }
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join(SOCKET)
    }

    /// A directory for what a test writes.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

const SOCKET: &str = "agent.sock";

/// Serves a fake agent on a socket.
///
/// # Panics
/// When the socket cannot be made.
pub fn serve(socket: &Path, behaviour: Behaviour) -> Server {
    let listener = UnixListener::bind(socket).expect("a socket");
    let fake = Fake {
        behaviour,
        own_asked: AtomicU64::new(0),
    };
    let services = Services::builder().add_service(AgentServiceServer::new(fake));
    Server::unix(listener, services)
}

struct Fake {
    behaviour: Behaviour,
    /// Questions for samples of the asking process so far: it has none at first, then a second of.
    own_asked: AtomicU64,
}

impl Fake {
    fn admit(&self) -> Result<(), Status> {
        match self.behaviour.refuse {
            Some(code) => Err(Status::new(code, "the fake refuses\x1b[2J")),
            None => Ok(()),
        }
    }

    /// The samples of the process that asks: none at first, a second's worth from then on.
    fn own(&self, pid: Option<i32>) -> Profile {
        let mut profile = Profile {
            info: profile(1).info,
            ..Profile::default()
        };
        let asked = self.own_asked.fetch_add(1, Ordering::Relaxed);
        let pid = pid.unwrap_or(0).to_string();
        let labels = profile
            .dict
            .intern_labels([("comm", "agent-ctl"), ("pid", pid.as_str())]);
        let key = SampleKey {
            labels,
            stack: StackId::EMPTY,
            end: StackEnd::Complete,
        };
        if !self.behaviour.empty && asked > 0 {
            profile.add(
                key,
                Value {
                    count: 1000,
                    weight: 1000 * PERIOD,
                },
            );
        }
        profile
    }
}

#[tonic::async_trait]
impl AgentService for Fake {
    type QueryProfileStream = Answers<QueryProfileResponse>;
    type CaptureStream = Answers<CaptureResponse>;

    async fn capture(
        &self,
        request: Request<CaptureRequest>,
    ) -> Result<Response<Self::CaptureStream>, Status> {
        self.admit()?;
        let messages = captures::messages(&self.behaviour, request.into_inner())?;
        Ok(Response::new(Box::pin(tokio_stream::iter(
            messages.into_iter().map(Ok),
        ))))
    }

    async fn cancel_capture(
        &self,
        request: Request<CancelCaptureRequest>,
    ) -> Result<Response<CancelCaptureResponse>, Status> {
        match request.into_inner().id {
            7 => Ok(Response::new(CancelCaptureResponse {})),
            id => Err(Status::not_found(format!(
                "none of the id {id} runs\nlook again"
            ))),
        }
    }

    async fn list_captures(
        &self,
        _: Request<ListCapturesRequest>,
    ) -> Result<Response<ListCapturesResponse>, Status> {
        let request = CaptureRequest {
            reason: "INC-12\x1b[2J".into(),
            duration_ns: 30 * S as u64,
            ..CaptureRequest::default()
        };
        let captures = vec![captures::ended(&self.behaviour, request)];
        Ok(Response::new(ListCapturesResponse { captures }))
    }

    async fn list_pins(
        &self,
        _: Request<ListPinsRequest>,
    ) -> Result<Response<ListPinsResponse>, Status> {
        if self.behaviour.empty {
            return Ok(Response::new(ListPinsResponse::default()));
        }
        Ok(Response::new(ListPinsResponse { pins: pins() }))
    }
    type StreamProfilesStream = Answers<StreamProfilesResponse>;

    async fn get_status(
        &self,
        _: Request<GetStatusRequest>,
    ) -> Result<Response<GetStatusResponse>, Status> {
        self.admit()?;
        let empty = self.behaviour.empty;
        let degradations = if self.behaviour.noted {
            vec![Degradation {
                id: "stacks_cut".into(),
                message: "12 % of stacks end before their start function".into(),
                remedy: "raise unwind.cache_mib to 40".into(),
                severity: Severity::Info.into(),
                ..Degradation::default()
            }]
        } else if self.behaviour.degraded {
            vec![Degradation {
                id: "kptr_restrict".into(),
                message: "kernel frames have no names\x1b[2J".into(),
                remedy: "sysctl -w kernel.kptr_restrict=1".into(),
                severity: Severity::Warning.into(),
                ..Degradation::default()
            }]
        } else {
            Vec::new()
        };
        Ok(Response::new(GetStatusResponse {
            membership: None,
            sandbox: Some(Sandbox {
                on: true,
                seccomp: true,
                landlock_abi: 7,
                confined: vec!["fp-uplink".into()],
                ..Sandbox::default()
            }),
            version: "0.1.0".into(),
            host: "fake\x1b]0;x\x07host".into(),
            kernel: "6.12.0".into(),
            started_unix_ns: NOW_NS - 7260 * S,
            now_unix_ns: NOW_NS,
            sampling: Some(Sampling {
                event: "cpu-clock".into(),
                requested_event: "cycles".into(),
                rate_hz: 99,
                cpus_online: 2,
                cpus_sampled: 2,
                ring_bytes_per_cpu: 256 << 10,
                unwind: "stack-copy".into(),
                missing_features: vec!["build_id".into()],
                last_sample_age_ns: 12_000_000,
                samples_arrive: !empty,
                stack_bytes: 8 << 10,
                reduced: "16 KiB of each stack configured, 8 KiB in force: the daemon's CPU budget"
                    .into(),
                unwind_cache_bytes: 5 << 20,
                unwind_cache_bytes_max: 48 << 20,
            }),
            budget: Some(Budget {
                cpu: Some(Governed {
                    budget: 10_000,
                    used: 8_700,
                    level: 1,
                    lowest_level: 6,
                    since_unix_ns: NOW_NS - 600 * S,
                    limits: "copying 8 KiB of each stack".into(),
                    reason: "1.21 % used for a minute, 1.00 % allowed".into(),
                }),
                memory: Some(Governed {
                    budget: 192 << 20,
                    used: 41 << 20,
                    lowest_level: 5,
                    since_unix_ns: NOW_NS - 7260 * S,
                    ..Governed::default()
                }),
                serving_cpu_ppm: 3_000,
            }),
            stack_ends: [(0, "complete", 9_700), (5, "copy_too_small", 300)]
                .map(|(id, word, samples)| Outcome {
                    id,
                    word: word.into(),
                    samples,
                })
                .into(),
            unnamed_leaves: Vec::new(),
            recorder: Some(Recorder {
                oldest_unix_ns: NOW_NS - 3600 * S,
                newest_unix_ns: NOW_NS - 4 * S,
                windows: 360,
                bytes: 12 << 20,
                budget_bytes: 64 << 20,
                window_seconds: 10,
                downsampled_windows: 3,
                dropped_windows: 0,
                ..Recorder::default()
            }),
            own_cost: Some(OwnCost {
                cpu_ns: 21_780_000_000,
                rss_bytes: 31 << 20,
                cpu_ns_by_thread: [
                    ("fp-sampler", 12_000_000_000),
                    ("fp-symbolize", 9_000_000_000),
                ]
                .map(|(name, ns)| (name.to_owned(), ns))
                .into(),
                wakeups: 14_000,
            }),
            degradations,
            quality: Some(profile(1).info.quality.into()),
            cpus: vec![
                CpuStatus {
                    cpu: 0,
                    samples: 600,
                    lost: 3,
                    throttled: 0,
                    online: true,
                    away_ns: 0,
                    missed_samples: 2,
                },
                CpuStatus {
                    cpu: 1,
                    samples: 400,
                    lost: 0,
                    throttled: 1,
                    online: true,
                    away_ns: 3_000_000_000,
                    missed_samples: 0,
                },
            ],
            counters: vec![Counter {
                name: "fleetprof_dropped_total".into(),
                labels: "cause=\"limit\"".into(),
                value: 1234,
            }],
            environment: Some(Environment {
                perf_event_paranoid: 2,
                perf_event_max_stack: 127,
                perf_event_mlock_kb: 516,
                perf_event_max_sample_rate: 100_000,
                kptr_restrict: 0,
                kernel_symbols: true,
                cgroup_mode: "cgroup2".into(),
                cgroup_root: "/sys/fs/cgroup".into(),
            }),
            coverage: Some(profile(1).info.coverage.into()),
            recent_lost_samples: 2,
            runtimes: match self.behaviour.generated {
                true => generated(),
                false => Vec::new(),
            },
            export: self.behaviour.noted.then(|| Export {
                collector: "127.0.0.1:9096".into(),
                host_id: "d2c1".into(),
                away_since_unix_ns: NOW_NS - 30 * S,
                last_error: "failed to connect: \x1b[2Jrefused".into(),
                last_ack_unix_ns: NOW_NS - 40 * S,
                waiting_windows: 4,
                waiting_bytes: 200 << 10,
                bytes_max: 1 << 30,
                oldest_unix_ns: NOW_NS - 45 * S,
                taken_windows: 104,
                taken_samples: 104_000,
                acked_windows: 98,
                acked_samples: 98_000,
                dropped: vec![ExportDrop {
                    cause: "spool_bytes".into(),
                    windows: 2,
                    samples: 2_000,
                }],
                ..Export::default()
            }),
        }))
    }

    async fn list_cgroups(
        &self,
        _: Request<ListCgroupsRequest>,
    ) -> Result<Response<ListCgroupsResponse>, Status> {
        self.admit()?;
        let cgroup = |path: &str, unit: &str, container: &str, own: u64, total: u64| Cgroup {
            path: path.into(),
            unit: unit.into(),
            container: container.into(),
            runtime: if container.is_empty() {
                String::new()
            } else {
                "docker".into()
            },
            self_count: own,
            self_weight: own * PERIOD,
            total_count: total,
            total_weight: total * PERIOD,
            expected_ns: total * PERIOD / 99 * 100,
            // The agent says it of units only.
            throttling: (!unit.is_empty()).then(|| Throttling {
                throttled_ns: total * PERIOD / 4,
                used_ns: total * PERIOD,
                limit_millicores: 1500,
            }),
            ..Cgroup::default()
        };
        let container = "3f2a9c0d1e2f3a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3";
        let cgroups = vec![
            cgroup("/", "", "", 0, 1000),
            cgroup("/system.slice", "", "", 0, 900),
            cgroup("/system.slice/nginx.service", "nginx.service", "", 900, 900),
            cgroup("/user.slice", "", "", 0, 100),
            cgroup("/user.slice/a\u{202e}b\n", "", container, 100, 100),
        ];
        Ok(Response::new(ListCgroupsResponse {
            cgroups: if self.behaviour.empty {
                Vec::new()
            } else {
                cgroups
            },
            covered: Some(TimeRange {
                start_unix_ns: NOW_NS - 300 * S,
                end_unix_ns: NOW_NS,
            }),
            quality: Some(profile(1).info.quality.into()),
            total_weight: if self.behaviour.empty {
                0
            } else {
                1000 * PERIOD
            },
            unit: "nanoseconds".into(),
        }))
    }

    async fn get_ledger(
        &self,
        _: Request<GetLedgerRequest>,
    ) -> Result<Response<GetLedgerResponse>, Status> {
        self.admit()?;
        let tally = Tally {
            taken: 990,
            taken_weight: 990 * PERIOD,
            lost: 10,
            lost_weight: 10 * PERIOD,
            truncated: 103,
            depth_limit: 3,
            unnamed: 90,
            folded: 0,
        };
        let expected = Expected {
            ns: 1010 * PERIOD,
            estimated_ns: 0,
            samples: 1010,
        };
        Ok(Response::new(GetLedgerResponse {
            rows: vec![LedgerRow {
                path: "/user.slice/a\u{202e}b\n".into(),
                own: Some(tally),
                total: Some(tally),
                expected: Some(expected),
                missed: 10,
                ..LedgerRow::default()
            }],
            host: Some(tally),
            expected: Some(expected),
            windows: 30,
            ..GetLedgerResponse::default()
        }))
    }

    async fn query_profile(
        &self,
        request: Request<QueryProfileRequest>,
    ) -> Result<Response<Self::QueryProfileStream>, Status> {
        self.admit()?;
        let info = request.extensions().get::<UdsConnectInfo>().cloned();
        let pid = info
            .and_then(|info| info.peer_cred)
            .and_then(|peer| peer.pid());
        let request = request.into_inner();
        let is_own = request
            .matchers
            .iter()
            .any(|m| m.label == "comm" && m.value == "agent-ctl");
        let range = request.range.unwrap_or_default();
        let answer = if is_own {
            self.own(pid)
        } else {
            // The past before the last hour of the client's clock had ten times less of the last
            // sample: something for `diff` to find. Absolute times in tests say which is meant.
            let before = range.end_unix_ns != 0;
            let mut all = profile(if before { 1 } else { 10 });
            if self.behaviour.empty {
                all.samples.clear();
                all.info.quality = Quality::default();
            }
            select(
                &all,
                &request.matchers,
                &request.frame_filters,
                &request.group_by,
            )?
        };
        let answer = match request.times {
            true => timed(answer),
            false => answer,
        };
        let answers = chunks(answer).map(|chunk| Ok(QueryProfileResponse { chunk: Some(chunk) }));
        Ok(Response::new(Box::pin(tokio_stream::iter(answers))))
    }

    async fn stream_profiles(
        &self,
        request: Request<StreamProfilesRequest>,
    ) -> Result<Response<Self::StreamProfilesStream>, Status> {
        self.admit()?;
        let request = request.into_inner();
        let mut profile = select(
            &profile(1),
            &request.matchers,
            &request.frame_filters,
            &request.group_by,
        )?;
        profile.info.duration_ns = if request.interval_ms == 0 { 10 } else { 1 } * S as u64;
        let profile = std::sync::Arc::new(profile);
        let times = self.behaviour.stream_ends_after.unwrap_or(usize::MAX);
        let interval = self.behaviour.stream_interval;
        let answers = tokio_stream::iter(0..times)
            .then(move |at| async move {
                if at > 0 {
                    tokio::time::sleep(interval).await;
                }
                at
            })
            .map(move |at| {
                let mut next = Profile::clone(&profile);
                next.info.start_unix_ns = NOW_NS + at as i64 * next.info.duration_ns as i64;
                let chunks: Vec<_> = chunks(next).collect();
                tokio_stream::iter(chunks.into_iter().map(move |chunk| {
                    let missed = if at == 1 && chunk.last { 2 } else { 0 };
                    Ok(StreamProfilesResponse {
                        chunk: Some(chunk),
                        missed,
                    })
                }))
            });
        Ok(Response::new(Box::pin(flatten(answers))))
    }

    async fn get_config(
        &self,
        _: Request<GetConfigRequest>,
    ) -> Result<Response<GetConfigResponse>, Status> {
        self.admit()?;
        let yaml = "sampling:\n  rate_hz: 99\n".to_owned();
        Ok(Response::new(GetConfigResponse {
            yaml,
            path: "/etc/fleetprof/agent.yaml".into(),
        }))
    }

    async fn reload_config(
        &self,
        _: Request<ReloadConfigRequest>,
    ) -> Result<Response<ReloadConfigResponse>, Status> {
        self.admit()?;
        if self.behaviour.invalid_config {
            return Err(Status::failed_precondition("unknown key `sampling.rte_hz`"));
        }
        Ok(Response::new(ReloadConfigResponse {
            changed: vec!["log.level".into()],
            needs_restart: vec!["sampling.event".into()],
        }))
    }

    async fn join_fleet(
        &self,
        request: Request<JoinFleetRequest>,
    ) -> Result<Response<JoinFleetResponse>, Status> {
        self.admit()?;
        let collector = request.into_inner().collector;
        Ok(Response::new(JoinFleetResponse {
            membership: Some(FleetMembership {
                collector,
                fleet_id: "00112233445566778899aabbccddeeff".into(),
                name: "fake".into(),
                labels: [("cluster".to_owned(), "eu".to_owned())].into(),
                not_after_unix_s: NOW_NS / S + 30 * 86_400,
                ..FleetMembership::default()
            }),
        }))
    }

    async fn leave_fleet(
        &self,
        _: Request<LeaveFleetRequest>,
    ) -> Result<Response<LeaveFleetResponse>, Status> {
        self.admit()?;
        Err(Status::not_found("this host is not a member of a fleet"))
    }
}

/// One stream after the other: tokio-stream has no `flatten`.
fn flatten<T, I>(streams: impl Stream<Item = I> + Send + 'static) -> impl Stream<Item = T> + Send
where
    I: Stream<Item = T> + Send + Unpin + 'static,
    T: Send + 'static,
{
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        let mut streams = Box::pin(streams);
        while let Some(mut inner) = streams.next().await {
            while let Some(item) = inner.next().await {
                if sender.send(item).await.is_err() {
                    return;
                }
            }
        }
    });
    tokio_stream::wrappers::ReceiverStream::new(receiver)
}

/// A JVM without names and frame pointers, and a Node that has all.
fn generated() -> Vec<RuntimeStatus> {
    let advice = |message: &str, remedy: &str| Advice {
        message: message.into(),
        remedy: remedy.into(),
    };
    vec![
        RuntimeStatus {
            pid: 4711,
            comm: "java\x1b[2J".into(),
            runtime: "hotspot".into(),
            samples: 1200,
            samples_complete: 60,
            frames: 2000,
            source: "none".into(),
            reason: "jit_no_map".into(),
            advice: vec![
                advice(
                    "a JVM tells names only when it is asked to",
                    "set jit.hotspot_attach to true",
                ),
                advice(
                    "this JVM keeps no frame pointers",
                    "start it with -XX:+PreserveFramePointer",
                ),
            ],
            ..RuntimeStatus::default()
        },
        RuntimeStatus {
            pid: 4712,
            comm: "node".into(),
            runtime: "node".into(),
            samples: 800,
            samples_complete: 800,
            frames: 4000,
            frames_named: 4000,
            source: "perf-map".into(),
            ..RuntimeStatus::default()
        },
    ]
}
