//! Finds the hosts for a selector: those that are connected and had matching samples in the last
//! minutes, and what each of them should capture.
//!
//! Labels of a host itself (its name, and those from its agent's configuration) are not on the
//! samples that its agent takes: they are compared here and removed. All other matchers go to the
//! agent.

use super::agent_registry::{AgentRegistry, ConnectedAgent, host_label};
use super::limits::{
    ABSENT_NAMED, ANNOUNCED_FOR_NS, BEFORE_NS_MAX, DURATION_NS_MAX, ELSEWHERE_MAX, HOSTS_DEFAULT,
    HOSTS_MAX, NAMES_MAX, PATIENCE, PATIENCE_MAX, SELECT_RANGE_NS,
};
use crate::access::{Caller, Scope};
use crate::query::Queries;
use crate::store::{ConnectedHost, Scope as Selection, TimeRange};
use profile::{FrameFilter, LabelMatcher, MatchOp, Selector, key};
use proto::collector::FleetCaptureRequest;
use proto::{agent, query};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;

/// A request that was looked at.
pub struct Checked {
    /// Which hosts, and what there.
    pub selector: Selector,
    /// The request to agents, without matchers.
    pub capture: agent::CaptureRequest,
    /// Most hosts.
    pub hosts_max: usize,
    /// Time a host has beyond the duration.
    pub patience: Duration,
    /// Hosts by id, in place of those with samples.
    pub host_ids: Vec<String>,
    /// The caller, who gets only the parts of results that they may see.
    pub caller: Arc<Caller>,
    /// Frame filters that are applied here, once who ended waits was taken off.
    pub filters: Vec<FrameFilter>,
}

/// The hosts of a fan-out.
#[derive(Default)]
pub struct Plan {
    /// Hosts to capture on, by name.
    pub chosen: Vec<Chosen>,
    /// Number of matching hosts, whether the capture runs there or not.
    pub selected: usize,
    /// Number of matching, connected hosts beyond the requested number.
    pub left_out: usize,
    /// How many match and are not connected.
    pub absent: usize,
    /// Some of their names.
    pub absent_named: Vec<String>,
    /// Number of hosts with samples that were removed from the fleet.
    pub removed: usize,
    /// Number of hosts with samples in the caller's scope to which the scope cannot be applied now.
    pub beyond: usize,
    /// Notices for the reader of the result.
    pub notices: Vec<String>,
}

impl Checked {
    /// True when the scope of who asks can be applied to a capture on a host with these labels:
    /// those of hosts in it are compared here, and others by the agent.
    fn reaches(&self, labels: &BTreeMap<String, String>, name: &str) -> bool {
        let scope = self.caller.scope.as_ref();
        scope.is_none_or(|scope| scope.may_take_of(name, labels))
    }
}

/// A host that is asked.
pub struct Chosen {
    /// Its id.
    pub host_id: String,
    /// Its name.
    pub hostname: String,
    /// Who is asked.
    pub place: Place,
}

/// Where a host is connected.
pub enum Place {
    /// Here.
    Here {
        /// Its agent.
        agent: Arc<ConnectedAgent>,
        /// The request to it.
        request: Box<agent::CaptureRequest>,
        /// Labels of the host that the result is grouped by.
        labels: Vec<(String, String)>,
    },
    /// At another collector on the same store.
    There {
        /// Where that is.
        collector: String,
    },
}

