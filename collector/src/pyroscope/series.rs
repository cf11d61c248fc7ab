//! Values over time: `SelectSeries`, and `SelectHeatmap` with how they are spread over hosts.
//!
//! A client's grid has points at `start`, `start + step`, … and each is the sum of the step that
//! ends there. The store's steps are complete windows at multiples of their length. They are read
//! at most half as long as those of the grid, where there is room for so many points, and one that
//! lies in two steps of the grid is divided by time: nothing is lost, and nothing counts twice.
//! Points at which no host sent data are left out; 0 is 0.

use super::Pyroscope;
use super::labels::{Asking, MS, label, range};
use super::profiles::filters;
use super::selection::{Part, SERVICE_NAME, Selection};
use super::types::{ProfileType, is_of_type};
use super::wire::querier::v1 as wire;
use super::wire::types::v1 as messages;
use crate::access::Caller;
use crate::query::{
    Ask, Failed, POINTS_MAX, STEPS_S, WINDOW_NS, filtered_series, filtered_step, invalid, step,
    whole_steps,
};
use crate::store::{QueryResult, Scope, TimeRange, TimeSeries};
use profile::{FrameFilter, GroupBy, Query, key, unit};
use std::collections::{BTreeMap, HashMap};
use tonic::Status;

/// Most series of an answer.
const LINES_MAX: usize = 1000;

/// Most hosts whose values a heat map counts, those with most. More would leave no room for the
/// steps of an hour.
const HOSTS_MAX: usize = 500;

/// Buckets of a heat map's values. Grafana draws a row for each.
const BUCKETS: usize = 20;

/// The points of an answer in time. Unit: nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    start: i64,
    step: i64,
    points: usize,
}

impl Grid {
    /// The grid of a request: its step is in seconds.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when it has no step; RESOURCE_EXHAUSTED when it has too many.
    pub fn new(range: TimeRange, step_s: f64) -> Result<Grid, Status> {
        let step_ms = (step_s * 1000.0).round();
        if !(1.0..1e15).contains(&step_ms) {
            return Err(invalid(
                "failed to use `step`: expected seconds, at least 0.001",
            ));
        }
        let step = (step_ms as i64).saturating_mul(MS);
        let length = range.end_unix_ns.saturating_sub(range.start_unix_ns).max(0);
        let points = (length / step) as u64 + 1;
        if points > POINTS_MAX {
            return Err(Status::resource_exhausted(format!(
                "failed to make a series of {points} points, more than {POINTS_MAX}: use a longer \
                 step or a shorter range"
            )));
        }
        Ok(Grid {
            start: range.start_unix_ns,
            step,
            points: points as usize,
        })
    }

    /// What its points are made of.
    fn covers(self) -> TimeRange {
        let length = self.step.saturating_mul(self.points as i64 - 1);
        TimeRange {
            start_unix_ns: self.start.saturating_sub(self.step).max(0),
            end_unix_ns: self.start.saturating_add(length),
        }
    }

    fn ms(self, at: usize) -> i64 {
        self.start
            .saturating_add(self.step.saturating_mul(at as i64))
            / MS
    }

    /// Calls `each` with the points that have a part of `from..from + length`, and with the part.
    fn parts(self, from: i64, length: i64, mut each: impl FnMut(usize, f64)) {
        let (from, length) = (i128::from(from), i128::from(length.max(1)));
        let (start, step) = (i128::from(self.start - self.step), i128::from(self.step));
        let first = ((from - start).div_euclid(step)).max(0);
        let last = (from + length - 1 - start).div_euclid(step);
        for at in first..=last.min(self.points as i128 - 1) {
            let begins = from.max(start + at * step);
            let ends = (from + length).min(start + (at + 1) * step);
            each(at as usize, (ends - begins) as f64 / length as f64);
        }
    }
}

/// Sums on a grid, by labels.
struct Sums {
    grid: Grid,
    lines: BTreeMap<Vec<(String, String)>, Vec<f64>>,
    /// Points with data.
    is_known: Vec<bool>,
}

impl Sums {
    fn new(grid: Grid) -> Sums {
        Sums {
            grid,
            lines: BTreeMap::new(),
            is_known: vec![false; grid.points],
        }
    }

