//! Draws the state of `top`. Everything that came from outside is cleaned here.

use super::Sort;
use super::app::{App, FleetView};
use super::fleet::POLL_INTERVAL;
use super::model::Row;
use crate::terminal::{clean, fit, width};
use crate::units;
use profile::FrameKind;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use std::time::Duration;

/// Smallest terminal with room for a header, a row and the keys. Unit: cells.
const SMALLEST: (u16, u16) = (24, 5);

/// Cells of the two columns of numbers with what separates them.
const NUMBERS: usize = 18;

/// Lines above the first row.
const HEADER_LINES: u16 = 3;

/// Rows that fit in a terminal of this height.
pub fn page(height: u16) -> usize {
    usize::from(height.saturating_sub(HEADER_LINES + 1))
}

/// Draws all of it. `colour` is false where `NO_COLOR` asks for that.
pub fn draw(frame: &mut Frame<'_>, app: &App, colour: bool) {
    let area = frame.area();
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        frame.render_widget(Paragraph::new("too small"), area);
        return;
    }
    let paint = Paint { colour };
    let cells = usize::from(area.width);
    let mut lines = vec![
        header(app, &paint, cells),
        tabs(app, &paint, cells),
        headings(app, &paint),
    ];
    let rows = app.visible();
    let page = page(area.height);
    // A shorter list than a moment ago must not leave the view empty.
    let first = app.scroll.min(rows.len().saturating_sub(1));
    for row in rows.iter().skip(first).take(page) {
        lines.push(line(row, app, &paint, cells));
    }
    if rows.is_empty() {
        let text = match (&app.trouble, app.filter.is_empty()) {
            (Some(_), _) => "",
            _ if app.is_asking() => "asking the collector",
            (None, true) if app.info.quality.taken == 0 && app.info.quality.idle == 0 => {
                "waiting for the first samples"
            }
            (None, true) => "no samples: every CPU was idle",
            (None, false) => "nothing matches the filter",
        };
        lines.push(Line::styled(text, paint.dim()));
    }
    frame.render_widget(
        Paragraph::new(lines),
        Rect {
            height: area.height - 1,
            ..area
        },
    );
    let bottom = Rect {
        y: area.bottom() - 1,
        height: 1,
        ..area
    };
    frame.render_widget(Paragraph::new(footer(app, &paint, cells)), bottom);
}

struct Paint {
    colour: bool,
}

impl Paint {
    fn fg(&self, color: Color) -> Style {
        if self.colour {
            Style::new().fg(color)
        } else {
            Style::new()
        }
    }

    fn dim(&self) -> Style {
        self.fg(Color::DarkGray)
    }

    fn strong(&self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }
}

fn header(app: &App, paint: &Paint, cells: usize) -> Line<'static> {
    match &app.fleet {
        None => agent_header(app, paint, cells),
        Some(fleet) => fleet_header(app, fleet, paint, cells),
    }
}

fn fleet_header(app: &App, fleet: &FleetView, paint: &Paint, cells: usize) -> Line<'static> {
    let address = clean(&fleet.address);
    let Some(made_of) = &fleet.made_of else {
        return Line::raw(fit(&address, cells).into_owned());
    };
    let busy = match cpus_busy(app) {
        Some(rate) => format!("  {rate:.2} CPUs busy"),
        None => String::new(),
    };
    let coverage = app
        .coverage()
        .map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0));
    let (hosts, alive) = made_of.hosts();
    let text = format!(
        "{address}  {} of {} hosts{busy}  over {}  coverage {coverage}  gaps {}  asked every {}",
        units::count(hosts),
        units::count(alive),
        units::duration(Duration::from_nanos(app.info.duration_ns)),
        units::count(made_of.gaps()),
        units::duration(POLL_INTERVAL),
    );
    let style = if made_of.is_partial() {
        paint.fg(Color::Yellow)
    } else {
        Style::new()
    };
    Line::styled(fit(&text, cells).into_owned(), style)
}

/// CPUs in use on the mean; `None` where weights are no time.
fn cpus_busy(app: &App) -> Option<f64> {
    let unit_ns = profile::unit::time_unit_ns(&app.info.unit)?;
    Some(units::share(app.total(), app.info.duration_ns) * unit_ns as f64)
}

