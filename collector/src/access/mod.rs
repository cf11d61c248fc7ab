//! Who the people are that ask: their role, and the part of the fleet they may see.
//!
//! A [`Caller`] is put into the extensions of each request by the listener that took it, and asked
//! for by what answers. Where none was put there nobody is answered: that somebody is believed is
//! said by the listener on loopback that believes them.

mod failures;
mod people;
mod scope;
mod service;
mod sessions;
mod sign_ins;
mod table;

pub(crate) use failures::{Whom, network};
pub(crate) use people::RETRY_AFTER;
pub use people::{AccessError, NewPerson, People, Person};
pub use scope::Scope;
pub use service::{AccessAdmin, PageAddress, REQUEST_BYTES_MAX, event};
pub(crate) use sessions::{Hash, SECRET_BYTES, hash, secret};
pub use sessions::{LASTS_S as SESSION_LASTS_S, Visitor};
pub use sign_ins::{SIGN_IN_NAME_BYTES_MAX, Settings, SignIn};
pub use table::{READS, Who, refusal, web_refusal, web_rows, who_may};

use crate::audit::Event;
use sessions::LASTS_S;
use std::sync::Arc;
use tonic::Status;
use tonic::codegen::http::Extensions;

/// What somebody may do, each role what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Scrape metrics.
    Metrics,
    /// Ask for everything that is stored, and what hosts tell of themselves.
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
            Role::Metrics => "metrics",
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }

    /// The role of this name.
    pub fn named(name: &str) -> Option<Role> {
        [Role::Metrics, Role::Viewer, Role::Operator, Role::Admin]
            .into_iter()
            .find(|role| role.name() == name)
    }
}

/// The name of whoever reaches a listener without logins. Nobody else is called so.
pub const LOCAL: &str = "local";

/// What stands before a name that a trusted proxy gave, so that it is nobody's with a token.
pub const PROXIED: &str = "proxy:";

/// What stands before a name that a provider of identities gave.
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
    /// Whoever reaches a listener without logins.
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

    /// Has a request of a listener that believes everybody say so, where nobody is named yet.
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
