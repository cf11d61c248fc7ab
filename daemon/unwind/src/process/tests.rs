//! Tests the process table with records as the kernel sends them.

use super::backing::FILES_RETRY;
use super::*;

mod model;

fn file_map(pid: u32, start: u64, inode: u64) -> Mmap<'static> {
    Mmap {
        pid: Pid(pid),
        start,
        len: 0x1000,
        file_offset: 0,
        file: MapFile::Inode {
            major: 8,
            minor: 1,
            inode,
            generation: 3,
        },
        private: true,
        path: b"/usr/bin/thing",
    }
}

/// The same on an overlay.
fn layer_map(pid: u32, start: u64, inode: u64) -> Mmap<'static> {
    Mmap {
        file: MapFile::Inode {
            major: 0,
            minor: 39,
            inode,
            generation: 0,
        },
        path: b"/a.out",
        ..file_map(pid, start, inode)
    }
}

fn fork(table: &mut ProcessTable, parent: u32, pid: u32, time: u64) {
    table.fork(
        Pid(pid),
        Tid(pid),
        Pid(parent),
        Tid(parent),
        MonotonicTime(time),
    );
}

#[test]
fn a_forked_child_keeps_its_parents_mappings_when_the_parent_changes_its_own() {
    let mut table = ProcessTable::new();
    fork(&mut table, 1, 10, 1);
    table.mmap(&file_map(10, 0x1000, 5), MonotonicTime(2));
    fork(&mut table, 10, 11, 3);
    table.mmap(&file_map(10, 0x1000, 6), MonotonicTime(4));
    let backing = |pid: u32| {
        table.get(Pid(pid)).and_then(|process| {
            process
                .space()
                .find(Avma(0x1800))
                .map(|mapping| mapping.backing)
        })
    };
    assert!(backing(10).is_some());
    assert_ne!(backing(10), backing(11));
}

#[test]
fn exec_is_a_new_process_with_an_empty_address_space() {
    let mut table = ProcessTable::new();
    fork(&mut table, 1, 10, 1);
    table.mmap(&file_map(10, 0x1000, 5), MonotonicTime(2));
    let before = table.get(Pid(10)).map(|process| process.id);
    table.comm(
        Pid(10),
        Tid(10),
        Comm::from_bytes(b"new"),
        true,
        MonotonicTime(3),
    );
    let process = table.get(Pid(10)).expect("still there");
    assert_ne!(Some(process.id), before);
    assert_eq!(process.comm, Comm::from_bytes(b"new"));
    assert!(process.space().find(Avma(0x1800)).is_none());
}

#[test]
fn a_pid_used_again_before_the_sweep_is_a_new_process() {
    let mut table = ProcessTable::new();
    fork(&mut table, 1, 10, 1);
    let first = table.get(Pid(10)).map(|process| process.id);
    table.exit(Pid(10), Tid(10), MonotonicTime(2));
    fork(&mut table, 1, 10, 3);
    table.sweep(MonotonicTime(100).plus(EXITING_MAX));
    let second = table.get(Pid(10)).map(|process| process.id);
    assert!(second.is_some());
    assert_ne!(first, second);
}

#[test]
fn an_ended_process_keeps_its_name_while_it_may_run_its_last_instructions() {
    let mut table = ProcessTable::new();
    fork(&mut table, 1, 10, 1);
    table.mmap(&file_map(10, 0x1000, 5), MonotonicTime(2));
    table.exit(Pid(10), Tid(10), MonotonicTime(50));
    table.sweep(MonotonicTime(50));
    let known = |table: &ProcessTable| table.get(Pid(10)).map(|it| it.space().is_empty());
    assert_eq!(known(&table), Some(false), "its last samples are not read");
    let last = MonotonicTime(50).plus(EXITING_MAX);
    table.sweep(last);
    assert_eq!(known(&table), Some(true), "its memory is gone");
    table.meet(Pid(10), last);
    assert_eq!(table.counts().unannounced, 0);
    table.sweep(last.plus(Duration::from_nanos(1)));
    assert_eq!(known(&table), None);
}

