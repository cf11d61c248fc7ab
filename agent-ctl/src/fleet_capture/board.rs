//! Shows the progress of each host: on a terminal, lines that are redrawn within its screen;
//! elsewhere, one line per step.

use crate::terminal::{clean, fit, width};
use crate::units;
use proto::collector::{HostProgress, HostState};
use std::collections::HashMap;
use std::io::Write;
use std::time::{Duration, Instant};

/// Shortest time between two drawings.
const DRAW_INTERVAL: Duration = Duration::from_millis(100);

/// Rows and columns of a terminal that does not say how large it is.
const SCREEN: (u16, u16) = (80, 24);

/// Lines of the screen that are left for the prompt and what stood before.
const ROWS_LEFT: usize = 3;

/// Widest name of a host that is shown completely. Unit: cells.
const NAME_CELLS_MAX: usize = 32;

/// The hosts of a capture and how they are shown.
pub struct Board {
    hosts: Vec<HostProgress>,
    by_id: HashMap<String, usize>,
    terminal: bool,
    quiet: bool,
    /// Lines on the screen now.
    drawn: usize,
    drawn_at: Option<Instant>,
}

impl Board {
    /// A board without hosts; with `quiet` it shows nothing.
    pub fn new(terminal: bool, quiet: bool) -> Board {
        Board {
            hosts: Vec::new(),
            by_id: HashMap::new(),
            terminal,
            quiet,
            drawn: 0,
            drawn_at: None,
        }
    }

    /// The hosts that are asked.
    pub fn start(&mut self, hosts: &[HostProgress]) {
        self.hosts = hosts.to_vec();
        let ids = self.hosts.iter().enumerate();
        self.by_id = ids.map(|(at, host)| (host.host_id.clone(), at)).collect();
        if !self.terminal && !self.quiet {
            match self.hosts.len() {
                1 => note!("1 host is asked"),
                count => note!("{count} hosts are asked"),
            }
            for host in self.hosts.iter().filter(|host| is_over(host)) {
                note!("{}", line(host));
            }
        }
        self.draw();
    }

    /// A host has come further. One that is not in the plan is passed over.
    pub fn host(&mut self, host: HostProgress) {
        let Some(&at) = self.by_id.get(&host.host_id) else {
            return;
        };
        let changed = self.hosts[at].state != host.state;
        self.hosts[at] = host;
        if changed && !self.terminal && !self.quiet {
            note!("{}", line(&self.hosts[at]));
        }
        let due = self
            .drawn_at
            .is_none_or(|drawn| drawn.elapsed() >= DRAW_INTERVAL);
        if due {
            self.draw();
        }
    }

    fn draw(&mut self) {
        if !self.terminal || self.quiet {
            return;
        }
        self.drawn_at = Some(Instant::now());
        let (columns, rows) = crossterm::terminal::size()
            .ok()
            .filter(|&(columns, rows)| columns > 0 && rows > 0)
            .unwrap_or(SCREEN);
        let rows = usize::from(rows).saturating_sub(ROWS_LEFT).max(1);
        let lines = self.lines(usize::from(columns), rows);
        let mut text = self.erase();
        for line in &lines {
            text.push_str(line);
            text.push('\n');
        }
        self.drawn = lines.len();
        // Where it cannot be shown, the result still comes.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    /// Takes the lines off the screen.
    pub fn clear(&mut self) {
        let text = self.erase();
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    /// The escape sequence that erases the drawn lines: up to the first, and all below it.
    fn erase(&mut self) -> String {
        match std::mem::take(&mut self.drawn) {
            0 => String::new(),
            lines => format!("\x1b[{lines}F\x1b[J"),
        }
    }

    /// A line for all, then one for each host, those first that are still awaited, then those that
    /// failed; as many as there is room for.
    fn lines(&self, columns: usize, rows: usize) -> Vec<String> {
        let mut lines = vec![fit(&self.total(), columns).into_owned()];
        let mut order: Vec<&HostProgress> = self.hosts.iter().collect();
        order.sort_by_key(|host| match host.state() {
            HostState::Running => 0,
            HostState::Waiting | HostState::Unspecified => 1,
            HostState::Failed | HostState::Lost => 2,
            HostState::Partial => 3,
            HostState::Done => 4,
        });
        let names = order.iter().map(|host| width(&clean(name(host))));
        let cells = names.max().unwrap_or(0).min(NAME_CELLS_MAX);
        let room = rows.saturating_sub(1);
        let shown = match order.len() <= room {
            true => order.len(),
            false => room.saturating_sub(1),
        };
        for host in &order[..shown] {
            let name = clean(name(host));
            let name = fit(&name, cells);
            let pad = " ".repeat(cells.saturating_sub(width(&name)));
            let line = format!("{name}{pad}  {}", state(host));
            lines.push(fit(&line, columns).into_owned());
        }
        let more = order.len() - shown;
        if more > 0 && room > 0 {
            lines.push(fit(&format!("… {more} more hosts"), columns).into_owned());
        }
        lines
    }

    /// `12 of 50 hosts have answered: 30 running, 5 waiting, 3 failed`.
    fn total(&self) -> String {
        let of = |states: &[HostState]| {
            let found = self.hosts.iter();
            found.filter(|host| states.contains(&host.state())).count()
        };
        let parts = [
            (of(&[HostState::Running]), "running"),
            (of(&[HostState::Waiting, HostState::Unspecified]), "waiting"),
            (of(&[HostState::Failed]), "failed"),
            (of(&[HostState::Lost]), "lost"),
        ];
        let parts = parts.iter().filter(|(count, _)| *count > 0);
        let parts: Vec<String> = parts
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        let answered = of(&[HostState::Done, HostState::Partial]);
        let mut text = format!("{answered} of {} hosts have answered", self.hosts.len());
        if !parts.is_empty() {
            text.push_str(&format!(": {}", parts.join(", ")));
        }
        text
    }
}

fn is_over(host: &HostProgress) -> bool {
    !matches!(
        host.state(),
        HostState::Waiting | HostState::Running | HostState::Unspecified
    )
}

/// A host's name; its id where it has none.
pub fn name(host: &HostProgress) -> &str {
    match host.hostname.is_empty() {
        true => &host.host_id,
        false => &host.hostname,
    }
}

/// What an agent or the collector says of a host, in one line: hints stand in lines of their own.
pub fn one_line(message: &str) -> String {
    let lines = message.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty()).map(clean);
    lines.collect::<Vec<_>>().join("; ")
}

/// A state in a word.
pub fn state_word(state: HostState) -> &'static str {
    match state {
        HostState::Unspecified => "unknown",
        HostState::Waiting => "waiting",
        HostState::Running => "running",
        HostState::Done => "done",
        HostState::Partial => "partial",
        HostState::Failed => "failed",
        HostState::Lost => "lost",
    }
}

