//! A gRPC server on a thread of its own.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::transport::server::Router;

/// Longest wait for calls to end that block their thread.
const END_LIMIT: Duration = Duration::from_secs(1);

/// A server; dropping it ends it at once, its streams unannounced.
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves on a TCP port.
    ///
    /// # Panics
    /// On its thread, when the system gives no runtime.
    pub fn tcp(listener: TcpListener, services: Router) -> Server {
        Server::start(async move || {
            listener.set_nonblocking(true).expect("a socket");
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            services
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
        })
    }

    /// Serves on a unix socket.
    ///
    /// # Panics
    /// On its thread, when the system gives no runtime.
    pub fn unix(listener: UnixListener, services: Router) -> Server {
        Server::start(async move || {
            listener.set_nonblocking(true).expect("a socket");
            let listener = tokio::net::UnixListener::from_std(listener).expect("a socket");
            services
                .serve_with_incoming(UnixListenerStream::new(listener))
                .await
        })
    }

    fn start(
        serve: impl AsyncFnOnce() -> Result<(), tonic::transport::Error> + Send + 'static,
    ) -> Server {
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async move {
                tokio::select! {
                    served = serve() => served.expect("to serve"),
                    _ = stopped => {}
                }
            });
            runtime.shutdown_timeout(END_LIMIT);
        });
        Server {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