/// Process 10 with a thread 12 named `worker`.
fn with_worker() -> ProcessTable {
    let mut table = ProcessTable::new();
    fork(&mut table, 1, 10, 1);
    table.fork(Pid(10), Tid(12), Pid(10), Tid(10), MonotonicTime(2));
    table.comm(
        Pid(10),
        Tid(12),
        Comm::from_bytes(b"worker"),
        false,
        MonotonicTime(3),
    );
    table
}

#[test]
fn the_end_of_a_thread_does_not_end_its_process() {
    let mut table = with_worker();
    assert_eq!(
        table.thread_comm(Pid(10), Tid(12)),
        Comm::from_bytes(b"worker")
    );
    table.exit(Pid(10), Tid(12), MonotonicTime(4));
    table.sweep(MonotonicTime(100).plus(EXITING_MAX));
    assert!(table.get(Pid(10)).is_some());
}

#[test]
fn a_process_whose_main_thread_ended_lives_on_with_its_other_threads() {
    let mut table = ProcessTable::new();
    fork(&mut table, 1, 10, 1);
    table.fork(Pid(10), Tid(12), Pid(10), Tid(10), MonotonicTime(2));
    table.exit(Pid(10), Tid(10), MonotonicTime(3));
    table.sweep(MonotonicTime(100).plus(EXITING_MAX));
    assert!(table.get(Pid(10)).is_some());
    table.exit(Pid(10), Tid(12), MonotonicTime(101));
    table.sweep(MonotonicTime(200).plus(EXITING_MAX));
    assert!(table.get(Pid(10)).is_none());
}

fn scanned(pid: u32, start: u64, inode: u64) -> ScannedProcess {
    let mapping = scan::ScannedMapping {
        start,
        end: start + 0x1000,
        file_offset: 0,
        identity: Some(FileIdentity::Inode {
            major: 8,
            minor: 1,
            inode,
            generation: 0,
        }),
        private: true,
        path: b"/usr/bin/thing"[..].into(),
    };
    ScannedProcess {
        pid: Pid(pid),
        parent: Pid(1),
        comm: Comm::from_bytes(b"thing"),
        kernel: false,
        mappings: vec![mapping],
        threads: Vec::new(),
        threads_cut: false,
        main_ended: false,
    }
}

/// A look at /proc that missed nothing.
fn scan_of(processes: &[ScannedProcess]) -> Scan {
    Scan {
        processes: processes.to_vec(),
        complete: true,
    }
}

#[test]
fn a_process_whose_records_were_lost_is_learnt_from_proc() {
    let mut table = ProcessTable::new();
    table.meet(Pid(10), MonotonicTime(5));
    table.repair(&scan_of(&[scanned(10, 0x1000, 5)]), MonotonicTime(9));
    let process = table.get(Pid(10)).expect("there");
    assert_eq!(process.comm, Comm::from_bytes(b"thing"));
    assert!(process.space().find(Avma(0x1800)).is_some());
}

#[test]
fn a_task_that_was_waited_for_is_nobody_new() {
    let mut table = ProcessTable::new();
    let known = table.len();
    let gone = Pid(u32::MAX);
    table.meet(gone, MonotonicTime(5));
    assert_eq!((table.len(), table.counts().unannounced), (known, 0));
    table.repair(&Scan::default(), MonotonicTime(6));
    let kept = table.get(gone).expect("known");
    assert_eq!(
        (kept.comm, kept.ended),
        (Comm::from_bytes(b"[exited]"), None)
    );
}

