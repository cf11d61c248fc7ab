//! A unix socket that a runtime listens on, and whether it can be trusted.

use super::Error;
use super::serial_calls::SerialCalls;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use tokio::net::UnixStream;

/// A unix socket that a runtime listens on.
#[derive(Debug)]
pub struct Socket {
    /// Where.
    pub path: Box<Path>,
    /// The operator named it: it may be of another user than root.
    pub named: bool,
    /// Where it is looked at.
    pub calls: SerialCalls,
}

impl Socket {
    /// Connects, if both the socket and who listens on it are root's.
    pub async fn connect(&self) -> Result<UnixStream, Error> {
        let path = &*self.path;
        // A path that was named may lead anywhere. Connecting itself waits for nobody: a socket
        // that has no room for another connection says so.
        let looked_at = self.path.clone();
        let look = move || {
            std::fs::metadata(&looked_at).map_err(|error| Error::opening(&looked_at, error))
        };
        let found = self.calls.run(look).await?;
        if !found.file_type().is_socket() {
            return Err(Error::Strange(path.into()));
        }
        self.trust(found.uid())?;
        let stream = UnixStream::connect(path).await;
        let stream = stream.map_err(|error| Error::opening(path, error))?;
        let peer = stream.peer_cred();
        self.trust(peer.map_err(|error| Error::opening(path, error))?.uid())?;
        Ok(stream)
    }

    fn trust(&self, uid: u32) -> Result<(), Error> {
        match self.named || uid == 0 {
            true => Ok(()),
            false => Err(Error::Untrusted {
                path: self.path.clone(),
                uid,
            }),
        }
    }
}
