//! The status of the collector: what it is, how its store does, and which hosts send nothing
//! usable.

use super::{Ask, Queries, answer, request};
use crate::access::Caller;
use crate::ingest::without_text;
use crate::store::{HostKey, Limits, STORE_LABEL, StoreQueries, StoreStatus};
use metrics::Value;
use proto::{agent, collector as wire};
use std::collections::HashMap;
use tonic::Status;

/// Says what is wrong, in sentences.
pub(super) type Warnings = Box<dyn Fn() -> Vec<String> + Send + Sync>;

impl Queries {
    /// Sets who says what is wrong with exports, for the life of the collector.
    pub(crate) fn warned_by(&self, warnings: impl Fn() -> Vec<String> + Send + Sync + 'static) {
        let _ = self.0.warnings.set(Box::new(warnings));
    }

    /// What the collector is and how it does, as `caller` may see it.
    ///
    /// # Errors
    /// As every query.
    pub(super) async fn status(&self, caller: &Caller) -> Result<wire::StatusResponse, Status> {
        if caller.scope.is_some() {
            return self.status_within(caller).await;
        }
        let inner = self.0.clone();
        let asking = move |store: &dyn StoreQueries, _: &Limits| {
            let status = &*inner.status;
            let counters = inner.metrics.counters(status);
            Ok((store.kept(), status.issues(), store_bytes(status), counters))
        };
        let (kept, issues, store_bytes, counters) = self
            .run_in(&self.0.calls, caller, Ask::Status, (0, 0), asking)
            .await?;
        let mut degradations: Vec<_> = issues.into_iter().map(degradation).collect();
        let kept = kept.unwrap_or_else(|error| {
            // Status is there to report that a store is away.
            degradations.push(degradation(error.to_string()));
            None
        });
        let warnings = self.0.warnings.get().map(|warnings| warnings());
        degradations.extend(warnings.into_iter().flatten().map(of_export));
        degradations.extend(self.0.facts.sandbox.missing().map(of_sandbox));
        let survey = self.0.hosts.survey();
        let blind = survey.blind.iter().cloned();
        Ok(wire::StatusResponse {
            kept: kept.map(answer::range),
            store_bytes,
            store_bytes_max: self.0.facts.store_bytes_max,
            streams: self.0.metrics.streams.get(),
            degradations,
            counters,
            blind_hosts: blind.map(blind_host).collect(),
            hosts_blind: survey.blind_total,
            hosts_warned: survey.warned,
            sandbox: Some(given_up(&self.0.facts.sandbox)),
            ..self.status_of_all()
        })
    }

    /// The part of the status that everybody may see.
    fn status_of_all(&self) -> wire::StatusResponse {
        let (store, store_version) = self.0.status.engine();
        wire::StatusResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            store: store.to_owned(),
            store_version,
            started_unix_ns: self.0.facts.started_unix_ns,
            now_unix_ns: self.0.clock.now_unix_ns(),
            ..wire::StatusResponse::default()
        }
    }

    /// The status for a caller who may see a part of the fleet: the store's size and health and the
    /// collector's counters concern all hosts, so they are left out. It waits for a place like a
    /// query, because finding the blind hosts is one.
    async fn status_within(&self, caller: &Caller) -> Result<wire::StatusResponse, Status> {
        let (now, lines) = (self.0.clock.now_unix_ns(), self.0.options.lines);
        let (kept, hosts) = self
            .run(caller, Ask::Status, 0, lines, move |store, limits| {
                let range = request::resolve(None, now, || store.kept())?;
                Ok((store.kept()?, store.hosts(range, limits)?))
            })
            .await?;
        let seen: HashMap<HostKey, bool> = hosts
            .into_iter()
            .map(|(record, _)| {
                let name = record.facts.name(&record.key.host_id);
                let whole = caller.sees_host(name, &record.facts.labels);
                (record.key, whole)
            })
            .collect();
        let survey = self.0.hosts.survey();
        let blind = survey.blind.iter().filter_map(|(key, name, why)| {
            let why = match seen.get(key)? {
                true => why.clone(),
                false => without_text(why.clone()),
            };
            Some(blind_host((key.clone(), name.clone(), why)))
        });
        let blind_hosts: Vec<_> = blind.collect();
        Ok(wire::StatusResponse {
            kept: kept.map(answer::range),
            hosts_blind: blind_hosts.len() as u64,
            hosts_warned: blind_hosts.len() as u64,
            blind_hosts,
            scoped: true,
            ..self.status_of_all()
        })
    }
}

fn blind_host((key, hostname, why): (HostKey, String, agent::Degradation)) -> wire::BlindHost {
    wire::BlindHost {
        host_id: key.host_id,
        hostname,
        why: Some(why),
    }
}

fn degradation(message: String) -> agent::Degradation {
    agent::Degradation {
        id: "store".to_owned(),
        message,
        severity: agent::Severity::Warning.into(),
        ..agent::Degradation::default()
    }
}

/// Profiles do not reach others.
fn of_export(message: String) -> agent::Degradation {
    agent::Degradation {
        id: "otlp_export".to_owned(),
        ..degradation(message)
    }
}

/// The collector gives up less than it could.
fn of_sandbox(reasons: String) -> agent::Degradation {
    agent::Degradation {
        id: "sandbox_partial".to_owned(),
        message: format!("the sandbox of the collector is incomplete: {reasons}"),
        remedy: sandbox::REMEDY.to_owned(),
        severity: agent::Severity::Info.into(),
        ..agent::Degradation::default()
    }
}

fn given_up(report: &sandbox::Report) -> agent::Sandbox {
    agent::Sandbox {
        on: report.on,
        seccomp: report.seccomp,
        seccomp_error: report.seccomp_error.clone(),
        landlock_abi: report.landlock_abi,
        confined: report
            .confined
            .iter()
            .map(|&name| name.to_owned())
            .collect(),
        landlock_error: report.landlock_error.clone(),
        listens_confined: report.listens,
        connects_confined: report.connects,
    }
}

/// Size of the store of agents on disk, as it reports it.
fn store_bytes(store: &dyn StoreStatus) -> u64 {
    let (name, value) = STORE_LABEL;
    let of_senders = (name.into(), value.into());
    let families = store.metrics().into_iter();
    let readings = families
        .filter(|family| family.name == STORE_BYTES)
        .flat_map(|family| family.readings);
    let bytes = readings.map(|(labels, value)| match value {
        Value::Number(bytes) if !labels.contains(&of_senders) => bytes,
        _ => 0,
    });
    bytes.sum()
}

/// Name of the metric with a store's size on disk; with labels, all of them together.
const STORE_BYTES: &str = "fleetprof_store_bytes";
