//! What the same rows cost where nothing is done but what cannot be left out: zstd, numbers in and
//! out of columns, and sums. A figure of the collector as a ratio to it holds on any machine.
//!
//! Taking: a window comes as columns under zstd, is unpacked, ordered, and goes with those of its
//! ten minutes into columns under zstd. Asking: the totals of each container and ten minutes are
//! unpacked and added up by stack. There is no transport, no name, no log, no disk and no answer.

use super::generate::{Drawn, Fleet, WINDOW_S};
use anyhow::{Context, ensure};
use rustix::time::{ClockId, clock_gettime};

/// Windows of ten minutes.
const WINDOWS: u64 = 600 / WINDOW_S;

/// One host in so many is looked at.
const SHARE: usize = 5;

/// Times that everything is added up; the median counts.
const REPEATS: usize = 5;

/// Level of zstd, the collector's.
const LEVEL: i32 = 3;

/// What it costs, as CPU time of one thread.
pub struct Floor {
    /// To take a million rows. Unit: seconds.
    pub take_s: f64,
    /// To unpack the totals of all hosts. Unit: milliseconds.
    pub unpack_ms: f64,
    /// To add them up as well. Unit: milliseconds.
    pub merge_ms: f64,
}

/// A row: container, stack, window, count.
type Row = (u32, u32, u32, u32);

/// Measures `windows` windows of these hosts.
///
/// # Errors
/// When zstd fails, or what was unpacked is not what was packed.
pub fn measure(
    fleet: &Fleet,
    hosts: std::ops::Range<usize>,
    windows: u64,
) -> anyhow::Result<Floor> {
    let all = hosts.len() as f64;
    let some: Vec<usize> = hosts.step_by(SHARE).collect();
    let scale = all / some.len().max(1) as f64;
    let (mut drawn, mut blocks, mut samples) = (Drawn::default(), Vec::new(), 0);
    let (mut taken, mut take_s) = (0, 0.0);
    for host in some {
        for begin in (1..=windows).step_by(WINDOWS as usize) {
            let mut sent = Vec::new();
            for window in begin..=windows.min(begin + WINDOWS - 1) {
                fleet.draw(host, window, &mut drawn);
                samples += drawn.rows.iter().map(|row| u64::from(row.2)).sum::<u64>();
                taken += drawn.rows.len();
                sent.push(zstd::bulk::compress(&columns(&drawn), LEVEL)?);
            }
            let before = cpu_s();
            let (totals, _) = stored(&sent)?;
            take_s += cpu_s() - before;
            blocks.push(totals);
        }
    }
    let mut sums = vec![0u64; fleet.hashes.len()];
    let (mut unpacked, mut merged) = (Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        let before = cpu_s();
        for block in &blocks {
            std::hint::black_box(unpack(block)?);
        }
        unpacked.push(cpu_s() - before);
        sums.fill(0);
        let before = cpu_s();
        for block in &blocks {
            add(&unpack(block)?, &mut sums)?;
        }
        merged.push(cpu_s() - before);
    }
    ensure!(
        sums.iter().sum::<u64>() == samples,
        "the floor lost samples"
    );
    Ok(Floor {
        take_s: take_s * 1e6 / taken.max(1) as f64,
        unpack_ms: median(unpacked) * scale * 1e3,
        merge_ms: median(merged) * scale * 1e3,
    })
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// CPU time of this thread so far. Unit: seconds.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// A window as it is sent: three columns.
fn columns(drawn: &Drawn) -> Vec<u8> {
    let mut out = Vec::with_capacity(drawn.rows.len() * 5);
    drawn
        .rows
        .iter()
        .for_each(|row| put(&mut out, row.0.into()));
    drawn
        .rows
        .iter()
        .for_each(|row| put(&mut out, row.1.0.into()));
    drawn
        .rows
        .iter()
        .for_each(|row| put(&mut out, row.2.into()));
    out
}

/// Windows as they are kept: the totals of their time, and what each window has of them.
fn stored(sent: &[Vec<u8>]) -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
    let mut rows: Vec<Row> = Vec::new();
    for (window, packed) in (0..).zip(sent) {
        let raw = unpack(packed)?;
        let mut numbers = Vec::with_capacity(raw.len());
        let mut rest = &raw[..];
        while !rest.is_empty() {
            numbers.push(take(&mut rest)? as u32);
        }
        let (containers, rest) = numbers.split_at(numbers.len() / 3);
        let (stacks, counts) = rest.split_at(containers.len());
        let of_window = containers.iter().zip(stacks).zip(counts);
        rows.extend(of_window.map(|((&of, &stack), &count)| (of, stack, window, count)));
    }
    rows.sort_unstable();
    let (mut totals, mut times) = (Vec::new(), Vec::new());
    let mut before = 0;
    for run in rows.chunk_by(|left, right| (left.0, left.1) == (right.0, right.1)) {
        if run[0].1 < before {
            // The next container: its stacks start again.
            put(&mut totals, 0);
            before = 0;
        }
        put(&mut totals, u64::from(run[0].1 - before) + 1);
        before = run[0].1;
        put(&mut totals, run.iter().map(|row| u64::from(row.3)).sum());
        put(&mut times, run.len() as u64);
        for row in run {
            put(&mut times, row.2.into());
            put(&mut times, row.3.into());
        }
    }
    Ok((
        zstd::bulk::compress(&totals, LEVEL)?,
        zstd::bulk::compress(&times, LEVEL)?,
    ))
}

fn add(totals: &[u8], sums: &mut [u64]) -> anyhow::Result<()> {
    let (mut rest, mut stack) = (totals, 0);
    while !rest.is_empty() {
        let step = take(&mut rest)? as usize;
        if step == 0 {
            stack = 0;
            continue;
        }
        stack += step - 1;
        let sum = sums.get_mut(stack).context("a stack that was not sent")?;
        *sum += take(&mut rest)?;
    }
    Ok(())
}

fn unpack(packed: &[u8]) -> anyhow::Result<Vec<u8>> {
    let len = zstd::bulk::Decompressor::upper_bound(packed).context("a block without a length")?;
    Ok(zstd::bulk::decompress(packed, len)?)
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take(rest: &mut &[u8]) -> anyhow::Result<u64> {
    let mut value = 0;
    for (at, &byte) in rest.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            *rest = &rest[at + 1..];
            return Ok(value);
        }
    }
    anyhow::bail!("a number without an end")
}
