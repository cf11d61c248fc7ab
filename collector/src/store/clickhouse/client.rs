//! Sends statements over HTTP: parameters, limits, cancellation, and the meaning of errors.

use super::Options;
use crate::store::{Limits, StoreError};
use ::clickhouse::error::Error;
use ::clickhouse::query::Query;
use ::clickhouse::{Compression, RowOwned, RowRead, RowWrite};
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// How often a waiting query looks whether its client is still there.
const CANCEL_LOOK: Duration = Duration::from_millis(5);
/// Time for telling the engine that a query is not waited for any more.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Least memory a query may use in the engine, however little its answer may take. Unit: bytes.
/// Below it the engine cannot read a block of each column.
const ENGINE_MEMORY_MIN: usize = 64 << 20;
/// Most text of an error that is kept. Unit: bytes.
const ERROR_LEN_MAX: usize = 500;

/// Why a statement was not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The server cannot be reached, or has no room or time now.
    #[error("{0}")]
    Away(String),
    /// A limit of the query was passed in the engine.
    #[error("{0}")]
    Limit(String),
    /// The caller gave up, or its time is over.
    #[error("the query was cancelled")]
    GivenUp,
    /// The engine does not do it.
    #[error("{0}")]
    Refused(String),
    /// The database was made by a later version.
    #[error(
        "failed to use the database: its schema version is {found}, and this collector supports \
         {}; run a newer collector, or set another database",
        super::SCHEMA_VERSION
    )]
    Newer {
        /// Version in the database.
        found: u32,
    },
    /// The table that carries the key is not as it was made.
    #[error(
        "failed to use the database: the comment of table `identity` is not its key; restore \
        the comment from a backup"
    )]
    NoKey,
    /// Weights of different units.
    #[error(transparent)]
    Units(#[from] profile::MergeError),
}

impl Fault {
    /// True when the server did not do a statement because of a setting that was sent with it: it
    /// does not know the setting, or the user may not change it.
    fn is_of_setting(&self) -> bool {
        let (Fault::Away(text) | Fault::Refused(text)) = self else {
            return false;
        };
        code(text).is_some_and(|code| SETTING_REFUSED.contains(&code))
    }

    /// As the trait says it.
    pub fn of(self, operation: &'static str) -> StoreError {
        match self {
            Fault::Away(text) => StoreError::Unavailable(format!("ClickHouse: {text}")),
            Fault::Limit(text) => StoreError::TooLarge(text),
            Fault::GivenUp => StoreError::Cancelled,
            Fault::Units(error) => StoreError::Units(error),
            fault @ (Fault::Refused(_) | Fault::Newer { .. } | Fault::NoKey) => {
                let message = fault.to_string();
                StoreError::Engine { operation, message }
            }
        }
    }
}

/// Codes of exceptions after which the same statement may succeed later: no room in memory or on
/// disk, too many parts or queries, timeouts, read-only tables, no quorum, credentials being
/// changed.
const LATER: &[u32] = &[
    159, 164, 192, 193, 194, 201, 202, 203, 209, 210, 236, 241, 242, 243, 252, 285, 290, 319, 425,
    473, 497, 516, 999,
];
/// Codes that say that a query took more than it may: memory, rows, bytes.
const TOO_MUCH: &[u32] = &[158, 191, 241, 307, 396];
/// Codes of queries that ran out of time or were killed.
const OVER: &[u32] = &[159, 394];

/// Codes of settings that are unknown, may not be changed by a read-only user, or have a bound.
const SETTING_REFUSED: &[u32] = &[115, 164, 452];

/// Number in `Code: 241. DB::Exception: …`.
fn code(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once("Code: ")?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// An error with its causes, cut.
fn text_of(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error).and_then(|cause| cause.source());
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    if text.len() > ERROR_LEN_MAX {
        let cut = (0..=ERROR_LEN_MAX)
            .rev()
            .find(|&at| text.is_char_boundary(at));
        text.truncate(cut.unwrap_or(0));
        text.push('…');
    }
    text
}

/// Classifies an error of a write.
fn fault_of_write(error: &Error) -> Fault {
    let text = text_of(error);
    match error {
        Error::Network(_) | Error::TimedOut => Fault::Away(text),
        Error::BadResponse(_) => match code(&text) {
            Some(code) if !LATER.contains(&code) => Fault::Refused(text),
            // Without a code it is from something in between: a proxy, a balancer.
            _ => Fault::Away(text),
        },
        _ => Fault::Refused(text),
    }
}

