//! The serving stage: calls of clients, and metrics.

use super::ends::StageError;
use crate::agent::Agent;
use crate::grpc::{self, ServeOptions};
use agent_config as config;
use host::sync::lock;
use std::sync::Arc;
use tokio::sync::{oneshot, watch};

/// Part of the shutdown's grace that clients get to finish what they asked.
const SERVING_GRACE_SHARE: f64 = 0.6;

/// Threads for long work: the queries that may run at once, plus status, reload, scrapes and the
/// start of captures.
const BLOCKING_THREADS: usize = grpc::QUERIES_MAX + 3;

/// The configured address to listen on.
pub(super) fn listen_at(server: &config::Server) -> grpc::Listen {
    match &server.listen {
        config::Listen::Unix(path) => grpc::Listen::Unix {
            path: path.clone(),
            mode: server.socket_mode.0,
            group: server.socket_group.clone(),
        },
        config::Listen::Tcp(address) => grpc::Listen::Tcp {
            address: *address,
            tls: server.tls.as_ref().map(|tls| grpc::TlsFiles {
                cert_file: tls.cert_file.clone(),
                key_file: tls.key_file.clone(),
                client_ca_file: tls.client_ca_file.clone(),
            }),
            token_file: server.token_file.clone(),
        },
    }
}

/// The body of `fp-grpc`.
pub(super) fn serve(
    agent: Arc<Agent>,
    ready: oneshot::Sender<()>,
    stopped: watch::Receiver<bool>,
) -> Result<(), StageError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("fp-query")
        .build()?;
    let config = lock(&agent.settings.active).config.clone();
    let options = ServeOptions {
        // Clients that do not disconnect by themselves are cut off before the grace period is over.
        grace: config.shutdown.grace().mul_f64(SERVING_GRACE_SHARE),
        ..ServeOptions::new(listen_at(&config.server))
    };
    runtime.block_on(async move {
        let metrics_server = match config.metrics.listen {
            Some(address) => serve_metrics(address, &agent, stopped.clone()).await,
            None => None,
        };
        let joining = tokio::spawn(Arc::clone(&agent).join_by_file());
        let served = grpc::serve(options, agent, stopped, move || {
            // The receiver is waiting; it is gone only when the start was given up.
            let _ = ready.send(());
        })
        .await;
        joining.abort();
        if let Some(server) = metrics_server {
            server.abort();
        }
        served.map_err(StageError::from)
    })
}

/// Metrics are worth a warning, not the daemon: a taken port leaves it without them.
async fn serve_metrics(
    address: std::net::SocketAddr,
    agent: &Arc<Agent>,
    mut stopped: watch::Receiver<bool>,
) -> Option<tokio::task::JoinHandle<()>> {
    let listener = match tokio::net::TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(%address, %error, "failed to serve metrics: the address cannot be used");
            return None;
        }
    };
    let (told, watched) = (Arc::clone(agent), Arc::clone(agent));
    let families: metrics::Families = Arc::new(move || told.metrics());
    let health: metrics::Health = Arc::new(move || watched.health());
    Some(tokio::spawn(async move {
        let stop = async move {
            let _ = stopped.wait_for(|&stop| stop).await;
        };
        if let Err(error) = metrics::serve(listener, families, health, stop).await {
            tracing::warn!(%error, "failed to serve metrics");
        }
    }))
}