    /// Adds a series of the store, whose lines have these labels, times `by`.
    fn add(
        &mut self,
        series: &TimeSeries,
        by: f64,
        labels: impl Fn(&crate::store::LabelSet) -> Vec<(String, String)>,
    ) {
        let grid = self.grid;
        let length = i64::try_from(series.step_ns).unwrap_or(i64::MAX);
        let start = |at: usize| {
            let from = length.saturating_mul(at as i64);
            series.start_unix_ns.saturating_add(from)
        };
        for (at, step) in series.steps.iter().enumerate() {
            if step.hosts > 0 {
                grid.parts(start(at), length, |point, _| self.is_known[point] = true);
            }
        }
        for line in &series.lines {
            let sums = self.lines.entry(labels(&line.labels));
            let sums = sums.or_insert_with(|| vec![0.0; grid.points]);
            for (at, &weight) in line.weights.iter().enumerate() {
                if weight > 0 {
                    grid.parts(start(at), length, |point, part| {
                        sums[point] += weight as f64 * by * part;
                    });
                }
            }
        }
    }

    /// The series, those with most if there are more than `limit`.
    fn series(self, limit: usize, mean_of: Option<f64>) -> Vec<messages::Series> {
        let Sums {
            grid,
            lines,
            is_known,
        } = self;
        let mut lines: Vec<_> = lines.into_iter().collect();
        if lines.len() > limit {
            let total = |line: &(Vec<_>, Vec<f64>)| line.1.iter().sum::<f64>();
            lines.sort_by(|left, right| total(right).total_cmp(&total(left)));
            lines.truncate(limit);
            lines.sort_by(|left, right| left.0.cmp(&right.0));
        }
        let series = lines.into_iter().map(|(labels, sums)| {
            let points = sums.into_iter().enumerate().filter(|(at, _)| is_known[*at]);
            let points = points.map(|(at, sum)| messages::Point {
                value: mean_of.map_or(sum, |parts| sum / parts),
                timestamp: grid.ms(at),
            });
            messages::Series {
                labels: labels.into_iter().map(label).collect(),
                points: points.collect(),
            }
        });
        series.collect()
    }
}

/// How the series of a selection are asked for.
pub(super) struct Asked {
    /// Its type.
    pub of: ProfileType,
    /// Its samples.
    pub selection: Selection,
    /// Labels to keep apart.
    pub group_by: Vec<String>,
    /// Which samples, by function.
    pub filters: Vec<FrameFilter>,
}

