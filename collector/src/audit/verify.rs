//! Verifies that the log is complete and unchanged.

use super::chain::{Link, START, Snapshot, each_line, hash};
use std::io;
use std::path::Path;

/// Most problems reported; a log that was rewritten has one per line.
const PROBLEMS_MAX: usize = 20;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Lines that were read.
    pub lines: u64,
    /// Number of the first.
    pub first_seq: u64,
    /// Number and hash of the last.
    pub last_seq: u64,
    /// See there.
    pub last_hash: String,
    /// A sentence each.
    pub problems: Vec<String>,
    /// Lines behind the one that was noted as the last; none: nothing was noted.
    pub behind: Option<u64>,
}

/// Reads all lines of a log that nobody writes to: one that was copied, or of a collector that is
/// stopped.
///
/// # Errors
/// When there is none, or a file cannot be read.
pub fn verify_dir(dir: &Path) -> io::Result<Verdict> {
    verify(&Snapshot::of(dir)?)
}

/// Reads all lines of the log.
///
/// # Errors
/// When a file cannot be read.
pub fn verify(snapshot: &Snapshot) -> io::Result<Verdict> {
    let mut found = Verdict::default();
    let mut problems = snapshot.problems.clone();
    // The line that was the last when that was noted.
    let mut noted = None;
    for (path, bytes) in &snapshot.files {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let mut at = 0_u64;
        each_line(path, *bytes, &mut |line, whole| {
            at += 1;
            let mut problem = |text: String| problems.push(format!("`{file}` line {at}: {text}"));
            let link = serde_json::from_slice::<Link>(line);
            let Ok(link) = link else {
                problem("it is not a line of the log".to_owned());
                found.last_hash = hash(line);
                return problems.len() < PROBLEMS_MAX;
            };
            if !whole {
                problem("the line is unfinished".to_owned());
            }
            let first = found.lines == 0;
            if first {
                found.first_seq = link.seq;
                if link.seq == 1 && link.prev != START {
                    problem("it is the first line, but names a line before it".to_owned());
                }
                let kept = snapshot.head.first;
                if link.seq > kept {
                    let text = format!(
                        "it has number {}, but the first kept line was {kept}",
                        link.seq
                    );
                    problem(text);
                }
            } else if link.seq != found.last_seq + 1 {
                let (from, to) = (found.last_seq + 1, link.seq.saturating_sub(1));
                problem(match from <= to {
                    true => format!("lines {from} to {to} before it are missing"),
                    false => format!(
                        "it has number {}, which does not follow the line before it",
                        link.seq
                    ),
                });
            } else if link.prev != found.last_hash {
                problem(format!(
                    "line {} before it was changed: it had another hash when this one was written",
                    found.last_seq
                ));
            }
            found.lines += 1;
            found.last_seq = link.seq;
            found.last_hash = hash(line);
            if link.seq == snapshot.head.seq {
                noted = Some(found.last_hash.clone());
            }
            problems.len() < PROBLEMS_MAX
        })?;
    }
    let head = &snapshot.head;
    if problems.len() < PROBLEMS_MAX && head.seq > 0 {
        if found.last_seq < head.seq {
            let from = found.last_seq + 1;
            problems.push(format!(
                "lines {from} to {} at the end are missing",
                head.seq
            ));
        } else if noted.as_ref() != Some(&head.hash) {
            problems.push(format!("line {}, the last, was changed", head.seq));
        }
    }
    found.behind = match head.seq {
        0 => None,
        seq => Some(found.last_seq.saturating_sub(seq)),
    };
    found.problems = problems;
    Ok(found)
}
