//! The call List, and who sees what.

use super::book::{About, Episode};
use super::limits::{LIST_BYTES_MAX, LIST_DEFAULT, LIST_MAX};
use super::state::{Alert, Phase};
use super::{Alerts, Inner};
use crate::access::{Caller, Scope};
use crate::config::Rule;
use crate::config::alert_rule::Side;
use crate::sync::lock;
use prost::Message as _;
use proto::collector as wire;
use proto::collector::alert_service_server::AlertService;
use std::collections::BTreeMap;
use tonic::{Request, Response, Status};

impl Alerts {
    /// What somebody may see.
    ///
    /// # Errors
    /// As the call `List`.
    pub async fn list(
        &self,
        caller: &Caller,
        asked: wire::ListAlertsRequest,
    ) -> Result<wire::ListAlertsResponse, Status> {
        let inner = &self.0;
        let limit = match asked.limit {
            0 => LIST_DEFAULT,
            limit => (limit as usize).min(LIST_MAX),
        };
        let range = match asked.range {
            None => None,
            Some(range) if range.start_unix_ns < 0 || range.end_unix_ns < 0 => {
                return Err(Status::invalid_argument(
                    "failed to use the time range: a time is before 1970",
                ));
            }
            Some(range) => Some((
                range.start_unix_ns,
                match range.end_unix_ns {
                    0 => i64::MAX,
                    end => end,
                },
            )),
        };
        let (states, trouble) = {
            let live = lock(&inner.live);
            (live.states.clone(), live.trouble.clone())
        };
        let mut answer = wire::ListAlertsResponse {
            rules: inner.rules(caller),
            trouble,
            ..wire::ListAlertsResponse::default()
        };
        if !self.is_wanted() || !answer.trouble.is_empty() {
            return Ok(answer);
        }
        let scope = caller.scope.clone();
        let seen = move |about: &About| {
            scope.as_ref().is_none_or(|scope| {
                let selector = about.selector.parse().unwrap_or_default();
                is_seen(Some(scope), &about.labels, &selector)
            })
        };
        let listing = inner.blocking(move |book| {
            let (mut episodes, mut left_out, mut bytes) = (Vec::new(), 0, 0);
            book.each(range, |episode| {
                if seen(&episode.about) {
                    bytes += episode.about.selector.len() + 1024;
                    if episodes.len() < limit && bytes <= LIST_BYTES_MAX {
                        episodes.push(episode);
                    } else {
                        left_out += 1;
                    }
                }
            })?;
            Ok((episodes, left_out, book.waiting()?))
        });
        let (episodes, left_out, waiting) = listing.await?;
        answer.left_out = left_out;
        for episode in episodes {
            let state = states.get(&(episode.rule.clone(), episode.part.clone()));
            let state = state.filter(|state| state.episode == episode.id);
            answer.alerts.push(of_episode(episode, state));
        }
        let mut bytes: usize = answer.alerts.iter().map(|one| one.encoded_len() + 8).sum();
        for ((name, part), state) in &states {
            let rule = inner.options.rules.iter().find(|rule| rule.name == *name);
            let Some(rule) = rule.filter(|_| state.phase != Phase::Firing) else {
                continue;
            };
            let about = About::of(rule, part, state);
            if !is_seen(caller.scope.as_ref(), &about.labels, &rule.measure.selector) {
                continue;
            }
            let alert = of_state(rule, about, state);
            bytes += alert.encoded_len() + 8;
            match answer.alerts.len() < limit && bytes <= LIST_BYTES_MAX {
                true => answer.alerts.push(alert),
                false => answer.left_out += 1,
            }
        }
        let rank = |alert: &wire::Alert| match alert.state() {
            wire::AlertState::Firing => 0,
            wire::AlertState::Pending => 1,
            wire::AlertState::NoData => 2,
            _ => 3,
        };
        let sides = inner.options.rules.iter();
        let sides: BTreeMap<&str, Side> = sides.map(|rule| (&rule.name[..], rule.side)).collect();
        answer.alerts.sort_by(|one, other| {
            let excess = |alert: &wire::Alert| match alert.state() {
                wire::AlertState::Firing => excess(alert, &sides),
                _ => 0.0,
            };
            (rank(one).cmp(&rank(other)))
                .then_with(|| excess(other).total_cmp(&excess(one)))
                .then_with(|| other.since_unix_ns.cmp(&one.since_unix_ns))
        });
        if caller.scope.is_some() {
            // The reason may name hosts of others.
            let without = answer
                .alerts
                .iter_mut()
                .filter(|one| !one.no_data.is_empty());
            without.for_each(|one| one.no_data = "data is missing".to_owned());
        } else {
            answer.receivers = inner.receivers_now(&waiting);
        }
        Ok(answer)
    }
}

