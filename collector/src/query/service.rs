//! The calls of QueryService.

use super::compare::{Compared, compare};
use super::request::{Selected, check, invalid, limit, step};
use super::{
    ANSWER_TIMEOUT, Ask, Failed, Queries, STALL_TIMEOUT, answer, cgroups, filtered, profile_bytes,
    request, resolved, units,
};
use crate::access::Caller;
use crate::store::{
    AccountedSeries, DataQuality, HostRange, HostRecord, LabelTotals, Limits, QueryResult,
    SAMPLE_LABELS, Scope, StoreError, StoreQueries, TimeSeries,
};
use profile::{CostBy, Coverage, Profile, Quality, TopBy, TopSort, Value, key};
use proto::collector::query_service_server::QueryService;
use proto::convert::Chunks;
use proto::{agent, collector as wire};
use std::collections::{BTreeMap, HashMap};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// Most cgroups of one answer, so that it stays below the 4 MiB that clients take.
const CGROUPS_MAX: usize = 8000;

/// Most hosts of one answer. About 500 bytes each.
const HOSTS_MAX: usize = 6000;

/// Most text of what is wrong with the hosts of one answer, twice of which is sent. Unit: bytes.
/// Beyond it hosts have the names of what is wrong without the sentences. Some 2500 hosts in
/// trouble have room.
const HEALTH_BYTES_MAX: usize = 500_000;

/// Most rows of tables and values of labels.
pub(crate) const ROWS_MAX: usize = 10_000;

/// Most lines of a series.
const LINES_MAX: usize = 1000;

const SERIES_LIMIT: usize = 20;
const TOP_LIMIT: usize = 50;
const DIFF_LIMIT: usize = 100;
const VALUES_LIMIT: usize = 100;

/// Parts of an answer that wait for the client; besides, the transport holds the one it is sending.
const PARTS_QUEUED: usize = 1;

type Parts = ReceiverStream<Result<wire::ProfileResponse, Status>>;

#[tonic::async_trait]
impl QueryService for Queries {
    type ProfileStream = Parts;

