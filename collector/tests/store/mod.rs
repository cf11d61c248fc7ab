//! What every store must do, as tests over the trait: [`suite!`](crate::suite) makes a module of
//! them for an engine. The oracle is [`model`], which is itself put through the suite.
#![expect(clippy::unwrap_used, reason = "all of it is tests")]

pub mod cases;
pub mod draft;
#[path = "../support/model/mod.rs"]
pub mod model;
pub mod text;

use collector::store::{Cancel, Limits, QueryResult, Scope, Store, StoreError, TimeRange};
use profile::{GroupBy, Profile, Query, Selector};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// "Now" of all tests: 2026-01-15 12:00:00 UTC. A store has no clock of its own.
pub const NOW_NS: i64 = 1_768_478_400 * SECOND;
/// 10:00:00, where the tests' windows start.
pub const BEGIN_NS: i64 = NOW_NS - 7200 * SECOND;
/// Unit: nanoseconds.
pub const SECOND: i64 = 1_000_000_000;

/// An engine under test.
pub trait Engine: Sync {
    /// A place where nothing is stored yet; `Err`: the engine is not here, and how to get it.
    fn place(&self) -> Result<Box<dyn Place>, String>;

    /// Whether a stack that one host defined is known for all others.
    fn knows_stacks_of_all_hosts(&self) -> bool {
        true
    }
}

/// Where one store keeps its data.
pub trait Place: Send + Sync {
    /// Opens the store, for the first time or again. Before it is opened again the store that was
    /// open is closed.
    fn open(&self) -> Arc<dyn Store>;
}

/// A new store, for cases that open it once.
pub struct Fresh {
    store: Arc<dyn Store>,
    place: Box<dyn Place>,
}

impl Fresh {
    /// Opens a store in a place of its own.
    pub fn of(place: Box<dyn Place>) -> Fresh {
        Fresh {
            store: place.open(),
            place,
        }
    }

    /// The same store as a new process finds it.
    pub fn reopened(self) -> Fresh {
        self.store.close().unwrap();
        drop(self.store);
        Fresh::of(self.place)
    }

    /// For threads.
    pub fn shared(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }
}

impl std::ops::Deref for Fresh {
    type Target = dyn Store;

    fn deref(&self) -> &(dyn Store + 'static) {
        &*self.store
    }
}

/// Seconds after [`BEGIN_NS`].
pub fn at(seconds: i64) -> i64 {
    BEGIN_NS + seconds * SECOND
}

/// A range in seconds after [`BEGIN_NS`].
pub fn range(start_s: i64, end_s: i64) -> TimeRange {
    TimeRange {
        start_unix_ns: at(start_s),
        end_unix_ns: at(end_s),
    }
}

/// The hour that starts at [`BEGIN_NS`].
pub fn hour() -> TimeRange {
    range(0, 3600)
}

/// Limits that no test reaches by accident.
pub fn ample() -> Limits {
    Limits {
        hosts: None,
        waiting: true,
        reports: true,
        cancel: Cancel::default(),
        deadline: Instant::now() + Duration::from_secs(600),
        memory_bytes: 1 << 30,
        nodes: 1 << 20,
        lines: 1 << 16,
    }
}

/// The same for a series without what hosts report.
pub fn bare() -> Limits {
    Limits {
        reports: false,
        ..ample()
    }
}

/// A selector from its text.
pub fn selector(text: &str) -> Selector {
    text.parse().unwrap()
}

/// What `text` selects in `range`.
pub fn scope(range: TimeRange, text: &str) -> Scope {
    Scope {
        range,
        selector: selector(text),
    }
}

/// A query without frame filters.
pub fn query(selector_text: &str, group_by: &[&str]) -> Query {
    Query::new(
        selector(selector_text),
        Vec::new(),
        GroupBy::from_keys(group_by),
    )
    .unwrap()
}

/// Owned names.
pub fn names(of: &[&str]) -> Vec<String> {
    of.iter().map(|&name| name.to_owned()).collect()
}

/// The merged profile of an hour, with all labels.
pub fn whole_hour(store: &dyn Store) -> QueryResult<Profile> {
    store
        .profile(hour(), &Query::default(), &ample())
        .expect("an answer")
}

/// True for an answer that says it was given up.
pub fn given_up<T>(answer: &Result<T, StoreError>) -> bool {
    matches!(answer, Err(StoreError::Cancelled))
}

/// The model is made for the time of the tests.
#[test]
fn the_tests_time_is_within_what_the_model_keeps() {
    assert!(NOW_NS - at(0) < model::RETENTION_NS && at(7200) <= NOW_NS + model::FUTURE_NS);
}

