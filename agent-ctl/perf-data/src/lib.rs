//! Reads what `perf record` wrote, without perf: files and pipes, compressed or not, with
//! callchains or copies of stacks.
//!
//! The records are replayed through the agent's own process table, unwinder and symbolizer, so a
//! stack of a recording is what a stack of the agent is. Names come from the files of this machine
//! that are those of the recording (`local.rs`); a function of any other file is called `[file]`.
//!
//! The bytes are an attacker's. The crates that read this format allocate what a file says
//! (linux-perf-data) or assert what it must say (linux-perf-event-reader), so it is read here:
//! nothing is allocated that is not in the file, except what it has compressed, and that is bounded
//! as the file is.
//!
//! Not read: recordings of machines with the other byte order, directories (`perf record
//! --threads`), traces of the processor, callers in branch stacks (`--call-graph lbr`).
#![forbid(unsafe_code)]

mod attr;
mod container;
mod fields;
mod local;
mod naming;
mod record;
mod replay;

use container::Container;
pub use container::is_perf_data;
use local::LocalFiles;
use profile::formats::{Import, Known};
use replay::Replay;

/// What a note or an error lists of a kind.
const LISTED_MAX: usize = 5;

/// How a recording is read.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Most bytes of the file, and of what it has compressed.
    pub bytes_max: usize,
    /// Which of its events is taken, of those with samples, from 1; `None`: the first.
    pub event: Option<usize>,
    /// Take names and unwind information from the files of this machine.
    pub local: bool,
}

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PerfDataError {
    /// Its numbers are the other way round.
    #[error(
        "the recording is of a machine with the other byte order\nconvert it there: perf script"
    )]
    ByteOrder,
    /// Its start is damaged.
    #[error("failed to read perf.data: the header is damaged")]
    Header,
    /// It has no event.
    #[error("failed to read perf.data: it describes no event")]
    NoEvents,
    /// It has no sample.
    #[error("there is no sample in the recording")]
    NoSamples,
    /// Beyond the limit.
    #[error("the recording has more than {limit} bytes, packed or unpacked")]
    TooLarge {
        /// In bytes.
        limit: usize,
    },
    /// What is compressed in it is damaged.
    #[error("failed to unpack a record of perf.data")]
    Unpack(#[source] std::io::Error),
    /// There are fewer events.
    #[error("there is no event {asked} in the recording: {events}")]
    NoSuchEvent {
        /// From 1.
        asked: usize,
        /// Those there are.
        events: String,
    },
}

/// Reads a recording.
///
/// # Errors
/// When it has no samples, is damaged from its start, or is beyond a limit.
pub fn read(bytes: &[u8], options: Options) -> Result<Import, PerfDataError> {
    let limit = options.bytes_max;
    if bytes.len() > limit {
        return Err(PerfDataError::TooLarge { limit });
    }
    let mut container = Container::read(bytes, limit)?;
    let event = choose(&mut container, options.event)?;
    let mut notes = std::mem::take(&mut container.notes);
    let replay = Replay::new(&container, event, LocalFiles::new(options.local));
    let profile = replay.run(&mut notes);
    Ok(Import::new(profile, notes).knowing(Known::ALL))
}

/// The event to take. The others with samples are noted.
fn choose(container: &mut Container<'_>, asked: Option<usize>) -> Result<usize, PerfDataError> {
    let mut samples = vec![0u64; container.attrs.len()];
    for record in container.records() {
        if record.kind == record::kind::SAMPLE {
            samples[record.attr] += 1;
        }
    }
    let with_samples = || (0..samples.len()).filter(|&at| samples[at] > 0);
    let events: Vec<String> = with_samples()
        .zip(1..)
        .map(|(at, number)| format!("{number} is `{}`", container.attrs[at].name))
        .collect();
    let number = asked.unwrap_or(1);
    let found = number
        .checked_sub(1)
        .and_then(|skip| with_samples().nth(skip));
    let Some(found) = found else {
        return Err(match asked {
            Some(asked) if !events.is_empty() => PerfDataError::NoSuchEvent {
                asked,
                events: listed(&events),
            },
            _ => PerfDataError::NoSamples,
        });
    };
    if events.len() > 1 {
        let others: u64 = samples.iter().sum::<u64>() - samples[found];
        container.notes.push(format!(
            "{others} samples of events other than `{}` were skipped; take one with --profile N: {}",
            container.attrs[found].name,
            listed(&events)
        ));
    }
    Ok(found)
}

/// The first of some names, and how many there are besides.
fn listed(names: &[String]) -> String {
    let first = &names[..names.len().min(LISTED_MAX)];
    match names.len() - first.len() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

#[cfg(test)]
mod tests;