    async fn label_names(
        &self,
        request: Request<wire::LabelNamesRequest>,
    ) -> Result<Response<wire::LabelNamesResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let (of, selected) = self.select(request.into_inner().selection)?;
        let selected = selected.without_filters("LabelNames")?;
        let now = self.0.clock.now_unix_ns();
        let (names, range) = of
            .run(&caller, Ask::Labels, 0, ROWS_MAX, move |store, limits| {
                let scope = scope(store, &selected, now)?;
                let names = store.label_names(&scope, limits)?;
                Ok((names, scope.range))
            })
            .await?;
        let (names, _) = answer::fitting(names, String::len);
        Ok(Response::new(wire::LabelNamesResponse {
            names,
            quality: Some(answer::covered(range)),
        }))
    }

    async fn label_values(
        &self,
        request: Request<wire::LabelValuesRequest>,
    ) -> Result<Response<wire::LabelValuesResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let asked = request.into_inner();
        if asked.name.is_empty() {
            return Err(invalid("failed to list values: the label has no name"));
        }
        let (of, selected) = self.select(asked.selection)?;
        let selected = selected.without_filters("LabelValues")?;
        let limit = limit(asked.limit, VALUES_LIMIT, ROWS_MAX);
        let now = self.0.clock.now_unix_ns();
        let (values, more, range) = of
            .run(&caller, Ask::Labels, 0, ROWS_MAX, move |store, limits| {
                let scope = scope(store, &selected, now)?;
                let (name, prefix) = (&asked.name, &asked.prefix);
                let (values, more) = store.label_values(&scope, name, prefix, limit, limits)?;
                Ok((values, more, scope.range))
            })
            .await?;
        let (values, left_out) = answer::fitting(values, String::len);
        Ok(Response::new(wire::LabelValuesResponse {
            values,
            more: more || left_out > 0,
            quality: Some(answer::covered(range)),
        }))
    }

    async fn series(
        &self,
        request: Request<wire::SeriesRequest>,
    ) -> Result<Response<wire::SeriesResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let asked = request.into_inner();
        let (of, selected) = self.select(asked.selection)?;
        let group_by = labels(asked.group_by)?;
        // Only stacks tell what frame filters take.
        let by_stacks = match selected.filters.is_empty() {
            true => None,
            false => Some(selected.query(&group_by)?),
        };
        let lines = limit(asked.limit, SERIES_LIMIT, LINES_MAX);
        let now = self.0.clock.now_unix_ns();
        let of_samples = |label: &String| SAMPLE_LABELS.contains(&label.as_str());
        let accounted = asked.accounted
            && of.is_of_agents()
            && by_stacks.is_none()
            && cgroups::is_accountable(&selected.selector)
            && !group_by.iter().any(of_samples);
        let nodes = match by_stacks {
            Some(_) => self.0.options.nodes,
            None => 0,
        };
        let found = of
            .run(&caller, Ask::Series, nodes, lines, move |store, limits| {
                let mut scope = scope(store, &selected, now)?;
                if let Some(query) = by_stacks {
                    let step = filtered::step(scope.range, asked.step_ns)?;
                    scope.range = request::whole_steps(scope.range, step);
                    return Ok(filtered::series(store, &scope, &query, step, limits)?);
                }
                let step = step(scope.range, asked.step_ns, lines)?;
                // A part of a step would look like less.
                scope.range = request::whole_steps(scope.range, step);
                if accounted {
                    return Ok(accounted_series(store, &scope, &group_by, step, limits)?);
                }
                Ok(store.series(&scope, &group_by, step, limits)?)
            })
            .await?;
        let QueryResult { data, quality } = found;
        let mut lines: Vec<wire::SeriesLine> = data
            .lines
            .into_iter()
            .map(|line| wire::SeriesLine {
                labels: owned(line.labels.iter()),
                total_weight: sum(&line.weights),
                weights: line.weights,
                rest: false,
            })
            .collect();
        if data.rest_lines > 0 {
            lines.push(wire::SeriesLine {
                labels: HashMap::new(),
                total_weight: sum(&data.rest),
                weights: data.rest,
                rest: true,
            });
        }
        let mut quality = answer::quality(quality, None, &self.0.hosts);
        // A step has the weight of complete hosts, whatever is selected of them.
        quality.weights_capped |= data.steps.iter().any(|step| step.weight == u64::MAX);
        Ok(Response::new(wire::SeriesResponse {
            start_unix_ns: data.start_unix_ns,
            step_ns: data.step_ns,
            lines,
            quality: Some(quality),
            rest_lines: data.rest_lines,
            steps: data.steps.into_iter().map(answer::step).collect(),
            accounted,
        }))
    }

    async fn profile(
        &self,
        request: Request<wire::ProfileRequest>,
    ) -> Result<Response<Parts>, Status> {
        let caller = Caller::of(request.extensions())?;
        let asked = request.into_inner();
        let (of, selected) = self.select(asked.selection)?;
        let query = selected.query(&asked.group_by)?;
        let mut place = self.response_slot()?;
        let made = Queries::profile(
            &of,
            &caller,
            &selected,
            query,
            asked.max_nodes,
            move |found, _| {
                let QueryResult { data, quality } = found;
                let coverage = covered(&data);
                place.hold(profile_bytes(&data))?;
                Ok((quality, coverage, Chunks::new(data), place))
            },
        );
        let (quality, coverage, chunks, place) = made.await?;
        let quality = answer::quality(quality, coverage, &self.0.hosts);
        let (tx, parts) = mpsc::channel(PARTS_QUEUED);
        let queries = self.clone();
        tokio::spawn(async move {
            let sending = send(quality, chunks, tx);
            if !matches!(
                tokio::time::timeout(ANSWER_TIMEOUT, sending).await,
                Ok(true)
            ) {
                queries.count_stalled();
            }
            drop(place);
        });
        Ok(Response::new(ReceiverStream::new(parts)))
    }

    async fn top(
        &self,
        request: Request<wire::TopRequest>,
    ) -> Result<Response<wire::TopResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let asked = request.into_inner();
        let (of, selected) = self.select(asked.selection)?;
        let limit = limit(asked.limit, TOP_LIMIT, ROWS_MAX);
        let sort = match asked.sort_by_total {
            true => TopSort::Total,
            false => TopSort::Own,
        };
        let by = match asked.by.as_str() {
            "" | "function" => TopBy::Function,
            "module" => TopBy::Module,
            _ => TopBy::Label(asked.by),
        };
        let (rows, left_out, quality, coverage) = match by {
            TopBy::Label(label) => of.top_labels(&caller, selected, label, limit).await?,
            TopBy::Function => {
                let by = CostBy::Function;
                of.top_functions(&caller, selected, (by, sort), limit)
                    .await?
            }
            TopBy::Module => {
                let by = CostBy::Module;
                of.top_functions(&caller, selected, (by, sort), limit)
                    .await?
            }
        };
        let bytes = |row: &wire::TopRow| row.name.len() + row.module.len() + 64;
        let (rows, too_long) = answer::fitting(rows, bytes);
        Ok(Response::new(wire::TopResponse {
            rows,
            rows_left_out: (left_out + too_long) as u64,
            quality: Some(answer::quality(quality, coverage, &self.0.hosts)),
        }))
    }

    async fn diff(
        &self,
        request: Request<wire::DiffRequest>,
    ) -> Result<Response<wire::DiffResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let asked = request.into_inner();
        let types = [&asked.before, &asked.after]
            .map(|side| side.as_ref().map_or("", |side| side.profile_type.as_str()));
        if types[0] != types[1] {
            return Err(invalid(
                "failed to compare: the sides are of different profile types, whose values have \
                 nothing in common",
            ));
        }
        let (of, before) = self.select(asked.before)?;
        let (_, after) = self.select(asked.after)?;
        let sides = [before, after];
        let queries = [sides[0].query(&[])?, sides[1].query(&[])?];
        let limit = limit(asked.limit, DIFF_LIMIT, ROWS_MAX);
        let by = match asked.by.as_str() {
            "" | "function" => CostBy::Function,
            "module" => CostBy::Module,
            _ => {
                return Err(request::invalid(
                    "failed to compare: rows are `function` or `module`; for the values of a label \
                     call Overview",
                ));
            }
        };
        let (now, nodes) = (self.0.clock.now_unix_ns(), self.0.options.nodes);
        let lines = self.0.options.lines;
        let compared = of
            .run(&caller, Ask::Diff, nodes, lines, move |store, limits| {
                let range = |side: &Selected| resolved(store, side.range(), now);
                let ranges = [range(&sides[0])?, range(&sides[1])?];
                let Compared {
                    diff,
                    verdicts,
                    before,
                    after,
                    hosts_differ,
                } = compare(store, ranges, &queries, by, limits)?;
                let left_out = diff.functions.len().saturating_sub(limit);
                let functions = diff.functions.iter().zip(&verdicts).take(limit);
                let rows = functions.map(|(row, verdict)| answer::diff_row(&diff, row, verdict));
                let rows: Vec<_> = rows.collect();
                Ok((rows, left_out, (diff.totals, hosts_differ), before, after))
            })
            .await?;
        let (rows, left_out, (totals, hosts_differ), before, after) = compared;
        let bytes = |row: &wire::DiffRow| row.name.len() + row.module.len() + 80;
        let (rows, too_long) = answer::fitting(rows, bytes);
        let quality = |quality| Some(answer::quality(quality, None, &self.0.hosts));
        Ok(Response::new(wire::DiffResponse {
            rows,
            rows_left_out: (left_out + too_long) as u64,
            before_sampled: Some(answer::sampled(totals.before, before.1)),
            after_sampled: Some(answer::sampled(totals.after, after.1)),
            before: quality(before.0),
            after: quality(after.0),
            hosts_differ,
        }))
    }

    async fn profile_types(
        &self,
        request: Request<wire::ProfileTypesRequest>,
    ) -> Result<Response<wire::ProfileTypesResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let range = request.into_inner().range;
        check(range)?;
        let ids = Queries::profile_types(self, &caller, range).await?;
        Ok(Response::new(wire::ProfileTypesResponse { ids }))
    }

    async fn overview(
        &self,
        request: Request<wire::OverviewRequest>,
    ) -> Result<Response<wire::OverviewResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let answer = Queries::overview(self, &caller, request.into_inner());
        answer.await.map(Response::new)
    }

    async fn hosts(
        &self,
        request: Request<wire::HostsRequest>,
    ) -> Result<Response<wire::HostsResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let asked = request.into_inner().range;
        check(asked)?;
        let now = self.0.clock.now_unix_ns();
        let lines = self.0.options.lines;
        let known = self.0.hosts.clone();
        let (mut found, mut units, range) = self
            .run(&caller, Ask::Hosts, 0, lines, move |store, limits| {
                let range = resolved(store, asked, now)?;
                let found = store.hosts(range, limits)?;
                let units = units::of_hosts(store, range, &found, &known, limits)?;
                Ok((found, units, range))
            })
            .await?;
        let mut quality = answer::covered(range);
        quality.weights_capped = units.fit(&mut found);
        quality.unit = units.common();
        let (mut sampling, mut coverage) = (Quality::default(), Coverage::default());
        for (record, did) in &found {
            quality.hosts += u64::from(did.windows > 0);
            quality.hosts_alive += u64::from(did.windows > 0 || did.gap_ns > 0);
            quality.windows += did.windows;
            quality.gap_ns_total = quality.gap_ns_total.saturating_add(did.gap_ns);
            let total = did.total();
            quality.total_count = quality.total_count.saturating_add(total.count);
            quality.total_weight = quality.total_weight.saturating_add(total.weight);
            sampling += did.sampling;
            if let Some(of_host) = units.coverage(&record.key, did) {
                coverage += of_host;
            }
        }
        quality.sampling = Some(sampling.into());
        quality.coverage = Some(coverage.into());
        let namesakes = namesakes(&found);
        let left_out = found.len().saturating_sub(HOSTS_MAX);
        if left_out > 0 {
            found.sort_by_key(|(record, _)| std::cmp::Reverse(record.last_seen_unix_ns));
            found.truncate(HOSTS_MAX);
            found.sort_by(|(a, _), (b, _)| a.key.cmp(&b.key));
        }
        let newest = newest_boots(&found);
        let mut text_left = HEALTH_BYTES_MAX;
        let hosts = found.into_iter().map(|(record, did)| {
            let same = namesakes.get(&record.facts.hostname).copied();
            let unit = units.of(&record.key);
            let covered = units.coverage(&record.key, &did);
            let superseded = newest.get(&record.key.host_id) != Some(&record.key.boot_id);
            let hosts = &self.0.hosts;
            let verdict = hosts.verdict(&record, same.unwrap_or(1), superseded);
            let name = record.facts.name(&record.key.host_id);
            let verdict = match caller.sees_host(name, &record.facts.labels) {
                true => verdict.within(&mut text_left),
                false => verdict.without_texts(),
            };
            answer::host(record, &did, (unit, covered), hosts, verdict)
        });
        Ok(Response::new(wire::HostsResponse {
            hosts: hosts.collect(),
            quality: Some(quality),
            hosts_left_out: left_out as u64,
        }))
    }

    async fn cgroups(
        &self,
        request: Request<wire::CgroupsRequest>,
    ) -> Result<Response<wire::CgroupsResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let selected = Selected::new(request.into_inner().selection)?;
        // The kernel accounts for cgroups, not for the frames in them.
        let filtered = !selected.filters.is_empty();
        let accountable = !filtered && cgroups::is_accountable(&selected.selector);
        let of_cgroup = key::OF_CGROUP.map(str::to_owned);
        let query = selected.query(&of_cgroup)?;
        let (now, lines) = (self.0.clock.now_unix_ns(), self.0.options.lines);
        let nodes = self.0.options.nodes;
        let (list, left_out, quality, coverage) = self
            .run(&caller, Ask::Cgroups, nodes, lines, move |store, limits| {
                let scope = scope(store, &selected, now)?;
                let QueryResult { data, quality } = match filtered {
                    true => {
                        let QueryResult { data, quality } =
                            store.profile(scope.range, &query, limits)?;
                        let data = cgroups::totals(&data);
                        QueryResult { data, quality }
                    }
                    false => store.totals(&scope, &of_cgroup, limits)?,
                };
                let ledger = cgroups::ledger(&data, accountable);
                let (windows, unmeasured) = (quality.windows, quality.windows_unmeasured);
                let coverage = cgroups::coverage(&ledger, windows, unmeasured);
                let (list, left_out) = proto::cgroups(ledger.rows, CGROUPS_MAX);
                Ok((list, left_out, quality, coverage))
            })
            .await?;
        let bytes = |row: &agent::Cgroup| {
            let texts = [
                &row.path,
                &row.slice,
                &row.unit,
                &row.container,
                &row.pod_uid,
                &row.container_name,
                &row.image,
                &row.pod,
                &row.namespace,
            ];
            texts.iter().map(|text| text.len()).sum::<usize>() + 80
        };
        let (list, too_long) = answer::fitting(list, bytes);
        Ok(Response::new(wire::CgroupsResponse {
            cgroups: list,
            rows_left_out: (left_out + too_long) as u64,
            quality: Some(answer::quality(quality, Some(coverage), &self.0.hosts)),
        }))
    }

    async fn status(
        &self,
        request: Request<wire::StatusRequest>,
    ) -> Result<Response<wire::StatusResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        Queries::status(self, &caller).await.map(Response::new)
    }
}

