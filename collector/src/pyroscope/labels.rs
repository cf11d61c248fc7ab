//! What there is: profile types, names and values of labels, their combinations.

use super::selection::{SERVICE_NAME, Selection, Service};
use super::types::{PROFILE_TYPE, ProfileType, is_of_type};
use super::wire::querier::v1 as wire;
use super::wire::types::v1 as messages;
use super::{Of, Pyroscope};
use crate::access::Caller;
use crate::query::{Ask, Failed, Queries, ROWS_MAX, invalid, resolve};
use crate::store::{Limits, Scope, StoreQueries, TimeRange};
use profile::{FILTERS_MAX, LabelMatcher, PATTERN_LEN_MAX, Selector, key, unit};
use proto::agent;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tonic::Status;

/// Nanoseconds in a millisecond.
pub(super) const MS: i64 = 1_000_000;

/// Labels of types that every series has.
const OF_TYPE: [&str; 6] = [
    "__name__",
    "__period_type__",
    "__period_unit__",
    PROFILE_TYPE,
    "__type__",
    "__unit__",
];

/// A range of milliseconds. 0 and 0 is all that is kept.
///
/// # Errors
/// INVALID_ARGUMENT when it is none.
pub(super) fn range(start_ms: i64, end_ms: i64) -> Result<agent::TimeRange, Status> {
    let range = agent::TimeRange {
        start_unix_ns: start_ms.saturating_mul(MS),
        end_unix_ns: end_ms.saturating_mul(MS),
    };
    crate::query::check(Some(range))?;
    Ok(range)
}

/// Selectors of which any may take a series; none is one that takes all.
fn selections(matchers: &[String]) -> Result<Vec<Selection>, Status> {
    if matchers.len() > FILTERS_MAX {
        return Err(invalid(format!(
            "failed to use {} matchers: at most {FILTERS_MAX} are allowed",
            matchers.len()
        )));
    }
    match matchers {
        [] => Ok(vec![Selection::default()]),
        some => some.iter().map(|text| Selection::parse(text)).collect(),
    }
}

/// A question while it is answered.
pub(super) struct Asking<'a> {
    pub queries: &'a Queries,
    pub service_labels: &'a [String],
    pub store: &'a dyn StoreQueries,
    pub limits: &'a Limits,
    /// As [`Pyroscope::of`].
    pub of: &'a Of,
}

