//! The ports of a collector: all are listened on before anything else is started.

use super::ServeError;
use crate::config::Config;
use crate::listen::{self, ListenError};
use std::net::SocketAddr;
use tokio::net::TcpListener;

/// Where a collector listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// For agents and commands.
    pub grpc: SocketAddr,
    /// For browsers and scrapers.
    pub http: SocketAddr,
    /// For agents of other hosts.
    pub tls: Option<SocketAddr>,
    /// For browsers of other machines.
    pub https: Option<SocketAddr>,
}

/// A listener for each address.
pub(super) struct Listeners {
    pub grpc: TcpListener,
    pub http: TcpListener,
    pub tls: Option<TcpListener>,
    pub https: Option<TcpListener>,
}

impl Listeners {
    /// Listens where the configuration says, and says which ports these are.
    pub async fn bind(config: &Config) -> Result<(Listeners, Addresses), ServeError> {
        let to = &config.listen;
        let listeners = Listeners {
            grpc: listen::bind(to.grpc).await?,
            http: listen::bind(to.http).await?,
            tls: anywhere(to.tls).await?,
            https: anywhere(to.https).await?,
        };
        let known = |listener: &Option<TcpListener>, asked: Option<SocketAddr>| {
            let both = listener.as_ref().zip(asked);
            both.map(|(listener, asked)| local(listener, asked))
                .transpose()
        };
        let addresses = Addresses {
            grpc: local(&listeners.grpc, to.grpc)?,
            http: local(&listeners.http, to.http)?,
            tls: known(&listeners.tls, to.tls)?,
            https: known(&listeners.https, to.https)?,
        };
        Ok((listeners, addresses))
    }
}

async fn anywhere(address: Option<SocketAddr>) -> Result<Option<TcpListener>, ListenError> {
    match address {
        Some(address) => Ok(Some(listen::bind_any(address).await?)),
        None => Ok(None),
    }
}

/// The address of a listener: a port of 0 becomes the one that was free.
fn local(listener: &TcpListener, address: SocketAddr) -> Result<SocketAddr, ListenError> {
    let local = listener.local_addr();
    local.map_err(|source| ListenError::Bind { address, source })
}
