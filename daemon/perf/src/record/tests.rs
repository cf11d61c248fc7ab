//! Tests the parser on records as the kernel writes them, byte by byte.

use super::*;
use crate::synthetic::record;
use proptest::prelude::*;

const LAYOUT: Layout = Layout {
    cgroup: true,
    user_regs: 0,
    user_stack: false,
    raw: false,
    fixed_period: 0,
};

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

const TRAILER: [u64; 4] = [0, 777, 0, 0];

fn sample_body(chain: &[u64], rest: &[u64]) -> Vec<u64> {
    let mut body = vec![1, 0xabc, pair(10, 11), 500, pair(3, 0), 10_101_010];
    body.push(chain.len() as u64);
    body.extend(chain);
    body.extend(rest);
    body
}

#[test]
fn a_sample_has_its_fields_in_the_order_of_the_manual() {
    let bytes = record(sys::PERF_RECORD_SAMPLE, 2, &sample_body(&[7, 8], &[44]));
    let Ok(Record::Sample(sample)) = parse(&bytes, &LAYOUT) else {
        panic!("not a sample")
    };
    assert_eq!(sample.mode, CpuMode::User);
    assert_eq!(
        (sample.pid, sample.tid, sample.cpu),
        (Pid(10), Tid(11), CpuId(3))
    );
    assert_eq!(
        (sample.time, sample.period),
        (MonotonicTime(500), 10_101_010)
    );
    assert_eq!(sample.callchain.iter().collect::<Vec<_>>(), [7, 8]);
    assert_eq!(sample.cgroup, CgroupId(44));
    assert_eq!(time(&bytes), Ok(MonotonicTime(500)));
}

#[test]
fn a_sample_that_does_not_say_its_period_has_the_events() {
    let mut body = sample_body(&[7, 8], &[44]);
    body.remove(5);
    let bytes = record(sys::PERF_RECORD_SAMPLE, 2, &body);
    let layout = Layout {
        fixed_period: 100,
        ..LAYOUT
    };
    let Ok(Record::Sample(sample)) = parse(&bytes, &layout) else {
        panic!("not a sample")
    };
    assert_eq!((sample.time, sample.period), (MonotonicTime(500), 100));
    assert_eq!(sample.callchain.iter().collect::<Vec<_>>(), [7, 8]);
    assert_eq!(sample.cgroup, CgroupId(44));
    assert!(matches!(flow_event(&bytes), FlowEvent::Sample(_)));
}

#[test]
fn a_sample_without_user_context_has_no_registers_and_its_cgroup_is_still_right() {
    let layout = Layout {
        cgroup: true,
        user_regs: 0x1c0,
        user_stack: true,
        raw: false,
        fixed_period: 0,
    };
    // abi 0, stack size 0, cgroup.
    let bytes = record(sys::PERF_RECORD_SAMPLE, 1, &sample_body(&[7], &[0, 0, 44]));
    let Ok(Record::Sample(sample)) = parse(&bytes, &layout) else {
        panic!("not a sample")
    };
    assert!(sample.user.is_none());
    assert_eq!(sample.cgroup, CgroupId(44));
}

#[test]
fn a_stack_copy_ends_where_the_kernel_stopped_copying() {
    let layout = Layout {
        cgroup: true,
        user_regs: 0x1c0,
        user_stack: true,
        raw: false,
        fixed_period: 0,
    };
    // abi 2, three registers, 16 bytes reserved, of which 8 are real, cgroup.
    let rest = [2, 100, 101, 102, 16, 0x55, 0x66, 8, 44];
    let bytes = record(sys::PERF_RECORD_SAMPLE, 2, &sample_body(&[7], &rest));
    let Ok(Record::Sample(sample)) = parse(&bytes, &layout) else {
        panic!("not a sample")
    };
    let user = sample.user.expect("copied");
    assert_eq!(user.regs.len(), 24);
    assert_eq!(user.stack, 0x55u64.to_ne_bytes());
    assert!(user.is_64);
    assert!(!user.full, "the stack ends here, not the copy");
    assert_eq!(sample.cgroup, CgroupId(44));
}

#[test]
fn what_a_tracepoint_recorded_stands_between_callchain_and_registers() {
    let layout = Layout {
        user_regs: 0x1c0,
        user_stack: true,
        raw: true,
        ..LAYOUT
    };
    // Twelve bytes of data behind their size; abi 0, stack size 0, cgroup.
    let raw = [pair(12, 0xaaaa_bbbb), 0x1122_3344_5566_7788];
    let rest = [&raw[..], &[0, 0, 44]].concat();
    let bytes = record(sys::PERF_RECORD_SAMPLE, 1, &sample_body(&[7], &rest));
    let Ok(Record::Sample(sample)) = parse(&bytes, &layout) else {
        panic!("not a sample")
    };
    let found = sample.raw.expect("recorded");
    assert_eq!(found.len(), 12);
    assert_eq!(found[..4], 0xaaaa_bbbbu32.to_ne_bytes());
    assert_eq!(sample.cgroup, CgroupId(44));
    let rest = [&[pair(4000, 0)][..], &[0, 0, 44]].concat();
    let bytes = record(sys::PERF_RECORD_SAMPLE, 1, &sample_body(&[7], &rest));
    assert!(matches!(parse(&bytes, &layout), Err(Malformed)));
}