impl Asking<'_> {
    /// A series of the store in steps for the grid; each as long as is right, at least 10 s.
    fn fine(
        &self,
        part: &Part,
        grid: Grid,
        (filters, group_by): (&[FrameFilter], &[String]),
        lines: usize,
    ) -> Result<QueryResult<TimeSeries>, Failed> {
        let range = grid.covers();
        let mut scope = Scope {
            range,
            selector: part.selector.clone(),
        };
        let limits = crate::store::Limits {
            lines,
            reports: false,
            ..self.limits.clone()
        };
        if !filters.is_empty() {
            // Each step reads stacks, so there are few.
            let step = match filtered_step(range, grid.step.unsigned_abs()) {
                Ok(step) => step,
                Err(_) => filtered_step(range, 0)?,
            };
            scope.range = whole_steps(range, step);
            let group_by = GroupBy::from_keys(group_by);
            let query = Query::new(scope.selector.clone(), filters.to_vec(), group_by);
            let query = query.map_err(invalid)?;
            return Ok(filtered_series(self.store, &scope, &query, step, &limits)?);
        }
        let step = fine_step(range, grid.step.unsigned_abs(), lines)?;
        scope.range = whole_steps(range, step);
        Ok(self.store.series(&scope, group_by, step, &limits)?)
    }

    /// The sums of a selection on a grid.
    fn sums(&self, asked: &Asked, grid: Grid, limit: Option<usize>) -> Result<Sums, Failed> {
        let mut sums = Sums::new(grid);
        if !asked.selection.takes(&asked.of) {
            return Ok(sums);
        }
        let by_service = asked.group_by.iter().any(|name| name == SERVICE_NAME);
        let is_own = |name: &&String| *name != SERVICE_NAME && !is_of_type(name);
        let own: Vec<String> = asked.group_by.iter().filter(is_own).cloned().collect();
        let of_type = asked.group_by.iter();
        let of_type = of_type.filter_map(|name| Some((name.clone(), asked.of.label(name)?)));
        let of_type: Vec<(String, String)> = of_type.collect();
        for part in asked.selection.parts(self.service_labels, by_service)? {
            let mut group_by = own.clone();
            if by_service {
                group_by.extend(part.service.label().cloned());
            }
            let most = match (group_by.is_empty(), limit) {
                (true, _) => 1,
                (false, Some(limit)) => limit,
                (false, None) => LINES_MAX,
            };
            let by = (asked.filters.as_slice(), group_by.as_slice());
            let QueryResult { data, quality } = self.fine(&part, grid, by, most)?;
            if limit.is_none() && data.rest_lines > 0 {
                return Err(Failed::Status(Status::resource_exhausted(format!(
                    "there are more than {LINES_MAX} series: group by fewer labels, or set a limit"
                ))));
            }
            if !self.weighs(&asked.of, &quality.unit) {
                continue;
            }
            let (_, times) = unit::base(&quality.unit);
            sums.add(&data, times as f64, |labels| {
                let pairs = own
                    .iter()
                    .map(|name| (name.clone(), labels.get(name).to_owned()));
                let mut pairs: Vec<_> = pairs.filter(|(_, value)| !value.is_empty()).collect();
                if by_service {
                    let service = part.service.name(|label| labels.get(label));
                    pairs.push((SERVICE_NAME.to_owned(), service.to_owned()));
                }
                pairs.extend(of_type.iter().cloned());
                pairs.sort();
                pairs
            });
        }
        Ok(sums)
    }

    /// Everything of a selection in steps, for a time line: the start of the first step, their
    /// length, and the sum of each. Unit: seconds.
    pub fn timeline(
        &self,
        asked: &Asked,
        range: TimeRange,
        steps: i64,
    ) -> Result<(i64, i64, Vec<u64>), Failed> {
        const SECOND: i64 = 1000 * MS;
        let length = range
            .end_unix_ns
            .saturating_sub(range.start_unix_ns)
            .max(SECOND);
        let window = (WINDOW_NS as i64) / SECOND;
        let step_s = (length / SECOND / steps / window + 1) * window;
        // A point has the step that ends there.
        let grid = TimeRange {
            start_unix_ns: range.start_unix_ns.saturating_add(step_s * SECOND),
            ..range
        };
        let grid = Grid::new(grid, step_s as f64)?;
        let sums = self.sums(asked, grid, None)?;
        let line = sums.lines.into_values().next();
        let samples = line.unwrap_or_else(|| vec![0.0; grid.points]);
        let samples = samples.into_iter().map(|sum| sum as u64).collect();
        Ok((range.start_unix_ns / SECOND, step_s, samples))
    }
}

/// The step at which the store is read for a grid of longer steps.
fn fine_step(range: TimeRange, grid_ns: u64, lines: usize) -> Result<u64, Status> {
    let steps = STEPS_S.iter().map(|seconds| seconds * 1_000_000_000);
    let half = (grid_ns / 2).max(WINDOW_NS);
    let finest = steps.clone().rfind(|step| *step <= half);
    let whole = grid_ns / WINDOW_NS * WINDOW_NS;
    let mut longer = steps
        .chain([whole])
        .filter(|step| *step > half && *step <= grid_ns);
    let mut asked = finest.unwrap_or(WINDOW_NS);
    loop {
        match (step(range, asked, lines), longer.next()) {
            (Err(_), Some(next)) => asked = next,
            (found, _) => return found,
        }
    }
}

fn limit(asked: Option<i64>) -> Result<Option<usize>, Status> {
    match asked {
        None | Some(0) => Ok(None),
        Some(asked) => match usize::try_from(asked) {
            Ok(asked) => Ok(Some(asked.min(LINES_MAX))),
            Err(_) => Err(invalid("failed to use `limit`: it is less than 0")),
        },
    }
}

impl Pyroscope {
    pub(super) async fn select_series(
        &self,
        caller: &Caller,
        asked: wire::SelectSeriesRequest,
    ) -> Result<wire::SelectSeriesResponse, Status> {
        let (range, limit) = (range(asked.start, asked.end)?, limit(asked.limit)?);
        let selector = asked.stack_trace_selector.as_ref();
        if selector.is_some_and(|selector| !selector.call_site.is_empty()) {
            return Err(Status::unimplemented(
                "this collector makes no series of a call site: select functions with a frame \
                 filter",
            ));
        }
        let is_mean = asked.aggregation() == messages::TimeSeriesAggregationType::Average;
        proto::query::check_count("labels to group by", asked.group_by.len()).map_err(invalid)?;
        let series = Asked {
            of: ProfileType::parse(&asked.profile_type_id)?,
            selection: Selection::parse(&asked.label_selector)?,
            group_by: asked.group_by.clone(),
            filters: filters(selector)?,
        };
        let nodes = match series.filters.is_empty() {
            true => 0,
            false => self.queries.nodes(),
        };
        let how = (Ask::Series, nodes, LINES_MAX);
        let of = self.of_type(&series.of)?;
        let series = of.ask(caller, how, move |asking| {
            let grid = Grid::new(asking.range(range)?, asked.step)?;
            let sums = asking.sums(&series, grid, limit)?;
            // A window is what elsewhere is a profile.
            let windows = (grid.step as f64 / WINDOW_NS as f64).max(1.0);
            Ok(sums.series(limit.unwrap_or(usize::MAX), is_mean.then_some(windows)))
        });
        Ok(wire::SelectSeriesResponse {
            series: series.await?,
        })
    }

