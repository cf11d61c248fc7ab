//! Stacks: flame graphs, their comparison, and pprof.

use super::Pyroscope;
use super::held::Place;
use super::labels::{Asking, range};
use super::selection::Selection;
use super::types::ProfileType;
use super::wire::querier::v1 as wire;
use super::wire::types::v1::StackTraceSelector;
use crate::access::Caller;
use crate::query::{Ask, Failed, invalid, profile_bytes};
use crate::store::{Limits, QueryResult, Scope, StoreError, TimeRange};
use profile::formats::levels::{Levels, below, diff_levels, levels};
use profile::formats::pprof::messages::Profile as Pprof;
use profile::formats::pprof::{self, GoPgo};
use profile::formats::{Measure, Options};
use profile::{Diff, FrameFilter, FrameFilterOp, GroupBy, Profile, Query, unit};
use proto::agent;
use tonic::{Response, Status};

/// Bars of a flame graph unless asked otherwise.
const NODES_DEFAULT: i64 = 8192;

/// Memory of a number while an answer is written, as JSON at worst. Unit: bytes.
const NUMBER_BYTES: usize = 64;

/// A profile to make.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub of: ProfileType,
    pub selection: Selection,
    pub range: agent::TimeRange,
    pub filters: Vec<FrameFilter>,
    pub call_site: Vec<String>,
    /// What Go's compiler takes of it.
    pub go_pgo: Option<GoPgo>,
    /// It names profiles, traces or spans, of which none are stored.
    pub is_none: bool,
    /// Most bars.
    pub nodes: usize,
}

/// How stacks become names, and which number of a sample counts.
pub(super) fn options() -> Options {
    Options {
        measure: Measure::Weight,
        ..Options::default()
    }
}

/// The most bars that are asked for.
pub(super) fn nodes(asked: Option<i64>, most: usize) -> Result<usize, Status> {
    match asked.unwrap_or(0) {
        0 => Ok(most.min(NODES_DEFAULT as usize)),
        asked => usize::try_from(asked)
            .map(|asked| asked.min(most))
            .map_err(|_| invalid("failed to use `maxNodes`: it is less than 0")),
    }
}

/// The filters of frames of a selector.
pub(super) fn filters(of: Option<&StackTraceSelector>) -> Result<Vec<FrameFilter>, Status> {
    let Some(selector) = of else {
        return Ok(Vec::new());
    };
    let Some(asked) = &selector.frame_filter else {
        return Ok(Vec::new());
    };
    let one = |op, names: &[String], patterns: &[String]| {
        let names = names
            .iter()
            .map(|name| format!("^{}$", regex_escaped(name)));
        let all = names.chain(patterns.iter().map(|pattern| format!("(?:{pattern})")));
        let all: Vec<String> = all.collect();
        if all.is_empty() {
            return Ok(None);
        }
        let filter = FrameFilter::new(op, &all.join("|"));
        filter.map(Some).map_err(invalid)
    };
    let keep = one(
        FrameFilterOp::Keep,
        &asked.include_function_names,
        &asked.include_function_name_regexes,
    )?;
    let drop = one(
        FrameFilterOp::Drop,
        &asked.exclude_function_names,
        &asked.exclude_function_name_regexes,
    )?;
    Ok(keep.into_iter().chain(drop).collect())
}

/// Text as a pattern that matches it alone.
fn regex_escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for found in text.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(found) {
            out.push('\\');
        }
        out.push(found);
    }
    out
}

