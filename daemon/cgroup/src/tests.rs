//! Tests the table of cgroups: names, walks of the hierarchy and its bounds.

use super::*;
use std::fs;

/// A tree in a temporary folder: inode numbers are ids there as in cgroupfs.
struct Fake {
    dir: tempfile::TempDir,
}

impl Fake {
    fn new() -> Fake {
        let fake = Fake {
            dir: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(fake.dir.path().join("proc")).unwrap();
        fs::create_dir(fake.dir.path().join("tree")).unwrap();
        fake
    }

    fn mkdir(&self, path: &str) -> CgroupId {
        let path = self.dir.path().join("tree").join(path);
        fs::create_dir_all(&path).unwrap();
        CgroupId(fs::metadata(path).unwrap().ino())
    }

    fn process(&self, pid: u32, cgroup: &str) {
        let path = self.dir.path().join("proc").join(pid.to_string());
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("cgroup"), cgroup).unwrap();
    }

    fn table(&self, mode: Mode, whole: bool, capacity: usize) -> CgroupTable {
        let mount = (mode != Mode::None).then(|| self.dir.path().join("tree"));
        let hierarchy = Hierarchy {
            mode,
            mount,
            prefix: Vec::new(),
            whole,
            v1: mode == Mode::V1,
        };
        CgroupTable::open(hierarchy, &self.dir.path().join("proc"), capacity)
    }
}

fn path(table: &mut CgroupTable, id: CgroupId, hint: Option<u32>, at_s: u64) -> String {
    let now = MonotonicTime::now().plus(Duration::from_secs(at_s));
    table.get_at(id, hint.map(Pid), now).path.to_string()
}

#[test]
fn the_walk_at_start_knows_what_is_there() {
    let fake = Fake::new();
    let id = fake.mkdir("system.slice/nginx.service");
    let mut table = fake.table(Mode::Cgroup2, true, 100);
    let cgroup = table.get(id, None);
    assert_eq!(&*cgroup.path, "/system.slice/nginx.service");
    assert_eq!(cgroup.labels.unit.as_deref(), Some("nginx.service"));
    let pairs: Vec<_> = cgroup.pairs().collect();
    assert_eq!(
        pairs,
        [
            ("cgroup", "/system.slice/nginx.service"),
            ("slice", "system.slice"),
            ("unit", "nginx.service")
        ]
    );
}

#[test]
fn the_root_is_a_slash() {
    let fake = Fake::new();
    for mode in [Mode::Cgroup2, Mode::None] {
        let mut table = fake.table(mode, true, 100);
        assert_eq!(path(&mut table, CgroupId(1), None, 0), "/");
    }
}

#[test]
fn an_unknown_id_starts_a_walk_but_not_more_than_one_a_second() {
    let fake = Fake::new();
    let mut table = fake.table(Mode::Cgroup2, true, 100);
    let id = fake.mkdir("later");
    // The walk at start was less than a second ago.
    assert_eq!(
        path(&mut table, id, None, 0),
        format!("[unknown cgroup {}]", id.0)
    );
    assert_eq!(table.stats().walks, 1);
    assert_eq!(path(&mut table, id, None, 2), "/later");
    assert_eq!(table.stats().walks, 2);
    assert_eq!(table.stats().unknown, 1);
}

#[test]
fn an_id_that_nobody_knows_is_given_up() {
    let fake = Fake::new();
    let mut table = fake.table(Mode::Cgroup2, true, 100);
    let id = CgroupId(u64::MAX);
    for at_s in 0..100 {
        assert_eq!(
            path(&mut table, id, None, 2 * at_s),
            format!("[unknown cgroup {}]", id.0)
        );
    }
    assert_eq!(table.stats().walks, 1 + u64::from(TRIES_MAX));
    assert_eq!(table.get(id, None).labels, Labels::default());
    // A record that comes late still names it.
    table.note_created(id, b"/late");
    assert_eq!(path(&mut table, id, None, 200), "/late");
}

#[test]
fn records_name_cgroups_before_and_without_a_walk() {
    let fake = Fake::new();
    let mut table = fake.table(Mode::Cgroup2, true, 100);
    table.note_created(CgroupId(77_000_000), b"/a\xff;\n");
    assert_eq!(
        path(&mut table, CgroupId(77_000_000), None, 0),
        "/a\\xff;\n"
    );
    table.note_created(CgroupId(77_000_001), b"//toolong");
    table.note_created(CgroupId(77_000_002), b"");
    for id in [77_000_001, 77_000_002] {
        assert_eq!(
            path(&mut table, CgroupId(id), None, 0),
            format!("[unknown cgroup {id}]")
        );
    }
    assert_eq!(table.stats().walks, 1);
}