/// Looks at a request, and adds the scope of who asks to what it selects.
///
/// # Errors
/// INVALID_ARGUMENT with the reason; PERMISSION_DENIED for what a scope does not reach.
pub fn check(request: &FleetCaptureRequest, caller: &Arc<Caller>) -> Result<Checked, Status> {
    let mut capture = request.capture.clone().unwrap_or_default();
    let matchers = std::mem::take(&mut capture.matchers);
    let text: Selector = request.selector.parse().map_err(invalid)?;
    let beside = query::selector(matchers).map_err(invalid)?;
    let all = text.matchers().iter().chain(beside.matchers());
    let mut selector = Selector::new(all.cloned().collect()).map_err(invalid)?;
    let mut filters = query::frame_filters(capture.frame_filters.clone()).map_err(invalid)?;
    if let Some(scope) = &caller.scope {
        within(scope, request, &capture)?;
        let all = scope.and(&selector);
        let all = all.map_err(|e| invalid(format!("{e}, including those of your login's scope")));
        selector = all?;
    }
    match caller.sees_parts_of_hosts() && capture.event == profile::OFF_CPU {
        // An agent applies them to the waker's frames, too, and the result would reveal those.
        true => capture.frame_filters.clear(),
        false => filters.clear(),
    }
    query::check_count("labels to group by", capture.group_by.len()).map_err(invalid)?;
    if capture.duration_ns == 0 || capture.duration_ns > DURATION_NS_MAX {
        return Err(invalid(format!(
            "failed to use a duration of {} s: it must be more than 0 and at most {} s",
            capture.duration_ns as f64 / 1e9,
            DURATION_NS_MAX / 1_000_000_000
        )));
    }
    if capture.before_ns > BEFORE_NS_MAX {
        return Err(invalid(format!(
            "failed to use the time before: at most {} s are allowed",
            BEFORE_NS_MAX / 1_000_000_000
        )));
    }
    let patience = match request.patience_ns {
        0 => PATIENCE,
        asked => Duration::from_nanos(asked),
    };
    if patience > PATIENCE_MAX {
        return Err(invalid(format!(
            "failed to use the patience: at most {} s are allowed",
            PATIENCE_MAX.as_secs()
        )));
    }
    if request.host_ids.len() > HOSTS_MAX {
        return Err(invalid(format!(
            "failed to use {} host ids: at most {HOSTS_MAX} are allowed",
            request.host_ids.len()
        )));
    }
    let hosts_max = match request.max_hosts {
        0 => HOSTS_DEFAULT,
        asked => (asked as usize).min(HOSTS_MAX),
    };
    Ok(Checked {
        selector,
        capture,
        hosts_max,
        patience,
        host_ids: request.host_ids.clone(),
        caller: caller.clone(),
        filters,
    })
}

/// Refuses what `scope` cannot be added to.
fn within(
    scope: &Scope,
    request: &FleetCaptureRequest,
    capture: &agent::CaptureRequest,
) -> Result<(), Status> {
    if !request.host_ids.is_empty() {
        return Err(Status::permission_denied(
            "failed to use host ids: only collectors may use them; select hosts by their labels",
        ));
    }
    // A probe slows down whatever passes it, and a filter is the kernel's, which reads anybody's
    // memory.
    let of_host = capture.event.contains(':') || !capture.filter.is_empty();
    if of_host && !scope.is_of_hosts() {
        return Err(Status::permission_denied(format!(
            "failed to capture `{}`: probes, tracepoints and their filters work on the complete \
             host, and your login is only for `{}`\ncapture stacks, or ask somebody who may see \
             the host",
            capture.event, scope.text
        )));
    }
    Ok(())
}

/// The hosts that are asked. Those that were removed from the fleet are not missed.
///
/// # Errors
/// NOT_FOUND when there is none; those of the query for hosts.
pub async fn plan(
    checked: &Checked,
    registry: &AgentRegistry,
    queries: &Queries,
    own_address: Option<&str>,
    (now_unix_ns, removed): (i64, &BTreeSet<String>),
) -> Result<Plan, Status> {
    let mut plan = Plan::default();
    if !checked.host_ids.is_empty() {
        for id in checked.host_ids.iter().collect::<BTreeSet<_>>() {
            match registry.find(id) {
                Some(agent) => plan.choose(checked, &agent),
                None => plan.miss([id.clone()]),
            }
        }
    } else {
        let selection = Selection {
            range: TimeRange {
                start_unix_ns: now_unix_ns.saturating_sub(SELECT_RANGE_NS),
                end_unix_ns: now_unix_ns,
            },
            selector: checked.selector.clone(),
        };
        let (names, more) = queries
            .host_names(&checked.caller, selection, NAMES_MAX)
            .await?;
        if more {
            plan.notices.push(format!(
                "more than {NAMES_MAX} hosts match: the others were not considered; narrow the \
                 selector"
            ));
        }
        let names: HashSet<String> = names.into_iter().collect();
        let mut found = HashSet::new();
        for agent in registry.all() {
            let name = agent.hostname();
            let labels = agent.facts().labels;
            if names.contains(&name) && selects(&checked.selector, &labels, &name) {
                found.insert(name.clone());
                match checked.reaches(&labels, &name) {
                    true => plan.choose(checked, &agent),
                    false => plan.beyond += 1,
                }
            }
        }
        match elsewhere(registry, queries, own_address, now_unix_ns).await {
            Ok((all, more)) => {
                if more {
                    plan.notices.push(format!(
                        "more than {ELSEWHERE_MAX} hosts are connected to the collectors of this \
                         store: the others were not considered"
                    ));
                }
                for host in all {
                    if names.contains(&host.hostname)
                        && selects(&checked.selector, &host.labels, &host.hostname)
                    {
                        found.insert(host.hostname.clone());
                        match checked.reaches(&host.labels, &host.hostname) {
                            true => plan.choose_there(host),
                            false => plan.beyond += 1,
                        }
                    }
                }
            }
            Err(status) => plan.notices.push(format!(
                "hosts connected to other collectors are left out: {}",
                status.message()
            )),
        }
        let (gone, absent): (Vec<_>, Vec<_>) = names
            .into_iter()
            .filter(|name| !found.contains(name))
            .partition(|name| removed.contains(name));
        plan.removed = gone.len();
        plan.miss(absent);
    }
    if plan.beyond > 0 {
        plan.notices.push(format!(
            "{} hosts with samples of your login's scope are skipped: they do not have its labels \
             now, so the capture cannot be limited to the scope",
            plan.beyond
        ));
    }
    plan.cut(checked.hosts_max);
    match plan.chosen.is_empty() {
        true => Err(plan.nobody(&checked.selector)),
        false => Ok(plan),
    }
}