/// Classifies an error of a query.
fn fault_of_query(error: &Error) -> Fault {
    let code = match error {
        Error::BadResponse(text) => code(text),
        _ => None,
    };
    match code {
        Some(code) if TOO_MUCH.contains(&code) => Fault::Limit(format!(
            "the query exceeds a limit of ClickHouse; narrow the range or the selection: {}",
            text_of(error)
        )),
        Some(code) if OVER.contains(&code) => Fault::GivenUp,
        _ => fault_of_write(error),
    }
}

/// Most text of one value. Unit: bytes. The server takes 131,072 (`http_max_field_value_size`).
const VALUE_LEN_MAX: usize = 120_000;
/// Most text of a number and what parts it from the next. Unit: bytes.
const NUMBER_LEN_MAX: usize = 21;

/// A value that stands in a statement by its name.
#[derive(Clone, Debug)]
pub(super) enum Param {
    /// A value of type `String`.
    Text(String),
    /// A value of type `Array(String)`.
    Texts(Vec<String>),
    /// A value of type `Array(UInt64)`.
    Numbers(Vec<u64>),
    /// A value of type `Array(Tuple(UInt64, UInt64))`.
    Pairs(Vec<(u64, u64)>),
}

/// A statement and the values it names. Text from outside is in the values only.
#[derive(Clone, Debug, Default)]
pub(super) struct Statement {
    /// SQL with `{p0:String}` and so on.
    pub sql: String,
    /// By position.
    pub params: Vec<Param>,
}

impl Statement {
    /// SQL alone.
    pub fn of(sql: impl Into<String>) -> Statement {
        Statement {
            sql: sql.into(),
            params: Vec::new(),
        }
    }

    /// Keeps a value and returns how the SQL names it.
    pub fn param(&mut self, value: Param) -> String {
        let of_type = match &value {
            Param::Text(_) => "String",
            Param::Texts(_) => "Array(String)",
            Param::Numbers(_) => "Array(UInt64)",
            Param::Pairs(_) => "Array(Tuple(UInt64, UInt64))",
        };
        self.params.push(value);
        format!("{{p{}:{of_type}}}", self.params.len() - 1)
    }

    /// Keeps a list and returns the SQL of its array. Lists are cut, because the server bounds each
    /// value of a request.
    fn list<T: Clone>(
        &mut self,
        all: &[T],
        of: impl Fn(Vec<T>) -> Param,
        len: impl Fn(&T) -> usize,
    ) -> String {
        let (mut arrays, mut some, mut bytes) = (Vec::new(), Vec::new(), 0);
        for one in all {
            if bytes + len(one) > VALUE_LEN_MAX && !some.is_empty() {
                arrays.push(self.param(of(std::mem::take(&mut some))));
                bytes = 0;
            }
            bytes += len(one);
            some.push(one.clone());
        }
        if !some.is_empty() || arrays.is_empty() {
            arrays.push(self.param(of(some)));
        }
        match arrays.as_slice() {
            [one] => one.clone(),
            many => format!("arrayConcat({})", many.join(", ")),
        }
    }

    /// SQL of an array of numbers.
    pub fn numbers(&mut self, all: &[u64]) -> String {
        self.list(all, Param::Numbers, |_| NUMBER_LEN_MAX)
    }

    /// SQL of an array of pairs.
    pub fn pairs(&mut self, all: &[(u64, u64)]) -> String {
        self.list(all, Param::Pairs, |_| 2 * NUMBER_LEN_MAX + 2)
    }

    /// SQL of an array of texts.
    pub fn texts(&mut self, all: &[String]) -> String {
        // Every byte may be escaped.
        self.list(all, Param::Texts, |text| 2 * text.len() + 3)
    }
}

/// One database.
pub(super) struct Client {
    /// In the database.
    inside: ::clickhouse::Client,
    /// The same for rows of windows, which are packed on their way: they are most of what is sent.
    inserting: ::clickhouse::Client,
    /// In no database.
    outside: ::clickhouse::Client,
    database: String,
    write_timeout: Duration,
    /// Prefix of query ids, random, and how many there were.
    name: String,
    queries: AtomicU64,
}