impl Asking<'_> {
    /// The samples of a profile, and the range that was asked for.
    pub fn merged(&self, wanted: &Wanted) -> Result<(Profile, TimeRange), Failed> {
        let range = self.range(wanted.range)?;
        let mut merged = Profile::default();
        if wanted.is_none || !wanted.selection.takes(&wanted.of) {
            return Ok((merged, range));
        }
        let parts = wanted.selection.parts(self.service_labels, false)?;
        let several = parts.len() > 1;
        for part in parts {
            let selector = part.selector;
            let scope = Scope { range, selector };
            // An index tells of most labels that they name no service here.
            if several && !self.has_any(&scope)? {
                continue;
            }
            let group_by = GroupBy::from_keys::<&str>(&[]);
            let query = Query::new(scope.selector, wanted.filters.clone(), group_by);
            let query = query.map_err(invalid)?;
            let QueryResult { data, quality } = self.store.profile(range, &query, self.limits)?;
            if !self.weighs(&wanted.of, &quality.unit) {
                continue;
            }
            let (_, times) = unit::base(&quality.unit);
            if quality.total.is_capped() || times > 1 {
                return Err(too_large().into());
            }
            match merged.samples.is_empty() {
                true => merged = data,
                false => merged.merge(&data).map_err(StoreError::from)?,
            }
        }
        if !wanted.call_site.is_empty() {
            merged = below(&merged, &wanted.call_site, &options());
        }
        if let Some(go_pgo) = wanted.go_pgo {
            self.check(profile_bytes(&merged))?;
            merged = go_pgo.of(&merged).ok_or_else(no_start_lines)?;
        }
        Ok((merged, range))
    }

    /// Both sides of a comparison, and their flame graph.
    pub fn compared(&self, sides: &[Wanted; 2]) -> Result<(Levels, [i64; 2]), Failed> {
        let (left, _) = self.merged(&sides[0])?;
        self.check(profile_bytes(&left))?;
        let (right, _) = self.merged(&sides[1])?;
        let diff = Diff::new(&left, &right, &GroupBy::from_keys::<&str>(&[]));
        let diff = diff.map_err(StoreError::from)?;
        drop((left, right));
        let nodes = sides[0].nodes.max(sides[1].nodes);
        diff_levels(&diff, &options(), nodes).ok_or_else(|| too_large().into())
    }

    /// The flame graph of a profile.
    pub fn flame(&self, profile: &Profile, nodes: usize) -> Result<Levels, Failed> {
        self.check(profile_bytes(profile))?;
        levels(profile, &options(), nodes).ok_or_else(|| too_large().into())
    }

    /// Ends what nobody waits for, before more is made of so many bytes.
    fn check(&self, bytes: usize) -> Result<(), Failed> {
        let Limits {
            cancel,
            deadline,
            memory_bytes,
            ..
        } = self.limits;
        if cancel.is_cancelled() || std::time::Instant::now() >= *deadline {
            return Err(StoreError::Cancelled.into());
        }
        // What is made of it is as large again.
        match bytes.saturating_mul(2) > *memory_bytes {
            true => Err(Failed::Status(Status::resource_exhausted(
                "the profile takes more than half of `query.memory_mib`: use a shorter range or \
                 fewer hosts",
            ))),
            false => Ok(()),
        }
    }
}

fn no_start_lines() -> Status {
    Status::failed_precondition(
        "no function here has a first line, without which Go's compiler takes no profile: record \
         one with `agent-ctl capture --lines`, or set `symbols.go_lines: true` on the agents, of \
         programs built with Go 1.20 or later",
    )
}

fn too_large() -> Status {
    Status::out_of_range("the total is beyond 2^63 - 1: use a shorter range or fewer hosts")
}

/// Memory of a flame graph until it is sent.
pub(super) fn levels_bytes(found: &Levels) -> usize {
    let names: usize = found.names.iter().map(String::len).sum();
    let numbers: usize = found.levels.iter().map(Vec::len).sum();
    names * 2 + numbers * NUMBER_BYTES
}

fn pprof_bytes(found: &Pprof) -> usize {
    let texts: usize = found.string_table.iter().map(String::len).sum();
    let samples = found.sample.iter();
    let numbers: usize = samples.map(|sample| sample.location_id.len() + 8).sum();
    texts * 2 + (numbers + (found.location.len() + found.function.len()) * 8) * NUMBER_BYTES
}

