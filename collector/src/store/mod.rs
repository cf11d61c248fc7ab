//! Defines a store of windows by its interfaces: [`WindowSink`] accepts windows, [`StoreQueries`]
//! answers queries, [`NoticeBoard`] is read by other collectors, [`StoreStatus`] reports its state.
//! There are two engines: `embedded`, which needs nothing installed, and `clickhouse`. Nothing
//! outside their folders depends on an engine.
//!
//! All calls block, on disk or network, and may come from several threads at once. Callers pass
//! wall time: a store has no clock of its own.

mod admission;
mod batching;
mod board;
mod both;
pub mod clickhouse;
pub mod copy;
pub mod embedded;
mod exact;
mod names;
pub mod open;
mod queries;
pub mod query;
mod result;
mod sink;
mod typed;
mod window;

pub use admission::{HOST_ID_BYTES_MAX, SAMPLE_LABELS, WINDOW_NS_MAX, is_host_label};
pub use batching::BatchPolicy;
pub use board::{ConnectedHost, NoticeBoard};
pub use both::STORE_LABEL;
pub use exact::Exact;
pub use names::{Found, FrameNaming, Names};
pub use queries::StoreQueries;
pub use result::{
    AccountedSeries, Cancel, DataQuality, GAPS_MAX, HostRange, LabelTotals, Limits, PressureSum,
    QueryResult, Resolution, Scope, Series, Step, THROTTLED_MAX, ThrottledCgroup, TimeSeries,
};
pub use sink::WindowSink;
pub use typed::{CAPTURED, OfType, PROFILE_TYPE, PROFILE_TYPES_MAX, is_captured, profile_types};
pub(crate) use window::reserve;
pub use window::{
    Defined, Gap, HostFacts, HostKey, HostRecord, LabelSet, Memo, NewWindow, Origin, PushOutcome,
    Row, StackMemo, StreamStacks, TimeRange, WindowAccount,
};

use both::BothStatus;
use metrics::Family;
use profile::{ContentId, Selector};
use std::sync::Arc;

/// Why a store could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It will work again later, without anything lost: the disk is full, the server is away. What
    /// was pushed was not taken.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The question was too large. The text says which limit, and what to narrow.
    #[error("{0}")]
    TooLarge(String),
    /// The caller gave up, or the time it allowed was over.
    #[error("the query was cancelled")]
    Cancelled,
    /// Weights of different units were asked for as one sum.
    #[error(transparent)]
    Units(#[from] profile::MergeError),
    /// Something is wrong with the store itself.
    #[error("failed to {operation}: {message}")]
    Engine {
        /// The operation that failed.
        operation: &'static str,
        /// The engine's error, including its causes.
        message: String,
    },
}

/// All that an engine offers. Who opens one hands its parts to those who need them: [`OpenStore`].
pub trait Store: WindowSink + StoreQueries + NoticeBoard + FrameNaming + StoreStatus {}

impl<T: WindowSink + StoreQueries + NoticeBoard + FrameNaming + StoreStatus> Store for T {}

/// How a store does: for metrics, status and the operator.
pub trait StoreStatus: Send + Sync + 'static {
    /// Name and version of the engine: `embedded`, `SQLite 3.51`.
    fn engine(&self) -> (&'static str, String);

    /// Sizes and counters, for metrics and status.
    fn metrics(&self) -> Vec<Family>;

    /// Problems as sentences for the operator: a partition set aside, a full disk.
    fn issues(&self) -> Vec<String>;
}

/// A store in the parts that its users take: none can do more than its part allows.
#[derive(Clone)]
pub struct OpenStore {
    /// Takes windows: for ingest and upkeep.
    pub sink: Arc<dyn WindowSink>,
    /// Answers. Its sums do not overflow.
    pub queries: Arc<dyn StoreQueries>,
    /// Where collectors that share the store announce their agents to each other.
    pub board: Arc<dyn NoticeBoard>,
    /// Gets the source of names of functions.
    pub naming: Arc<dyn FrameNaming>,
    /// How it does, with the store of other senders.
    pub status: Arc<dyn StoreStatus>,
    /// The store of other senders, where they are let in. See [`OfType`].
    pub senders: Option<Arc<OpenStore>>,
}

impl OpenStore {
    /// The parts of an engine, with [`Exact`] over its answers.
    pub fn of(engine: Arc<dyn Store>) -> OpenStore {
        OpenStore {
            sink: engine.clone(),
            queries: Arc::new(Exact::new(engine.clone())),
            board: engine.clone(),
            naming: engine.clone(),
            status: engine,
            senders: None,
        }
    }

    /// The same with a store of other senders.
    pub fn with_senders(self, senders: OpenStore) -> OpenStore {
        let status = BothStatus {
            agents: self.status,
            senders: senders.status.clone(),
        };
        OpenStore {
            status: Arc::new(status),
            senders: Some(Arc::new(senders)),
            ..self
        }
    }
}

/// True when every sample of the label set is selected; for engines that filter label sets in code.
pub fn selects(selector: &Selector, labels: &LabelSet) -> bool {
    let mut matchers = selector.matchers().iter();
    matchers.all(|matcher| matcher.matches(labels.get(matcher.label())))
}

/// Stacks that rows name and neither `definitions` nor the store has.
pub type MissingStacks = Vec<ContentId>;
