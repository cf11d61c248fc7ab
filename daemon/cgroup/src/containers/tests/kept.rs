//! Tests reading the files of runtimes, and hostile files in their place.

use super::*;
use std::fs;

struct Kept {
    dir: TempDir,
}

impl Kept {
    fn new() -> Kept {
        let dir = tempfile::tempdir().unwrap();
        Kept { dir }
    }

    fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(path.replace("@", ID));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text.replace("@", ID)).unwrap();
        path
    }

    fn asking(&self, kind: &str) -> Asking {
        let source = format!("{kind}:{}", self.dir.path().display());
        Asking::of(vec![source.parse().unwrap()], &["team"])
    }
}

const DOCKER: &str = r#"{"StreamConfig":{},"State":{"Pid":1},"ID":"@","Image":"sha256:1","Name":"/web-1",
    "Config":{"Image":"web:1","Labels":{"team":"blue"}},"Driver":"overlay2"}"#;

#[test]
fn docker_keeps_a_file_a_container() {
    let kept = Kept::new();
    kept.write("containers/@/config.v2.json", DOCKER);
    let asking = kept.asking("docker-files");
    check(
        asking.learn(ID, Some("docker")),
        &[
            "container_name=web-1",
            "image=web:1",
            "container.label/team=blue",
        ],
    );
    assert_eq!(asking.learn(&ID.replace('0', "f"), Some("docker")), None);
}

#[test]
fn bundles_tell_of_pods() {
    for path in ["@/config.json", "@/userdata/config.json"] {
        let kept = Kept::new();
        kept.write(
            path,
            r#"{"ociVersion":"1.0.2","annotations":{"io.kubernetes.cri.container-name":"server",
            "io.kubernetes.cri.sandbox-name":"web-0","io.kubernetes.cri.sandbox-namespace":"shop"}}"#,
        );
        let found = kept.asking("bundles").learn(ID, Some("containerd"));
        check(
            found,
            &["container_name=server", "pod=web-0", "namespace=shop"],
        );
    }
}

#[test]
fn a_bundle_that_tells_nothing_is_unknown() {
    let kept = Kept::new();
    kept.write("@/config.json", r#"{"annotations":{"other":"x"}}"#);
    assert_eq!(kept.asking("bundles").learn(ID, None), None);
}

#[test]
fn podmans_storage_is_one_list() {
    let kept = Kept::new();
    kept.write(
        "overlay-containers/containers.json",
        r#"[{"id":"@","names":["web"],"metadata":"{\"image-name\":\"web:1\",\"name\":\"web\"}"}]"#,
    );
    let asking = kept.asking("storage");
    let found = asking.learn(ID, Some("podman"));
    check(found, &["container_name=web", "image=web:1"]);
    assert_eq!(asking.learn(&ID.replace('0', "f"), Some("podman")), None);
}

#[test]
fn links_pipes_and_folders_are_not_read() {
    let kept = Kept::new();
    let real = kept.write("elsewhere", DOCKER);
    let path = kept.write("containers/@/config.v2.json", "");
    let learn = || {
        let asking = kept.asking("docker-files");
        assert_eq!(asking.learn(ID, Some("docker")), None);
        asking
    };
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&real, &path).unwrap();
    assert_eq!(learn().failed(Cause::Unreachable), 1);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(learn().failed(Cause::Untrusted), 1);
    fs::remove_dir(&path).unwrap();
    // Opening a pipe for reading would wait for a writer.
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    assert_eq!(learn().failed(Cause::Untrusted), 1);
}

#[test]
fn an_endless_file_is_cut() {
    let kept = Kept::new();
    let path = kept.write("containers/@/config.v2.json", "{");
    let file = fs::File::options().write(true).open(path).unwrap();
    // A hole, which takes no disk.
    file.set_len(1 << 40).unwrap();
    let asking = kept.asking("docker-files");
    assert_eq!(asking.learn(ID, Some("docker")), None);
    assert_eq!(asking.failed(Cause::Malformed), 1, "{:?}", asking.counts);
}

#[test]
fn files_are_read_where_the_socket_fails() {
    let kept = Kept::new();
    kept.write("containers/@/config.v2.json", DOCKER);
    let broken = Server::start(drop);
    let files = format!("docker-files:{}", kept.dir.path().display());
    let sources = vec![broken.source("docker"), files.parse().unwrap()];
    let asking = Asking::of(sources, &[]);
    let found = asking.learn(ID, Some("docker"));
    check(found, &["container_name=web-1", "image=web:1"]);
    assert_eq!(asking.failed(Cause::Broken), 1);
}
