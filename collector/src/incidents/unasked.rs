//! Incidents that nobody asks for: an alert fired whose rule says `incident: true`, or a trigger
//! pinned minutes. Each opens one incident once, also over restarts.

use super::book::NewEntry;
use super::limits::{LOOK, LOOK_BACK_NS, TITLE_BYTES_MAX, UNASKED_PER_HOUR_MAX};
use super::{Incidents, Inner};
use crate::access::Caller;
use crate::audit::Event;
use crate::ingest::stopped;
use proto::agent::TimeRange;
use proto::collector::add_incident_entry_request::Evidence as Asked;
use proto::collector::pin_service_server::PinService as _;
use proto::collector::{
    Alert, HostPin, Incident, IncidentEntryKind, IncidentState, ListAlertsRequest,
    ListHostPinsRequest, Selection,
};
use std::collections::HashMap;
use tonic::{Request, Status};

/// Who opens them, for people.
pub(super) const BY: &str = "collector";

const HOUR_NS: i64 = 3_600_000_000_000;
const MINUTE_NS: i64 = 60_000_000_000;

/// Most pins that are looked at.
const PINS_MAX: u32 = 500;

/// Something that opens an incident.
struct Cause {
    /// Names it for ever.
    key: String,
    /// Causes of one source are one incident while that is open.
    source: String,
    title: String,
    text: String,
    at: i64,
    kind: IncidentEntryKind,
    labels: HashMap<String, String>,
    evidence: Option<Asked>,
}

impl Incidents {
    /// Opens incidents for alerts and pins, until the end.
    pub async fn keep(self) {
        let mut shutdown = self.0.shutdown.clone();
        loop {
            tokio::select! {
                () = stopped(&mut shutdown) => return,
                () = tokio::time::sleep(LOOK) => {}
            }
            self.look().await;
        }
    }

    /// Looks once.
    pub async fn look(&self) {
        let inner = &self.0;
        let now = inner.clock.now_unix_ns();
        let range = Some(TimeRange {
            start_unix_ns: now.saturating_sub(LOOK_BACK_NS).max(0),
            end_unix_ns: i64::MAX,
        });
        let asked = ListAlertsRequest { range, limit: 0 };
        let alerts = inner.sources.alerts.list(&Caller::local(), asked).await;
        // What cannot be read now is read in a moment.
        let alerts = alerts.map(|listed| listed.alerts).unwrap_or_default();
        for alert in alerts
            .iter()
            .rev()
            .filter(|one| one.opens_incident && one.id != 0)
        {
            if let Err(status) = inner.alert(alert, now).await {
                tracing::debug!("no incident for an alert: {}", status.message());
            }
        }
        if inner.options.open_for_pins {
            let mut asked = Request::new(ListHostPinsRequest {
                range,
                limit: PINS_MAX,
                ..ListHostPinsRequest::default()
            });
            asked.extensions_mut().insert(Caller::local());
            let pins = inner.sources.pins.list(asked).await;
            let pins = pins.map(|listed| listed.into_inner().pins);
            for pin in pins.unwrap_or_default().iter().rev() {
                if let Err(status) = inner.cause(of_pin(pin), now).await {
                    tracing::debug!("no incident for a pin: {}", status.message());
                }
            }
        }
        // Twice what is looked at: nothing of it comes again.
        let before = now.saturating_sub(2 * LOOK_BACK_NS);
        if inner.opened.get().is_some() {
            let _ = inner
                .blocking(move |opened| opened.book.forget_causes(before))
                .await;
        }
    }
}

impl Inner {
    async fn alert(&self, alert: &Alert, now: i64) -> Result<(), Status> {
        let cause = of_alert(alert);
        let key = cause.key.clone();
        self.cause(cause, now).await?;
        if alert.resolved_unix_ns == 0 {
            return Ok(());
        }
        let over = format!("{key} resolved");
        let entry = NewEntry {
            at: alert.resolved_unix_ns,
            kind: IncidentEntryKind::Alert,
            by: BY.to_owned(),
            text: format!("alert {} is resolved", alert.rule),
            address: String::new(),
            evidence: 0,
        };
        let work = move |opened: &super::Opened| {
            if opened.book.of_cause(&over)?.is_none()
                && let Some(incident) = opened.book.of_cause(&key)?
            {
                opened.book.entry(incident, &entry, Some(&over), &[])?;
            }
            Ok(())
        };
        self.blocking(work).await
    }