impl Client {
    /// Creates the client of the server that `options` name; it asks nothing yet.
    pub fn new(options: &Options, password: Option<&str>, name: String) -> Client {
        let mut outside = ::clickhouse::Client::default()
            .with_url(&options.url)
            .with_compression(Compression::None)
            .with_product_info("fleetprof-collector", env!("CARGO_PKG_VERSION"))
            // Several views are fed by one insert; it fails when one of them does.
            .with_setting("materialized_views_ignore_errors", "0")
            .with_setting("async_insert", "0");
        if let Some(user) = &options.user {
            outside = outside.with_user(user);
        }
        if let Some(password) = password {
            outside = outside.with_password(password);
        }
        let inside = outside.clone().with_database(&options.database);
        Client {
            inserting: inside.clone().with_compression(Compression::Lz4),
            inside,
            outside,
            database: options.database.clone(),
            write_timeout: options.write_timeout,
            name,
            queries: AtomicU64::new(0),
        }
    }

    /// Name of the database: letters, digits and `_`.
    pub fn database(&self) -> &str {
        &self.database
    }

    fn query(&self, statement: &Statement) -> Query {
        let mut query = self.inside.query_raw(&statement.sql);
        for (at, param) in statement.params.iter().enumerate() {
            let name = format!("p{at}");
            query = match param {
                Param::Text(text) => query.param(&name, text),
                Param::Texts(texts) => query.param(&name, texts),
                Param::Numbers(numbers) => query.param(&name, numbers),
                Param::Pairs(pairs) => query.param(&name, pairs),
            };
        }
        query
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Fault> {
        match timeout(self.write_timeout, work).await {
            Ok(done) => done.map_err(|error| fault_of_write(&error)),
            Err(_) => Err(Fault::Away(format!(
                "no answer within {} s",
                self.write_timeout.as_secs()
            ))),
        }
    }

    /// Does a statement outside of the database.
    pub async fn outside(&self, sql: &str) -> Result<(), Fault> {
        self.in_time(self.outside.query_raw(sql).execute()).await
    }

    /// Does a statement.
    pub async fn execute(&self, sql: &str) -> Result<(), Fault> {
        self.run(&Statement::of(sql)).await
    }

    /// Does a statement with values.
    pub async fn run(&self, statement: &Statement) -> Result<(), Fault> {
        self.in_time(self.query(statement).execute()).await
    }

    /// Drops a partition of any size. By default the server rejects dropping those above 50 GB, to
    /// protect people from mistakes; days over age are no mistake.
    pub async fn drop_partition(&self, table: &str, partition: &str) -> Result<(), Fault> {
        let sql = format!("ALTER TABLE {table} DROP PARTITION {partition}");
        let query = self.inside.query_raw(&sql);
        let of_any_size = query.with_setting("max_partition_size_to_drop", "0");
        match self.in_time(of_any_size.execute()).await {
            // Its own bound holds then.
            Err(fault) if fault.is_of_setting() => self.execute(&sql).await,
            done => done,
        }
    }

    /// The only row of an answer.
    pub async fn one<T: RowOwned + RowRead>(&self, sql: &str) -> Result<T, Fault> {
        let statement = Statement::of(sql);
        self.in_time(self.query(&statement).fetch_one::<T>()).await
    }

    /// All rows of an answer of which the size is known to be small.
    pub async fn all<T: RowOwned + RowRead>(&self, statement: &Statement) -> Result<Vec<T>, Fault> {
        self.in_time(self.query(statement).fetch_all::<T>()).await
    }

    /// Inserts rows; when it returns they are there.
    pub async fn insert<T: RowOwned + RowWrite>(
        &self,
        table: &str,
        rows: &[T],
    ) -> Result<(), Fault> {
        if rows.is_empty() {
            return Ok(());
        }
        self.in_time(async {
            let mut insert = self.inserting.insert::<T>(table).await?;
            for row in rows {
                insert.write(row).await?;
            }
            insert.end().await
        })
        .await
    }

    /// Inserts rows that must not be there twice, also in what views make of them: an insert under
    /// a token that was there lately adds nothing.
    pub async fn insert_once<T: RowOwned + RowWrite>(
        &self,
        table: &str,
        rows: &[T],
        token: &str,
    ) -> Result<(), Fault> {
        if rows.is_empty() {
            return Ok(());
        }
        self.in_time(async {
            let insert = self.inserting.insert::<T>(table).await?;
            let mut insert = insert
                .with_setting("insert_deduplication_token", token)
                .with_setting("deduplicate_blocks_in_dependent_materialized_views", "1");
            for row in rows {
                insert.write(row).await?;
            }
            insert.end().await
        })
        .await
    }

    /// Hands the rows of a query to `take` as they come, until `limits` say stop.
    pub async fn each<T: RowOwned + RowRead>(
        &self,
        statement: &Statement,
        limits: &Limits,
        mut take: impl FnMut(T) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let now = Instant::now();
        if limits.cancel.is_cancelled() || now >= limits.deadline {
            return Err(Fault::GivenUp);
        }
        let left_s = limits.deadline.duration_since(now).as_secs() + 1;
        let number = self.queries.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}-{number}", self.name);
        let memory = limits.memory_bytes.max(ENGINE_MEMORY_MIN);
        let query = self
            .query(statement)
            .with_setting("query_id", &id)
            .with_setting("max_execution_time", left_s.to_string())
            .with_setting("max_memory_usage", memory.to_string());
        let work = async {
            let mut rows = query.fetch::<T>().map_err(|error| fault_of_query(&error))?;
            while let Some(row) = rows.next().await.map_err(|error| fault_of_query(&error))? {
                take(row)?;
            }
            Ok(())
        };
        let given_up = async {
            while !limits.cancel.is_cancelled() && Instant::now() < limits.deadline {
                tokio::time::sleep(CANCEL_LOOK).await;
            }
        };
        let done = tokio::select! {
            done = work => done,
            () = given_up => Err(Fault::GivenUp),
        };
        if done.is_err() {
            self.kill(id);
        }
        done
    }