/// Hosts connected to other collectors and not here, and whether there are more than are looked
/// at.
async fn elsewhere(
    registry: &AgentRegistry,
    queries: &Queries,
    own_address: Option<&str>,
    now_unix_ns: i64,
) -> Result<(Vec<ConnectedHost>, bool), Status> {
    let since = now_unix_ns.saturating_sub(ANNOUNCED_FOR_NS);
    let mut all = queries.connected_hosts(since, ELSEWHERE_MAX + 1).await?;
    let more = all.len() > ELSEWHERE_MAX;
    all.truncate(ELSEWHERE_MAX);
    // A host that just left here is still announced as connected here.
    all.retain(|host| {
        registry.find(&host.host_id).is_none() && Some(host.collector.as_str()) != own_address
    });
    Ok((all, more))
}

impl Plan {
    fn choose_there(&mut self, host: ConnectedHost) {
        self.selected += 1;
        self.chosen.push(Chosen {
            host_id: host.host_id,
            hostname: host.hostname,
            place: Place::There {
                collector: host.collector,
            },
        });
    }

    fn choose(&mut self, checked: &Checked, agent: &Arc<ConnectedAgent>) {
        let (facts, host_id) = (agent.facts(), &agent.key.host_id);
        let hostname = facts.name(host_id);
        let (request, labels) = request_for(checked, &facts.labels, hostname);
        self.selected += 1;
        self.chosen.push(Chosen {
            host_id: host_id.clone(),
            hostname: hostname.to_owned(),
            place: Place::Here {
                agent: agent.clone(),
                request: Box::new(request),
                labels,
            },
        });
    }

    fn miss(&mut self, names: impl IntoIterator<Item = String>) {
        let mut named: BTreeSet<String> = self.absent_named.drain(..).collect();
        for name in names {
            self.absent += 1;
            self.selected += 1;
            named.insert(name);
            if named.len() > ABSENT_NAMED {
                named.pop_last();
            }
        }
        self.absent_named = named.into_iter().collect();
    }

    /// Leaves out what is more than `most`: which hosts stay is a matter of chance, so that they
    /// are not all of one rack, but the same each time.
    fn cut(&mut self, most: usize) {
        if self.chosen.len() > most {
            self.chosen.sort_by_cached_key(|one| {
                let mut hasher = DefaultHasher::new();
                one.host_id.hash(&mut hasher);
                hasher.finish()
            });
            self.left_out = self.chosen.len() - most;
            self.chosen.truncate(most);
        }
        self.chosen
            .sort_by(|a, b| (&a.hostname, &a.host_id).cmp(&(&b.hostname, &b.host_id)));
    }