#[test]
fn a_callchain_longer_than_its_record_is_malformed() {
    let mut body = sample_body(&[7, 8], &[44]);
    body[6] = 100;
    let bytes = record(sys::PERF_RECORD_SAMPLE, 2, &body);
    assert!(matches!(parse(&bytes, &LAYOUT), Err(Malformed)));
}

#[test]
fn a_mapping_has_an_inode_though_another_event_asked_for_build_ids() {
    let mut body = vec![pair(10, 10), 0x1000, 0x2000, 0x400];
    body.extend([pair(8, 1), 77, 3]);
    body.push(pair(5, 2));
    body.push(u64::from_ne_bytes(*b"/bin/x\0\0"));
    body.extend(TRAILER);
    // The kernel marks the one record that it writes for all events.
    let misc = sys::PERF_RECORD_MISC_MMAP_BUILD_ID as u16;
    let bytes = record(sys::PERF_RECORD_MMAP2, misc, &body);
    let Ok(Record::Mmap(mmap)) = parse(&bytes, &LAYOUT) else {
        panic!("not a mapping")
    };
    let inode = MapFile::Inode {
        major: 8,
        minor: 1,
        inode: 77,
        generation: 3,
    };
    assert_eq!(mmap.file, inode);
    assert_eq!(
        (mmap.start, mmap.len, mmap.file_offset),
        (0x1000, 0x2000, 0x400)
    );
    assert_eq!(mmap.path, b"/bin/x");
    assert_eq!(time(&bytes), Ok(MonotonicTime(777)));
}

#[test]
fn a_comm_record_says_whether_it_was_exec() {
    let name = u64::from_ne_bytes(*b"worker\0\0");
    let body = [&[pair(10, 12), name, 0][..], &TRAILER].concat();
    let misc = sys::PERF_RECORD_MISC_COMM_EXEC as u16;
    let bytes = record(sys::PERF_RECORD_COMM, misc, &body);
    let Ok(Record::Comm {
        pid,
        tid,
        comm,
        exec,
    }) = parse(&bytes, &LAYOUT)
    else {
        panic!("not a comm")
    };
    assert_eq!((pid, tid, exec), (Pid(10), Tid(12), true));
    assert_eq!(comm, Comm::from_bytes(b"worker"));
}

#[test]
fn a_thread_that_comes_to_a_cpu_tells_of_it_and_one_that_leaves_does_not() {
    let told = |misc: u32| {
        let trailer = [pair(10, 12), 777, pair(3, 0), 0];
        // A CPU-wide record says in its body who ran before.
        let body = [&[pair(8, 9)][..], &trailer].concat();
        let bytes = record(sys::PERF_RECORD_SWITCH_CPU_WIDE, misc as u16, &body);
        match parse(&bytes, &LAYOUT) {
            Ok(Record::Arrival { tid, cpu }) => Some((tid, cpu, time(&bytes))),
            _ => None,
        }
    };
    assert_eq!(told(0), Some((Tid(12), CpuId(3), Ok(MonotonicTime(777)))));
    assert_eq!(told(sys::PERF_RECORD_MISC_SWITCH_OUT), None);
}

#[test]
fn a_lost_record_counts_what_found_no_room() {
    let body = [&[1, 42][..], &TRAILER].concat();
    let bytes = record(sys::PERF_RECORD_LOST, 0, &body);
    assert!(matches!(parse(&bytes, &LAYOUT), Ok(Record::Lost(42))));
    assert_eq!(flow_event(&bytes), FlowEvent::Lost(42));
}

#[test]
fn the_pulse_of_a_sample_is_its_period() {
    let bytes = record(sys::PERF_RECORD_SAMPLE, 2, &sample_body(&[7, 8], &[44]));
    assert_eq!(flow_event(&bytes), FlowEvent::Sample(10_101_010));
    assert_eq!(flow_event(&bytes[..48]), FlowEvent::Other);
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(
        kind in 0u32..24, misc: u16, body: Vec<u8>, regs: bool, stack: bool, raw: bool
    ) {
        let layout = Layout {
            cgroup: true, user_regs: if regs { 0x1c0 } else { 0 }, user_stack: stack, raw,
            fixed_period: 0,
        };
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend(misc.to_ne_bytes());
        bytes.extend([0, 0]);
        bytes.extend(body);
        let _ = (time(&bytes), flow_event(&bytes));
        if let Ok(Record::Sample(sample)) = parse(&bytes, &layout) {
            prop_assert!(sample.callchain.len() * 8 <= bytes.len());
        }
    }
}