fn flame(found: Levels) -> wire::FlameGraph {
    wire::FlameGraph {
        names: found.names,
        levels: found.levels.into_iter().map(level).collect(),
        total: found.total,
        max_self: found.max_self,
    }
}

fn level(values: Vec<i64>) -> wire::Level {
    wire::Level { values }
}

impl Pyroscope {
    pub(super) fn wanted(
        &self,
        asked: wire::SelectMergeStacktracesRequest,
    ) -> Result<Wanted, Status> {
        let spans = !asked.span_selector.is_empty();
        let traces = !asked.trace_id_selector.is_empty();
        if spans && traces {
            return Err(invalid(
                "failed to use the request: it selects spans and traces; select one of them",
            ));
        }
        let selector = asked.stack_trace_selector;
        let filters = filters(selector.as_ref())?;
        let selector = selector.unwrap_or_default();
        let call_site = selector.call_site.into_iter();
        Ok(Wanted {
            of: ProfileType::parse(&asked.profile_type_id)?,
            selection: Selection::parse(&asked.label_selector)?,
            range: range(asked.start, asked.end)?,
            filters,
            call_site: call_site.map(|location| location.name).collect(),
            go_pgo: selector.go_pgo.map(|asked| GoPgo {
                keep_locations: asked.keep_locations as usize,
                aggregate_callees: asked.aggregate_callees,
            }),
            is_none: spans || traces || !asked.profile_id_selector.is_empty(),
            nodes: nodes(asked.max_nodes, self.queries.nodes())?,
        })
    }

    pub(super) async fn stacks(
        &self,
        caller: &Caller,
        asked: wire::SelectMergeStacktracesRequest,
    ) -> Result<Response<wire::SelectMergeStacktracesResponse>, Status> {
        let format = asked.format();
        if format == wire::ProfileFormat::Dot {
            return Err(Status::unimplemented(
                "this collector draws no graphs in DOT: ask for a flame graph or pprof",
            ));
        }
        let wanted = self.wanted(asked)?;
        let mut place = self.queries.response_slot()?;
        let how = (Ask::Profile, self.queries.nodes(), self.queries.lines());
        let of = self.of_type(&wanted.of)?;
        let made = of.ask(caller, how, move |asking| {
            let (profile, _) = asking.merged(&wanted)?;
            let mut answer = wire::SelectMergeStacktracesResponse::default();
            if format == wire::ProfileFormat::Pprof {
                let profile = pprof_of(&profile)?;
                place.hold(pprof_bytes(&profile))?;
                answer.pprof = Some(wire::PprofProfile {
                    profile: Some(profile),
                });
            } else {
                let found = asking.flame(&profile, wanted.nodes)?;
                place.hold(levels_bytes(&found))?;
                answer.flamegraph = Some(flame(found));
            }
            Ok((answer, place))
        });
        let (answer, place) = made.await?;
        Ok(Place::with(answer, place))
    }

    pub(super) async fn pprof(
        &self,
        caller: &Caller,
        asked: wire::SelectMergeProfileRequest,
    ) -> Result<Response<Pprof>, Status> {
        let most = self.queries.nodes();
        let nodes = match asked.max_nodes.unwrap_or(0) {
            0 => most,
            _ => nodes(asked.max_nodes, most)?,
        };
        let wanted = self.wanted(wire::SelectMergeStacktracesRequest {
            profile_type_id: asked.profile_type_id,
            label_selector: asked.label_selector,
            start: asked.start,
            end: asked.end,
            stack_trace_selector: asked.stack_trace_selector,
            profile_id_selector: asked.profile_id_selector,
            trace_id_selector: asked.trace_id_selector,
            ..wire::SelectMergeStacktracesRequest::default()
        })?;
        let mut place = self.queries.response_slot()?;
        let how = (Ask::Profile, nodes, self.queries.lines());
        let of = self.of_type(&wanted.of)?;
        let made = of.ask(caller, how, move |asking| {
            let (profile, _) = asking.merged(&wanted)?;
            let profile = pprof_of(&profile)?;
            place.hold(pprof_bytes(&profile))?;
            Ok((profile, place))
        });
        let (profile, place) = made.await?;
        Ok(Place::with(profile, place))
    }

