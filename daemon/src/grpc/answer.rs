//! Streamed answers: chunks made one at a time, as the client takes them.

use super::listen::Peer;
use profile::Profile;
use proto::convert::Chunks;
use proto::wire::ProfileChunk;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::Stream;
use tonic::Status;

/// Chunks that wait for the client; besides, the transport holds the one it is sending.
const CHUNKS_QUEUED: usize = 1;

/// The client's end of an answer. Gives its place back when the client or its connection is gone.
pub(super) struct AnswerStream<T> {
    chunks: mpsc::Receiver<Result<T, Status>>,
    _place: OwnedSemaphorePermit,
}

impl<T> Stream for AnswerStream<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.chunks.poll_recv(cx)
    }
}

/// The client has gone, or was closed because it does not read.
pub(super) struct Gone;

/// The daemon's end of an answer.
pub(super) struct Outlet<T> {
    chunks: mpsc::Sender<Result<T, Status>>,
    peer: Option<Peer>,
    stall_timeout: Duration,
}

impl<T> Outlet<T> {
    /// Both ends of an answer to `peer`, which occupies `place`.
    pub(super) fn new(
        peer: Option<Peer>,
        stall_timeout: Duration,
        place: OwnedSemaphorePermit,
    ) -> (Outlet<T>, AnswerStream<T>) {
        let (tx, chunks) = mpsc::channel(CHUNKS_QUEUED);
        let outlet = Outlet {
            chunks: tx,
            peer,
            stall_timeout,
        };
        (
            outlet,
            AnswerStream {
                chunks,
                _place: place,
            },
        )
    }

    /// Sends a message when the client has taken the one before. A client that takes nothing for
    /// the stall timeout loses its connection.
    pub(super) async fn send(&self, message: Result<T, Status>) -> Result<(), Gone> {
        match self.chunks.send_timeout(message, self.stall_timeout).await {
            Ok(()) => Ok(()),
            Err(SendTimeoutError::Closed(_)) => Err(Gone),
            Err(SendTimeoutError::Timeout(_)) => {
                self.give_up();
                Err(Gone)
            }
        }
    }

    /// Closes the connection of a client that does not read.
    pub(super) fn give_up(&self) {
        let peer = self.peer.as_ref().map_or("unknown", |peer| &*peer.name);
        tracing::warn!(%peer, "client closed: it does not read its answer");
        if let Some(peer) = &self.peer {
            peer.close();
        }
    }

    /// Sends a profile in chunks.
    pub(super) async fn send_all(
        &self,
        chunks: Chunks<Profile>,
        mut wrap: impl FnMut(ProfileChunk) -> T,
    ) -> Result<(), Gone> {
        for chunk in chunks {
            self.send(Ok(wrap(chunk))).await?;
        }
        Ok(())
    }

    /// Done when the client has gone.
    pub(super) async fn closed(&self) {
        self.chunks.closed().await;
    }
}