type Table = (Vec<wire::TopRow>, usize, DataQuality, Option<Coverage>);

impl Queries {
    async fn top_functions(
        &self,
        caller: &Caller,
        selected: Selected,
        (by, sort): (CostBy, TopSort),
        limit: usize,
    ) -> Result<Table, Status> {
        let query = selected.query(&[])?;
        let (now, nodes) = (self.0.clock.now_unix_ns(), self.0.options.nodes);
        self.run(
            caller,
            Ask::Top,
            nodes,
            self.0.options.lines,
            move |store, limits| {
                let range = resolved(store, selected.range(), now)?;
                let QueryResult { data, quality } = store.costs(range, &query, by, limits)?;
                let top = data.into_top(sort, limit);
                let rows = top.rows.into_iter().map(answer::top_row).collect();
                Ok((rows, top.omitted, quality, None))
            },
        )
        .await
    }

    /// A table of a label's values: from totals, unless frames are filtered.
    async fn top_labels(
        &self,
        caller: &Caller,
        selected: Selected,
        label: String,
        limit: usize,
    ) -> Result<Table, Status> {
        let group_by = [label.clone()];
        let query = selected.query(&group_by)?;
        let (now, nodes) = (self.0.clock.now_unix_ns(), self.0.options.nodes);
        self.run(
            caller,
            Ask::Top,
            nodes,
            self.0.options.lines,
            move |store, limits| {
                let scope = scope(store, &selected, now)?;
                if !selected.filters.is_empty() {
                    let QueryResult { data, quality } =
                        store.profile(scope.range, &query, limits)?;
                    let top = data.top(&TopBy::Label(label), TopSort::Own, limit);
                    let rows = top.rows.into_iter();
                    let rows = rows
                        .map(|row| answer::label_row(row.name, row.own))
                        .collect();
                    return Ok((rows, top.omitted, quality, None));
                }
                let found = totals_by(store, &scope, &label, &group_by, limits)?;
                let (mut rows, quality) = found;
                rows.sort_by(|(left, a), (right, b)| {
                    (b.weight, b.count)
                        .cmp(&(a.weight, a.count))
                        .then_with(|| left.cmp(right))
                });
                let left_out = rows.len().saturating_sub(limit);
                rows.truncate(limit);
                let rows = rows.into_iter();
                let rows = rows
                    .map(|(name, value)| answer::label_row(name, value))
                    .collect();
                Ok((rows, left_out, quality, None))
            },
        )
        .await
    }
}