    /// Opens an incident for a cause, or adds it to the one that is open.
    async fn cause(&self, cause: Cause, now: i64) -> Result<(), Status> {
        let entry = NewEntry {
            at: cause.at,
            kind: cause.kind,
            by: BY.to_owned(),
            text: cause.text,
            address: String::new(),
            evidence: 0,
        };
        let (key, source, most) = (cause.key, cause.source.clone(), self.options.count);
        let mut title = cause.title;
        title.truncate(title.floor_char_boundary(TITLE_BYTES_MAX));
        let incident = Incident {
            title: profile::text::printable(&title).into_owned(),
            opened_unix_ns: cause.at,
            opened_by: BY.to_owned(),
            labels: cause.labels,
            source: cause.source,
            ..Incident::default()
        };
        let before = now.saturating_sub(LOOK_BACK_NS);
        let work = move |opened: &super::Opened| {
            let book = &opened.book;
            if book.of_cause(&key)?.is_some() {
                book.renew_cause(&key, now, before)?;
                return Ok(None);
            }
            let (count, last) = book.unasked(now.saturating_sub(HOUR_NS))?;
            let is_full = count >= UNASKED_PER_HOUR_MAX || book.count()? >= most;
            let known = match book.open_of(&source)? {
                Some(known) => Some(known),
                None if is_full => last,
                None => None,
            };
            if let Some(known) = known
                && book.entry(known, &entry, Some(&key), &[])?.is_some()
            {
                // The entry has the time when it was, which may be days ago.
                book.renew_cause(&key, now, before)?;
                return Ok(Some((known, false)));
            }
            // A full incident takes no more: another one is opened.
            if is_full {
                tracing::warn!(cause = key, "no incident is opened: there is no room");
                return Ok(None);
            }
            Ok(Some((book.add(&incident, Some(&key), &entry, now)?, true)))
        };
        let Some((incident, is_new)) = self.blocking(work).await? else {
            return Ok(());
        };
        if is_new {
            self.metrics.incidents_opened.inc();
            let event = Event::by(BY, String::new(), "incident-open");
            let event = event.with("incident", incident);
            self.audit
                .note(event.with("source", source_text(&cause.evidence)));
            tracing::info!(incident, "incident opened");
            self.measure().await;
        }
        let Some(asked) = cause.evidence else {
            return Ok(());
        };
        let by = (BY.to_owned(), String::new(), String::new());
        let kept = match self.keep(&Caller::local(), incident, asked).await {
            Ok(kept) => self.attach(incident, kept, by).await.map(|_| ()),
            Err(status) => Err(status),
        };
        if let Err(status) = kept {
            // The cause is known from here on: nobody tries it again.
            let reason = status.message();
            tracing::warn!(incident, reason, "an incident is without its evidence");
        }
        Ok(())
    }
}

fn source_text(evidence: &Option<Asked>) -> &'static str {
    match evidence {
        Some(Asked::Pin(_)) => "pin",
        _ => "alert",
    }
}

fn of_alert(alert: &Alert) -> Cause {
    let mut labels: Vec<String> = alert
        .labels
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    labels.sort();
    let value = match (alert.value, alert.unit.as_str()) {
        (None, _) => String::new(),
        (Some(value), "percent") => format!(" at {value:.1} %"),
        (Some(value), _) => format!(" at {value:.2} cores"),
    };
    let name = [alert.rule.clone(), labels.join(" ")].join(" ");
    Cause {
        key: format!("alert {} {} {}", alert.rule, alert.id, alert.fired_unix_ns),
        source: format!("alert {}", alert.rule),
        title: name.trim().to_owned(),
        text: format!("alert {} fired{value}", name.trim()),
        at: alert.fired_unix_ns,
        kind: IncidentEntryKind::Alert,
        labels: alert.labels.clone(),
        evidence: Some(Asked::View(Selection {
            selector: alert.selector.clone(),
            range: Some(TimeRange {
                start_unix_ns: alert.fired_unix_ns.saturating_sub(10 * MINUTE_NS),
                end_unix_ns: alert.fired_unix_ns.saturating_add(MINUTE_NS),
            }),
            ..Selection::default()
        })),
    }
}

fn of_pin(pin: &HostPin) -> Cause {
    let own = pin.pin.clone().unwrap_or_default();
    let host = match pin.hostname.as_str() {
        "" => &pin.host_id,
        name => name,
    };
    Cause {
        key: format!("pin {} {}", pin.id, own.fired_unix_ns),
        source: format!("pin {} {host}", own.trigger),
        title: format!("{} on {host}", own.trigger),
        text: format!("trigger {} fired on {host}: {}", own.trigger, own.cause),
        at: own.fired_unix_ns,
        kind: IncidentEntryKind::Pin,
        labels: HashMap::from([("host".to_owned(), host.to_owned())]),
        evidence: Some(Asked::Pin(pin.id)),
    }
}

/// The state in words.
pub(super) fn state_word(state: IncidentState) -> &'static str {
    match state {
        IncidentState::Acknowledged => "acknowledged",
        IncidentState::Closed => "closed",
        _ => "reopened",
    }
}