    fn nobody(&self, selector: &Selector) -> Status {
        let minutes = SELECT_RANGE_NS / 60_000_000_000;
        if self.absent == 0 && self.beyond > 0 {
            return Status::permission_denied(self.notices.join("; "));
        }
        if self.absent == 0 && self.removed > 0 {
            return Status::not_found(format!(
                "only hosts that were removed from the fleet have samples of `{selector}` in the \
                 last {minutes} minutes"
            ));
        }
        if self.absent == 0 {
            return Status::not_found(format!(
                "no host has samples of `{selector}` in the last {minutes} minutes"
            ));
        }
        let dots = match self.absent > self.absent_named.len() {
            true => ", …",
            false => "",
        };
        Status::not_found(format!(
            "{} hosts match, but none is connected ({}{dots}): their agents are older versions, or \
             cannot reach this collector",
            self.absent,
            self.absent_named.join(", ")
        ))
    }
}

/// True when the labels of the host itself are those that are selected.
fn selects(selector: &Selector, configured: &BTreeMap<String, String>, name: &str) -> bool {
    selector.matchers().iter().all(|matcher| {
        host_label(configured, name, matcher.label()).is_none_or(|value| matcher.matches(value))
    })
}

/// The request to an agent, and the labels of its host that are added to the result.
fn request_for(
    checked: &Checked,
    configured: &BTreeMap<String, String>,
    name: &str,
) -> (agent::CaptureRequest, Vec<(String, String)>) {
    let mut request = checked.capture.clone();
    let own = checked.selector.matchers().iter();
    let own = own.filter(|matcher| host_label(configured, name, matcher.label()).is_none());
    request.matchers = own.map(to_wire).collect();
    let all = request.group_by.iter().any(|label| label == "*");
    let mut labels = BTreeMap::new();
    if all {
        labels.clone_from(configured);
        labels.insert(key::HOST.to_owned(), name.to_owned());
    } else {
        request
            .group_by
            .retain(|label| match host_label(configured, name, label) {
                Some(value) => {
                    labels.insert(label.clone(), value.to_owned());
                    false
                }
                None => true,
            });
    }
    (request, labels.into_iter().collect())
}

/// A matcher on the wire.
pub fn to_wire(matcher: &LabelMatcher) -> agent::LabelMatcher {
    let op = match matcher.op() {
        MatchOp::Equal => agent::MatchOp::Equal,
        MatchOp::NotEqual => agent::MatchOp::NotEqual,
        MatchOp::Regex => agent::MatchOp::Regex,
        MatchOp::NotRegex => agent::MatchOp::NotRegex,
        MatchOp::Subtree => agent::MatchOp::Subtree,
    };
    agent::LabelMatcher {
        label: matcher.label().to_owned(),
        op: op.into(),
        value: matcher.value().to_owned(),
    }
}