/// Taken and lost amounts by the values of a label; samples without it are under the empty text.
fn totals_by(
    store: &dyn StoreQueries,
    scope: &Scope,
    label: &str,
    group_by: &[String],
    limits: &Limits,
) -> Result<(Vec<(String, Value)>, DataQuality), Failed> {
    let QueryResult { data, quality } = store.totals(scope, group_by, limits)?;
    let mut sums: BTreeMap<String, Value> = BTreeMap::new();
    for LabelTotals {
        labels,
        taken,
        lost,
        ..
    } in data
    {
        let sum = sums.entry(labels.get(label).to_owned()).or_default();
        *sum += taken;
        *sum += lost;
    }
    // Label sets that only have accounts.
    sums.retain(|_, value| *value != Value::default());
    Ok((sums.into_iter().collect(), quality))
}

/// Sends an answer part by part; false when the client does not read it.
async fn send(
    quality: wire::DataQuality,
    chunks: Chunks<Profile>,
    tx: mpsc::Sender<Result<wire::ProfileResponse, Status>>,
) -> bool {
    let first = wire::ProfileResponse {
        quality: Some(quality),
        chunk: None,
    };
    let others = chunks.map(|chunk| wire::ProfileResponse {
        quality: None,
        chunk: Some(chunk),
    });
    for part in std::iter::once(first).chain(others) {
        match tx.send_timeout(Ok(part), STALL_TIMEOUT).await {
            Ok(()) => {}
            // It went away, which is its own affair.
            Err(mpsc::error::SendTimeoutError::Closed(_)) => return true,
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => return false,
        }
    }
    true
}

