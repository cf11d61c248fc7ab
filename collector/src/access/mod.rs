//! The callers of the collector: their role, and the part of the fleet they may see.
//!
//! The listener that accepted a request puts a [`Caller`] into its extensions, and the services
//! read it. A request without one gets no answer. The listener on loopback, which trusts its
//! callers, adds one that says so.

mod failures;
mod people;
mod person;
mod scope;
mod service;
mod sessions;
mod table;

pub(crate) use failures::{Whom, network};
pub(crate) use people::RETRY_AFTER;
pub use people::{NewPerson, People, SIGN_IN_NAME_BYTES_MAX, Settings, SignIn, Visitor};
pub use person::Person;
pub use scope::Scope;
pub use service::{AccessAdmin, PageAddress, REQUEST_BYTES_MAX, event};
pub use sessions::LASTS_S as SESSION_LASTS_S;
pub(crate) use sessions::{Hash, SECRET_BYTES, hash, secret};
pub use table::{READS, Who, is_pyroscope_call, refusal, web_refusal, web_rows, who_may};

use crate::audit::Event;
use people::PEOPLE_MAX;
use std::sync::Arc;
use tonic::Status;
use tonic::codegen::http::Extensions;

/// Action on record of a call that its caller may not make.
pub(crate) const DENIED: &str = "denied";

/// Why somebody is not let in.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// Somebody else has the name.
    #[error(
        "failed to add `{0}`: the name is in use\nremove the person first, or replace their token \
         with --replace"
    )]
    Taken(String),
    /// Their data is not valid.
    #[error("{0}")]
    Invalid(String),
    /// There are too many.
    #[error(
        "failed to add a person: there are already {PEOPLE_MAX}, which is the limit\nremove people \
         who need no access any more"
    )]
    Full,
    /// The database failed.
    #[error("failed to use the registry of people")]
    Store(#[from] rusqlite::Error),
    /// The system gives no random numbers.
    #[error("failed to get random numbers")]
    Random,
}

/// What a user may do. Each role may also do everything that the roles before it may, except for
/// the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Send profiles that no agent took, and nothing else. Of the others only an admin may, too.
    Sender,
    /// Scrape metrics.
    Metrics,
    /// Query everything that is stored, and what hosts report about themselves.
    Viewer,
    /// Capture on hosts, and upload symbols.
    Operator,
    /// Let hosts and people in and out.
    Admin,
}

impl Role {
    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Role::Sender => "sender",
            Role::Metrics => "metrics",
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }

    /// The role of this name.
    pub fn named(name: &str) -> Option<Role> {
        let all = [
            Role::Sender,
            Role::Metrics,
            Role::Viewer,
            Role::Operator,
            Role::Admin,
        ];
        all.into_iter().find(|role| role.name() == name)
    }
}

/// The name of whoever reaches a listener without logins. Nobody else is called so.
pub const LOCAL: &str = "local";

/// Prefix of a name from a trusted proxy, so that it differs from names of users with a token.
pub const PROXIED: &str = "proxy:";

/// Prefix of a name from an identity provider.
pub const SIGNED_IN: &str = "oidc:";

/// Who sent a request.
#[derive(Clone, Debug)]
pub struct Caller {
    /// As the audit log has it.
    pub name: String,
    /// What they may do.
    pub role: Role,
    /// The part of the fleet they may see; none: all.
    pub scope: Option<Scope>,
}

impl Caller {
    /// The caller on a listener without logins.
    pub fn local() -> Arc<Caller> {
        Arc::new(Caller {
            name: LOCAL.to_owned(),
            role: Role::Admin,
            scope: None,
        })
    }

    /// Something that they do, for the audit log.
    pub fn event(&self, peer: String, action: &'static str) -> Event {
        Event::by(&self.name, peer, action).as_role(self.role.name())
    }

    /// Who sent the request with these extensions.
    ///
    /// # Errors
    /// UNAUTHENTICATED where no listener said who it is.
    pub fn of(extensions: &Extensions) -> Result<Arc<Caller>, Status> {
        let caller = extensions.get::<Arc<Caller>>().cloned();
        caller.ok_or_else(|| Status::unauthenticated("the request has no identity"))
    }

    /// Marks a request on a listener that trusts everybody as one of the local caller, unless it
    /// already has a caller.
    pub fn believe(extensions: &mut Extensions) {
        if extensions.get::<Arc<Caller>>().is_none() {
            extensions.insert::<Arc<Caller>>(Caller::local());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn who_is_not_named_is_nobody() {
        let mut extensions = Extensions::new();
        let refused = Caller::of(&extensions).expect_err("nobody");
        assert_eq!(refused.code(), Code::Unauthenticated);
        Caller::believe(&mut extensions);
        assert_eq!(Caller::of(&extensions).expect("somebody").name, LOCAL);
    }

    #[test]
    fn whom_a_listener_named_is_not_believed_to_be_another() {
        let mut extensions = Extensions::new();
        extensions.insert(Arc::new(Caller {
            name: "anna".to_owned(),
            role: Role::Viewer,
            scope: None,
        }));
        Caller::believe(&mut extensions);
        assert_eq!(Caller::of(&extensions).expect("somebody").name, "anna");
    }
}
