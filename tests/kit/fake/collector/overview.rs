//! What changed on the fake's fleet: one service on one of its hosts, a new one, and one with a
//! hostile name that stayed as it was.

use super::{Behaviour, HOSTS, NOW_NS, S};
use proto::collector::{
    Change, DataQuality, Outlier, OverviewFunction, OverviewResponse, OverviewRow, PressedHost,
    Resource, ThrottledCgroup,
};

/// Minutes of both sides.
const STEPS: usize = 60;

/// The answer, with this quality of both sides.
pub(super) fn overview(behaviour: &Behaviour, quality: Option<DataQuality>) -> OverviewResponse {
    let start = NOW_NS - STEPS as i64 * 60 * S;
    let answer = OverviewResponse {
        now: quality.clone(),
        baseline: quality,
        start_unix_ns: start,
        baseline_start_unix_ns: start - STEPS as i64 * 60 * S,
        step_ns: 60 * S as u64,
        accounted: true,
        ..OverviewResponse::default()
    };
    if behaviour.empty {
        return answer;
    }
    let at = |step: usize| start + step as i64 * 60 * S;
    let line = |before: f64, after: f64, from: usize| {
        let steps = (0..STEPS).map(|step| if step < from { before } else { after } as f32);
        (vec![before as f32; STEPS], steps.collect::<Vec<_>>())
    };
    let row = |name: &str, (before, after, from): (f64, f64, usize), error: f64| {
        let (baseline_steps, steps) = line(before, after, from);
        let moved = before != after;
        OverviewRow {
            name: name.into(),
            cores: steps.iter().map(|cores| f64::from(*cores)).sum::<f64>() / STEPS as f64,
            baseline_cores: before,
            change: Some(Change {
                cores: after - before,
                error,
                significant: moved,
                since_unix_ns: if moved && from > 0 { at(from) } else { 0 },
                until_unix_ns: 0,
                appeared: moved && before == 0.0,
                vanished: moved && after == 0.0,
            }),
            steps,
            baseline_steps,
            hosts: 3,
            ..OverviewRow::default()
        }
    };
    let slower = OverviewRow {
        changed_hosts: vec![HOSTS[0].0.into()],
        hosts_changed: 1,
        ..row("api.service", (2.0, 3.25, 38), 0.08)
    };
    let hostile = "x\x1b[31m\u{202e}.service";
    OverviewResponse {
        fleet: Some(row("", (5.0, 6.3, 38), 0.1)),
        services: vec![
            slower,
            row("batch.service", (0.0, 0.05, 50), 0.01),
            OverviewRow {
                change: None,
                ..row(hostile, (3.0, 3.0, 0), 0.05)
            },
        ],
        services_left_out: 4,
        hosts: vec![
            row(HOSTS[0].0, (2.5, 3.75, 38), 0.08),
            row(HOSTS[1].0, (1.25, 1.25, 0), 0.02),
            row(HOSTS[2].0, (1.25, 1.25, 0), 0.02),
        ],
        functions: vec![OverviewFunction {
            service: "api.service".into(),
            name: "serde_json::visit_map\x07".into(),
            module: "/usr/bin/api".into(),
            kind: 0,
            cores: 1.9,
            baseline_cores: 0.6,
            error: 0.1,
            significant: true,
            ..OverviewFunction::default()
        }],
        outliers: vec![Outlier {
            host: HOSTS[0].0.into(),
            service: "api.service".into(),
            cores: 2.25,
            median_cores: 0.5,
            deviations: 14.0,
            hosts: 6,
            in_baseline: false,
        }],
        throttled: vec![
            ThrottledCgroup {
                host: HOSTS[1].0.into(),
                cgroup: "/system.slice/api.service".into(),
                service: "api.service".into(),
                share: 0.62,
                baseline_share: Some(0.0),
                cores: 1.31,
                limit_cores: 0.8,
                since_unix_ns: at(41),
                ..ThrottledCgroup::default()
            },
            ThrottledCgroup {
                host: HOSTS[2].0.into(),
                cgroup: "/kubepods/\u{202e}x".into(),
                container: "sidecar\x1b[31m".into(),
                share: 0.07,
                cores: 0.04,
                ..ThrottledCgroup::default()
            },
            ThrottledCgroup {
                host: HOSTS[0].0.into(),
                cgroup: "/system.slice/batch.service".into(),
                service: "batch.service".into(),
                share: 0.4,
                baseline_share: Some(0.41),
                cores: 0.2,
                limit_cores: 0.3,
                in_baseline: true,
                ..ThrottledCgroup::default()
            },
        ],
        throttling_known: true,
        pressed: vec![PressedHost {
            host: HOSTS[1].0.into(),
            resource: Resource::Cpu.into(),
            share: 0.71,
            baseline_share: Some(0.12),
            since_unix_ns: at(41),
            ..PressedHost::default()
        }],
        pressure_hosts: 2,
        ..answer
    }
}