    /// How many hosts have which value in each step.
    pub(super) async fn heatmap(
        &self,
        caller: &Caller,
        asked: wire::SelectHeatmapRequest,
    ) -> Result<wire::SelectHeatmapResponse, Status> {
        let range = range(asked.start, asked.end)?;
        let is_of_spans = asked.query_type() == wire::HeatmapQueryType::Span;
        let others = asked.group_by.iter().any(|name| !is_of_type(name));
        if others {
            return Err(Status::unimplemented(
                "this collector makes one heat map of a selection: leave out `groupBy`",
            ));
        }
        let of = ProfileType::parse(&asked.profile_type_id)?;
        let selection = Selection::parse(&asked.label_selector)?;
        let how = (Ask::Series, 0, HOSTS_MAX);
        let asking_of = self.of_type(&of)?;
        let series = asking_of.ask(caller, how, move |asking| {
            let grid = Grid::new(asking.range(range)?, asked.step)?;
            let mut series = Vec::new();
            if is_of_spans {
                return Ok(series);
            }
            let asked = Asked {
                of,
                selection,
                group_by: vec![key::HOST.to_owned()],
                filters: Vec::new(),
            };
            let sums = asking.sums(&asked, grid, Some(HOSTS_MAX))?;
            let slots = slots(&sums);
            if !slots.is_empty() {
                series.push(wire::HeatmapSeries {
                    labels: Vec::new(),
                    slots,
                });
            }
            Ok(series)
        });
        Ok(wire::SelectHeatmapResponse {
            series: series.await?,
        })
    }
}