impl Inner {
    fn rules(&self, caller: &Caller) -> Vec<wire::AlertRule> {
        let live = lock(&self.live);
        let rules = self.options.rules.iter();
        let seen = rules.filter(|rule| {
            let scope = caller.scope.as_ref();
            is_seen(scope, &rule.measure.labels(""), &rule.measure.selector)
        });
        let shown = seen.map(|rule| {
            let now = live.rules.get(&rule.name).cloned().unwrap_or_default();
            wire::AlertRule {
                name: rule.name.clone(),
                selector: rule.measure.selector.to_string(),
                condition: rule.condition.clone(),
                group_by: rule.measure.by.clone().unwrap_or_default(),
                for_s: rule.hold_ns / 1_000_000_000,
                severity: rule.severity.clone(),
                summary: rule.summary.clone(),
                evaluated_unix_ns: now.evaluated,
                error: match caller.scope {
                    None => now.error,
                    // It may name what is not in the scope.
                    Some(_) if !now.error.is_empty() => "the query failed".to_owned(),
                    Some(_) => String::new(),
                },
                groups_left_out: now.left_out,
                receivers: match caller.scope {
                    None => rule.receivers.clone(),
                    Some(_) => Vec::new(),
                },
            }
        });
        shown.collect()
    }

    fn receivers_now(&self, waiting: &BTreeMap<String, (u64, i64)>) -> Vec<wire::AlertReceiver> {
        let states = lock(&self.delivery.receivers);
        let receivers = self.options.receivers.iter();
        let shown = receivers.map(|receiver| {
            let state = states.get(&receiver.name).cloned().unwrap_or_default();
            let (count, oldest) = waiting.get(&receiver.name).copied().unwrap_or((0, 0));
            wire::AlertReceiver {
                name: receiver.name.clone(),
                format: receiver.format.clone(),
                waiting: count,
                oldest_unix_ns: oldest,
                sent: state.sent,
                failures: state.failures,
                error: state.error,
            }
        });
        shown.collect()
    }
}

/// Whether who has this scope may see an alert: all that it is about has to be in the scope, by a
/// label that it has for certain or by the same matcher.
fn is_seen(
    scope: Option<&Scope>,
    labels: &BTreeMap<String, String>,
    selector: &profile::Selector,
) -> bool {
    let Some(scope) = scope else { return true };
    let mut matchers = scope.selector.matchers().iter();
    matchers.all(|matcher| {
        let value = labels.get(matcher.label()).map_or("", String::as_str);
        matcher.matches(value) || selector.matchers().contains(matcher)
    })
}

/// How many times an alert is beyond its threshold; 0: not known.
fn excess(alert: &wire::Alert, sides: &BTreeMap<&str, Side>) -> f64 {
    let (Some(value), Some(threshold)) = (alert.value, alert.threshold) else {
        return 0.0;
    };
    let (more, less) = match sides.get(&alert.rule[..]) {
        Some(Side::Below) => (threshold, value),
        _ => (value, threshold),
    };
    match less > 0.0 {
        true => more / less,
        false if more > 0.0 => f64::INFINITY,
        false => 0.0,
    }
}