fn agent_header(app: &App, paint: &Paint, cells: usize) -> Line<'static> {
    let agent = &app.agent;
    let quality = &app.info.quality;
    let busy = match cpus_busy(app) {
        Some(rate) => format!("{rate:.2} of {} CPUs busy", agent.cpus_online),
        None => format!("{} CPUs", agent.cpus_online),
    };
    let coverage = app
        .coverage()
        .map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0));
    let covered = units::duration(Duration::from_nanos(
        app.info.duration_ns / 100_000_000 * 100_000_000,
    ));
    let text = format!(
        "{}  {} Hz  {busy}  over {covered}  coverage {coverage}  lost {}  agent {:.1} % {}",
        clean(&agent.host),
        agent.rate_hz,
        units::count(quality.lost),
        agent.own_share * 100.0,
        units::bytes(agent.rss_bytes),
    );
    let style = if quality.lost > 0 {
        paint.fg(Color::Yellow)
    } else {
        Style::new()
    };
    Line::styled(fit(&text, cells).into_owned(), style)
}

fn tabs(app: &App, paint: &Paint, cells: usize) -> Line<'static> {
    let mut spans = Vec::new();
    for (at, view) in app.views().iter().copied().enumerate() {
        let style = if view == app.view {
            Style::new().add_modifier(Modifier::REVERSED)
        } else {
            paint.dim()
        };
        spans.push(Span::styled(format!(" {} {} ", at + 1, view.word()), style));
    }
    let used: usize = spans.iter().map(|span| width(&span.content)).sum();
    let mut rest = String::new();
    if app.paused {
        rest.push_str("  paused");
    }
    if app.typing || !app.filter.is_empty() {
        let cursor = if app.typing { "▏" } else { "" };
        rest.push_str(&format!("  /{}{cursor}", clean(&app.filter)));
    }
    let rest = fit(&rest, cells.saturating_sub(used)).into_owned();
    spans.push(Span::styled(rest, paint.fg(Color::Yellow)));
    Line::from(spans)
}

fn headings(app: &App, paint: &Paint) -> Line<'static> {
    let mark = |sort| if app.sort == sort { "▼" } else { " " };
    let text = format!(
        "{:>7}{} {:>7}{} {}",
        "SELF",
        mark(Sort::Own),
        "TOTAL",
        mark(Sort::Total),
        app.view.heading()
    );
    Line::styled(text, paint.strong())
}

fn line(row: &Row, app: &App, paint: &Paint, cells: usize) -> Line<'static> {
    let total = app.total();
    let numbers = format!(
        "{:>7}  {:>7}  ",
        units::percent(row.own, total),
        units::percent(row.total, total)
    );
    let room = cells.saturating_sub(NUMBERS);
    let name = clean(&row.name);
    let name = if row.name.is_empty() {
        "(none)".into()
    } else {
        fit(&name, room)
    }
    .into_owned();
    let left = room.saturating_sub(width(&name) + 2);
    let detail = match row.detail.as_str() {
        "" => String::new(),
        _ if left < 4 => String::new(),
        detail => format!("  {}", fit(&clean(detail), left)),
    };
    let style = match row.kind {
        Some(FrameKind::Kernel) => paint.fg(Color::Red),
        Some(FrameKind::Jit | FrameKind::Interpreted) => paint.fg(Color::Green),
        Some(FrameKind::Synthetic) => paint.dim(),
        _ => Style::new(),
    };
    Line::from(vec![
        Span::raw(numbers),
        Span::styled(name, style),
        Span::styled(detail, paint.dim()),
    ])
}

