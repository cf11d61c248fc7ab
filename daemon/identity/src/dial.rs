//! Connects on behalf of a confined thread: resolving a name reads files, and a fleet that the host
//! joins later may use any port. The connecting thread never reads from the connection or writes to
//! it.

use crate::CONNECT_MAX;
use hyper_util::rt::TokioIo;
use sandbox::starter::Starter;
use std::io;
use std::net::{TcpStream as Blocking, ToSocketAddrs};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};
use tonic::transport::{Channel, Endpoint, Uri};

/// Attempts at a time: windows and the certificate. One that a name server holds up keeps its
/// place.
const ATTEMPTS_MAX: usize = 2;

/// Name of the threads that dial: what goes to the collector is counted by it.
const THREAD: &str = "fp-uplink";

/// See the module.
#[derive(Clone, Debug)]
pub struct Dialer {
    starter: Starter,
    places: Arc<Semaphore>,
}

impl Dialer {
    /// Creates a dialer that starts its threads with `starter`, so they have the starter's rights.
    pub fn new(starter: Starter) -> Dialer {
        Dialer {
            starter,
            places: Arc::new(Semaphore::new(ATTEMPTS_MAX)),
        }
    }

    /// As [`Endpoint::connect`], to `address`, which is `HOST:PORT`, each of its addresses in turn.
    ///
    /// # Errors
    /// As there.
    pub async fn connect(
        &self,
        endpoint: &Endpoint,
        address: &str,
    ) -> Result<Channel, tonic::transport::Error> {
        let (own, address) = (self.clone(), address.to_owned());
        let connector = tower::service_fn(move |_: Uri| {
            let (own, address) = (own.clone(), address.clone());
            async move { own.dial(address).await.map(TokioIo::new) }
        });
        endpoint.connect_with_connector(connector).await
    }

    async fn dial(&self, address: String) -> io::Result<TcpStream> {
        // Nobody closes it.
        let place = Arc::clone(&self.places).acquire_owned().await;
        let (tell, told) = oneshot::channel();
        self.starter.start(THREAD, move || {
            let _place = place;
            // Nobody may wait any more.
            let _ = tell.send(connected(&address));
        });
        let ended = |_| io::Error::other("the thread that connects ended");
        let stream = told.await.map_err(ended)??;
        TcpStream::from_std(stream)
    }
}

/// Tries the addresses one after the other. Blocks.
fn connected(address: &str) -> io::Result<Blocking> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    let all: Vec<_> = address.to_socket_addrs()?.collect();
    // Whoever asks waits this long for all of them: one that never answers keeps none from a try.
    let each = CONNECT_MAX / u32::try_from(all.len()).unwrap_or(u32::MAX).max(1);
    for found in all {
        match Blocking::connect_timeout(&found, each) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox::{Reach, Sandbox};

    #[test]
    fn a_confined_thread_gets_its_connection_by_name() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let dialer = Dialer::new(Starter::new().expect("a thread"));
        let confined = std::thread::spawn(move || {
            Sandbox::new(true).confine("test", &Reach::default());
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let dialed = dialer.dial(format!("localhost:{port}")).await;
                dialed.expect("connected").peer_addr().expect("an address")
            })
        });
        assert_eq!(confined.join().expect("no panic").port(), port);
        assert!(listener.accept().is_ok());
    }
}