#[test]
fn a_repair_leaves_alone_what_it_finds_right_and_what_is_newer() {
    let mut table = ProcessTable::new();
    fork(&mut table, 1, 10, 1);
    table.mmap(&file_map(10, 0x1000, 5), MonotonicTime(2));
    fork(&mut table, 1, 11, 20);
    let ids = |table: &ProcessTable| [10, 11].map(|pid| table.get(Pid(pid)).map(|p| p.id));
    let before = ids(&table);
    table.repair(&scan_of(&[scanned(10, 0x1000, 5)]), MonotonicTime(9));
    table.sweep(MonotonicTime(100).plus(EXITING_MAX));
    assert_eq!(ids(&table), before);
    assert_eq!(table.counts().repaired, 0);
}

#[test]
fn a_repair_ends_what_is_gone() {
    let mut table = ProcessTable::new();
    fork(&mut table, 1, 10, 1);
    table.repair(&scan_of(&[]), MonotonicTime(9));
    table.sweep(MonotonicTime(100).plus(EXITING_MAX));
    assert!(table.get(Pid(10)).is_none());
}

#[test]
fn a_process_known_wrongly_whose_main_thread_ends_goes_on_by_a_thread_newer_than_the_reading() {
    let mut table = ProcessTable::new();
    // Its mapping was lost, so it is known by another program than /proc shows.
    fork(&mut table, 1, 10, 1);
    table.expect_scan();
    table.fork(Pid(10), Tid(12), Pid(10), Tid(10), MonotonicTime(10));
    table.exit(Pid(10), Tid(10), MonotonicTime(11));
    table.repair(&scan_of(&[scanned(10, 0x1000, 5)]), MonotonicTime(9));
    table.sweep(MonotonicTime(100).plus(EXITING_MAX));
    let process = table.get(Pid(10)).expect("there");
    assert!(process.space().find(Avma(0x1800)).is_some());
    table.exit(Pid(10), Tid(12), MonotonicTime(12));
    table.sweep(MonotonicTime(100).plus(EXITING_MAX));
    assert!(table.get(Pid(10)).is_none());
}

#[test]
fn a_file_in_memory_is_a_program_only_where_it_is_mapped_privately() {
    let check = |path: &'static [u8], private, is_file| {
        let mut table = ProcessTable::new();
        fork(&mut table, 1, 10, 1);
        let mmap = Mmap {
            path,
            private,
            ..file_map(10, 0x5000, 5)
        };
        table.mmap(&mmap, MonotonicTime(2));
        let process = table.get(Pid(10)).expect("there");
        let found = process.space().find(Avma(0x5800)).expect("mapped");
        let found = matches!(found.backing, Backing::File(_));
        assert_eq!(found, is_file, "{}", path.escape_ascii());
    };
    check(b"/memfd:program (deleted)", true, true);
    check(b"/memfd:doublemapper (deleted)", false, false);
    check(b"/dev/shm/program", true, true);
    check(b"/dev/zero", true, false);
}

/// A process that maps `files` distinct files, starting with inode `first`.
fn map_files(table: &mut ProcessTable, pid: u32, first: u64, files: u64) {
    fork(table, 1, pid, 1);
    for number in 0..files {
        let start = 0x10_0000 + number * 0x1000;
        table.mmap(&file_map(pid, start, first + number), MonotonicTime(2));
    }
}

/// How many files a sample of the process at `now` announces to a queue of `room`.
fn announced(table: &mut ProcessTable, pid: u32, now: MonotonicTime, room: usize) -> usize {
    let mut sent = 0;
    table.announce_all(Pid(pid), now, |_| {
        let fits = sent < room;
        sent += usize::from(fits);
        fits
    });
    sent
}

#[test]
fn a_process_that_maps_thousands_of_files_does_not_fill_the_queue_for_all() {
    let mut table = ProcessTable::new();
    map_files(&mut table, 10, 1, 5000);
    map_files(&mut table, 11, 10_001, 100);
    let mut room = 2 * AHEAD_MAX as usize;
    for second in 1..10 {
        room -= announced(&mut table, 10, MonotonicTime(second * 2_000_000_000), room);
    }
    assert_eq!(room, AHEAD_MAX as usize);
    assert_eq!(table.counts().ahead_refused, 1);
    assert_eq!(announced(&mut table, 11, MonotonicTime(1), room), 100);
    // Its child is no way round.
    fork(&mut table, 10, 12, 3);
    table.mmap(&file_map(12, 0x1000, 9_000), MonotonicTime(4));
    assert_eq!(announced(&mut table, 12, MonotonicTime(5), room), 0);
}