fn footer(app: &App, paint: &Paint, cells: usize) -> Line<'static> {
    if let Some(trouble) = &app.trouble {
        return Line::styled(
            fit(&clean(trouble), cells).into_owned(),
            paint.fg(Color::Red),
        );
    }
    let missed = match app.missed {
        0 => String::new(),
        missed => format!("{missed} missed  "),
    };
    let keys = "Tab view  / filter  s sort  p pause  q quit";
    Line::styled(
        fit(&format!("{missed}{keys}"), cells).into_owned(),
        paint.dim(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::app::{Agent, Event};
    use super::super::fleet::Table;
    use super::super::model::View;
    use super::super::model::tests::profile;
    use super::*;
    use crate::fleet::Fleet;
    use proto::agent::TimeRange;
    use proto::collector::DataQuality;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn app(view: View) -> App {
        let mut app = App::new(view, Sort::Own, Duration::from_secs(10));
        app.take(Event::Agent(Agent {
            host: "db1".into(),
            rate_hz: 99,
            cpus: 4,
            cpus_online: 4,
            own_share: 0.0034,
            rss_bytes: 31 << 20,
        }));
        let mut came = profile(&[
            (
                "/system.slice/nginx.service",
                "812",
                "nginx",
                &["main", "ngx_worker"],
                1_200_000_000,
            ),
            (
                "/user.slice",
                "4711",
                "evil\x1b[2J\u{202e}",
                &["main", "a\nb\x07"],
                300_000_000,
            ),
            ("/", "9", "kworker/0:1", &["日本語の関数"], 10_101_010),
        ]);
        came.info.quality.lost = 2;
        came.info.quality.idle = 245;
        app.take(Event::Profile(Box::new(came), 0));
        app
    }

    fn screen(app: &App, columns: u16, lines: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
        terminal.draw(|frame| draw(frame, app, true)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn functions() {
        insta::assert_snapshot!(screen(&app(View::Functions), 100, 9));
    }

    #[test]
    fn cgroups() {
        insta::assert_snapshot!(screen(&app(View::Cgroups), 100, 10));
    }

    #[test]
    fn processes_with_filter_and_pause() {
        let mut app = app(View::Processes);
        (app.filter, app.typing, app.paused) = ("k".into(), true, true);
        insta::assert_snapshot!(screen(&app, 80, 8));
    }

    #[test]
    fn narrow() {
        insta::assert_snapshot!(screen(&app(View::Functions), 30, 7));
    }

    #[test]
    fn lost_agent() {
        let mut app = App::new(View::Functions, Sort::Own, Duration::from_secs(10));
        app.take(Event::Lost(
            "failed to reach agent: refused".into(),
            Duration::from_secs(2),
        ));
        insta::assert_snapshot!(screen(&app, 60, 6));
    }

    fn fleet(view: View) -> App {
        let mut app = App::of_fleet(view, Sort::Own, "c1:7600".into());
        let row = |name: &str, own| Row {
            name: name.into(),
            detail: "libx.so\x07".into(),
            own,
            total: 3_000_000_000,
            kind: None,
        };
        app.take(Event::Rows(Box::new(Table {
            view,
            rows: vec![row("work", 2_000_000_000), row("db\x1b[31m", 1_000_000_000)],
            left_out: 4,
            fleet: Fleet::of(DataQuality {
                covered: Some(TimeRange {
                    start_unix_ns: 0,
                    end_unix_ns: 60_000_000_000,
                }),
                hosts: 48,
                hosts_alive: 50,
                gaps_total: 3,
                total_weight: 3_000_000_000,
                unit: "nanoseconds".into(),
                ..DataQuality::default()
            }),
        })));
        app
    }

    #[test]
    fn hosts_of_a_fleet() {
        insta::assert_snapshot!(screen(&fleet(View::Hosts), 110, 7));
    }

    #[test]
    fn a_view_of_a_fleet_that_was_just_chosen_is_on_its_way() {
        let mut app = fleet(View::Hosts);
        app.view = View::Functions;
        insta::assert_snapshot!(screen(&app, 80, 6));
    }

    #[test]
    fn no_terminal_is_too_small_to_draw() {
        let mut app = app(View::Functions);
        app.scroll = 99;
        for columns in 1..40 {
            for lines in 1..9 {
                screen(&app, columns, lines);
            }
        }
    }

    #[test]
    fn nothing_hostile_reaches_the_screen() {
        let agents = View::ALL.map(app);
        let fleets = View::FLEET.map(fleet);
        for app in agents.into_iter().chain(fleets) {
            let screen = screen(&app, 120, 10);
            assert!(!screen.contains(['\x1b', '\x07', '\u{202e}']), "{screen}");
        }
    }
}