#[test]
fn removed_cgroups_keep_their_names_and_a_path_used_again_is_another() {
    let fake = Fake::new();
    let mut table = fake.table(Mode::Cgroup2, true, 100);
    table.note_created(CgroupId(90_000_001), b"/a.service");
    table.note_created(CgroupId(90_000_002), b"/a.service");
    // A walk finds neither directory.
    path(&mut table, CgroupId(90_000_009), None, 2);
    assert_eq!(table.stats().gone, 3);
    assert_eq!(
        path(&mut table, CgroupId(90_000_001), None, 2),
        "/a.service"
    );
    assert_eq!(
        path(&mut table, CgroupId(90_000_002), None, 2),
        "/a.service"
    );
    assert_eq!(
        table.get(CgroupId(90_000_001), None).id,
        CgroupId(90_000_001)
    );
}

#[test]
fn a_full_table_drops_removed_cgroups_first_and_counts_them() {
    let fake = Fake::new();
    let living = fake.mkdir("living");
    let mut table = fake.table(Mode::Cgroup2, true, 16);
    for n in 0..10 {
        table.note_created(CgroupId(91_000_000 + n), format!("/old{n}").as_bytes());
    }
    path(&mut table, CgroupId(91_000_999), None, 2);
    // The first is asked for, so that the second is the oldest.
    path(&mut table, CgroupId(91_000_000), None, 2);
    for n in 0..6 {
        table.note_created(CgroupId(92_000_000 + n), format!("/new{n}").as_bytes());
    }
    assert!(table.stats().known <= 16);
    assert!(table.stats().evicted > 0);
    let names: Vec<&str> = table.iter().map(|cgroup| &*cgroup.path).collect();
    assert!(names.contains(&"/living") && names.contains(&"/old0") && names.contains(&"/new5"));
    assert_eq!(path(&mut table, living, None, 2), "/living");
}

#[test]
fn more_directories_than_fit_are_counted_as_cut() {
    let fake = Fake::new();
    for n in 0..40 {
        fake.mkdir(&format!("c{n}"));
    }
    let table = fake.table(Mode::Cgroup2, true, 16);
    assert_eq!(table.stats().walks_cut, 1);
    assert!(table.stats().known <= 16);
}

#[test]
fn trees_too_deep_are_cut() {
    let fake = Fake::new();
    fake.mkdir(&"d/".repeat(80));
    assert_eq!(fake.table(Mode::Cgroup2, true, 1000).stats().walks_cut, 1);
}

#[test]
fn a_process_names_a_cgroup_that_cannot_be_seen_but_never_a_wrong_one() {
    let fake = Fake::new();
    let here = fake.mkdir("here");
    fake.process(7, "0::/elsewhere/docker-x.scope\n");
    fake.process(8, "0::/here\n");
    // Only a part of the tree is mounted: nothing speaks against the process.
    let mut part = fake.table(Mode::Cgroup2, false, 100);
    let far = CgroupId(93_000_000);
    assert_eq!(
        path(&mut part, far, Some(7), 0),
        "/elsewhere/docker-x.scope"
    );
    // Process 8 is in `here` by now, so it says nothing about another id.
    assert_ne!(here, CgroupId(93_000_001));
    assert_eq!(
        path(&mut part, CgroupId(93_000_001), Some(8), 0),
        "[unknown cgroup 93000001]"
    );
    // The complete tree is mounted and has no such directory.
    let mut whole = fake.table(Mode::Cgroup2, true, 100);
    assert_eq!(
        path(&mut whole, far, Some(7), 0),
        "[unknown cgroup 93000000]"
    );
}

#[test]
fn where_ids_tell_nothing_the_process_does() {
    let fake = Fake::new();
    fake.process(7, "0::/a\n");
    let mut table = fake.table(Mode::None, false, 100);
    assert_eq!(path(&mut table, CgroupId(1), Some(7), 0), "/a");
    // Believed for a while, then read again; a process that is gone stays where it was.
    fake.process(7, "0::/b\n");
    assert_eq!(path(&mut table, CgroupId(0), Some(7), 1), "/a");
    assert_eq!(path(&mut table, CgroupId(0), Some(7), 9), "/b");
    fs::remove_dir_all(fake.dir.path().join("proc/7")).unwrap();
    assert_eq!(path(&mut table, CgroupId(0), Some(7), 19), "/b");
    assert_eq!(
        path(&mut table, CgroupId(0), Some(8), 19),
        "[unknown cgroup 0]"
    );
}

