//! Which file is opened, and when none is.

use super::*;

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
    // By the path alone, in the process's own root: no mapping is told.
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
    assert!(matches!(store.get(FileId(0)).image, Err(Unnamed::Limit)));
    assert_eq!(
        &*store.get(FileId(0)).path,
        text(&dir.path().join("file0")).as_bytes()
    );
    assert_eq!(
        counters
            .files_evicted
            .load(std::sync::atomic::Ordering::Relaxed),
        42
    );
}

#[test]
fn a_file_nobody_told_of_is_unknown() {
    assert_eq!(
        Rig::plain().frames(FileOffset(0)),
        ["native [unknown]  (limit)"]
    );
}