    /// Makes the engine end a query, without waiting for it.
    fn kill(&self, id: String) {
        let client = self.outside.clone();
        tokio::spawn(async move {
            let mut kill = Statement::of("");
            let name = kill.param(Param::Text(id.clone()));
            let query = client
                .query_raw(&format!("KILL QUERY WHERE query_id = {name} ASYNC"))
                .param("p0", id);
            // The query may be over, or the user may not be allowed to: it ends by its time limit.
            drop(timeout(KILL_TIMEOUT, query.execute()).await);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_from_exceptions() {
        let text = "bad response: Code: 241. DB::Exception: Memory limit exceeded";
        assert_eq!(code(text), Some(241));
        assert_eq!(code("<html>502 Bad Gateway</html>"), None);
        assert_eq!(code("Code: 99999999999."), None);
    }

    #[test]
    fn errors_say_whether_to_come_again() {
        let bad = |text: &str| Error::BadResponse(text.to_owned());
        let away = |fault| matches!(fault, Fault::Away(_));
        assert!(away(fault_of_write(&bad(
            "Code: 252. DB::Exception: Too many parts"
        ))));
        assert!(away(fault_of_write(&bad("502 Bad Gateway"))));
        assert!(away(fault_of_write(&bad(
            "Code: 243. DB::Exception: not enough space"
        ))));
        let refused = fault_of_write(&bad("Code: 62. DB::Exception: Syntax error"));
        assert!(matches!(refused, Fault::Refused(_)));
        let over = fault_of_query(&bad("Code: 159. DB::Exception: Timeout exceeded"));
        assert!(matches!(over, Fault::GivenUp));
        let large = fault_of_query(&bad("Code: 241. DB::Exception: Memory limit"));
        assert!(matches!(large, Fault::Limit(_)));
    }

    #[test]
    fn settings_that_are_refused_are_told_from_statements_that_are() {
        let fault = |text: &str| fault_of_write(&Error::BadResponse(text.to_owned()));
        for of_setting in [
            "Code: 115. DB::Exception: Unknown setting",
            "Code: 164. DB::Exception: Cannot modify setting in readonly mode",
            "Code: 452. DB::Exception: Setting should not be changed",
        ] {
            assert!(fault(of_setting).is_of_setting(), "{of_setting}");
        }
        assert!(!fault("Code: 359. DB::Exception: Size is greater").is_of_setting());
        assert!(!Fault::GivenUp.is_of_setting());
    }

    #[test]
    fn long_lists_become_several_values() {
        let mut statement = Statement::default();
        let all: Vec<u64> = (0..12_000).collect();
        let sql = statement.numbers(&all);
        assert!(
            sql.starts_with("arrayConcat({p0:Array(UInt64)}, {p1:"),
            "{sql}"
        );
        let sent: Vec<u64> = statement
            .params
            .iter()
            .flat_map(|param| match param {
                Param::Numbers(numbers) => numbers.clone(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(sent, all);
        assert_eq!(Statement::default().texts(&[]), "{p0:Array(String)}");
    }

    #[test]
    fn long_errors_are_cut_between_characters() {
        let text = text_of(&Error::BadResponse("é".repeat(1000)));
        assert!(text.len() <= ERROR_LEN_MAX + '…'.len_utf8() && text.ends_with('…'));
    }
}
