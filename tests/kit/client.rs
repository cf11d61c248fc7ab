//! The agent's service, called without waiting forever: a blocking client on a unix socket.

use crate::view::View;
use hyper_util::rt::TokioIo;
use proto::agent::agent_service_client::AgentServiceClient;
use proto::agent::{
    GetConfigRequest, GetLedgerRequest, GetLedgerResponse, GetStatusRequest, GetStatusResponse,
    ListCgroupsRequest, ListCgroupsResponse, ListPinsRequest, Pin, QueryProfileRequest,
    ReloadConfigRequest, ReloadConfigResponse, StreamProfilesRequest, StreamProfilesResponse,
    TimeRange,
};
use std::path::Path;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Uri};

/// Longest any single call may take.
const CALL_LIMIT: Duration = Duration::from_secs(20);
/// Longest that naming may be behind.
const NAMING_LIMIT: Duration = Duration::from_secs(30);
/// How far behind the call an answer may end: records wait that long to be put in order.
const BEHIND_NS: i64 = 500_000_000;
/// Largest message taken. A large answer must come in parts well below it.
const MESSAGE_LIMIT: usize = 4 << 20;

/// A connection to one daemon.
pub struct Client {
    runtime: Runtime,
    channel: Channel,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// When nothing listens.
    pub fn connect(socket: &Path) -> anyhow::Result<Client> {
        // Its thread answers while no call is made: a daemon that ends closes the connection then,
        // and does not wait for it.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let socket = socket.to_path_buf();
        // The address is not used: the connector knows the way.
        let endpoint = Endpoint::from_static("http://agent").connect_timeout(CALL_LIMIT);
        let connector = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(socket).await?)) }
        });
        let channel = runtime.block_on(endpoint.connect_with_connector(connector))?;
        Ok(Client { runtime, channel })
    }

    /// The channel, for services of other crates.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Runs a call of another service on this connection.
    ///
    /// # Panics
    /// When it takes longer than any call may.
    pub fn block_on<T>(&self, call: impl Future<Output = T>) -> T {
        let bounded = async { tokio::time::timeout(CALL_LIMIT, call).await };
        self.runtime
            .block_on(bounded)
            .expect("a call without an answer")
    }

    fn agent(&self) -> AgentServiceClient<Channel> {
        AgentServiceClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }

    /// GetStatus.
    ///
    /// # Errors
    /// As the daemon answers.
    pub fn status(&self) -> Result<GetStatusResponse, Status> {
        self.block_on(async { self.agent().get_status(GetStatusRequest {}).await })
            .map(tonic::Response::into_inner)
    }

    /// The value of a counter, that of all its labels together; 0 when there is none of the name.
    ///
    /// # Panics
    /// When the daemon does not answer.
    pub fn counter(&self, name: &str) -> u64 {
        let counters = self.status().expect("a status").counters;
        let named = counters.iter().filter(|counter| counter.name == name);
        named.map(|counter| counter.value).sum()
    }

    /// ListCgroups over everything kept.
    ///
    /// # Errors
    /// As the daemon answers.
    pub fn cgroups(&self) -> Result<ListCgroupsResponse, Status> {
        self.block_on(async {
            self.agent()
                .list_cgroups(ListCgroupsRequest::default())
                .await
        })
        .map(tonic::Response::into_inner)
    }

    /// GetLedger over everything kept.
    ///
    /// # Errors
    /// As the daemon answers.
    pub fn ledger(&self) -> Result<GetLedgerResponse, Status> {
        self.block_on(async { self.agent().get_ledger(GetLedgerRequest::default()).await })
            .map(tonic::Response::into_inner)
    }

    /// The active configuration as YAML.
    ///
    /// # Errors
    /// As the daemon answers.
    pub fn config(&self) -> Result<String, Status> {
        self.block_on(async { self.agent().get_config(GetConfigRequest {}).await })
            .map(|response| response.into_inner().yaml)
    }

    /// ReloadConfig.
    ///
    /// # Errors
    /// As the daemon answers.
    pub fn reload(&self) -> Result<ReloadConfigResponse, Status> {
        self.block_on(async { self.agent().reload_config(ReloadConfigRequest {}).await })
            .map(tonic::Response::into_inner)
    }

    /// ListPins, newest first.
    ///
    /// # Errors
    /// As the daemon answers.
    pub fn pins(&self) -> Result<Vec<Pin>, Status> {
        self.block_on(async { self.agent().list_pins(ListPinsRequest {}).await })
            .map(|response| response.into_inner().pins)
    }

    /// QueryProfile, all of its chunks.
    ///
    /// # Errors
    /// As the daemon answers.
    pub fn query(&self, request: QueryProfileRequest) -> Result<View, Status> {
        self.block_on(async {
            let mut stream = self.agent().query_profile(request).await?.into_inner();
            let mut chunks = Vec::new();
            while let Some(part) = stream.message().await? {
                chunks.extend(part.chunk);
            }
            Ok(View::assemble(chunks))
        })
    }

    /// Everything kept up to this moment, with all labels. Asks again until what was sampled before
    /// the call is in the answer: on a loaded machine a daemon built without optimization is
    /// seconds behind with naming.
    ///
    /// # Panics
    /// When the daemon refuses, or stays behind for too long.
    pub fn everything(&self) -> View {
        self.up_to_now(None)
    }

    /// The same from a wall time on.
    ///
    /// # Panics
    /// When the daemon refuses, or stays behind for too long.
    pub fn since(&self, start_unix_ns: i64) -> View {
        // Open at its end.
        self.up_to_now(Some(TimeRange {
            start_unix_ns,
            end_unix_ns: 0,
        }))
    }

    fn up_to_now(&self, range: Option<TimeRange>) -> View {
        let request = QueryProfileRequest {
            range,
            group_by: vec!["*".to_owned()],
            fresh: true,
            ..QueryProfileRequest::default()
        };
        self.query_until(&request, crate::clock::unix_ns() - BEHIND_NS)
    }

    /// QueryProfile, again and again until the answer reaches a wall time.
    ///
    /// # Panics
    /// When the daemon refuses, or stays behind for too long.
    pub fn query_until(&self, request: &QueryProfileRequest, unix_ns: i64) -> View {
        let start = std::time::Instant::now();
        let view = crate::process::wait_for(NAMING_LIMIT, || {
            let view = self.query(request.clone()).expect("a profile");
            let end = view.info.start_unix_ns + view.info.duration_ns as i64;
            (view.info.duration_ns > 0 && end >= unix_ns).then_some(view)
        });
        if start.elapsed() > Duration::from_secs(1) {
            eprintln!("an answer only after {:?}", start.elapsed());
        }
        view.expect("the answer stays behind")
    }

    /// StreamProfiles: takes answers until `windows` profiles are complete.
    ///
    /// # Errors
    /// As the daemon answers, or when the stream ends early.
    pub fn stream(
        &self,
        request: StreamProfilesRequest,
        windows: usize,
    ) -> Result<Vec<View>, Status> {
        self.block_on(async {
            let mut stream = self.agent().stream_profiles(request).await?.into_inner();
            let (mut views, mut chunks) = (Vec::new(), Vec::new());
            while views.len() < windows {
                let answer = stream.message().await?;
                let Some(StreamProfilesResponse {
                    chunk: Some(chunk), ..
                }) = answer
                else {
                    return Err(Status::aborted("the stream ended"));
                };
                let last = chunk.last;
                chunks.push(chunk);
                if last {
                    views.push(View::assemble(chunks.drain(..)));
                }
            }
            Ok(views)
        })
    }
}