#[test]
fn what_found_no_room_in_the_queue_is_announced_by_the_next_sample() {
    let mut table = ProcessTable::new();
    map_files(&mut table, 10, 1, 100);
    assert_eq!(announced(&mut table, 10, MonotonicTime(3), 30), 30);
    assert_eq!(announced(&mut table, 10, MonotonicTime(4), 1000), 70);
    assert_eq!(announced(&mut table, 10, MonotonicTime(5), 1000), 0);
}

#[test]
fn a_large_process_that_keeps_mapping_is_looked_over_once_a_second() {
    let mut table = ProcessTable::new();
    map_files(&mut table, 10, 1, 1);
    for page in 0..2 * LOOKED_OVER_AT_ONCE_MAX as u64 {
        table.mmap(
            &file_map(10, 0x10_0000 + page * 0x2000, 1),
            MonotonicTime(2),
        );
    }
    assert_eq!(announced(&mut table, 10, MonotonicTime(3), 1000), 1);
    table.mmap(&file_map(10, 0x1000, 2), MonotonicTime(4));
    assert_eq!(announced(&mut table, 10, MonotonicTime(5), 1000), 0);
    let later = MonotonicTime(3).plus(LOOK_OVER_AGAIN);
    assert_eq!(announced(&mut table, 10, later, 1000), 1);
}

/// As many processes as fill the table of files with `each`, from pid 1000 on.
fn full_of_files(each: u64) -> (ProcessTable, u64) {
    let mut table = ProcessTable::new();
    for number in 0..(FILES_MAX as u64).div_ceil(each) {
        map_files(&mut table, 1000 + number as u32, 1 + number * each, each);
    }
    (table, 1 + 2 * FILES_MAX as u64)
}

/// As many files as every process may have in any case.
const FEW: u64 = 256;

fn backing(table: &ProcessTable, pid: u32, at: u64) -> Option<Backing> {
    let process = table.get(Pid(pid)).expect("there");
    process
        .space()
        .find(Avma(at))
        .map(|mapping| mapping.backing)
}

/// Programs built and run one after the other in a container: each may have the inode number of the
/// one before.
#[test]
fn a_file_without_generation_is_another_once_its_processes_have_ended() {
    const SECOND: u64 = 1_000_000_000;
    let mut table = ProcessTable::new();
    let mut run = |pid: u32, second: u64| {
        fork(&mut table, 1, pid, second * SECOND);
        for (start, after) in [(0x1000, 1), (0x3000, 2)] {
            let time = MonotonicTime(second * SECOND + after);
            table.mmap(&layer_map(pid, start, 5), time);
        }
        let file = [0x1000, 0x3000].map(|at| backing(&table, pid, at));
        assert_eq!(file[0], file[1], "both parts are of one file");
        let end = |table: &mut ProcessTable, second: u64| {
            table.exit(Pid(pid), Tid(pid), MonotonicTime(second * SECOND));
        };
        if pid != 11 {
            end(&mut table, second + 1);
        }
        file[0]
    };
    let first = run(10, 10);
    let second = run(11, 20);
    assert_ne!(first, second, "the first has ended");
    assert_eq!(run(12, 30), second, "the second has the file mapped");
    // A process that maps it again may have closed it meanwhile.
    table.mmap(&layer_map(11, 0x5000, 5), MonotonicTime(40 * SECOND));
    let again = backing(&table, 11, 0x5000);
    assert!(again.is_some() && again != second);
    // After exec nothing is mapped any more.
    table.comm(
        Pid(11),
        Tid(11),
        Comm::from_bytes(b"other"),
        true,
        MonotonicTime(41 * SECOND),
    );
    fork(&mut table, 1, 13, 42 * SECOND);
    table.mmap(&layer_map(13, 0x1000, 5), MonotonicTime(42 * SECOND));
    assert_ne!(backing(&table, 13, 0x1000), again);
}

