//! Tests which file is opened, and when none is.

use super::*;
use crate::files::UNUSED_MAX;
use host::blocking_pool::{BlockingPool, REMOTE_LATE_MAX};
use host::time::MonotonicTime;
use std::sync::atomic::Ordering::Relaxed;

#[test]
fn a_deleted_program_is_named_through_its_mapping_as_root() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "program", PROGRAM, &["-no-pie"]) else {
        return;
    };
    if !is_root() {
        return;
    }
    let (offset, identity) = (offset_of(&path, "busy_leaf"), build_id(&path));
    let running = Running::start(&mut Command::new(&path));
    fs::remove_file(&path).expect("removes");
    let mut file = seen(&path, identity, running.0.id());
    file.path = format!("{} (deleted)", text(&path)).into_bytes().into();
    file.range = running.mapping("/program");
    let mut rig = Rig::plain();
    rig.store.see(&file);
    // Gone altogether: the open file still has the names.
    drop(running);
    assert_eq!(rig.frames(offset), ["native busy_leaf program"]);
}

/// Takes a program's symbols away from it, into `debug`.
fn split_off(path: &Path, debug: &Path) -> bool {
    let (program, debug) = (text(path), text(debug));
    let link = format!("--add-gnu-debuglink={debug}");
    tool("objcopy", &["--only-keep-debug", program, debug])
        && tool("strip", &[program])
        && tool("objcopy", &[&link, program])
}

#[test]
fn a_debug_file_beside_the_program_is_held_from_its_first_sample() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "program", PROGRAM, &["-g"]) else {
        return;
    };
    let offset = offset_of(&path, "busy_leaf");
    let debug = dir.path().join("program.debug");
    assert!(split_off(&path, &debug));
    let mut rig = Rig::plain();
    rig.store
        .see(&seen(&path, build_id(&path), std::process::id()));
    // The container is gone before anything is named.
    fs::remove_file(&path).expect("removes");
    fs::remove_file(&debug).expect("removes");
    assert_eq!(rig.store.open_files(), 2);
    assert_eq!(rig.frames(offset), ["native busy_leaf program"]);
}

#[test]
fn a_debug_file_of_another_build_is_not_taken() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "program", PROGRAM, &["-g"]) else {
        return;
    };
    let offset = offset_of(&path, "busy_leaf");
    let debug = dir.path().join("program.debug");
    assert!(split_off(&path, &debug));
    let other = PROGRAM.replace("busy_leaf", "other_leaf");
    let other = build(dir.path(), "other", &other, &["-g"]).expect("compiler is there");
    fs::rename(&other, &debug).expect("replaces");
    let named = Rig::plain().name(&path, build_id(&path), offset);
    assert_eq!(named, "native [program] program (no_symbols)");
}

#[test]
fn a_file_gone_before_it_was_opened_may_be_found_later() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "program", PROGRAM, &[]) else {
        return;
    };
    let (offset, identity) = (offset_of(&path, "busy_leaf"), build_id(&path));
    let hidden = dir.path().join("hidden");
    fs::rename(&path, &hidden).expect("renames");
    let mut rig = Rig::plain();
    assert_eq!(
        rig.name(&path, identity, offset),
        "native [program] program (file_gone)"
    );
    fs::rename(&hidden, &path).expect("renames");
    assert_eq!(
        rig.name(&path, identity, offset),
        "native busy_leaf program"
    );
}

#[test]
fn another_file_at_the_path_is_refused() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "program", PROGRAM, &[]) else {
        return;
    };
    let offset = offset_of(&path, "busy_leaf");
    let identities = [build_id(&path), inode(&path)];
    let other = PROGRAM.replace("busy_leaf", "other_leaf");
    let other = build(dir.path(), "other", &other, &[]).expect("compiler is there");
    fs::rename(&other, &path).expect("replaces");
    for identity in identities {
        let named = Rig::plain().name(&path, identity, offset);
        assert_eq!(named, "native [program] program (file_changed)");
    }
}

#[test]
fn a_file_written_over_while_open_gives_no_names() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "program", PROGRAM, &[]) else {
        return;
    };
    let (leaf, main) = (offset_of(&path, "busy_leaf"), offset_of(&path, "main"));
    let mut rig = Rig::plain();
    assert_eq!(
        rig.name(&path, build_id(&path), leaf),
        "native busy_leaf program"
    );
    fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(&path)
        .expect("is cut short");
    assert_eq!(
        rig.frames(leaf),
        ["native busy_leaf program"],
        "is known already"
    );
    assert_eq!(
        rig.frames(main),
        ["native [program] program (file_changed)"]
    );
}

