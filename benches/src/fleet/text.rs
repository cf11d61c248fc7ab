//! The plainest rival: each window as folded stacks, compressed.

use super::generate::{Drawn, Fleet};
use std::fmt::Write;
use std::time::Instant;

/// Windows that are folded: enough for a mean, few enough for a second.
const WINDOWS: usize = 20;

/// What folded text takes.
pub struct Folded {
    /// Rows in it.
    pub rows: u64,
    /// Compressed.
    pub bytes: u64,
    /// Writing and compressing it.
    pub cpu_s: f64,
}

/// Folds and compresses windows of different hosts.
pub fn folded(fleet: &Fleet, drawn: &mut Drawn) -> Folded {
    let mut all = Folded {
        rows: 0,
        bytes: 0,
        cpu_s: 0.0,
    };
    let (mut text, mut path) = (String::new(), Vec::new());
    for at in 0..WINDOWS {
        let host = at % fleet.hosts.len();
        fleet.draw(host, at as u64, drawn);
        let begin = Instant::now();
        text.clear();
        for &(container, stack, count) in &drawn.rows {
            text.push_str(&fleet.hosts[host].containers[container as usize].id);
            path.clear();
            fleet.dictionary.stacks.root_first(stack, &mut path);
            for &frame in &path {
                text.push(';');
                text.push_str(fleet.dictionary.frame(frame).function);
            }
            // Writing to a String cannot fail.
            let _ = writeln!(text, " {count}");
        }
        let packed = zstd::bulk::compress(text.as_bytes(), 3).unwrap_or_default();
        all.cpu_s += begin.elapsed().as_secs_f64();
        all.rows += drawn.rows.len() as u64;
        all.bytes += packed.len() as u64;
    }
    all
}