fn scope(store: &dyn StoreQueries, selected: &Selected, now: i64) -> Result<Scope, Failed> {
    let range = request::resolve(selected.range(), now, || store.kept())?;
    Ok(Scope {
        range,
        selector: selected.selector.clone(),
    })
}

/// A series with lines from the kernel's accounts; the data behind its steps comes from samples.
fn accounted_series(
    store: &dyn StoreQueries,
    scope: &Scope,
    group_by: &[String],
    step_ns: u64,
    limits: &Limits,
) -> Result<QueryResult<TimeSeries>, StoreError> {
    let mut found = store.series(scope, &[], step_ns, limits)?;
    let lines_alone = Limits {
        waiting: false,
        ..limits.clone()
    };
    let accounts = store.accounted(scope, group_by, found.data.step_ns, &lines_alone)?;
    found.quality.total.weight = accounts.quality.total.weight;
    found.quality.unit = accounts.quality.unit;
    let AccountedSeries {
        lines,
        rest,
        rest_lines,
        ..
    } = accounts.data;
    (found.data.lines, found.data.rest) = (lines, rest);
    found.data.rest_lines = rest_lines;
    Ok(found)
}

/// The coverage the store found for a profile, if it did.
fn covered(profile: &Profile) -> Option<Coverage> {
    Some(profile.info.coverage).filter(|coverage| *coverage != Coverage::default())
}

