//! The alerts of a fake collector: two fire, the worse one first, with a hostile label; one waits.

use super::Fake;
use crate::fake::samples::{NOW_NS, S};
use proto::collector::alert_service_server::AlertService;
use proto::collector::*;
use tonic::{Request, Response, Status};

#[tonic::async_trait]
impl AlertService for Fake {
    async fn list(
        &self,
        _: Request<ListAlertsRequest>,
    ) -> Result<Response<ListAlertsResponse>, Status> {
        self.admit("alerts", String::new()).await?;
        if self.behaviour.empty {
            return Ok(Response::new(ListAlertsResponse::default()));
        }
        let alert = |rule: &str, state: AlertState, value: f64, unit: &str| Alert {
            fingerprint: format!("0123{rule}"),
            id: u64::from(state == AlertState::Firing),
            rule: rule.into(),
            labels: [("unit".to_owned(), "api.service\x1b[2J".to_owned())].into(),
            state: state.into(),
            since_unix_ns: NOW_NS - 1200 * S,
            fired_unix_ns: NOW_NS - 1200 * S,
            value: Some(value),
            threshold: Some(4.0),
            unit: unit.into(),
            ..Alert::default()
        };
        let receiver = AlertReceiver {
            name: "oncall".into(),
            failures: u64::from(self.behaviour.damaged),
            waiting: 2,
            error: "it answered 503\x07".into(),
            ..AlertReceiver::default()
        };
        Ok(Response::new(ListAlertsResponse {
            alerts: vec![
                alert("api-cpu", AlertState::Firing, 9.8, "cores"),
                alert("api-malloc", AlertState::Firing, 4.5, "percent"),
                alert("batch-cpu", AlertState::Pending, 5.0, "cores"),
            ],
            rules: vec![AlertRule::default()],
            receivers: vec![receiver],
            ..ListAlertsResponse::default()
        }))
    }
}
