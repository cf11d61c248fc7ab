//! Writes records as the kernel would, for benches and tests without a kernel and for hosts that
//! are not available. The layout is that of [`super::event`] with cgroups.

use crate::record::{CpuMode, Sample};
use host::time::MonotonicTime;
use perf_event_open_sys::bindings as sys;

/// A record: type, misc bits and a body of words, with the header in front.
pub fn record(kind: u32, misc: u16, body: &[u64]) -> Vec<u8> {
    let mut bytes = kind.to_ne_bytes().to_vec();
    bytes.extend(misc.to_ne_bytes());
    bytes.extend(((body.len() * 8 + 8) as u16).to_ne_bytes());
    bytes.extend(body.iter().flat_map(|word| word.to_ne_bytes()));
    bytes
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn with_trailer(kind: u32, body: &[u64], time: MonotonicTime) -> Vec<u8> {
    record(kind, 0, &[body, &[0, time.0, 0, 0]].concat())
}

/// A sample in kernel code of a task, in the root cgroup.
pub fn sample(time: MonotonicTime, pid: u32, cpu: u32, period: u64, chain: &[u64]) -> Vec<u8> {
    let ip = chain.last().copied().unwrap_or(0);
    let mut body = vec![1, ip, pair(pid, pid), time.0, pair(cpu, 0), period];
    body.push(chain.len() as u64);
    body.extend(chain);
    body.push(1);
    record(
        sys::PERF_RECORD_SAMPLE,
        sys::PERF_RECORD_MISC_KERNEL as u16,
        &body,
    )
}

/// A sample that was recorded, at another time, as an event with copies of stacks writes it.
pub fn again(sample: &Sample<'_>, time: MonotonicTime, copy_bytes: usize) -> Vec<u8> {
    let mut body = vec![1, sample.ip, pair(sample.pid.0, sample.tid.0), time.0];
    body.extend([pair(sample.cpu.0, 0), sample.period]);
    body.push(sample.callchain.iter().count() as u64);
    body.extend(sample.callchain.iter());
    match sample.user {
        Some(user) => {
            let mut copy = user.stack[..user.stack.len().min(copy_bytes)].to_vec();
            let used = copy.len() as u64;
            copy.resize(copy_bytes, 0);
            body.push(u64::from(sys::PERF_SAMPLE_REGS_ABI_64));
            body.extend(words(user.regs));
            body.push(copy_bytes as u64);
            body.extend(words(&copy));
            body.push(used);
        }
        // No registers, and a copy of no bytes.
        None => body.extend([0, 0]),
    }
    body.push(sample.cgroup.0);
    let mode = match sample.mode {
        CpuMode::Kernel => sys::PERF_RECORD_MISC_KERNEL,
        CpuMode::User => sys::PERF_RECORD_MISC_USER,
        CpuMode::Other => sys::PERF_RECORD_MISC_CPUMODE_UNKNOWN,
    };
    record(sys::PERF_RECORD_SAMPLE, mode as u16, &body)
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().map(|word| u64::from_ne_bytes(*word))
}

/// A new name of a task: eight bytes of it.
pub fn comm(time: MonotonicTime, pid: u32, name: [u8; 8]) -> Vec<u8> {
    let body = [pair(pid, pid), u64::from_ne_bytes(name), 0];
    with_trailer(sys::PERF_RECORD_COMM, &body, time)
}

/// A new process.
pub fn fork(time: MonotonicTime, pid: u32, parent: u32) -> Vec<u8> {
    let body = [pair(pid, parent), pair(pid, parent), time.0];
    with_trailer(sys::PERF_RECORD_FORK, &body, time)
}

/// The end of a task.
pub fn exit(time: MonotonicTime, pid: u32) -> Vec<u8> {
    let body = [pair(pid, 1), pair(pid, 1), time.0];
    with_trailer(sys::PERF_RECORD_EXIT, &body, time)
}

/// A cgroup that was made: with eight bytes of its path, the unused ones NUL.
pub fn cgroup(time: MonotonicTime, id: u64, path: [u8; 8]) -> Vec<u8> {
    let body = [id, u64::from_ne_bytes(path), 0];
    with_trailer(sys::PERF_RECORD_CGROUP, &body, time)
}

/// Records that found no room.
pub fn lost(time: MonotonicTime, records: u64) -> Vec<u8> {
    with_trailer(sys::PERF_RECORD_LOST, &[1, records], time)
}
