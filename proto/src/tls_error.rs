//! What an error of TLS means to whoever connects to a collector.

use rustls::CertificateError::{
    Expired, ExpiredContext, NotValidYet, NotValidYetContext, UnknownIssuer,
};
use rustls::{AlertDescription, Error};

/// Why a handshake failed, where that can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsProblem {
    /// Another authority than the expected one signed the certificate.
    OtherAuthority,
    /// The certificate is not valid now, so a clock is wrong.
    Clock,
    /// The listener does not speak TLS.
    NoTls,
    /// The listener does not speak HTTP/2: it is a port for browsers.
    NoHttp2,
}

impl TlsProblem {
    /// Finds the error of TLS among the causes of another.
    pub fn of(error: &(dyn std::error::Error + 'static)) -> Option<TlsProblem> {
        match tls_error(error)? {
            Error::InvalidCertificate(error) => match error {
                Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. } => {
                    Some(TlsProblem::Clock)
                }
                UnknownIssuer => Some(TlsProblem::OtherAuthority),
                _ => None,
            },
            Error::InvalidMessage(_) => Some(TlsProblem::NoTls),
            Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
                Some(TlsProblem::NoHttp2)
            }
            _ => None,
        }
    }
}

fn tls_error<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e Error> {
    let mut error = error;
    loop {
        if let Some(found) = error.downcast_ref::<Error>() {
            return Some(found);
        }
        // The source of an I/O error is that of what it holds, which would be skipped.
        if let Some(io) = error.downcast_ref::<std::io::Error>()
            && let Some(inner) = io.get_ref()
        {
            error = inner;
            continue;
        }
        error = error.source()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn the_error_is_found_within_errors_of_io() {
        for (error, expected) in [
            (
                Error::InvalidCertificate(UnknownIssuer),
                Some(TlsProblem::OtherAuthority),
            ),
            (Error::InvalidCertificate(Expired), Some(TlsProblem::Clock)),
            (
                Error::AlertReceived(AlertDescription::NoApplicationProtocol),
                Some(TlsProblem::NoHttp2),
            ),
            (
                Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType),
                Some(TlsProblem::NoTls),
            ),
            (Error::DecryptError, None),
        ] {
            assert_eq!(TlsProblem::of(&error), expected);
            let outer = io::Error::other(io::Error::other(error));
            assert_eq!(TlsProblem::of(&outer), expected);
        }
        assert_eq!(TlsProblem::of(&io::Error::other("closed")), None);
    }
}