fn invalid(reason: impl ToString) -> Status {
    Status::invalid_argument(reason.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::HostFacts;

    fn checked(selector: &str, group_by: &[&str]) -> Checked {
        let request = FleetCaptureRequest {
            selector: selector.to_owned(),
            capture: Some(agent::CaptureRequest {
                duration_ns: 1,
                group_by: group_by.iter().map(|label| (*label).to_owned()).collect(),
                ..agent::CaptureRequest::default()
            }),
            ..FleetCaptureRequest::default()
        };
        check(&request, &Caller::local()).expect("valid")
    }

    fn facts() -> HostFacts {
        HostFacts {
            labels: [("zone".to_owned(), "a".to_owned())].into(),
            ..HostFacts::default()
        }
    }

    #[test]
    fn labels_of_the_host_are_compared_here_and_taken_off() {
        for (selector, selected, rest) in [
            ("unit=\"api\",zone=\"a\"", true, "unit=\"api\""),
            ("unit=\"api\",zone=\"b\"", false, "unit=\"api\""),
            ("host=~\"web-.*\"", true, ""),
            ("host!=\"web-1\"", false, ""),
            ("rack=\"7\"", true, "rack=\"7\""),
            (
                "cgroup^=\"/a\",comm!~\"x|y\"",
                true,
                "cgroup^=\"/a\",comm!~\"x|y\"",
            ),
        ] {
            let checked = checked(selector, &[]);
            let facts = facts();
            assert_eq!(
                selects(&checked.selector, &facts.labels, "web-1"),
                selected,
                "{selector}"
            );
            let (request, _) = request_for(&checked, &facts.labels, "web-1");
            let found = query::selector(request.matchers).expect("valid");
            assert_eq!(found.to_string(), rest, "{selector}");
        }
    }

    #[test]
    fn labels_of_the_host_to_group_by_are_put_on_here() {
        for (group_by, asked, labels) in [
            (&["comm"] as &[&str], &["comm"] as &[&str], &[] as &[&str]),
            (&["host", "comm"], &["comm"], &["host=web-1"]),
            (&["zone", "host"], &[], &["host=web-1", "zone=a"]),
            (&["*"], &["*"], &["host=web-1", "zone=a"]),
        ] {
            let (request, found) = request_for(&checked("", group_by), &facts().labels, "web-1");
            assert_eq!(request.group_by, asked);
            let found: Vec<_> = found.iter().map(|(k, v)| format!("{k}={v}")).collect();
            assert_eq!(found, labels);
        }
    }

    #[test]
    fn matchers_beside_the_selector_are_added() {
        let mut request = FleetCaptureRequest {
            selector: "unit=\"api\"".to_owned(),
            capture: Some(agent::CaptureRequest {
                duration_ns: 1,
                matchers: vec![agent::LabelMatcher {
                    label: "comm".to_owned(),
                    op: agent::MatchOp::Equal.into(),
                    value: "x".to_owned(),
                }],
                ..agent::CaptureRequest::default()
            }),
            ..FleetCaptureRequest::default()
        };
        let checked = check(&request, &Caller::local()).expect("valid");
        assert_eq!(checked.selector.to_string(), "unit=\"api\",comm=\"x\"");
        assert_eq!((checked.hosts_max, checked.patience), (50, PATIENCE));
        request.selector = "unit=".to_owned();
        assert!(check(&request, &Caller::local()).is_err());
    }

    #[test]
    fn requests_that_no_agent_would_take_are_refused() {
        let with = |change: fn(&mut FleetCaptureRequest, &mut agent::CaptureRequest)| {
            let mut capture = agent::CaptureRequest {
                duration_ns: 1,
                ..agent::CaptureRequest::default()
            };
            let mut request = FleetCaptureRequest::default();
            change(&mut request, &mut capture);
            request.capture = Some(capture);
            check(&request, &Caller::local()).is_err()
        };
        assert!(!with(|_, _| {}));
        assert!(with(|_, capture| capture.duration_ns = 0));
        assert!(with(|_, capture| capture.duration_ns = DURATION_NS_MAX + 1));
        assert!(with(|_, capture| capture.before_ns = u64::MAX));
        assert!(with(|request, _| request.patience_ns = u64::MAX));
        assert!(with(
            |request, _| request.host_ids = vec![String::new(); HOSTS_MAX + 1]
        ));
        assert!(with(
            |_, capture| capture.group_by = vec!["a".to_owned(); 65]
        ));
        assert!(check(&FleetCaptureRequest::default(), &Caller::local()).is_err());
    }

    #[test]
    fn of_too_many_hosts_the_same_stay_each_time() {
        let registry = Arc::new(AgentRegistry::new(Arc::default()));
        let checked = checked("", &[]);
        let tickets: Vec<_> = (0..20)
            .map(|at| {
                let key = crate::store::HostKey {
                    host_id: format!("id-{at}"),
                    boot_id: [1; 16],
                };
                let facts = HostFacts {
                    hostname: format!("web-{at:02}"),
                    ..HostFacts::default()
                };
                let (out, _) = tokio::sync::mpsc::channel(1);
                registry.open(key, facts, 0, out)
            })
            .collect();
        let names = || {
            let mut plan = Plan::default();
            for agent in registry.all() {
                plan.choose(&checked, &agent);
            }
            plan.cut(5);
            assert_eq!((plan.selected, plan.left_out), (20, 15));
            let names = plan.chosen.into_iter().map(|one| one.hostname);
            names.collect::<Vec<_>>()
        };
        let first = names();
        assert!(first.is_sorted());
        assert_eq!((first.len(), &first), (5, &names()));
        drop(tickets);
    }

    #[test]
    fn some_of_many_that_are_not_connected_are_named() {
        let mut plan = Plan::default();
        plan.miss((0..100).map(|at| format!("web-{at:03}")));
        plan.miss(["a".to_owned()]);
        assert_eq!((plan.absent, plan.selected), (101, 101));
        assert_eq!(plan.absent_named.len(), ABSENT_NAMED);
        assert_eq!(plan.absent_named[0], "a");
    }
}
