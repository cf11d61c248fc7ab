//! The embedded store as an engine of the suite: as it is, and flushing after every push, so that
//! all that is asked is read from files.

use crate::store::{Engine, NOW_NS, Place, SECOND};
use collector::store::embedded::{EmbeddedStore, Options};
use collector::store::{
    AccountedSeries, FrameNaming, HostRange, HostRecord, LabelTotals, Limits, Names, NewWindow,
    NoticeBoard, PushOutcome, QueryResult, Scope, Store, StoreError, StoreQueries, StoreStatus,
    TimeRange, TimeSeries, WindowSink,
};
use profile::{CostBy, Costs, Dictionary, Profile, Query};
use std::sync::Arc;

/// Makes stores in temporary directories.
pub struct EmbeddedEngine {
    /// Flush after every push.
    pub flushed: bool,
}

struct Directory {
    folder: tempfile::TempDir,
    flushed: bool,
}

impl Engine for EmbeddedEngine {
    fn place(&self) -> Result<Box<dyn Place>, String> {
        Ok(Box::new(Directory {
            folder: tempfile::tempdir().map_err(|error| error.to_string())?,
            flushed: self.flushed,
        }))
    }
}

impl Place for Directory {
    fn open(&self) -> Arc<dyn Store> {
        let store =
            EmbeddedStore::open(self.folder.path(), Options::default(), NOW_NS).expect("it opens");
        if self.flushed {
            Arc::new(Flushed(store))
        } else {
            Arc::new(store)
        }
    }
}

/// Flushes after every push.
struct Flushed(EmbeddedStore);

impl FrameNaming for Flushed {
    fn name_by(&self, names: Arc<dyn Names>) {
        self.0.name_by(names);
    }
}

impl WindowSink for Flushed {
    fn push(
        &self,
        windows: &[NewWindow],
        definitions: &Dictionary,
        now_unix_ns: i64,
    ) -> Result<Vec<PushOutcome>, StoreError> {
        let taken = self.0.push(windows, definitions, now_unix_ns)?;
        // Later than any window, so that every chunk is over.
        self.0.maintain(now_unix_ns + 2 * 3600 * SECOND)?;
        Ok(taken)
    }

    fn put_hosts(&self, hosts: &[HostRecord]) -> Result<(), StoreError> {
        self.0.put_hosts(hosts)
    }

    fn maintain(&self, now_unix_ns: i64) -> Result<(), StoreError> {
        self.0.maintain(now_unix_ns)
    }

    fn close(&self) -> Result<(), StoreError> {
        self.0.close()
    }
}

impl StoreQueries for Flushed {
    fn hosts(
        &self,
        range: TimeRange,
        limits: &Limits,
    ) -> Result<Vec<(HostRecord, HostRange)>, StoreError> {
        self.0.hosts(range, limits)
    }

    fn kept(&self) -> Result<Option<TimeRange>, StoreError> {
        self.0.kept()
    }

    fn label_names(&self, scope: &Scope, limits: &Limits) -> Result<Vec<String>, StoreError> {
        self.0.label_names(scope, limits)
    }

    fn label_values(
        &self,
        scope: &Scope,
        name: &str,
        prefix: &str,
        limit: usize,
        limits: &Limits,
    ) -> Result<(Vec<String>, bool), StoreError> {
        self.0.label_values(scope, name, prefix, limit, limits)
    }

    fn series(
        &self,
        scope: &Scope,
        group_by: &[String],
        step_ns: u64,
        limits: &Limits,
    ) -> Result<QueryResult<TimeSeries>, StoreError> {
        self.0.series(scope, group_by, step_ns, limits)
    }

    fn accounted(
        &self,
        scope: &Scope,
        group_by: &[String],
        step_ns: u64,
        limits: &Limits,
    ) -> Result<QueryResult<AccountedSeries>, StoreError> {
        self.0.accounted(scope, group_by, step_ns, limits)
    }

    fn profile(
        &self,
        range: TimeRange,
        query: &Query,
        limits: &Limits,
    ) -> Result<QueryResult<Profile>, StoreError> {
        self.0.profile(range, query, limits)
    }

    fn costs(
        &self,
        range: TimeRange,
        query: &Query,
        by: CostBy,
        limits: &Limits,
    ) -> Result<QueryResult<Costs>, StoreError> {
        self.0.costs(range, query, by, limits)
    }

    fn totals(
        &self,
        scope: &Scope,
        group_by: &[String],
        limits: &Limits,
    ) -> Result<QueryResult<Vec<LabelTotals>>, StoreError> {
        self.0.totals(scope, group_by, limits)
    }
}

impl NoticeBoard for Flushed {}

impl StoreStatus for Flushed {
    fn engine(&self) -> (&'static str, String) {
        self.0.engine()
    }

    fn metrics(&self) -> Vec<metrics::Family> {
        self.0.metrics()
    }

    fn issues(&self) -> Vec<String> {
        self.0.issues()
    }
}