/// The values of each step in buckets of one width. Lines without any value in a step are not in
/// it.
fn slots(sums: &Sums) -> Vec<wire::HeatmapSlot> {
    let values = sums.lines.values().flatten();
    let most = values.fold(0.0f64, |most, &value| most.max(value));
    if most <= 0.0 {
        return Vec::new();
    }
    let width = most / BUCKETS as f64;
    let slots = (0..sums.grid.points).filter_map(|at| {
        let mut counts: HashMap<usize, i32> = HashMap::new();
        for line in sums.lines.values().filter(|line| line[at] > 0.0) {
            let bucket = ((line[at] / width) as usize).min(BUCKETS - 1);
            *counts.entry(bucket).or_default() += 1;
        }
        let mut counts: Vec<(usize, i32)> = counts.into_iter().collect();
        counts.sort_unstable();
        (!counts.is_empty()).then(|| wire::HeatmapSlot {
            timestamp: sums.grid.ms(at),
            y_min: counts
                .iter()
                .map(|(bucket, _)| *bucket as f64 * width)
                .collect(),
            counts: counts.into_iter().map(|(_, count)| count).collect(),
        })
    });
    slots.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{LabelSet, Series, Step};

    const SECOND: i64 = 1000 * MS;

    fn grid(start_s: i64, end_s: i64, step_s: f64) -> Grid {
        let range = TimeRange {
            start_unix_ns: start_s * SECOND,
            end_unix_ns: end_s * SECOND,
        };
        Grid::new(range, step_s).expect("a grid")
    }

    /// Windows of 10 s from `start_s` on, each of this weight; none where there was no host.
    fn series(start_s: i64, weights: &[Option<u64>]) -> TimeSeries {
        TimeSeries {
            start_unix_ns: start_s * SECOND,
            step_ns: WINDOW_NS,
            lines: vec![Series {
                labels: LabelSet::new([("host".to_owned(), "a".to_owned())]),
                weights: weights.iter().map(|weight| weight.unwrap_or(0)).collect(),
            }],
            rest: Vec::new(),
            rest_lines: 0,
            steps: weights
                .iter()
                .map(|weight| Step {
                    hosts: u64::from(weight.is_some()),
                    ..Step::default()
                })
                .collect(),
        }
    }

    fn points(grid: Grid, series: &TimeSeries) -> Vec<(i64, f64)> {
        let mut sums = Sums::new(grid);
        sums.add(series, 1.0, |_| Vec::new());
        let found = sums.series(10, None);
        let points = found[0].points.iter();
        points
            .map(|point| (point.timestamp / 1000, point.value))
            .collect()
    }

    #[test]
    fn a_point_has_the_step_that_ends_there() {
        let found = points(
            grid(120, 160, 20.0),
            &series(100, &[Some(1), Some(2), Some(4), Some(8)]),
        );
        assert_eq!(found, [(120, 3.0), (140, 12.0)]);
    }

    #[test]
    fn a_window_in_two_steps_is_divided_by_time() {
        let found = points(
            grid(115, 145, 15.0),
            &series(100, &[Some(10), Some(20), Some(30)]),
        );
        assert_eq!(found, [(115, 20.0), (130, 40.0)]);
    }

    #[test]
    fn nothing_is_no_point_and_zero_is_one() {
        let found = points(
            grid(110, 140, 10.0),
            &series(100, &[Some(1), None, Some(0), Some(2)]),
        );
        assert_eq!(found, [(110, 1.0), (130, 0.0), (140, 2.0)]);
    }

    #[test]
    fn the_store_is_read_at_half_a_step_if_there_is_room() {
        let fine = |hours: i64, step_s: u64, lines| {
            let range = TimeRange {
                start_unix_ns: 0,
                end_unix_ns: hours * 3600 * SECOND,
            };
            let found = fine_step(range, step_s * SECOND as u64, lines);
            found.map(|step| step / SECOND as u64).ok()
        };
        assert_eq!(fine(1, 15, 10), Some(10));
        assert_eq!(fine(1, 60, 10), Some(30));
        assert_eq!(fine(24 * 7, 600, 10), Some(300));
        assert_eq!(
            fine(24, 60, 200),
            Some(60),
            "half of it would be too many points"
        );
        assert_eq!(fine(24 * 365, 15, 10), None);
        let year_s = 365 * 86_400;
        assert_eq!(
            fine(24 * 365 * 200, year_s, 1000),
            Some(year_s),
            "a step of no list"
        );
    }

    #[test]
    fn steps_that_are_none_or_too_many_are_refused() {
        let of = |end_s: i64, step_s| {
            let range = TimeRange {
                start_unix_ns: 0,
                end_unix_ns: end_s.saturating_mul(SECOND),
            };
            Grid::new(range, step_s)
                .map(|grid| grid.points)
                .map_err(|status| status.code())
        };
        for step in [0.0, -1.0, f64::NAN, f64::INFINITY, 0.0001] {
            assert_eq!(of(60, step), Err(tonic::Code::InvalidArgument), "{step}");
        }
        assert_eq!(of(60, 15.0), Ok(5));
        assert_eq!(of(i64::MAX, 0.001), Err(tonic::Code::ResourceExhausted));
    }

    #[test]
    fn of_more_series_than_asked_for_the_largest_stay() {
        let mut sums = Sums::new(grid(110, 110, 10.0));
        for (name, weight) in [("a", 1), ("b", 3), ("c", 2)] {
            let pairs = vec![("host".to_owned(), name.to_owned())];
            sums.add(&series(100, &[Some(weight)]), 1.0, |_| pairs.clone());
        }
        let found = sums.series(2, None);
        let names = found.iter().map(|series| series.labels[0].value.as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn a_heat_map_counts_lines_by_value() {
        let mut sums = Sums::new(grid(110, 120, 10.0));
        for (name, weights) in [("a", [20, 0]), ("b", [20, 1]), ("c", [10, 0])] {
            let pairs = vec![("host".to_owned(), name.to_owned())];
            sums.add(&series(100, &weights.map(Some)), 1.0, |_| pairs.clone());
        }
        let found = slots(&sums);
        let found: Vec<_> = found
            .into_iter()
            .map(|slot| (slot.timestamp, slot.y_min, slot.counts))
            .collect();
        assert_eq!(
            found,
            [
                (110_000, vec![10.0, 19.0], vec![1, 2]),
                (120_000, vec![1.0], vec![1]),
            ]
        );
    }
}
