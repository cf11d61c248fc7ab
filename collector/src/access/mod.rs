//! Who the people are that ask: their role, and the part of the fleet they may see.
//!
//! A [`Caller`] is put into the extensions of each request by the listener that took it, and asked
//! for by what answers. Where none was put there, the request comes from a listener on loopback
//! without logins, which believes everybody.

mod scope;

pub use scope::Scope;

use std::sync::Arc;
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
            name: "local".to_owned(),
            role: Role::Admin,
            scope: None,
        })
    }

    /// Who sent the request with these extensions.
    pub fn of(extensions: &Extensions) -> Arc<Caller> {
        extensions
            .get::<Arc<Caller>>()
            .cloned()
            .unwrap_or_else(Caller::local)
    }
}
