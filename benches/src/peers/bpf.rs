//! Profilers that count stacks in the kernel with eBPF: a line of bpftrace, and bcc's `profile`.

use super::{Measured, Outcome, RATE_HZ, Stage};
use crate::contained::bytes_in;
use crate::stacks::Counted;

/// Distinct stacks that bpftrace may keep: its default of 4,096 loses some within the minute.
const KEYS_MAX: u32 = 1 << 17;

/// What the text of a profiler says: stacks counted, and samples of all kinds.
#[derive(Debug, Default, PartialEq, Eq)]
struct Output {
    samples: u64,
    busy: Counted,
}

/// bpftrace with user and kernel stacks.
pub fn bpftrace(stage: &Stage<'_>) -> anyhow::Result<Outcome> {
    let line = format!(
        "BPFTRACE_MAP_KEYS_MAX={KEYS_MAX} exec bpftrace -e \
         'profile:hz:{RATE_HZ} {{ @[kstack, ustack, comm] = count(); }}'"
    );
    measure(
        stage,
        "bpftrace profile:hz:99",
        "counted in the kernel by frame pointers; named when it ends, if the process still lives; \
         bpftrace 0.17 leaves many user stacks empty when it may keep this many",
        &line,
        read_bpftrace,
    )
}

/// bcc's `profile`.
pub fn bcc(stage: &Stage<'_>) -> anyhow::Result<Outcome> {
    let line = format!("exec profile-bpfcc -F {RATE_HZ} -f --stack-storage-size {KEYS_MAX}");
    let note = "counted in the kernel by frame pointers; named when it ends";
    measure(stage, "bcc profile", note, &line, read_folded)
}

fn measure(
    stage: &Stage<'_>,
    name: &'static str,
    note: &str,
    line: &str,
    read: fn(&str) -> Output,
) -> anyhow::Result<Outcome> {
    let dir = tempfile::tempdir()?;
    let recorded = match stage.record(dir.path(), stage.length, line, &[])? {
        Ok(recorded) => recorded,
        Err(reason) => return Ok(Err(reason)),
    };
    let said = read(&recorded.ended.stdout);
    if said.samples == 0 {
        return Ok(Err(format!("no samples: {}", recorded.ended.reason())));
    }
    Ok(Ok(vec![Measured {
        complete: said.busy.share(),
        written_bytes: bytes_in(dir.path()),
        ..recorded.row(name, note, Some(said.samples))
    }]))
}

/// Reads a map of bpftrace: `@[`, kernel frames, `, `, user frames, `, COMM]: COUNT`.
fn read_bpftrace(text: &str) -> Output {
    let mut said = Output::default();
    let mut frames: Vec<&str> = Vec::new();
    for line in text.lines() {
        if line.starts_with("@[") {
            frames.clear();
        } else if line.starts_with(' ') {
            let frame = line.trim();
            frames.push(frame.rsplit_once('+').map_or(frame, |(name, _)| name));
        }
        let Some((comm, count)) = line.rsplit_once("]: ") else {
            continue;
        };
        let Ok(count) = count.parse::<u64>() else {
            continue;
        };
        said.samples += count;
        if !comm.contains("swapper/") {
            said.busy.add(frames.iter().copied(), count);
        }
    }
    said
}

/// Reads folded text: `COMM;root;…;leaf COUNT`.
fn read_folded(text: &str) -> Output {
    let mut said = Output::default();
    for line in text.lines() {
        let Some((stack, count)) = line.rsplit_once(' ') else {
            continue;
        };
        let Ok(count) = count.parse::<u64>() else {
            continue;
        };
        said.samples += count;
        let (comm, frames) = stack.split_once(';').unwrap_or((stack, ""));
        if !comm.starts_with("swapper") {
            said.busy.add(frames.split(';').rev(), count);
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_of_bpftrace_is_read() {
        let text = "\
Attaching 1 probe...
^C
@[
    clear_page+9
    asm_exc_page_fault+38
, 
    work+4
    main+12
    __libc_start_call_main+128
, tool x]: 3
@[
    pv_native_safe_halt+15
, , swapper/0]: 7
";
        let busy = Counted {
            stacks: 3,
            complete: 3,
        };
        assert_eq!(read_bpftrace(text), Output { samples: 10, busy });
    }

    #[test]
    fn folded_text_is_read() {
        let busy = Counted {
            stacks: 5,
            complete: 2,
        };
        let text = "tool;main;work 2\ntool;x;y;z;work 3\nswapper/1;idle 4\n";
        assert_eq!(read_folded(text), Output { samples: 9, busy });
    }
}
