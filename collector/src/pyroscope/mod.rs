//! Pyroscope's query API, for the tools that people have: Grafana's Pyroscope data source and
//! Profiles Drilldown.
//!
//! Calls come as Connect (JSON or protocol buffers in one request of HTTP/1.1, `connect.rs`), as
//! gRPC-Web, or as gRPC on the ports of gRPC. All three end in the same service (`service.rs`),
//! which asks the one query engine, in its places, within its limits and the caller's scope. The
//! rest answers `GET /pyroscope/render` and `render-diff` (`render.rs`).
//!
//! What its clients expect and the store does not have is made here: profile types from units
//! (`types.rs`), and the label `service_name` on every series (`selection.rs`).

mod connect;
mod held;
mod labels;
mod profiles;
mod render;
mod selection;
mod series;
mod service;
mod types;
mod wire;

pub(crate) use connect::{Answer, answer, refused};
pub use connect::{REQUEST_BYTES_MAX, read_json};
pub use held::Held;
pub(crate) use render::{RENDER_DIFF_PATH, RENDER_PATH, Rendered, diff, single, time as time_of};
pub(crate) use selection::SERVICE_NAME;
pub use selection::Selection;
pub(crate) use types::NAME as AGENTS_NAME;
pub use types::ProfileType;
pub use wire::{DESCRIPTORS, push, querier, settings, types as messages};

use crate::access::Caller;
use crate::query::Queries;
use proto::agent;
use querier::v1::querier_service_server::QuerierServiceServer;
use settings::v1::settings_service_server::SettingsServiceServer;
use std::sync::Arc;
use tonic::Status;
use tonic::codec::CompressionEncoding::Gzip;

/// Answers the calls. Clones share everything.
#[derive(Clone)]
pub struct Pyroscope {
    queries: Queries,
    service_labels: Arc<[String]>,
    of: Of,
}

/// Whose profiles an answer is of.
#[derive(Clone)]
enum Of {
    Agents,
    /// A type of other senders, or of captures.
    Type(ProfileType),
    /// All of these types of other senders, or of captures, for lists of labels.
    Types(Arc<[ProfileType]>),
}

/// The queries as a server of gRPC.
pub type Querier = Held<QuerierServiceServer<Pyroscope>>;

/// The settings as a server of gRPC.
pub type Settings = Held<SettingsServiceServer<Pyroscope>>;

impl Pyroscope {
    /// Answers from `queries`; the first of `service_labels` that a sample has is its
    /// `service_name`.
    pub fn new(queries: Queries, service_labels: &[String]) -> Pyroscope {
        Pyroscope {
            queries,
            service_labels: service_labels.into(),
            of: Of::Agents,
        }
    }

    /// The answers for one type. Where other senders are not let in, no type of theirs has samples.
    fn of_type(&self, of: &ProfileType) -> Result<Pyroscope, Status> {
        if of.is_captured() {
            return Ok(Pyroscope {
                queries: self.queries.of_type(&of.id())?,
                service_labels: self.service_labels.clone(),
                of: Of::Type(of.clone()),
            });
        }
        if of.is_of_agents() || !self.queries.has_senders() {
            return Ok(self.clone());
        }
        Ok(Pyroscope {
            queries: self.queries.of_type(&of.id())?,
            service_labels: Arc::new([selection::SERVICE_NAME.to_owned()]),
            of: Of::Type(of.clone()),
        })
    }

    /// The answers for agents, and where there are any for all types of other senders and for all
    /// types of captures in a range.
    async fn each(
        &self,
        caller: &Caller,
        range: agent::TimeRange,
    ) -> Result<Vec<Pyroscope>, Status> {
        let ids = self.queries.profile_types(caller, Some(range)).await?;
        let types = ids.iter().map(|id| ProfileType::parse(id));
        let types = types.collect::<Result<Vec<_>, _>>()?;
        let (captured, sent): (Vec<_>, Vec<_>) =
            types.into_iter().partition(ProfileType::is_captured);
        let senders = (!sent.is_empty()).then(|| self.of_senders(sent.into()));
        let captures = match captured.is_empty() {
            true => None,
            false => self.of_captures(captured.into()),
        };
        let agents = [self.clone()].into_iter();
        Ok(agents.chain(senders).chain(captures).collect())
    }

    /// The answers for these types of captures; none where nothing is kept any more.
    fn of_captures(&self, types: Arc<[ProfileType]>) -> Option<Pyroscope> {
        Some(Pyroscope {
            queries: self.queries.of_captures()?,
            service_labels: self.service_labels.clone(),
            of: Of::Types(types),
        })
    }

    /// The answers for these types of other senders.
    fn of_senders(&self, types: Arc<[ProfileType]>) -> Pyroscope {
        Pyroscope {
            queries: self.queries.of_senders(),
            service_labels: Arc::new([selection::SERVICE_NAME.to_owned()]),
            of: Of::Types(types),
        }
    }

    /// As servers of gRPC.
    pub fn servers(self) -> (Querier, Settings) {
        let querier = QuerierServiceServer::new(self.clone())
            .max_decoding_message_size(REQUEST_BYTES_MAX)
            .accept_compressed(Gzip)
            .send_compressed(Gzip);
        let settings = SettingsServiceServer::new(self.clone())
            .max_decoding_message_size(REQUEST_BYTES_MAX)
            .accept_compressed(Gzip)
            .send_compressed(Gzip);
        (
            Held::new(querier, self.queries.clone()),
            Held::new(settings, self.queries),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{is_pyroscope_call, who_may};
    use prost_types::FileDescriptorSet;

    #[test]
    fn every_call_is_for_viewers_and_pushes_are_for_senders() {
        let set: FileDescriptorSet = prost::Message::decode(DESCRIPTORS).expect("descriptors");
        let mut calls = 0;
        for file in &set.file {
            for service in &file.service {
                for method in &service.method {
                    let service = service.name();
                    let path = format!("/{}.{service}/{}", file.package(), method.name());
                    let least = match file.package() {
                        "querier.v1" | "settings.v1" => "viewer",
                        _ => "sender",
                    };
                    assert_eq!(who_may(&path), Some(least), "{path}");
                    let is_other =
                        path.starts_with("/opentelemetry.") || path.starts_with("/parca.");
                    assert_eq!(is_pyroscope_call(&path), !is_other, "{path}");
                    calls += 1;
                }
            }
        }
        assert_eq!(calls, 15);
    }
}