#[test]
fn the_hosts_file_is_not_taken_for_a_containers_as_root() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(inner) = build(dir.path(), "inner", PROGRAM, &[]) else {
        return;
    };
    let outer = PROGRAM.replace("busy_leaf", "wrong_leaf");
    let outer = build(dir.path(), "outer", &outer, &[]).expect("compiler is there");
    if !is_root() {
        return;
    }
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).expect("creates");
    let path = bin.join("program");
    fs::copy(&outer, &path).expect("copies");
    let (offset, identity) = (offset_of(&inner, "busy_leaf"), build_id(&inner));
    let script = format!(
        "mount -t tmpfs none {0} && cp {1} {0}/program && exec {0}/program",
        text(&bin),
        text(&inner)
    );
    let container = || Running::start(Command::new("unshare").args(["-m", "sh", "-c", &script]));
    let running = container();
    // By the path alone, in the process's own root: no mapping is given.
    let mut rig = Rig::plain();
    rig.store.see(&seen(&path, identity, running.0.id()));
    assert_eq!(rig.frames(offset), ["native busy_leaf program"]);

    // Its root is gone, a relative in the same container is not.
    let sibling = container();
    let gone = running.0.id();
    drop(running);
    let mut file = seen(&path, identity, gone);
    file.relatives[1] = Pid(sibling.0.id());
    let mut rig = Rig::plain();
    rig.store.see(&file);
    assert_eq!(rig.frames(offset), ["native busy_leaf program"]);

    // All gone: the file at the same path on the host is another.
    drop(sibling);
    let mut rig = Rig::plain();
    rig.store.see(&seen(&path, identity, gone));
    assert_eq!(
        rig.frames(offset),
        ["native [program] program (file_changed)"]
    );
}

#[test]
fn pipes_and_directories_are_refused_without_waiting() {
    let dir = TempDir::new().expect("temporary directory");
    let pipe = dir.path().join("pipe");
    if !tool("mkfifo", &[text(&pipe)]) {
        return;
    }
    for path in [&pipe, dir.path(), Path::new("/dev/zero")] {
        let named = Rig::plain().name(path, FileIdentity::Path, FileOffset(0));
        assert!(named.ends_with("(file_unreadable)"), "{named}");
    }
}

#[test]
fn what_is_no_program_is_unreadable() {
    let dir = TempDir::new().expect("temporary directory");
    let path = dir.path().join("text");
    fs::write(&path, "#!/bin/sh\n").expect("writes");
    let named = Rig::plain().name(&path, inode(&path), FileOffset(0));
    assert_eq!(named, "native [text] text (file_unreadable)");
}

#[test]
fn open_files_stay_under_their_limit() {
    let dir = TempDir::new().expect("temporary directory");
    let counters = Arc::new(SymbolCounters::default());
    let store = FileStore::new(Some(8), counters.clone());
    for index in 0..50u32 {
        let path = dir.path().join(format!("file{index}"));
        fs::write(&path, "x").expect("writes");
        let file = seen(&path, inode(&path), std::process::id());
        store.see(&FileSeen {
            id: FileId(index),
            ..file
        });
        assert!(store.open_files() <= 8);
    }
    assert!(store.get(FileId(49)).image.is_ok());
    assert!(matches!(
        store.get(FileId(0)).image,
        Err(UnnamedReason::Limit)
    ));
    assert_eq!(
        &*store.get(FileId(0)).path,
        text(&dir.path().join("file0")).as_bytes()
    );
    assert_eq!(counters.files_evicted.load(Relaxed), 42);
}

#[test]
fn a_file_without_samples_for_a_while_is_closed_and_its_file_system_free() {
    let dir = TempDir::new().expect("temporary directory");
    let store = FileStore::new(None, Arc::new(SymbolCounters::default()));
    for index in 0..2u32 {
        let path = dir.path().join(format!("file{index}"));
        fs::write(&path, "x").expect("writes");
        let file = seen(&path, inode(&path), std::process::id());
        store.see(&FileSeen {
            id: FileId(index),
            ..file
        });
    }
    let started = MonotonicTime::now();
    let at = |share: u32| started.plus(UNUSED_MAX * share / 4);
    // One of them is in samples; asking for a file is no sample.
    store.close_unused([FileId(0)].into_iter(), at(3));
    assert_eq!(store.open_files(), 2);
    assert!(store.get(FileId(1)).image.is_ok());
    store.close_unused(std::iter::empty(), at(5));
    assert_eq!(store.open_files(), 1);
    assert!(store.get(FileId(0)).image.is_ok());
    assert!(matches!(
        store.get(FileId(1)).image,
        Err(UnnamedReason::Limit)
    ));
    store.close_unused(std::iter::empty(), at(8));
    assert_eq!(store.open_files(), 0);
    // Sampled again, it is opened again.
    let path = dir.path().join("file1");
    let file = seen(&path, inode(&path), std::process::id());
    assert!(store.see(&FileSeen {
        id: FileId(1),
        ..file
    }));
    assert!(store.get(FileId(1)).image.is_ok());
}

