//! Functions that agents could not name, in answers of a store that is told of names.

use crate::store::draft::{Draft, store_all};
use crate::store::text::short;
use crate::store::{Engine, Fresh, Place, ample, hour, query};
use collector::store::{Found, Names, Store};
use profile::{CostBy, FrameFilter, FrameFilterOp, GroupBy, NameSource, Query, TopSort};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Two builds of one program.
const OLD: &str = "aaaaaaaaaaaaaaaa";
const NEW: &str = "bbbbbbbbbbbbbbbb";

/// Names that a test tells.
#[derive(Default)]
struct FakeNames(Mutex<State>);

#[derive(Default)]
struct State {
    builds: HashMap<String, Table>,
    tables: u64,
    wanted: Vec<String>,
}

struct Table {
    version: u64,
    source: NameSource,
    names: HashMap<u64, String>,
}

impl FakeNames {
    /// Another table for a build.
    fn tell(&self, build: &str, address: u64, name: &str, source: NameSource) {
        let mut state = self.0.lock().unwrap();
        state.tables += 1;
        let table = Table {
            version: state.tables,
            source,
            names: HashMap::from([(address, name.to_owned())]),
        };
        state.builds.insert(build.to_owned(), table);
    }

    fn forget(&self, build: &str) {
        self.0.lock().unwrap().builds.remove(build);
    }

    fn wanted(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().wanted)
    }
}

impl Names for FakeNames {
    fn version(&self, build_id: &str) -> Option<u64> {
        let state = self.0.lock().unwrap();
        state.builds.get(build_id).map(|table| table.version)
    }

    fn names(&self, build_id: &str, addresses: &[u64]) -> Option<Found> {
        let state = self.0.lock().unwrap();
        let table = state.builds.get(build_id)?;
        let names = addresses
            .iter()
            .map(|address| table.names.get(address).cloned());
        Some((table.source, names.collect()))
    }

    fn want(&self, builds: Vec<String>) {
        self.0.lock().unwrap().wanted.extend(builds);
    }
}

/// `main` calls one function of each build, and that of the old one calls `leaf`.
fn stored(place: Box<dyn Place>) -> (Fresh, Arc<FakeNames>) {
    let store = Fresh::of(place);
    let told = Arc::new(FakeNames::default());
    store.name_by(told.clone());
    let window = Draft::new("a", 0, 0)
        .row("unit=u", &format!("main;?{OLD}+0x10"), 3)
        .row("unit=u", &format!("main;?{NEW}+0x20"), 4)
        .row("unit=u", &format!("main;?{OLD}+0x10;leaf"), 5);
    store_all(&*store, &[window]);
    (store, told)
}

fn stacks(store: &dyn Store, filters: &[(FrameFilterOp, &str)]) -> Vec<String> {
    let filters = filters
        .iter()
        .map(|(op, text)| FrameFilter::new(*op, text).unwrap());
    let none = GroupBy::from_keys::<&str>(&[]);
    let query = Query::new(Default::default(), filters.collect(), none).unwrap();
    short(&store.profile(hour(), &query, &ample()).unwrap().data)
}

pub fn names_told_later_are_in_answers_about_windows_stored_before(
    _: &dyn Engine,
    place: Box<dyn Place>,
) {
    let (store, told) = stored(place);
    let before = store.profile(hour(), &query("", &[]), &ample()).unwrap();
    assert_eq!(before.data.info.quality.unnamed, 7);
    assert_eq!(before.quality.named_later, [0, 0]);
    told.tell(OLD, 0x10, "work", NameSource::Upload);
    told.tell(NEW, 0x20, "work", NameSource::Debuginfod);
    let after = store.profile(hour(), &query("", &[]), &ample()).unwrap();
    // What both builds call the same is one function.
    let shown = short(&after.data);
    assert_eq!(shown.len(), 2, "{shown:?}");
    assert!(
        shown.iter().any(|line| line.contains("main;work;leaf")),
        "{shown:?}"
    );
    assert_eq!(after.data.info.quality.unnamed, 0);
    assert_eq!(after.quality.named_later, [3, 4]);
    assert_eq!(after.data.total(), before.data.total());
}