/// A host in one line.
fn line(host: &HostProgress) -> String {
    format!("{}: {}", clean(name(host)), state(host))
}

/// What a host does.
fn state(host: &HostProgress) -> String {
    let mut text = state_word(host.state()).to_owned();
    if let Some(progress) = &host.progress {
        let samples = units::count(progress.samples);
        text.push_str(&format!(", {samples} samples"));
        if progress.lost_samples > 0 {
            let lost = units::count(progress.lost_samples);
            text.push_str(&format!(", {lost} lost"));
        }
        if progress.throttled > 0 {
            let times = units::count(progress.throttled);
            text.push_str(&format!(", throttled {times} times"));
        }
        if host.state() == HostState::Running {
            let elapsed = units::duration(Duration::from_nanos(progress.elapsed_ns));
            text.push_str(&format!(", {elapsed}"));
        }
    }
    if !host.message.is_empty() {
        text.push_str(&format!(": {}", one_line(&host.message)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::agent::CaptureProgress;

    fn host(at: usize, state: HostState, samples: u64) -> HostProgress {
        HostProgress {
            host_id: format!("id-{at}"),
            hostname: format!("web-{at}"),
            state: state.into(),
            progress: Some(CaptureProgress {
                samples,
                elapsed_ns: 3_000_000_000,
                ..CaptureProgress::default()
            }),
            ..HostProgress::default()
        }
    }

    fn board() -> Board {
        let states = [
            HostState::Done,
            HostState::Running,
            HostState::Lost,
            HostState::Waiting,
            HostState::Partial,
            HostState::Failed,
        ];
        let hosts = states.into_iter().enumerate();
        let mut hosts: Vec<_> = hosts.map(|(at, state)| host(at, state, 1234)).collect();
        hosts[2].message = "it left\x1b[2J\n  come again\r\n".to_owned();
        hosts[5].hostname.push_str("\u{202e}moc");
        let mut board = Board::new(false, true);
        board.start(&hosts);
        board
    }

    #[test]
    fn those_that_are_awaited_come_first() {
        let lines = board().lines(80, 24).join("\n");
        insta::assert_snapshot!(lines, @r"
        2 of 6 hosts have answered: 1 running, 1 waiting, 1 failed, 1 lost
        web-1             running, 1,234 samples, 3 s
        web-3             waiting, 1,234 samples
        web-2             lost, 1,234 samples: it left\x1b[2J; come again
        web-5\u{202e}moc  failed, 1,234 samples
        web-4             partial, 1,234 samples
        web-0             done, 1,234 samples
        ");
    }

    #[test]
    fn what_does_not_fit_the_screen_is_counted() {
        let lines = board().lines(24, 4);
        insta::assert_snapshot!(lines.join("\n"), @r"
        2 of 6 hosts have answe…
        web-1             runni…
        web-3             waiti…
        … 4 more hosts
        ");
        for rows in 1..9 {
            assert!(board().lines(10, rows).len() <= rows);
        }
    }

    #[test]
    fn a_host_that_is_not_in_the_plan_is_passed_over() {
        let mut board = board();
        board.host(host(77, HostState::Running, 1));
        assert_eq!(board.hosts.len(), 6);
        board.host(host(3, HostState::Running, 9));
        assert_eq!(board.hosts[3].state(), HostState::Running);
    }
}
