//! The state of `top` and what keys do to it, without any terminal.

use super::Sort;
use super::fleet::Table;
use super::model::{Row, Rows, Sliding, View};
use crate::fleet::Fleet;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use profile::{Info, Profile};
use proto::agent::GetStatusResponse;
use std::time::Duration;

/// Longest filter text. Unit: characters.
const FILTER_CHARS_MAX: usize = 128;

/// Facts about the agent that stand in the header.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Agent {
    /// Host name.
    pub host: String,
    /// Sampling rate.
    pub rate_hz: u32,
    /// CPUs that are sampled.
    pub cpus: u32,
    /// CPUs there are.
    pub cpus_online: u32,
    /// CPU of the daemon itself, as a share of one CPU.
    pub own_share: f64,
    /// Memory of the daemon. Unit: bytes.
    pub rss_bytes: u64,
}

impl Agent {
    /// The facts of a status; the daemon's own CPU since `before`, if there is one.
    pub fn of(status: &GetStatusResponse, before: Option<&GetStatusResponse>) -> Agent {
        let sampling = status.sampling.clone().unwrap_or_default();
        let cost = |status: &GetStatusResponse| {
            (
                status.own_cost.as_ref().map_or(0, |cost| cost.cpu_ns),
                status.now_unix_ns,
            )
        };
        let (cpu, now) = cost(status);
        let (cpu_before, then) = before.map_or((0, status.started_unix_ns), cost);
        let passed = now.saturating_sub(then).max(0).unsigned_abs();
        Agent {
            host: status.host.clone(),
            rate_hz: sampling.rate_hz,
            cpus: sampling.cpus_sampled,
            cpus_online: sampling.cpus_online,
            own_share: crate::units::share(cpu.saturating_sub(cpu_before), passed),
            rss_bytes: status.own_cost.as_ref().map_or(0, |cost| cost.rss_bytes),
        }
    }
}

/// Something that happened.
pub enum Event {
    /// A profile came, and so many were missed before it.
    Profile(Box<Profile>, u32),
    /// The rows of a view of a fleet came.
    Rows(Box<Table>),
    /// The status of the agent.
    Agent(Agent),
    /// The connection is gone; the reason, and the wait before the next try.
    Lost(String, Duration),
}

/// Which view of a fleet the person looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewRequest {
    /// View.
    pub view: View,
    /// Order: the heaviest rows are other ones in another.
    pub sort: Sort,
    /// True while the view is not to change.
    pub paused: bool,
}

/// A fleet in place of an agent.
pub struct FleetView {
    /// Where the collector listens.
    pub address: String,
    /// What the rows are made of; `None` before the first.
    pub made_of: Option<Fleet>,
    /// View of the rows that are there.
    shown: Option<View>,
}

/// The state.
pub struct App {
    /// What is shown.
    pub view: View,
    /// How it is sorted.
    pub sort: Sort,
    /// Text that names must contain, whatever the case.
    pub filter: String,
    /// True while the filter is typed.
    pub typing: bool,
    /// True while new profiles do not move the view.
    pub paused: bool,
    /// First row shown.
    pub scroll: usize,
    /// Facts about the agent.
    pub agent: Agent,
    /// A fleet, when a collector is asked.
    pub fleet: Option<FleetView>,
    /// Facts about what is shown.
    pub info: Info,
    /// Why there is nothing new; `None` while connected.
    pub trouble: Option<String>,
    /// Profiles missed because this side was too slow.
    pub missed: u64,
    rows: Rows,
    sliding: Sliding,
}

impl App {
    /// Creates it without data.
    pub fn new(view: View, sort: Sort, range: Duration) -> App {
        App {
            view,
            sort,
            filter: String::new(),
            typing: false,
            paused: false,
            scroll: 0,
            agent: Agent::default(),
            fleet: None,
            info: Info::default(),
            trouble: Some("waiting for the first samples".to_owned()),
            missed: 0,
            rows: Rows::default(),
            sliding: Sliding::new(range),
        }
    }

    /// Nothing came yet of a fleet.
    pub fn of_fleet(view: View, sort: Sort, address: String) -> App {
        App {
            fleet: Some(FleetView {
                address,
                made_of: None,
                shown: None,
            }),
            trouble: Some("waiting for the collector".to_owned()),
            ..App::new(view, sort, Duration::ZERO)
        }
    }