#[test]
fn the_number_of_processes_kept_is_bounded() {
    let fake = Fake::new();
    let mut table = fake.table(Mode::None, false, 100);
    for pid in 0..3 * PID_PATHS_MAX as u32 {
        table.get(CgroupId(0), Some(Pid(pid)));
    }
    assert!(table.by_pid.len() <= PID_PATHS_MAX);
    assert!(table.stats().evicted > 0);
}

/// Removes the directory when the test ends, however it ends.
struct LiveDir(PathBuf);

impl Drop for LiveDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn needs_root_kernel_ids_are_inodes_and_never_used_again() {
    let mut table = CgroupTable::discover();
    let name = format!("fleetprof-test-{}", std::process::id());
    let mount = table
        .hierarchy()
        .mount
        .clone()
        .filter(|_| table.hierarchy().whole);
    let Some(dir) = mount.map(|mount| LiveDir(mount.join(&name))) else {
        return testkit::skip("the hierarchy of perf_event is not mounted here");
    };
    if let Err(error) = fs::create_dir(&dir.0) {
        return testkit::skip(format_args!("failed to create a cgroup: {error}"));
    }
    let first = CgroupId(fs::metadata(&dir.0).unwrap().ino());
    assert_eq!(path(&mut table, first, None, 2), format!("/{name}"));

    fs::remove_dir(&dir.0).unwrap();
    fs::create_dir(&dir.0).unwrap();
    let second = CgroupId(fs::metadata(&dir.0).unwrap().ino());
    assert_ne!(first, second);
    assert_eq!(path(&mut table, second, None, 4), format!("/{name}"));
    assert_eq!(
        path(&mut table, first, None, 4),
        format!("/{name}"),
        "name of the removed one"
    );
    assert_eq!(table.entries[&first.0].state, State::Removed);
}

#[test]
fn long_names_are_cut_and_stay_apart() {
    let fake = Fake::new();
    let mut table = fake.table(Mode::Cgroup2, true, CGROUPS_MAX);
    // Bytes that are not text take four for each.
    let long = [&b"/x"[..], &[0xff; 4000]].concat();
    for id in [70, 71] {
        table.note_created(CgroupId(id), &long);
    }
    let texts = [70, 71].map(|id| table.get(CgroupId(id), None).path.clone());
    assert!(texts.iter().all(|text| text.len() <= PATH_BYTES_MAX));
    assert_ne!(texts[0], texts[1]);
    assert!(texts[0].ends_with("…[cgroup 70]"), "{}", texts[0]);
}

#[test]
fn a_flood_of_long_names_is_bounded_in_bytes_and_drives_out_its_own() {
    let fake = Fake::new();
    let mut table = fake.table(Mode::Cgroup2, true, CGROUPS_MAX);
    table.note_created(CgroupId(60), b"/system.slice/nginx.service");
    assert_eq!(
        &*table.get(CgroupId(60), None).path,
        "/system.slice/nginx.service"
    );
    let long = [&b"/"[..], &[b'x'; 4000]].concat();
    for id in 100..100_000 {
        table.note_created(CgroupId(id), &long);
        assert!(table.bytes[0] <= CGROUPS_BYTES_MAX + 2 * PATH_BYTES_MAX);
    }
    assert!(table.stats().evicted > 80_000);
    let nginx = &table.entries[&60].cgroup.path;
    assert_eq!(&**nginx, "/system.slice/nginx.service");
    let summed: usize = table
        .entries
        .values()
        .map(|it| it.cgroup.heap_bytes())
        .sum();
    assert_eq!(table.bytes[0], summed);
}

#[test]
fn needs_root_the_kernel_writes_the_hierarchy_as_it_is_read() {
    let table = CgroupTable::discover();
    let Some(mount) = &table.hierarchy().mount else {
        return testkit::skip("no cgroup hierarchy is mounted here");
    };
    let own = table.path_of_pid(Pid(std::process::id())).unwrap();
    assert!(own.starts_with(b"/"));
    assert!(mount.join("cgroup.procs").exists());
}
