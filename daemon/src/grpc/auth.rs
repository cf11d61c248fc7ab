//! The bearer token that clients over TCP must show.

use super::ServeError;
use std::io;
use std::path::Path;
use std::sync::Arc;
use subtle::ConstantTimeEq;
use tonic::service::Interceptor;
use tonic::{Request, Status};

/// Shortest token taken. Unit: bytes. Shorter ones could be guessed over the network.
const TOKEN_BYTES_MIN: usize = 16;

/// Largest token file. Unit: bytes. Larger is surely another file.
const TOKEN_BYTES_MAX: u64 = 4096;

/// Lets requests through, all or those with the token.
#[derive(Clone)]
pub(super) struct Gate {
    token: Option<Arc<[u8]>>,
}

impl Gate {
    /// Lets everyone through.
    pub(super) fn open() -> Gate {
        Gate { token: None }
    }

    /// Lets through who shows the token in the file.
    pub(super) fn token(path: &Path) -> Result<Gate, ServeError> {
        let read = || {
            if std::fs::metadata(path)?.len() > TOKEN_BYTES_MAX {
                return Err(io::Error::other("the file is too large for a token"));
            }
            let text = std::fs::read(path)?;
            let token = text.trim_ascii();
            if token.len() < TOKEN_BYTES_MIN {
                return Err(io::Error::other("a token needs at least 16 bytes"));
            }
            Ok(Gate {
                token: Some(token.into()),
            })
        };
        let path = || path.to_owned();
        read().map_err(|source| ServeError::Secret {
            what: "token",
            path: path(),
            source,
        })
    }

    fn admits(&self, header: Option<&[u8]>) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let Some((scheme, shown)) = header.and_then(|header| header.split_at_checked(7)) else {
            return false;
        };
        // Takes the same time wherever the first difference is; only the length leaks.
        scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(token.ct_eq(shown.trim_ascii()))
    }
}

impl Interceptor for Gate {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let header = request
            .metadata()
            .get("authorization")
            .map(|value| value.as_bytes());
        if self.admits(header) {
            Ok(request)
        } else {
            Err(Status::unauthenticated("missing or wrong bearer token"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admits_only_the_whole_token() {
        let gate = Gate {
            token: Some(b"0123456789abcdef".as_slice().into()),
        };
        assert!(gate.admits(Some(b"Bearer 0123456789abcdef")));
        assert!(gate.admits(Some(b"bearer  0123456789abcdef ")));
        for wrong in [
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdeX",
            "0123456789abcdef",
            "Bearer ",
            "",
        ] {
            assert!(!gate.admits(Some(wrong.as_bytes())), "{wrong}");
        }
        assert!(!gate.admits(None));
        assert!(Gate::open().admits(None));
    }

    #[test]
    fn refuses_a_short_token() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("token");
        std::fs::write(&path, "short\n").expect("written");
        assert!(matches!(Gate::token(&path), Err(ServeError::Secret { .. })));
    }
}
