//! The part of the fleet that a user may see: matchers that are added to every query of the user.
//!
//! A scope uses only labels that no process can choose: those of its host, which come from the
//! fleet's invitations and the agent's configuration, and those that the agent derives from the
//! cgroup of a process. A process can rename itself, its threads and so its service at any time: a
//! scope of such names would show anybody who adopts them, and lose anybody who drops them. Its
//! matchers are positive, and none matches the empty value: a missing label, because an agent could
//! not find it out or a coarse rollup has lost it, takes a sample out of every scope, never into
//! one.

use super::Caller;
use profile::{FilterError, LabelMatcher, MatchOp, Selector, key};
use std::collections::BTreeMap;
use tonic::Status;

/// Most matchers of a scope. A question has 64 at most, those of the scope included.
pub const MATCHERS_MAX: usize = 16;

/// Longest text. Unit: bytes. It is kept with each login, and shown in refusals.
pub const TEXT_BYTES_MAX: usize = 4096;

/// A selector that is added to everything its owner asks.
#[derive(Clone, Debug)]
pub struct Scope {
    /// As it was written.
    pub text: String,
    /// Its matchers.
    pub selector: Selector,
}

impl Scope {
    /// Reads a scope.
    ///
    /// # Errors
    /// With the reason, and what to write instead.
    pub fn parse(text: &str) -> Result<Scope, String> {
        let failed = |reason: String| format!("failed to use scope `{text}`: {reason}");
        if text.len() > TEXT_BYTES_MAX {
            return Err(format!(
                "failed to use a scope of {} bytes: at most {TEXT_BYTES_MAX} are allowed",
                text.len()
            ));
        }
        let selector: Selector = text.parse().map_err(|error| failed(format!("{error}")))?;
        let matchers = selector.matchers();
        if matchers.is_empty() {
            return Err(failed(
                "it matches everything; leave the scope out for a login that may see \
                 everything"
                    .to_owned(),
            ));
        }
        if matchers.len() > MATCHERS_MAX {
            return Err(failed(format!(
                "it has {} matchers, and at most {MATCHERS_MAX} are allowed; use `=~` for several \
                 values",
                matchers.len()
            )));
        }
        for matcher in matchers {
            check(matcher).map_err(failed)?;
        }
        Ok(Scope {
            text: text.to_owned(),
            selector,
        })
    }

    /// A selector and this scope: what takes a sample when both do.
    ///
    /// # Errors
    /// When both have more matchers than a question may have.
    pub fn and(&self, selector: &Selector) -> Result<Selector, FilterError> {
        let all = self.selector.matchers().iter().chain(selector.matchers());
        Selector::new(all.cloned().collect())
    }

    /// True if it only selects complete hosts, and does not distinguish what runs on one host.
    pub fn is_of_hosts(&self) -> bool {
        let mut matchers = self.selector.matchers().iter();
        matchers.all(|matcher| is_of_host(matcher.label()))
    }

    /// The labels it looks at.
    pub fn labels(&self) -> Vec<&str> {
        let matchers = self.selector.matchers().iter();
        matchers.map(LabelMatcher::label).collect()
    }

    /// True when all of a host is in it, by the host's name and its own labels.
    pub fn takes_host(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        self.is_of_hosts() && self.may_take_of(name, labels)
    }

    /// True when something on a host may be in it, by the host's name and its own labels.
    pub fn may_take_of(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let value = |label: &str| match label {
            key::HOST => name,
            label => labels.get(label).map_or("", String::as_str),
        };
        let of_host = self.selector.matchers().iter();
        of_host
            .filter(|matcher| is_of_host(matcher.label()))
            .all(|matcher| matcher.matches(value(matcher.label())))
    }

    /// The part of it that distinguishes what runs on one host; empty: it selects complete hosts.
    pub fn within_host(&self) -> Selector {
        let within = self.selector.matchers().iter();
        let within = within.filter(|matcher| !is_of_host(matcher.label()));
        // Never more than the scope has.
        Selector::new(within.cloned().collect()).unwrap_or_else(|_| self.selector.clone())
    }

    /// True when `selector` has every matcher of the scope: whatever it takes is in the scope.
    pub fn has(&self, selector: &Selector) -> bool {
        let mut own = self.selector.matchers().iter();
        own.all(|matcher| selector.matchers().contains(matcher))
    }
}

impl Caller {
    /// Rejects what concerns the complete fleet for users who may see only a part of it.
    ///
    /// # Errors
    /// PERMISSION_DENIED when the caller has a scope.
    pub fn sees_all(&self, what: &str) -> Result<(), Status> {
        let Some(scope) = &self.scope else {
            return Ok(());
        };
        Err(Status::permission_denied(format!(
            "failed to {what}: it concerns the complete fleet, and your login is only for \
             `{}`\nask somebody whose login has no scope",
            scope.text
        )))
    }