impl Asking<'_> {
    /// The range of a request.
    pub fn range(&self, asked: agent::TimeRange) -> Result<TimeRange, Failed> {
        let now = self.queries.now_unix_ns();
        Ok(resolve(Some(asked), now, || self.store.kept())?)
    }

    /// What was profiled in a range.
    pub fn types(&self, range: TimeRange) -> Result<BTreeSet<ProfileType>, Failed> {
        match self.of {
            Of::Agents => {}
            Of::Type(of) => return Ok([of.clone()].into()),
            Of::Types(types) => return Ok(types.iter().cloned().collect()),
        }
        let units = self.queries.units(self.store, range, self.limits)?;
        Ok(units
            .iter()
            .map(|unit| ProfileType::of_unit(unit))
            .collect())
    }

    /// True when weights in `unit`, of the store that is asked, are of a type.
    pub fn weighs(&self, of: &ProfileType, unit: &str) -> bool {
        match self.of {
            Of::Agents => of.is_of(unit),
            Of::Type(own) => own == of && unit::base(unit).0 == of.weighed_in(),
            Of::Types(_) => false,
        }
    }

    /// The types that a selection takes of these.
    fn taken(&self, of: &Selection, types: &BTreeSet<ProfileType>) -> Vec<ProfileType> {
        types.iter().filter(|one| of.takes(one)).cloned().collect()
    }

    /// What a selector takes of these types: in the store of all senders they have to be named,
    /// unless they are all.
    fn scopes(
        &self,
        range: TimeRange,
        selector: &Selector,
        taken: &[ProfileType],
    ) -> Result<Vec<Scope>, Failed> {
        match self.of {
            Of::Types(all) if all.len() != taken.len() => {
                self.scopes_by_unit(range, selector, taken)
            }
            _ => {
                let selector = selector.clone();
                Ok(vec![Scope { range, selector }])
            }
        }
    }

    /// The same, each in one unit: weights in two have no sum.
    fn scopes_by_unit(
        &self,
        range: TimeRange,
        selector: &Selector,
        taken: &[ProfileType],
    ) -> Result<Vec<Scope>, Failed> {
        let Of::Types(_) = self.of else {
            return self.scopes(range, selector, taken);
        };
        // As many at once as a pattern has room for, each escaped and with its separator.
        let mut by_unit: BTreeMap<&str, Vec<(usize, Vec<String>)>> = BTreeMap::new();
        for of in taken {
            let (id, lists) = (of.id(), by_unit.entry(of.weighed_in()).or_default());
            let length = 2 * id.len() + 1;
            match lists.last_mut() {
                Some((sum, ids)) if *sum + length <= PATTERN_LEN_MAX => {
                    *sum += length;
                    ids.push(id);
                }
                _ => lists.push((length, vec![id])),
            }
        }
        let scope = |(_, ids): &(usize, Vec<String>)| {
            let own = LabelMatcher::one_of(PROFILE_TYPE, ids.iter().map(String::as_str));
            let own = own.map_err(invalid)?;
            let matchers = selector.matchers().iter().cloned().chain([own]);
            let selector = Selector::new(matchers.collect()).map_err(invalid)?;
            Ok(Scope { range, selector })
        };
        by_unit.values().flatten().map(scope).collect()
    }

    fn values(&self, scope: &Scope, label: &str) -> Result<Vec<String>, Failed> {
        let found = self
            .store
            .label_values(scope, label, "", ROWS_MAX, self.limits)?;
        Ok(found.0)
    }

    /// True when there are samples.
    pub fn has_any(&self, scope: &Scope) -> Result<bool, Failed> {
        // Captures need not tell hosts apart.
        let label = match self.of {
            Of::Agents => key::HOST,
            Of::Type(_) | Of::Types(_) => PROFILE_TYPE,
        };
        let found = self.store.label_values(scope, label, "", 1, self.limits)?;
        Ok(!found.0.is_empty())
    }

    /// Those of these types with samples that a selector takes.
    fn types_with(
        &self,
        range: TimeRange,
        selector: &Selector,
        taken: &[ProfileType],
    ) -> Result<Vec<ProfileType>, Failed> {
        let mut with: BTreeSet<String> = BTreeSet::new();
        for scope in self.scopes(range, selector, taken)? {
            match self.of {
                Of::Types(_) => with.extend(self.values(&scope, PROFILE_TYPE)?),
                Of::Agents | Of::Type(_) if self.has_any(&scope)? => return Ok(taken.to_vec()),
                Of::Agents | Of::Type(_) => {}
            }
        }
        let own = taken.iter().filter(|of| with.contains(&of.id()));
        Ok(own.cloned().collect())
    }

    /// Services in a selection.
    fn services(
        &self,
        of: &Selection,
        range: TimeRange,
        taken: &[ProfileType],
    ) -> Result<BTreeSet<String>, Failed> {
        let mut services = BTreeSet::new();
        for part in of.parts(self.service_labels, true)? {
            for scope in self.scopes(range, &part.selector, taken)? {
                match &part.service {
                    Service::Label(label) => services.extend(self.values(&scope, label)?),
                    unknown => {
                        if self.has_any(&scope)? {
                            services.insert(unknown.name(|_| "").to_owned());
                        }
                    }
                }
            }
        }
        Ok(services)
    }

    /// Distinct combinations of the values of labels, as sorted pairs.
    fn combinations(
        &self,
        of: &Selection,
        range: TimeRange,
        names: &[String],
        taken: &[ProfileType],
    ) -> Result<BTreeSet<Vec<(String, String)>>, Failed> {
        let by_service = names.iter().any(|name| name == SERVICE_NAME);
        let is_own = |name: &&String| *name != SERVICE_NAME && !is_of_type(name);
        let own: Vec<String> = names.iter().filter(is_own).cloned().collect();
        let pair = |value: &str| (SERVICE_NAME.to_owned(), value.to_owned());
        let mut found = BTreeSet::new();
        // A label that says something of the type has a value for each of them.
        let mut add = |pairs: Vec<(String, String)>, types: &[ProfileType]| {
            for of in types {
                let label = |name: &String| Some((name.clone(), of.label(name)?));
                let of_type = names.iter().filter_map(label);
                let mut pairs: Vec<_> = pairs.iter().cloned().chain(of_type).collect();
                pairs.sort();
                found.insert(pairs);
            }
            match found.len() > ROWS_MAX {
                true => Err(Failed::Status(Status::resource_exhausted(format!(
                    "there are more than {ROWS_MAX} series: name fewer labels, or select fewer \
                     hosts"
                )))),
                false => Ok(()),
            }
        };
        // Of all senders, only sums say which type has which labels, each of one type.
        let by_type = matches!(self.of, Of::Types(_));
        let tells_type = names.iter().any(|name| is_of_type(name));
        if own.is_empty() && by_service && !(by_type && tells_type) {
            for service in self.services(of, range, taken)? {
                add(vec![pair(&service)], taken)?;
            }
            return Ok(found);
        }
        for part in of.parts(self.service_labels, by_service)? {
            let mut group_by = own.clone();
            group_by.extend(part.service.label().cloned());
            if by_type {
                group_by.push(PROFILE_TYPE.to_owned());
            }
            for scope in self.scopes_by_unit(range, &part.selector, taken)? {
                for row in self.store.totals(&scope, &group_by, self.limits)?.data {
                    if row.weight() == 0 {
                        continue;
                    }
                    let pairs = own
                        .iter()
                        .map(|name| (name.clone(), row.labels.get(name).to_owned()));
                    let mut pairs: Vec<_> = pairs.filter(|(_, value)| !value.is_empty()).collect();
                    if by_service {
                        pairs.push(pair(part.service.name(|label| row.labels.get(label))));
                    }
                    match by_type {
                        true => {
                            let id = row.labels.get(PROFILE_TYPE);
                            let own = taken.iter().find(|of| of.id() == id);
                            add(pairs, own.map_or(&[], std::slice::from_ref))?;
                        }
                        false => add(pairs, taken)?,
                    }
                }
            }
        }
        Ok(found)
    }
}