#[test]
fn a_full_table_of_files_in_use_refuses_new_ones_and_counts_them() {
    let (mut table, next) = full_of_files(FEW);
    assert_eq!(table.counts().files_refused, 0);
    map_files(&mut table, 10, next, 3);
    assert_eq!(
        backing(&table, 10, 0x10_0800),
        Some(Backing::Nothing(UnnamedReason::Limit))
    );
    let counts = table.counts();
    assert_eq!((counts.files_refused, counts.files_forgotten), (3, 0));
    // What is known stays known.
    table.mmap(&file_map(10, 0x5000, 1), MonotonicTime(5));
    assert!(matches!(
        backing(&table, 10, 0x5800),
        Some(Backing::File(_))
    ));
}

#[test]
fn a_full_table_takes_new_files_again_once_others_are_in_use_no_more() {
    let (mut table, next) = full_of_files(FEW);
    map_files(&mut table, 10, next, 1);
    table.exit(Pid(1000), Tid(1000), MonotonicTime(3));
    table.sweep(MonotonicTime(4).plus(EXITING_MAX));
    // Unused ones are not looked for at each refusal.
    let refused = table.counts().files_refused;
    table.mmap(&file_map(10, 0x5000, next), MonotonicTime(5));
    assert_eq!(table.counts().files_refused, refused + 1);
    let later = MonotonicTime(6).plus(FILES_RETRY);
    table.mmap(&file_map(10, 0x5000, next), later);
    assert_eq!(table.counts().files_refused, refused + 1);
    assert!(matches!(
        backing(&table, 10, 0x5800),
        Some(Backing::File(_))
    ));
    assert_eq!(table.counts().files_forgotten, FEW);
}

#[test]
fn who_maps_most_files_gives_way_to_who_maps_few() {
    let (mut table, next) = full_of_files(4096);
    map_files(&mut table, 10, next, 3);
    assert!(matches!(
        backing(&table, 10, 0x10_0800),
        Some(Backing::File(_))
    ));
    // Whoever had most keeps what it mapped first, its program; what it mapped last has no name,
    // with the reason.
    assert_eq!(
        table.counts().files_refused,
        7 * (4096 - FILES_FAIR[0] as u64)
    );
    assert!(matches!(
        backing(&table, 1000, 0x10_0800),
        Some(Backing::File(_))
    ));
    assert_eq!(
        backing(&table, 1000, 0x10_0800 + 4095 * 0x1000),
        Some(Backing::Nothing(UnnamedReason::Limit))
    );
    assert_eq!(table.counts().spaces_forgotten, 0);
}

#[test]
fn who_maps_on_leaves_room_for_who_comes_before_files_may_be_forgotten_again() {
    let (mut table, next) = full_of_files(4096);
    map_files(&mut table, 10, next, FILES_MAX as u64);
    let refused = table.counts().files_refused;
    map_files(&mut table, 11, next + FILES_MAX as u64, 3);
    assert!(matches!(
        backing(&table, 11, 0x10_0800),
        Some(Backing::File(_))
    ));
    assert_eq!(table.counts().files_refused, refused);
}

#[test]
fn processes_that_share_their_mappings_share_them_after_giving_way() {
    let (mut table, next) = full_of_files(4096);
    for pid in 5000..5100 {
        fork(&mut table, 1000, pid, 3);
    }
    let before = table.space_bytes();
    map_files(&mut table, 10, next, 3);
    assert!(table.space_bytes() <= before + (1 << 20));
    assert_eq!(
        table.counts().files_refused,
        7 * (4096 - FILES_FAIR[0] as u64)
    );
}