fn of_episode(episode: Episode, state: Option<&Alert>) -> wire::Alert {
    let Episode {
        id,
        rule,
        fired,
        resolved,
        about,
        ..
    } = episode;
    let is_over = resolved != 0;
    let since = if is_over { resolved } else { fired };
    let (value, missing) = match state {
        Some(state) if !is_over => (state.value, state.missing.clone()),
        _ => (about.value, String::new()),
    };
    let state = match is_over {
        true => wire::AlertState::Resolved,
        false => wire::AlertState::Firing,
    };
    wire::Alert {
        id,
        since_unix_ns: since,
        fired_unix_ns: fired,
        resolved_unix_ns: resolved,
        value,
        no_data: missing,
        ..of_about(rule, about, state)
    }
}

fn of_state(rule: &Rule, about: About, state: &Alert) -> wire::Alert {
    let phase = match state.phase {
        Phase::Pending => wire::AlertState::Pending,
        Phase::Firing => wire::AlertState::Firing,
        Phase::Dark => wire::AlertState::NoData,
    };
    wire::Alert {
        since_unix_ns: state.since,
        value: state.value,
        no_data: state.missing.clone(),
        ..of_about(rule.name.clone(), about, phase)
    }
}

fn of_about(rule: String, about: About, state: wire::AlertState) -> wire::Alert {
    wire::Alert {
        fingerprint: about.fingerprint,
        rule,
        labels: about.labels.into_iter().collect(),
        state: state as i32,
        value: about.value,
        threshold: about.threshold,
        baseline: about.baseline,
        unit: about.unit,
        severity: about.severity,
        summary: about.summary,
        selector: about.selector,
        function: about.function,
        opens_incident: about.opens_incident,
        ..wire::Alert::default()
    }
}

#[tonic::async_trait]
impl AlertService for Alerts {
    async fn list(
        &self,
        request: Request<wire::ListAlertsRequest>,
    ) -> Result<Response<wire::ListAlertsResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let listed = Alerts::list(self, &caller, request.into_inner()).await?;
        Ok(Response::new(listed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_furthest_beyond_its_threshold_is_worst_on_either_side_of_it() {
        let alert = |rule: &str, value, threshold| wire::Alert {
            rule: rule.to_owned(),
            value,
            threshold: Some(threshold),
            ..wire::Alert::default()
        };
        let sides = BTreeMap::from([("high", Side::Above), ("low", Side::Below)]);
        let excess = |rule, value| excess(&alert(rule, value, 4.0), &sides);
        assert_eq!(
            (excess("high", Some(8.0)), excess("low", Some(1.0))),
            (2.0, 4.0)
        );
        assert!(excess("low", Some(0.0)).is_infinite());
        assert_eq!(excess("high", None), 0.0, "nothing is known");
    }

    #[test]
    fn a_scope_sees_what_is_in_it_for_certain() {
        let scope = Scope::parse("namespace=shop").expect("a scope");
        let seen = |selector: &str, pairs: &[(&str, &str)]| {
            let own = |(n, v): &(&str, &str)| ((*n).to_owned(), (*v).to_owned());
            let labels = pairs.iter().map(own).collect();
            is_seen(Some(&scope), &labels, &selector.parse().expect("valid"))
        };
        assert!(seen("namespace=shop", &[("namespace", "shop")]));
        assert!(seen("", &[("namespace", "shop")]), "the group is in it");
        assert!(!seen("", &[]), "the fleet is not");
        assert!(!seen("namespace=~\"s.*\"", &[("pod", "a")]));
        assert!(!seen("namespace=other", &[("namespace", "other")]));
        assert!(is_seen(
            None,
            &BTreeMap::new(),
            &profile::Selector::default()
        ));
    }
}