/// Labels to group by: no name twice, none empty.
fn labels(asked: Vec<String>) -> Result<Vec<String>, Status> {
    proto::query::check_count("labels to group by", asked.len()).map_err(invalid)?;
    let mut labels: Vec<String> = Vec::new();
    for label in asked {
        if label.is_empty() || label == "*" {
            return Err(invalid(format!(
                "failed to group by `{label}`: name a label"
            )));
        }
        if !labels.contains(&label) {
            labels.push(label);
        }
    }
    Ok(labels)
}

fn sum(weights: &[u64]) -> u64 {
    weights
        .iter()
        .fold(0, |sum, &weight| sum.saturating_add(weight))
}

fn owned<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> HashMap<String, String> {
    pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

/// How many host ids have each name.
fn namesakes(hosts: &[(HostRecord, HostRange)]) -> HashMap<String, usize> {
    let mut ids: HashMap<&str, Vec<&str>> = HashMap::new();
    for (record, _) in hosts {
        let ids = ids.entry(&record.facts.hostname).or_default();
        // The boots of one host stand together.
        if ids.last() != Some(&record.key.host_id.as_str()) {
            ids.push(&record.key.host_id);
        }
    }
    let named = ids.into_iter().filter(|(name, _)| !name.is_empty());
    named
        .map(|(name, ids)| (name.to_owned(), ids.len()))
        .collect()
}

/// The boot of each host that was heard of last.
fn newest_boots(hosts: &[(HostRecord, HostRange)]) -> HashMap<String, [u8; 16]> {
    let mut newest: HashMap<String, &HostRecord> = HashMap::new();
    for (record, _) in hosts {
        let of_host = newest.entry(record.key.host_id.clone()).or_insert(record);
        if record.last_seen_unix_ns >= of_host.last_seen_unix_ns {
            *of_host = record;
        }
    }
    let boots = newest.into_iter();
    boots
        .map(|(host_id, record)| (host_id, record.key.boot_id))
        .collect()
}