#[test]
fn long_paths_fill_the_table_of_files_by_their_bytes() {
    let mut table = ProcessTable::new();
    let mut path = vec![b'x'; 4096];
    path[0] = b'/';
    for number in 0..FILES_MAX as u64 {
        // Few of each process, so that none gives way.
        let pid = 10 + (number / FEW) as u32;
        if number % FEW == 0 {
            fork(&mut table, 1, pid, 1);
        }
        path[4000..4008].copy_from_slice(&number.to_be_bytes());
        let start = 0x10_0000 + number * 0x1000;
        let mmap = Mmap {
            path: &path,
            ..file_map(pid, start, 1 + number)
        };
        table.mmap(&mmap, MonotonicTime(2));
    }
    assert!(table.files.path_bytes() <= file_table::PATH_BYTES_MAX + path.len());
    let fit = file_table::PATH_BYTES_MAX / path.len();
    assert_eq!(table.counts().files_refused as usize, FILES_MAX - fit);
}

#[test]
fn what_all_mappings_take_is_bounded_and_who_has_few_still_maps() {
    let mut table = ProcessTable::new();
    // One file each, mapped all over: 75 MiB of mappings.
    for pid in 100..400 {
        fork(&mut table, 1, pid, 1);
        for page in 0..space::MAPPINGS_MAX as u64 {
            table.mmap(
                &file_map(pid, 0x10_0000 + page * 0x2000, 7),
                MonotonicTime(2),
            );
        }
        assert!(table.space_bytes() <= SPACE_BYTES_ALL_MAX + (1 << 20));
    }
    // Forking shares the mappings, and mapping one more would copy them all.
    for pid in 3000..3300 {
        fork(&mut table, 100, pid, 3);
        table.mmap(&file_map(pid, 0x1000, 8), MonotonicTime(4));
        assert!(table.space_bytes() <= SPACE_BYTES_ALL_MAX + (1 << 20));
    }
    assert!(table.counts().spaces_forgotten > 0);
    fork(&mut table, 1, 10, 5);
    table.mmap(&file_map(10, 0x5000, 9), MonotonicTime(6));
    assert!(matches!(
        backing(&table, 10, 0x5800),
        Some(Backing::File(_))
    ));
    // All of it comes back when they end.
    for pid in (100..400).chain(3000..3300) {
        table.exit(Pid(pid), Tid(pid), MonotonicTime(7));
    }
    table.sweep(MonotonicTime(8).plus(EXITING_MAX));
    assert!(table.space_bytes() < 4096, "{}", table.space_bytes());
}

#[test]
fn threads_beyond_the_bound_keep_their_process_until_proc_tells() {
    let mut table = ProcessTable::new();
    fork(&mut table, 1, 10, 1);
    for tid in 0..THREADS_MAX as u32 + 5 {
        table.fork(Pid(10), Tid(100 + tid), Pid(10), Tid(10), MonotonicTime(2));
    }
    assert_eq!(table.threads_len(), THREADS_MAX);
    assert_eq!(table.counts().threads_refused, 5);
    table.exit(Pid(10), Tid(10), MonotonicTime(3));
    for tid in 0..THREADS_MAX as u32 + 4 {
        table.exit(Pid(10), Tid(100 + tid), MonotonicTime(3));
    }
    table.sweep(MonotonicTime(100).plus(EXITING_MAX));
    assert!(table.get(Pid(10)).is_some(), "one thread still runs");
    assert_eq!(table.counts().ends_uncertain, 1, "so /proc is read");
    table.expect_scan();
    table.repair(&scan_of(&[]), MonotonicTime(9));
    table.sweep(MonotonicTime(100).plus(EXITING_MAX));
    assert!(table.get(Pid(10)).is_none());
}