impl Pyroscope {
    /// Asks the store, in a place and within the limits of a query.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        caller: &Caller,
        (ask, nodes, lines): (Ask, usize, usize),
        work: impl FnOnce(&Asking<'_>) -> Result<T, Failed> + Send + 'static,
    ) -> Result<T, Status> {
        let (queries, labels) = (self.queries.clone(), self.service_labels.clone());
        let of = self.of.clone();
        let work = move |store: &dyn StoreQueries, limits: &Limits| {
            work(&Asking {
                queries: &queries,
                service_labels: &labels,
                store,
                limits,
                of: &of,
            })
        };
        self.queries.run(caller, ask, nodes, lines, work).await
    }

    pub(super) async fn types(
        &self,
        caller: &Caller,
        asked: wire::ProfileTypesRequest,
    ) -> Result<wire::ProfileTypesResponse, Status> {
        let range = range(asked.start, asked.end)?;
        let mut types = BTreeSet::new();
        for of in self.each(caller, range).await? {
            let how = (Ask::Labels, 0, ROWS_MAX);
            let found = of.ask(caller, how, move |asking| {
                asking.types(asking.range(range)?)
            });
            types.extend(found.await?);
        }
        let profile_types = types.into_iter().map(Into::into).collect();
        Ok(wire::ProfileTypesResponse { profile_types })
    }

    /// `all`: also names that are no identifiers, which older clients cannot quote.
    pub(super) async fn names(
        &self,
        caller: &Caller,
        asked: messages::LabelNamesRequest,
        all: bool,
    ) -> Result<messages::LabelNamesResponse, Status> {
        let range = range(asked.start, asked.end)?;
        let selections = Arc::new(selections(&asked.matchers)?);
        let mut names = BTreeSet::new();
        for of in self.each(caller, range).await? {
            let how = (Ask::Labels, 0, ROWS_MAX);
            let selections = selections.clone();
            let found = of.ask(caller, how, move |asking| {
                let range = asking.range(range)?;
                let types = asking.types(range)?;
                let mut names = BTreeSet::new();
                for selection in selections.iter() {
                    let taken = asking.taken(selection, &types);
                    if taken.is_empty() {
                        continue;
                    }
                    for part in selection.parts(asking.service_labels, false)? {
                        for scope in asking.scopes(range, &part.selector, &taken)? {
                            names.extend(asking.store.label_names(&scope, asking.limits)?);
                        }
                    }
                }
                if !names.is_empty() {
                    names.extend(OF_TYPE.map(str::to_owned));
                    names.insert(SERVICE_NAME.to_owned());
                }
                Ok(names)
            });
            names.extend(found.await?);
        }
        let names = names.into_iter();
        let names = names.filter(|name| all || is_identifier(name)).collect();
        Ok(messages::LabelNamesResponse { names })
    }

    pub(super) async fn values(
        &self,
        caller: &Caller,
        asked: messages::LabelValuesRequest,
    ) -> Result<messages::LabelValuesResponse, Status> {
        if asked.name.is_empty() {
            return Err(invalid("failed to list values: the label has no name"));
        }
        let range = range(asked.start, asked.end)?;
        let (name, selections) = (asked.name, Arc::new(selections(&asked.matchers)?));
        let mut values = BTreeSet::new();
        for of in self.each(caller, range).await? {
            let how = (Ask::Labels, 0, ROWS_MAX);
            let (name, selections) = (name.clone(), selections.clone());
            let found = of.ask(caller, how, move |asking| {
                let range = asking.range(range)?;
                let types = asking.types(range)?;
                let mut values = BTreeSet::new();
                for selection in selections.iter() {
                    let taken = asking.taken(selection, &types);
                    if taken.is_empty() {
                        continue;
                    }
                    if name == SERVICE_NAME {
                        values.extend(asking.services(selection, range, &taken)?);
                        continue;
                    }
                    for part in selection.parts(asking.service_labels, false)? {
                        if is_of_type(&name) {
                            let with = asking.types_with(range, &part.selector, &taken)?;
                            values.extend(with.iter().filter_map(|of| of.label(&name)));
                            continue;
                        }
                        for scope in asking.scopes(range, &part.selector, &taken)? {
                            values.extend(asking.values(&scope, &name)?);
                        }
                    }
                }
                Ok(values)
            });
            values.extend(found.await?);
        }
        let names = values.into_iter().take(ROWS_MAX).collect();
        Ok(messages::LabelValuesResponse { names })
    }