fn succeeds(script: &str, dir: &Path) -> bool {
    let mut shell = std::process::Command::new("sh");
    shell
        .args(["-c", &format!("cd \"$0\" && {script}")])
        .arg(dir);
    shell.status().expect("a shell").success()
}

#[test]
fn one_layer_in_two_containers_is_read_once_as_root() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new().expect("temporary directory");
    let lower = dir.path().join("lower");
    fs::create_dir(&lower).expect("creates");
    let Some(path) = build(&lower, "program", PROGRAM, &[]) else {
        return;
    };
    let offset = offset_of(&path, "busy_leaf");
    let mount = "for at in a b; do mkdir $at $at.upper $at.work &&
        mount -t overlay over -o lowerdir=lower,upperdir=$at.upper,workdir=$at.work $at || exit 1
    done";
    if !succeeds(mount, dir.path()) {
        return testkit::skip("overlays cannot be mounted here");
    }
    let mut rig = Rig::plain();
    let mut content = |id: u32, place: &str| {
        let path = dir.path().join(place);
        rig.store.see(&FileSeen {
            id: FileId(id),
            ..seen(&path, inode(&path), std::process::id())
        });
        let mut out = Named::default();
        rig.symbolizer
            .file(FileId(id), &[offset], &mut rig.dict, &mut out);
        rig.store.get(FileId(id)).content
    };
    let [first, other] = [(1, "a/program"), (2, "b/program")].map(|at| content(at.0, at.1));
    // Now the second container has a copy of its own.
    let is_copied = succeeds("cp -p b/program b/copy && mv b/copy b/program", dir.path());
    let copy = content(3, "b/program");
    drop(rig.store);
    assert!(succeeds("umount -l a && umount -l b", dir.path()));
    assert!(is_copied && first.is_some());
    assert_eq!((first == other, first == copy), (true, false));
    let read = rig.counters.tables_read.load(Relaxed);
    assert_eq!(read, 2, "tables");
}

#[test]
fn a_file_nobody_told_of_is_unknown() {
    assert_eq!(
        Rig::plain().frames(FileOffset(0)),
        ["native [unknown]  (limit)"]
    );
}

#[test]
fn a_file_system_that_never_answers_holds_up_no_other_file_as_root() {
    if !is_root() {
        return;
    }
    if !Path::new("/dev/fuse").exists() {
        return testkit::skip("needs FUSE");
    }
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "program", PROGRAM, &[]) else {
        return;
    };
    // The server of this file system is the process itself, and it never answers.
    let options = "fd=3,rootmode=40000,user_id=0,group_id=0,allow_other";
    let script =
        format!("exec 3<>/dev/fuse && mount -i -t fuse -o {options} none /tmp && echo && exec cat");
    let server = Running::start(
        Command::new("unshare")
            .args(["--mount", "sh", "-c", &script])
            // It may lead below /tmp, where the server would wait for itself.
            .env_remove("LD_LIBRARY_PATH"),
    );
    let (offset, identity) = (offset_of(&path, "busy_leaf"), build_id(&path));
    let mut rig = Rig::plain();
    let helpers = BlockingPool::new("test");
    for id in 10..16 {
        let mut file = seen(Path::new("/tmp/program"), identity, server.0.id());
        file.id = FileId(id);
        rig.store
            .see_in_time(file, &helpers, Duration::from_millis(20));
        let image = rig.store.get(FileId(id)).image;
        assert_eq!(image.map(|_| ()), Err(UnnamedReason::FileUnreadable));
    }
    assert_eq!(helpers.late(), REMOTE_LATE_MAX, "the others were not tried");
    let local = seen(&path, identity, std::process::id());
    rig.store
        .see_in_time(local, &helpers, Duration::from_secs(60));
    assert_eq!(rig.frames(offset), ["native busy_leaf program"]);
    assert_eq!(rig.counters.files_late.load(Relaxed), 6);
}
