//! What an overview says of alerts: how many fire, and the worst.

use crate::alerts::{self, Shown};
use crate::connection;
use crate::peer::{Connection, Peer};
use crate::terminal::clean;
use crate::units;
use crate::when::Clock;
use anyhow::Result;
use proto::collector::alert_service_client::AlertServiceClient;
use proto::collector::{Alert, AlertState, ListAlertsRequest, ListAlertsResponse};

/// What fires; `None`: it is not known.
pub(super) struct Firing(Option<ListAlertsResponse>);

impl Firing {
    /// Asks the collector. That it does not answer takes nothing from the overview but this, and
    /// is noted.
    pub async fn ask(connection: &Connection, peer: &Peer) -> Firing {
        match list(connection, peer).await {
            Ok(answer) => {
                let mut troubles =
                    alerts::troubles(&answer.trouble, &answer.rules, &answer.receivers);
                if !troubles.is_empty() {
                    let more = match troubles.len() - 1 {
                        0 => String::new(),
                        more => format!(" ({} more: agent-ctl alerts)", units::count(more as u64)),
                    };
                    note!("agent-ctl: {}{more}", clean(&troubles.swap_remove(0)));
                }
                Firing(Some(answer))
            }
            Err(error) => {
                note!("agent-ctl: whether alerts fire is not known: {error:#}");
                Firing(None)
            }
        }
    }

    fn alerts(&self) -> Option<impl Iterator<Item = &Alert>> {
        let answer = self.0.as_ref().filter(|answer| answer.trouble.is_empty())?;
        let firing = |alert: &&Alert| alert.state() == AlertState::Firing;
        Some(answer.alerts.iter().filter(firing))
    }

    /// How many fire, and the worst of them; none: nothing does, as far as is known.
    pub fn line(&self, clock: &Clock) -> Option<String> {
        let worst = self.alerts()?.next()?;
        let count = self.alerts()?.count() as u64;
        let told = match count {
            1 => "1 alert firing: ".to_owned(),
            count => format!("{} alerts firing, worst: ", units::count(count)),
        };
        let labels = alerts::labels(worst);
        let name = [worst.rule.as_str(), labels.as_str()].join(" ");
        let value = match worst.value {
            None => "value not known".to_owned(),
            value => format!(
                "{} {} (limit {})",
                alerts::number(value, ""),
                if worst.unit == "percent" {
                    "%"
                } else {
                    "cores"
                },
                alerts::number(worst.threshold, "")
            ),
        };
        let since = clock.show_time(worst.since_unix_ns);
        Some(format!(
            "{told}{}, {value}, since {since}",
            clean(name.trim())
        ))
    }

    /// For scripts: the worst first; `None`: not known.
    pub fn json(&self) -> Option<Vec<Shown<'_>>> {
        Some(self.alerts()?.map(Shown::of).collect())
    }
}

async fn list(connection: &Connection, peer: &Peer) -> Result<ListAlertsResponse> {
    let (transport, route) = connection::open(connection, peer).await?;
    let service = AlertServiceClient::new(transport);
    let mut service = service.max_decoding_message_size(alerts::MESSAGE_BYTES_MAX);
    let call = service.list(ListAlertsRequest::default());
    route.answer("list alerts", call).await
}
