//! The collector as a whole: start, drain and end.

use crate::memory::{Fault, Memory};
use crate::rig::{LIMIT, NOW, PushStream, channel, hello, window};
use collector::config::Config;
use collector::listen::ListenError;
use collector::server::{self, Addresses, ServeError};
use collector::store::OpenStore;
use collector::time::Clock;
use proto::collector::Outcome;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

struct Running {
    store: Arc<Memory>,
    at: Addresses,
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<(), ServeError>>,
}

fn config(dir: &Path) -> Config {
    let mut config = Config::default();
    dir.clone_into(&mut config.data_dir);
    config.listen.grpc.set_port(0);
    config.listen.http.set_port(0);
    config
}

async fn start() -> Running {
    let store = Arc::new(Memory::default());
    let (stop, stopping) = watch::channel(false);
    let (tell, told) = oneshot::channel();
    let served = OpenStore::of(store.clone());
    let task = tokio::spawn(async move {
        let ready = |at| tell.send(at).expect("the test waits");
        let clock = Clock::new(|| NOW);
        let dir = tempfile::tempdir().expect("a directory");
        server::serve(&config(dir.path()), served, clock, stopping, ready).await
    });
    let at = told.await.expect("it is ready");
    Running {
        store,
        at,
        stop,
        task,
    }
}

async fn end(running: Running) -> Result<(), ServeError> {
    let ended = tokio::time::timeout(LIMIT, running.task).await;
    ended.expect("it ends").expect("no panic")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_drains_remembers_hosts_and_closes_the_store() {
    let running = start().await;
    let mut agent = PushStream::connect(channel(running.at.grpc).await)
        .await
        .expect("a stream");
    agent.hello(hello("a", 1)).await;
    assert_eq!(agent.store(1, &["x"]).await.outcome, Outcome::Stored as i32);
    running.stop.send(true).expect("it listens");
    assert_eq!(agent.end().await.code(), tonic::Code::Unavailable);
    let store = running.store.clone();
    end(running).await.expect("it ends well");
    assert!(store.is_closed());
    assert_eq!(store.host_records().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_panics_ends_the_collector_with_an_error() {
    let running = start().await;
    running.store.set_fault(Some(Fault::Panic));
    let mut agent = PushStream::connect(channel(running.at.grpc).await)
        .await
        .expect("a stream");
    agent.hello(hello("a", 1)).await;
    agent.part(window(1, &["x"])).await;
    let error = end(running).await.expect_err("it fails");
    assert!(matches!(error, ServeError::Store(_)), "{error}");
}

#[tokio::test]
async fn addresses_that_others_reach_or_hold_are_refused() {
    let serve = async |config: Config| {
        let (_stop, stopping) = watch::channel(false);
        let clock = Clock::new(|| NOW);
        let store = OpenStore::of(Arc::new(Memory::default()));
        server::serve(&config, store, clock, stopping, |_| ()).await
    };
    let dir = tempfile::tempdir().expect("a directory");
    let mut open = config(dir.path());
    open.listen.http = ([0, 0, 0, 0], 0).into();
    let refused = serve(open).await.expect_err("it is refused");
    assert!(matches!(
        refused,
        ServeError::Listen(ListenError::NotLoopback { .. })
    ));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut same = config(dir.path());
    same.listen.grpc = taken.local_addr().expect("an address");
    let refused = serve(same).await.expect_err("it is taken");
    assert!(matches!(
        refused,
        ServeError::Listen(ListenError::Bind { .. })
    ));
}