    /// The views there are.
    pub fn views(&self) -> &'static [View] {
        match self.fleet {
            None => &View::ALL,
            Some(_) => &View::FLEET,
        }
    }

    /// The view to ask a collector for.
    pub fn view_request(&self) -> ViewRequest {
        ViewRequest {
            view: self.view,
            sort: self.sort,
            paused: self.paused,
        }
    }

    /// True while the rows of a view that was just chosen are on their way.
    pub fn is_asking(&self) -> bool {
        let fleet = self.fleet.as_ref();
        fleet.is_some_and(|fleet| fleet.shown != Some(self.view))
    }

    /// Handles an event.
    pub fn take(&mut self, event: Event) {
        match event {
            Event::Profile(profile, missed) => {
                self.trouble = None;
                self.missed += u64::from(missed);
                self.sliding.push(*profile);
                self.refresh();
            }
            Event::Rows(table) => self.take_rows(*table),
            Event::Agent(agent) => self.agent = agent,
            Event::Lost(why, wait) => {
                let wait = crate::units::duration(wait);
                self.trouble = Some(format!("{why}; next try in {wait}"));
                self.sliding.clear();
            }
        }
    }

    fn take_rows(&mut self, table: Table) {
        let Some(fleet) = &mut self.fleet else {
            return;
        };
        self.trouble = None;
        if self.paused && fleet.shown == Some(table.view) && table.view == self.view {
            return;
        }
        fleet.shown = Some(table.view);
        self.rows = Rows::only(table.view, table.rows, table.fleet.total_weight());
        self.info = Info {
            unit: table.fleet.unit().to_owned(),
            ..Info::default()
        };
        table.fleet.describe(&mut self.info);
        fleet.made_of = Some(table.fleet);
    }

    fn refresh(&mut self) {
        // Rows of a fleet come ready.
        if self.fleet.is_some() {
            return;
        }
        if self.paused {
            return;
        }
        let merged = self.sliding.merged();
        self.rows = Rows::of(&merged);
        self.info = merged.info;
    }

    /// Weight of everything shown and hidden.
    pub fn total(&self) -> u64 {
        self.rows.total
    }

    /// The rows that pass the filter.
    pub fn visible(&self) -> Vec<&Row> {
        let filter = self.filter.to_lowercase();
        let mut rows = self.rows.sorted(self.view, self.sort);
        if !filter.is_empty() {
            rows.retain(|row| {
                row.name.to_lowercase().contains(&filter)
                    || row.detail.to_lowercase().contains(&filter)
            });
        }
        rows
    }

    /// Samples that came and idle time, of what all CPUs should have given; `None` before the rate
    /// is known.
    pub fn coverage(&self) -> Option<f64> {
        if let Some(fleet) = &self.fleet {
            return fleet.made_of.as_ref()?.coverage().share();
        }
        let seconds = self.info.duration_ns as f64 / 1e9;
        let expected = seconds * f64::from(self.agent.rate_hz) * f64::from(self.agent.cpus_online);
        let quality = &self.info.quality;
        (expected > 0.0).then(|| (quality.taken.saturating_add(quality.idle)) as f64 / expected)
    }

    /// Does what a key asks for; true when that is to end.
    pub fn key(&mut self, key: KeyEvent, page: usize) -> bool {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && matches!(key.code, KeyCode::Char('c' | 'd')) {
            return true;
        }
        if self.typing {
            self.type_filter(key, control);
            return false;
        }
        let last = self.visible().len().saturating_sub(1);
        let page = page.max(1);
        match key.code {
            KeyCode::Char('q') => return true,
            KeyCode::Esc if self.filter.is_empty() => return true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(self.views().len() - 1),
            KeyCode::Char(digit @ '1'..='9') => {
                if let Some(&view) = self.views().get(digit as usize - '1' as usize) {
                    self.show(view);
                }
            }
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('s') => {
                self.sort = if self.sort == Sort::Own {
                    Sort::Total
                } else {
                    Sort::Own
                };
            }
            KeyCode::Char('p' | ' ') => {
                self.paused = !self.paused;
                self.refresh();
            }
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.scroll = (self.scroll + 1).min(last),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(page),
            KeyCode::PageDown => self.scroll = (self.scroll + page).min(last),
            KeyCode::Home | KeyCode::Char('g') => self.scroll = 0,
            KeyCode::End | KeyCode::Char('G') => self.scroll = last,
            _ => {}
        }
        false
    }

    fn type_filter(&mut self, key: KeyEvent, control: bool) {
        match key.code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char('u') if control => self.filter.clear(),
            KeyCode::Char(typed) if !control && self.filter.chars().count() < FILTER_CHARS_MAX => {
                self.filter.push(typed);
            }
            _ => {}
        }
        self.scroll = 0;
    }

    fn turn(&mut self, by: usize) {
        let views = self.views();
        let at = views.iter().position(|&view| view == self.view);
        self.show(views[(at.unwrap_or(0) + by) % views.len()]);
    }

    fn show(&mut self, view: View) {
        self.view = view;
        self.scroll = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::profile;
    use super::*;

    fn app() -> App {
        let mut app = App::new(View::Functions, Sort::Own, Duration::from_secs(10));
        let came = profile(&[
            ("/a", "1", "x", &["main", "work"], 6),
            ("/b", "2", "y", &["main", "rest"], 4),
        ]);
        app.take(Event::Profile(Box::new(came), 0));
        app
    }

    fn press(app: &mut App, code: KeyCode) -> bool {
        app.key(KeyEvent::from(code), 10)
    }

    fn names(app: &App) -> Vec<&str> {
        app.visible()
            .into_iter()
            .map(|row| row.name.as_str())
            .collect()
    }

    #[test]
    fn keys_switch_views_and_sort() {
        let mut app = app();
        assert_eq!(names(&app), ["work", "rest", "main"]);
        press(&mut app, KeyCode::Char('s'));
        assert_eq!(names(&app), ["main", "work", "rest"]);
        press(&mut app, KeyCode::Tab);
        assert_eq!(names(&app), ["/", "/a", "/b"]);
        press(&mut app, KeyCode::BackTab);
        press(&mut app, KeyCode::BackTab);
        assert_eq!(app.view, View::Processes);
        press(&mut app, KeyCode::Char('1'));
        assert_eq!(app.view, View::Functions);
    }

    #[test]
    fn a_filter_is_typed_and_cleared() {
        let mut app = app();
        for code in [KeyCode::Char('/'), KeyCode::Char('q'), KeyCode::Backspace] {
            assert!(!press(&mut app, code));
        }
        for typed in "WORK".chars() {
            press(&mut app, KeyCode::Char(typed));
        }
        press(&mut app, KeyCode::Enter);
        assert_eq!(names(&app), ["work"]);
        assert!(
            !press(&mut app, KeyCode::Esc),
            "the first Esc clears the filter"
        );
        assert_eq!(names(&app).len(), 3);
        assert!(press(&mut app, KeyCode::Esc));
    }

    #[test]
    fn a_pause_holds_the_view_and_ends_with_what_came() {
        let mut app = app();
        press(&mut app, KeyCode::Char('p'));
        app.take(Event::Profile(
            Box::new(profile(&[("/", "1", "x", &["new"], 90)])),
            2,
        ));
        assert_eq!((app.total(), app.missed), (10, 2));
        press(&mut app, KeyCode::Char('p'));
        assert_eq!(app.total(), 100);
    }

    #[test]
    fn scrolling_stays_on_rows() {
        let mut app = app();
        press(&mut app, KeyCode::PageDown);
        assert_eq!(app.scroll, 2);
        press(&mut app, KeyCode::Down);
        assert_eq!(app.scroll, 2);
        press(&mut app, KeyCode::PageUp);
        press(&mut app, KeyCode::Up);
        assert_eq!(app.scroll, 0);
    }

    #[test]
    fn control_c_always_ends() {
        let mut app = app();
        press(&mut app, KeyCode::Char('/'));
        assert!(app.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL), 1));
    }

    #[test]
    fn a_lost_agent_is_said_and_forgotten_when_it_is_back() {
        let mut app = app();
        app.take(Event::Lost("gone".into(), Duration::from_secs(2)));
        assert_eq!(app.trouble.as_deref(), Some("gone; next try in 2 s"));
        app.take(Event::Profile(
            Box::new(profile(&[("/", "1", "x", &["f"], 5)])),
            0,
        ));
        assert_eq!((app.trouble.is_none(), app.total()), (true, 5));
    }

    fn rows(view: View, name: &str) -> Event {
        let row = Row {
            name: name.into(),
            detail: String::new(),
            own: 1,
            total: 1,
            kind: None,
        };
        Event::Rows(Box::new(Table {
            view,
            rows: vec![row],
            left_out: 0,
            fleet: Fleet::of(Default::default()),
        }))
    }

    #[test]
    fn a_fleet_has_a_view_of_hosts_and_asks_for_each() {
        let mut app = App::of_fleet(View::Functions, Sort::Own, "c1:7600".into());
        assert!(app.is_asking());
        app.take(rows(View::Functions, "f"));
        assert_eq!((names(&app), app.is_asking()), (vec!["f"], false));
        press(&mut app, KeyCode::Char('4'));
        assert_eq!((app.view, app.is_asking()), (View::Hosts, true));
        assert_eq!(app.view_request().view, View::Hosts);
        press(&mut app, KeyCode::Tab);
        assert_eq!(app.view, View::Functions);
        press(&mut app, KeyCode::Char('9'));
        assert_eq!(app.view, View::Functions, "there is no such view");
    }

    #[test]
    fn a_pause_holds_a_fleet_but_another_view_is_shown() {
        let mut app = App::of_fleet(View::Functions, Sort::Own, "c1:7600".into());
        app.take(rows(View::Functions, "f"));
        press(&mut app, KeyCode::Char('p'));
        assert!(app.view_request().paused);
        app.take(rows(View::Functions, "g"));
        assert_eq!(names(&app), ["f"]);
        press(&mut app, KeyCode::Char('4'));
        app.take(rows(View::Hosts, "h"));
        assert_eq!(names(&app), ["h"]);
    }

    #[test]
    fn own_cost_is_of_the_time_between_two_answers() {
        let status = |now, cpu_ns| GetStatusResponse {
            now_unix_ns: now,
            own_cost: Some(proto::agent::OwnCost {
                cpu_ns,
                ..Default::default()
            }),
            ..Default::default()
        };
        assert_eq!(
            Agent::of(&status(200, 12), Some(&status(100, 10))).own_share,
            0.02
        );
        assert_eq!(Agent::of(&status(200, 20), None).own_share, 0.1);
    }
}