    /// True when the caller may see all of a host, by the host's name and its own labels.
    pub fn sees_host(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let scope = self.scope.as_ref();
        scope.is_none_or(|scope| scope.takes_host(name, labels))
    }

    /// True when the caller may see only a part of what runs on a host that they may hear of.
    pub fn sees_parts_of_hosts(&self) -> bool {
        let scope = self.scope.as_ref();
        scope.is_some_and(|scope| !scope.is_of_hosts())
    }
}

/// True for a label that hosts have: what is of no cgroup, and not chosen by processes, which
/// [`Scope::parse`] refuses.
fn is_of_host(label: &str) -> bool {
    !key::is_of_cgroup(label)
}

fn check(matcher: &LabelMatcher) -> Result<(), String> {
    let label = matcher.label();
    let why = match label {
        key::COMM | key::THREAD => "processes choose the label themselves",
        "service" => "if nothing else is known, its value is the `comm`, which processes choose",
        key::PID => "another process may have the value a moment later",
        key::CONTEXT => "it tells how a CPU was used, not for whom",
        _ => "",
    };
    if !why.is_empty() {
        return Err(format!(
            "`{label}` cannot be part of a scope: {why}; use labels of hosts, cgroups, units, \
             containers or pods"
        ));
    }
    match matcher.op() {
        MatchOp::NotEqual | MatchOp::NotRegex => {
            return Err(format!(
                "`{matcher}` matches all samples without `{label}`; name the scope with `=`, `=~` \
                 or `^=`"
            ));
        }
        MatchOp::Equal | MatchOp::Regex | MatchOp::Subtree => {}
    }
    if matcher.matches("") {
        return Err(format!(
            "`{matcher}` matches all samples without `{label}`; name a value"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(text: &str) -> Scope {
        Scope::parse(text).expect("a scope")
    }

    #[test]
    fn a_scope_is_of_labels_that_processes_do_not_choose() {
        for text in [
            "host=~\"web-.*\"",
            "team=payments",
            "cgroup^=/kubepods",
            "slice=a.slice,unit=b.service",
            "container=1,container_name=a,image=~\"r/.*\",pod=p,pod_uid=u,namespace=n,runtime=r",
            "container.label/team=a,pod.label/team=~\"a|b\"",
        ] {
            assert_eq!(scope(text).text, text);
        }
        for (text, reason) in [
            ("comm=nginx", "choose"),
            ("thread=~\"w.+\"", "choose"),
            ("service=api", "`comm`"),
            ("pid=\"1\"", "moment later"),
            ("context=task", "for whom"),
            ("namespace=a,comm=b", "`comm`"),
        ] {
            let refused = Scope::parse(text).expect_err(text);
            assert!(refused.contains(reason), "{text}: {refused}");
        }
    }

    #[test]
    fn what_is_not_known_is_in_no_scope() {
        for text in [
            "namespace!=a",
            "namespace!~a",
            "namespace=\"\"",
            "namespace=~\".*\"",
            "namespace=~\"a|\"",
        ] {
            let refused = Scope::parse(text).expect_err(text);
            assert!(refused.contains("all samples without"), "{text}: {refused}");
        }
        for text in ["", "{}", "namespace=~\"(\"", "namespace"] {
            assert!(Scope::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_scope_has_a_size() {
        let many: Vec<_> = (0..=MATCHERS_MAX).map(|at| format!("l{at}=a")).collect();
        assert!(Scope::parse(&many.join(",")).is_err());
        assert!(Scope::parse(&many[1..].join(",")).is_ok());
        assert!(Scope::parse(&format!("a=\"{}\"", "b".repeat(TEXT_BYTES_MAX))).is_err());
    }

    #[test]
    fn hosts_are_in_it_as_a_whole_or_in_part() {
        let labels = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
        for (text, whole, part) in [
            ("host=web-1", true, true),
            ("host=web-2", false, false),
            ("host=~\"web.*\",team=a", true, true),
            ("team=b", false, false),
            ("zone=x", false, false),
            ("namespace=n", false, true),
            ("team=a,namespace=n", false, true),
            ("team=b,namespace=n", false, false),
        ] {
            let scope = scope(text);
            assert_eq!(scope.takes_host("web-1", &labels), whole, "{text}");
            assert_eq!(scope.may_take_of("web-1", &labels), part, "{text}");
        }
        let within = scope("team=a,namespace=n").within_host();
        assert_eq!(within.to_string(), "namespace=\"n\"");
    }

    #[test]
    fn a_selector_lies_in_it_when_it_says_all_that_the_scope_says() {
        let scope = scope("team=a,namespace=n");
        let has = |text: &str| scope.has(&text.parse().expect("valid"));
        assert!(has("namespace=n,comm=x,team=a"));
        assert!(!has("namespace=n") && !has("") && !has("team=~a,namespace=n"));
    }
}