/// One test for each case of the suite, for the engine that an expression makes.
///
/// `suite!(embedded, crate::EmbeddedEngine);` is all that an engine needs. With `slow` in front,
/// all of them are tests of `make test-slow`.
#[macro_export]
macro_rules! suite {
    (slow $name:ident, $engine:expr) => {
        $crate::suite!([slow] $name, $engine);
    };
    ($name:ident, $engine:expr) => {
        $crate::suite!([] $name, $engine);
    };
    ([$($slow:ident)?] $name:ident, $engine:expr) => {
        mod $name {
            $crate::suite_cases!($($slow)? $engine;
                pushes: a_pushed_window_is_answered, a_repeat_in_one_call_counts_once,
                    a_repeat_in_a_later_call_counts_once, a_repeat_after_reopening_counts_once,
                    a_repeat_that_says_another_time_counts_once,
                    a_sequence_of_another_boot_is_another_window,
                    a_window_waits_for_stacks_that_are_not_known,
                    a_window_is_asked_once_for_all_it_lacks,
                    stacks_are_known_from_then_on, stacks_that_no_row_names_are_ignored,
                    windows_of_the_future_and_of_long_ago_are_refused,
                    windows_that_make_no_sense_are_refused, rows_of_one_key_add_up,
                    weights_are_kept_as_they_come, everything_is_there_after_reopening,
                    a_window_without_rows_is_a_window, two_windows_of_one_moment_both_count,
                    windows_far_apart_are_both_kept, a_push_of_nothing_is_nothing;
                queries: every_matcher_selects_as_it_says, every_grouping_keeps_its_labels,
                    frame_filters_apply_in_order, stack_ends_stay_apart,
                    ranges_are_half_open, steps_start_at_multiples,
                    lines_beyond_the_limit_are_added_up, totals_have_taken_lost_and_expected,
                    totals_and_stacks_add_up_to_the_same, labels_are_those_of_the_selection,
                    values_are_found_by_prefix, hosts_are_remembered,
                    hosts_and_totals_agree_on_what_was_covered,
                    windows_without_accounts_neither_raise_nor_lower_coverage,
                    kept_is_from_the_first_window_to_the_last, units_do_not_mix,
                    an_empty_store_answers_with_nothing, ranges_that_make_no_sense_are_empty;
                series: steps_say_for_how_long_hosts_sent_windows, steps_say_what_their_hosts_lost,
                    a_host_without_windows_has_no_data;
                quality: a_gap_is_what_the_agent_gave_up, a_gap_is_where_windows_are_absent,
                    a_reboot_is_no_gap, hosts_alive_are_those_before_and_after,
                    a_host_is_alive_under_the_labels_that_it_has,
                    unmeasured_windows_are_counted, sampling_quality_is_added_up,
                    gaps_are_of_the_selected_hosts;
                limits: too_many_stacks_are_folded_into_their_callers, a_cancelled_query_gives_up,
                    a_query_past_its_deadline_gives_up, a_query_over_its_memory_is_too_large,
                    sums_beyond_the_largest_number_end_at_it;
                naming: names_told_later_are_in_answers_about_windows_stored_before,
                    costs_are_of_the_names_that_were_told,
                    frame_filters_know_the_names_that_were_told,
                    names_that_are_forgotten_are_shown_no_more,
                    another_table_for_a_build_replaces_its_names,
                    builds_without_symbols_are_wanted,
                    windows_that_come_later_are_named_too;
                exact: sums_beyond_64_bits_are_told_in_microseconds,
                    cycles_beyond_64_bits_are_told_in_thousands;
                hostile: labels_are_only_text, functions_are_only_text,
                    numbers_at_their_limits_harm_nothing_else, long_labels_are_kept_whole;
                together: pushes_and_queries_of_many_threads_add_up,
                    one_window_pushed_by_many_threads_counts_once;
                downsampling: answers_over_whole_hours_stay_as_data_gets_older,
                    edges_of_a_range_are_read_fine,
                    waiting_stays_as_data_gets_older;
                random: answers_are_those_of_the_model;
                scopes: answers_within_a_scope_are_those_of_its_selector,
                    quality_tells_of_hosts_in_the_scope_alone,
                    hosts_are_those_in_the_scope_with_what_is_in_it,
                    who_ended_a_wait_is_cut_off, a_scope_leaves_room_for_fewer_matchers;
            );
            $crate::suite_cases!(slow $engine;
                random: answers_of_many_rounds_are_those_of_the_model;
            );
        }
    };
}

/// The tests behind [`suite!`](crate::suite); `slow` ones are those of `make test-slow`.
#[macro_export]
macro_rules! suite_cases {
    (slow $engine:expr; $($file:ident: $($case:ident),+;)+) => {
        $($(
            $crate::suite_case!([#[ignore = "takes long: make test-slow"]] $engine, $file, $case);
        )+)+
    };
    ($engine:expr; $($file:ident: $($case:ident),+;)+) => {
        $($( $crate::suite_case!([] $engine, $file, $case); )+)+
    };
}

/// One test of [`suite!`](crate::suite).
#[macro_export]
macro_rules! suite_case {
    ([$(#[$attribute:meta])?] $engine:expr, $file:ident, $case:ident) => {
        #[test]
        $(#[$attribute])?
        fn $case() {
            match $crate::store::Engine::place(&$engine) {
                Ok(place) => $crate::store::cases::$file::$case(&$engine, place),
                Err(why) => testkit::skip(format_args!("{why}")),
            }
        }
    };
}