    pub(super) async fn compare(
        &self,
        caller: &Caller,
        asked: wire::DiffRequest,
    ) -> Result<Response<wire::DiffResponse>, Status> {
        let (found, ticks, place) = self.diff_of(caller, asked).await?;
        let flamegraph = wire::FlameGraphDiff {
            names: found.names,
            levels: found.levels.into_iter().map(level).collect(),
            total: found.total,
            max_self: found.max_self,
            left_ticks: ticks[0],
            right_ticks: ticks[1],
        };
        let answer = wire::DiffResponse {
            flamegraph: Some(flamegraph),
        };
        Ok(Place::with(answer, place))
    }

    /// The flame graph of two selections. A side that is absent has no samples.
    pub(super) async fn diff_of(
        &self,
        caller: &Caller,
        asked: wire::DiffRequest,
    ) -> Result<(Levels, [i64; 2], crate::query::ResponseSlot), Status> {
        let sides = [&asked.left, &asked.right];
        let ids: Vec<String> = sides
            .into_iter()
            .flatten()
            .map(|side| side.profile_type_id.clone())
            .collect();
        let Some(id) = ids.first().cloned() else {
            return Err(invalid("failed to compare: the request has no side"));
        };
        if ids.iter().any(|other| *other != id) {
            return Err(invalid(
                "failed to compare: the sides have different profile types",
            ));
        }
        let side = |side: Option<wire::SelectMergeStacktracesRequest>| {
            let is_absent = side.is_none();
            let mut wanted =
                self.wanted(side.unwrap_or_else(|| wire::SelectMergeStacktracesRequest {
                    profile_type_id: id.clone(),
                    ..wire::SelectMergeStacktracesRequest::default()
                }))?;
            wanted.is_none |= is_absent;
            Ok::<_, Status>(wanted)
        };
        let sides = [side(asked.left)?, side(asked.right)?];
        let mut place = self.queries.response_slot()?;
        let how = (Ask::Diff, self.queries.nodes(), self.queries.lines());
        let of = self.of_type(&sides[0].of)?;
        let made = of.ask(caller, how, move |asking| {
            let (found, ticks) = asking.compared(&sides)?;
            place.hold(levels_bytes(&found))?;
            Ok((found, ticks, place))
        });
        made.await
    }
}

fn pprof_of(profile: &Profile) -> Result<Pprof, Failed> {
    pprof::weights(profile).map_err(|_| too_large().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pyroscope::messages::v1::FrameFilter as Asked;

    #[test]
    fn bars_are_bounded_whatever_is_asked() {
        assert_eq!(nodes(None, 200_000).expect("valid"), 8192);
        assert_eq!(nodes(Some(0), 100).expect("valid"), 100);
        assert_eq!(nodes(Some(1 << 40), 200_000).expect("valid"), 200_000);
        assert!(nodes(Some(-1), 200_000).is_err());
    }

    #[test]
    fn names_are_taken_literally_and_patterns_are_patterns() {
        let selector = StackTraceSelector {
            frame_filter: Some(Asked {
                include_function_names: vec!["a.b(c)".to_owned()],
                include_function_name_regexes: vec!["^z".to_owned()],
                exclude_function_name_regexes: vec!["idle".to_owned()],
                ..Asked::default()
            }),
            ..StackTraceSelector::default()
        };
        let found = filters(Some(&selector)).expect("valid");
        assert_eq!(found.len(), 2);
        let keep = &found[0];
        assert!(keep.matches("a.b(c)") && keep.matches("zebra"));
        assert!(!keep.matches("axb(c)") && !keep.matches("a.b(c)d"));
        assert!(found[1].op() == FrameFilterOp::Drop && found[1].matches("cpu_idle"));
        assert!(filters(None).expect("valid").is_empty());
    }
}