    pub(super) async fn combinations(
        &self,
        caller: &Caller,
        asked: wire::SeriesRequest,
    ) -> Result<wire::SeriesResponse, Status> {
        let range = range(asked.start, asked.end)?;
        let (selections, names) = (Arc::new(selections(&asked.matchers)?), asked.label_names);
        proto::query::check_count("labels", names.len()).map_err(invalid)?;
        let lines = self.queries.lines();
        let mut labels = BTreeSet::new();
        for of in self.each(caller, range).await? {
            let (selections, mut names) = (selections.clone(), names.clone());
            let found = of.ask(caller, (Ask::Top, 0, lines), move |asking| {
                let range = asking.range(range)?;
                let types = asking.types(range)?;
                if names.is_empty() {
                    let selector = profile::Selector::default();
                    let scope = Scope { range, selector };
                    names = asking.store.label_names(&scope, asking.limits)?;
                    names.retain(|name| name != PROFILE_TYPE && name != SERVICE_NAME);
                    names.truncate(FILTERS_MAX);
                    names.extend([SERVICE_NAME, PROFILE_TYPE].map(str::to_owned));
                }
                let mut found = BTreeSet::new();
                for selection in selections.iter() {
                    let taken = asking.taken(selection, &types);
                    if taken.is_empty() {
                        continue;
                    }
                    found.extend(asking.combinations(selection, range, &names, &taken)?);
                }
                Ok(found)
            });
            labels.extend(found.await?);
        }
        let labels_set = labels.into_iter().map(|pairs| messages::Labels {
            labels: pairs.into_iter().map(label).collect(),
        });
        Ok(wire::SeriesResponse {
            labels_set: labels_set.collect(),
        })
    }

    pub(super) async fn stats(
        &self,
        caller: &Caller,
    ) -> Result<messages::GetProfileStatsResponse, Status> {
        let how = (Ask::Labels, 0, ROWS_MAX);
        let kept = self.ask(caller, how, |asking| Ok(asking.store.kept()?));
        let mut kept = kept.await?;
        let senders = self.queries.has_senders();
        let senders = senders.then(|| self.of_senders(Arc::new([])));
        for others in senders.into_iter().chain(self.of_captures(Arc::new([]))) {
            let other = others.ask(caller, how, |asking| Ok(asking.store.kept()?));
            kept = match (kept, other.await?) {
                (Some(own), Some(other)) => Some(TimeRange {
                    start_unix_ns: own.start_unix_ns.min(other.start_unix_ns),
                    end_unix_ns: own.end_unix_ns.max(other.end_unix_ns),
                }),
                (own, other) => own.or(other),
            };
        }
        Ok(messages::GetProfileStatsResponse {
            data_ingested: kept.is_some(),
            oldest_profile_time: kept.map_or(0, |kept| kept.start_unix_ns / MS),
            newest_profile_time: kept.map_or(0, |kept| kept.end_unix_ns / MS),
        })
    }
}

/// A label as a message.
pub(super) fn label((name, value): (String, String)) -> messages::LabelPair {
    messages::LabelPair { name, value }
}

/// True for names that a selector has without quotes.
fn is_identifier(name: &str) -> bool {
    let mut bytes = name.bytes();
    let starts = bytes
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_');
    starts && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_milliseconds_and_those_that_are_none_are_refused() {
        let of =
            |start, end| range(start, end).map(|range| (range.start_unix_ns, range.end_unix_ns));
        assert_eq!(
            of(1000, 4000).expect("1970"),
            (1_000_000_000, 4_000_000_000)
        );
        assert_eq!(of(i64::MAX, i64::MAX).expect("late"), (i64::MAX, i64::MAX));
        for (start, end) in [(-1, 5), (5, -1), (i64::MIN, 0), (5, 4)] {
            assert!(of(start, end).is_err(), "{start} to {end}");
        }
    }

    #[test]
    fn only_identifiers_need_no_quotes() {
        assert!(is_identifier("__name__") && is_identifier("a9"));
        assert!(!is_identifier("pod.label/x") && !is_identifier("9a") && !is_identifier(""));
    }
}