pub fn costs_are_of_the_names_that_were_told(_: &dyn Engine, place: Box<dyn Place>) {
    let (store, told) = stored(place);
    told.tell(OLD, 0x10, "work", NameSource::Upload);
    told.tell(NEW, 0x20, "work", NameSource::Upload);
    let costs = store.costs(hour(), &query("", &[]), CostBy::Function, &ample());
    let costs = costs.unwrap();
    assert_eq!(costs.quality.named_later, [7, 0]);
    let top = costs.data.into_top(TopSort::Own, 10);
    let counts = top
        .rows
        .iter()
        .map(|row| (&*row.name, row.own.count, row.total.count));
    let mut counts: Vec<_> = counts.collect();
    counts.sort_unstable();
    assert_eq!(counts, [("leaf", 5, 5), ("main", 0, 12), ("work", 7, 12)]);
}

pub fn frame_filters_know_the_names_that_were_told(_: &dyn Engine, place: Box<dyn Place>) {
    let (store, told) = stored(place);
    let focus = [(FrameFilterOp::Focus, "^work$")];
    assert_eq!(stacks(&*store, &focus), Vec::<String>::new());
    told.tell(OLD, 0x10, "work", NameSource::Upload);
    let shown = stacks(&*store, &focus);
    assert_eq!(shown.len(), 2, "{shown:?}");
    // Digits of build ids spell words, and are none.
    assert!(stacks(&*store, &[(FrameFilterOp::Keep, "b")]).is_empty());
}

pub fn names_that_are_forgotten_are_shown_no_more(_: &dyn Engine, place: Box<dyn Place>) {
    let (store, told) = stored(place);
    let before = stacks(&*store, &[]);
    told.tell(OLD, 0x10, "wrong", NameSource::Debuginfod);
    assert_ne!(stacks(&*store, &[]), before);
    told.forget(OLD);
    assert_eq!(stacks(&*store, &[]), before);
}

pub fn another_table_for_a_build_replaces_its_names(_: &dyn Engine, place: Box<dyn Place>) {
    let (store, told) = stored(place);
    told.tell(OLD, 0x10, "wrong", NameSource::Debuginfod);
    let _ = stacks(&*store, &[]);
    told.tell(OLD, 0x10, "right", NameSource::Upload);
    let shown = stacks(&*store, &[]);
    assert!(shown.iter().any(|line| line.contains("right")), "{shown:?}");
    assert!(
        !shown.iter().any(|line| line.contains("wrong")),
        "{shown:?}"
    );
    // One that does not have the function takes its name away.
    told.tell(OLD, 0x11, "other", NameSource::Upload);
    let shown = stacks(&*store, &[]);
    assert!(
        !shown.iter().any(|line| line.contains("right")),
        "{shown:?}"
    );
}

pub fn builds_without_symbols_are_wanted(_: &dyn Engine, place: Box<dyn Place>) {
    let (store, told) = stored(place);
    told.tell(OLD, 0x10, "work", NameSource::Upload);
    let _ = stacks(&*store, &[]);
    // An engine may have looked before the old one had symbols.
    assert!(told.wanted().contains(&NEW.to_owned()));
}

pub fn windows_that_come_later_are_named_too(_: &dyn Engine, place: Box<dyn Place>) {
    let (store, told) = stored(place);
    told.tell(OLD, 0x10, "work", NameSource::Upload);
    let _ = stacks(&*store, &[]);
    let later = Draft::new("a", 1, 10).row("unit=u", &format!("main;?{OLD}+0x10;other"), 1);
    store_all(&*store, &[later]);
    let shown = stacks(&*store, &[]);
    assert!(
        shown.iter().any(|line| line.contains("main;work;other")),
        "{shown:?}"
    );
    let reopened = store.reopened();
    reopened.name_by(told);
    assert_eq!(stacks(&*reopened, &[]), shown);
}