#[test]
fn a_look_at_proc_that_missed_processes_ends_none() {
    let mut table = ProcessTable::new();
    fork(&mut table, 1, 10, 1);
    let scan = Scan {
        complete: false,
        ..scan_of(&[])
    };
    table.repair(&scan, MonotonicTime(9));
    table.sweep(MonotonicTime(100).plus(EXITING_MAX));
    assert!(table.get(Pid(10)).is_some());
}

#[test]
fn the_name_of_a_thread_is_not_that_of_another_process_with_its_id() {
    let mut table = with_worker();
    // Its end was lost, and the id is another's thread by now.
    fork(&mut table, 1, 20, 4);
    table.comm(
        Pid(20),
        Tid(20),
        Comm::from_bytes(b"main"),
        false,
        MonotonicTime(5),
    );
    assert_eq!(
        table.thread_comm(Pid(20), Tid(12)),
        Comm::from_bytes(b"main")
    );
}

#[test]
fn anonymous_executable_memory_is_generated_code() {
    let mut table = ProcessTable::new();
    fork(&mut table, 1, 10, 1);
    let anonymous = MapFile::Inode {
        major: 0,
        minor: 0,
        inode: 0,
        generation: 0,
    };
    table.mmap(
        &Mmap {
            file: anonymous,
            path: b"//anon",
            ..file_map(10, 0x5000, 0)
        },
        MonotonicTime(2),
    );
    let process = table.get(Pid(10)).expect("there");
    let backing = process
        .space()
        .find(Avma(0x5800))
        .map(|mapping| mapping.backing);
    assert_eq!(backing, Some(Backing::Jit));
}

/// The marker of a jitdump.
fn marker(pid: u32, inode: u64) -> Mmap<'static> {
    Mmap {
        path: b"/srv/app/jit-7.dump",
        ..file_map(pid, 0x9000, inode)
    }
}

#[test]
fn a_mapped_jitdump_is_told_of_once_and_waits_when_there_is_no_room() {
    let mut table = ProcessTable::new();
    fork(&mut table, 1, 10, 1);
    table.mmap(&file_map(10, 0x1000, 5), MonotonicTime(2));
    table.mmap(&marker(10, 6), MonotonicTime(3));
    table.tell_of_dumps(Some);
    let mut told = Vec::new();
    for _ in 0..2 {
        table.tell_of_dumps(|seen| {
            told.push(seen);
            None
        });
    }
    let process = table.get(Pid(10)).expect("made above");
    assert!(process.is_watched(), "its end is told of too");
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].whose.id, process.id);
    assert_eq!(told[0].range, (Avma(0x9000), Avma(0xa000)));
    assert_eq!(*told[0].path, b"/srv/app/jit-7.dump"[..]);
}

#[test]
fn jitdumps_of_one_process_and_of_all_are_bounded_and_counted() {
    let mut table = ProcessTable::new();
    for pid in 10..1000 {
        fork(&mut table, 1, pid, 1);
        for inode in 1..=6 {
            table.mmap(&marker(pid, inode), MonotonicTime(2));
        }
    }
    let mut told: HashMap<Pid, usize> = HashMap::new();
    table.tell_of_dumps(|seen| {
        *told.entry(seen.whose.pid).or_default() += 1;
        None
    });
    let all: usize = told.values().sum();
    assert_eq!(all, DUMPS_UNTOLD_MAX);
    assert!(told.values().all(|&of_one| of_one <= DUMPS_MAX));
    assert_eq!(table.counts().dumps_untold as usize, 990 * 6 - all);
}

#[test]
fn only_files_named_as_jitdumps_are_markers() {
    for path in [
        "/tmp/jit-1.dump",
        "/jit-123.dump",
        "/a/jit-7.dump (deleted)",
    ] {
        assert!(is_dump_marker(path.as_bytes()), "{path}");
    }
    for path in [
        "jit-1.dump",
        "/jit-.dump",
        "/jit-1.dump/x",
        "/jit-a.dump",
        "/x-jit-1.dump",
        "//anon",
    ] {
        assert!(!is_dump_marker(path.as_bytes()), "{path}");
    }
}
