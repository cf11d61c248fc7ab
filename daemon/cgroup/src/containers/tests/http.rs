//! Tests queries to Docker, Podman, and servers that pretend to be one of them.

use super::*;
use std::io::BufWriter;

fn container(id: &str) -> String {
    format!("/containers/{id}/json")
}

fn docker() -> Server {
    let body = format!(
        r#"{{"Id":"{ID}","Created":"2026-11-22T05:49:02Z","Path":"/bin/app","State":{{"Status":
        "running","Pid":14736}},"Image":"sha256:c679","Name":"/web-1","HostConfig":{{"Binds":null}},
        "Config":{{"Hostname":"e877","Env":["A=b"],"Cmd":["x"],"Image":"fleet/spin:1.0",
        "Volumes":null,"Labels":{{"role":"front","team":"blue"}}}}}}"#
    );
    Server::http(vec![(container(ID), response("200 OK", body.as_bytes()))])
}

#[test]
fn docker_is_asked_once() {
    let server = docker();
    let asking = Asking::of(vec![server.source("docker")], &["team"]);
    let expected = [
        "container_name=web-1",
        "image=fleet/spin:1.0",
        "container.label/team=blue",
    ];
    check(asking.learn(ID, Some("docker")), &expected);
    for _ in 0..100 {
        asking.containers.meet([(ID, Some("docker"))]);
    }
    check(asking.known(ID), &expected);
    assert_eq!(server.calls.load(Ordering::Relaxed), 1);
}

#[test]
fn a_container_is_asked_for_when_its_cgroup_is_made() {
    let server = docker();
    let asking = Asking::of(vec![server.source("docker")], &[]);
    let announcer = asking.containers.announcer().unwrap();
    for path in [
        "/",
        "/lxc/web",
        "/docker",
        "/a\nb",
        &format!("/docker/{ID}/below"),
    ] {
        announcer.announce(path.as_bytes());
    }
    announcer.announce(b"/docker/\xff");
    announcer.announce(format!("/docker/{ID}").as_bytes());
    asking.wait(|| asking.known(ID).is_some());
    assert_eq!(server.calls.load(Ordering::Relaxed), 1);
    // It keeps nobody at work.
    drop(asking);
    announcer.announce(b"/");
}

#[test]
fn an_answer_in_chunks_is_the_same() {
    let server = Server::start(|mut stream| {
        requested(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        let body = format!(r#"{{"Id":"{ID}","Name":"/web-1"}}"#);
        for part in body.as_bytes().chunks(7) {
            let _ = stream.write_all(format!("{:x}\r\n", part.len()).as_bytes());
            let _ = stream.write_all(part);
            let _ = stream.write_all(b"\r\n");
        }
        let _ = stream.write_all(b"0\r\n\r\n");
    });
    let asking = Asking::of(vec![server.source("docker")], &[]);
    check(asking.learn(ID, Some("docker")), &["container_name=web-1"]);
}

#[test]
fn a_shortened_id_finds_its_container_and_no_other() {
    let short = &ID[..12];
    let other = format!(r#"{{"Id":"{}","Name":"/other"}}"#, ID.replace('0', "f"));
    let own = format!(r#"{{"Id":"{ID}","Name":"/web-1"}}"#);
    let server = Server::http(vec![
        (container(short), response("200 OK", own.as_bytes())),
        (container(ID), response("200 OK", other.as_bytes())),
    ]);
    let asking = Asking::of(vec![server.source("docker")], &[]);
    check(
        asking.learn(short, Some("docker")),
        &["container_name=web-1"],
    );
    assert_eq!(asking.learn(ID, Some("docker")), None);
    assert_eq!(asking.failed(Cause::Malformed), 1);
}

#[test]
fn podman_tells_the_pod() {
    let pod_id = "ab".repeat(32);
    let compatible = format!(
        r#"{{"Id":"{ID}","Name":"web","Config":{{"Image":"localhost/web:1","Labels":{{}}}}}}"#
    );
    let own =
        format!(r#"{{"Id":"{ID}","Name":"web","ImageName":"x","Pod":"{pod_id}","Config":{{}}}}"#);
    let pod = format!(r#"{{"Id":"{pod_id}","Name":"shop","Labels":{{"app":"web"}}}}"#);
    let server = Server::http(vec![
        (container(ID), response("200 OK", compatible.as_bytes())),
        (
            format!("/v4.0.0/libpod/containers/{ID}/json"),
            response("200 OK", own.as_bytes()),
        ),
        (
            format!("/v4.0.0/libpod/pods/{pod_id}/json"),
            response("200 OK", pod.as_bytes()),
        ),
    ]);
    let asking = Asking::of(vec![server.source("podman")], &["app"]);
    check(
        asking.learn(ID, Some("podman")),
        &[
            "container_name=web",
            "image=localhost/web:1",
            "pod=shop",
            "pod.label/app=web",
        ],
    );
}

#[test]
fn a_podman_without_such_calls_tells_the_rest() {
    let compatible = format!(r#"{{"Id":"{ID}","Name":"web","Config":{{"Image":"web:1"}}}}"#);
    let server = Server::http(vec![
        (container(ID), response("200 OK", compatible.as_bytes())),
        (
            format!("/v4.0.0/libpod/containers/{ID}/json"),
            response("400 Bad Request", b"{}"),
        ),
    ]);
    let asking = Asking::of(vec![server.source("podman")], &[]);
    check(
        asking.learn(ID, Some("podman")),
        &["container_name=web", "image=web:1"],
    );
}

#[test]
fn who_serves_another_runtime_is_not_asked() {
    let server = docker();
    let asking = Asking::of(vec![server.source("docker")], &[]);
    assert_eq!(asking.learn(ID, Some("podman")), None);
    assert_eq!(server.calls.load(Ordering::Relaxed), 0);
}

#[test]
fn a_path_that_names_no_runtime_has_all_asked_in_order() {
    let (empty, server) = (Server::http(Vec::new()), docker());
    let sources = vec![empty.source("podman"), server.source("docker")];
    let asking = Asking::of(sources, &[]);
    let found = asking.learn(ID, None);
    check(found, &["container_name=web-1", "image=fleet/spin:1.0"]);
    assert_eq!(empty.calls.load(Ordering::Relaxed), 1);
}

#[test]
fn who_hangs_holds_up_nobody() {
    // Connections are taken, and kept without a word.
    let hung = Server::start(|stream| {
        std::mem::forget(stream);
    });
    let podman = {
        let body = format!(r#"{{"Id":"{ID}","Name":"web"}}"#);
        Server::http(vec![(container(ID), response("200 OK", body.as_bytes()))])
    };
    let asking = Asking::of(vec![hung.source("docker"), podman.source("podman")], &[]);
    let lost = ID.replace('0', "f");
    // It returns without an answer, and that is counted.
    asking.containers.meet([(&*lost, Some("docker"))]);
    assert_eq!(asking.counts.late.load(Ordering::Relaxed), 1);
    assert_eq!(asking.known(&lost), None);
    check(asking.learn(ID, Some("podman")), &["container_name=web"]);
    asking.wait(|| asking.failed(Cause::Late) == 1);
    // Who was late is not waited for again: were it, this would be late too.
    for digit in ["1", "2", "3", "4", "5"] {
        let id = digit.repeat(64);
        asking.learn(&id, Some("docker"));
    }
    assert_eq!(asking.counts.late.load(Ordering::Relaxed), 1);
    // And at last it is left alone.
    assert_eq!(asking.failed(Cause::Late), 3);
}

#[test]
fn an_answer_without_end_is_cut() {
    let server = Server::start(|mut stream| {
        requested(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n{\"Env\":\"");
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
    });
    let asking = Asking::of(vec![server.source("docker")], &[]);
    assert_eq!(asking.learn(ID, Some("docker")), None);
    let failed = asking.failed(Cause::TooLong) + asking.failed(Cause::Late);
    assert_eq!(failed, 1, "{:?}", asking.counts);
}

#[test]
fn a_container_with_endless_labels_has_a_name() {
    let server = Server::start(|mut stream| {
        requested(&mut stream);
        // In large writes: the daemon waits a second for the answer.
        let mut stream = BufWriter::with_capacity(1 << 16, stream);
        let head = format!(
            "HTTP/1.1 200 OK\r\n\r\n{{\"Id\":\"{ID}\",\"Name\":\"/web\",\"Config\":{{\"Image\":\"web:1\",\
             \"Labels\":{{"
        );
        let _ = stream.write_all(head.as_bytes());
        let labels = (0..500_000).map(|n| format!("\"label-{n}\":\"v\","));
        for label in labels {
            if stream.write_all(label.as_bytes()).is_err() {
                return;
            }
        }
    });
    let asking = Asking::of(vec![server.source("docker")], &["label-3"]);
    check(
        asking.learn(ID, Some("docker")),
        &[
            "container_name=web",
            "image=web:1",
            "container.label/label-3=v",
        ],
    );
}

#[test]
fn what_is_no_answer_is_counted_by_cause() {
    let cases: [(&[u8], Cause); 6] = [
        (b"SSH-2.0-OpenSSH_9.2\r\n", Cause::Broken),
        (b"", Cause::Broken),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}",
            Cause::Broken,
        ),
        (
            b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n",
            Cause::Refused,
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nnot json.",
            Cause::Malformed,
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
            Cause::Malformed,
        ),
    ];
    for (answer, cause) in cases {
        let server = Server::start(move |mut stream| {
            requested(&mut stream);
            let _ = stream.write_all(answer);
        });
        let asking = Asking::of(vec![server.source("docker")], &[]);
        assert_eq!(asking.learn(ID, Some("docker")), None);
        let shown = String::from_utf8_lossy(answer);
        assert_eq!(asking.failed(cause), 1, "{shown}: {:?}", asking.counts);
    }
}

#[test]
fn a_head_without_end_is_refused() {
    let server = Server::start(|mut stream| {
        requested(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
        while stream
            .write_all(b"X-Header: xxxxxxxxxxxxxxxxxxxx\r\n")
            .is_ok()
        {}
    });
    let asking = Asking::of(vec![server.source("docker")], &[]);
    assert_eq!(asking.learn(ID, Some("docker")), None);
    assert_eq!(asking.failed(Cause::Broken), 1);
}

#[test]
fn a_socket_that_nobody_listens_on_is_asked_again_when_somebody_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    drop(UnixListener::bind(&path).unwrap());
    let source: Source = format!("docker:{}", path.display()).parse().unwrap();
    let asking = Asking::of(vec![source], &[]);
    assert_eq!(asking.learn(ID, Some("docker")), None);
    assert_eq!(asking.failed(Cause::Unreachable), 1);
    std::fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            requested(&mut stream);
            let body = format!(r#"{{"Id":"{ID}","Name":"/web"}}"#);
            let _ = stream.write_all(&response("200 OK", body.as_bytes()));
        }
    });
    asking.wait(|| {
        asking.containers.meet([(ID, Some("docker"))]);
        asking.known(ID).is_some()
    });
    check(asking.known(ID), &["container_name=web"]);
}

#[test]
fn what_is_no_socket_is_not_connected_to() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let source: Source = format!("docker:{}", file.display()).parse().unwrap();
    let asking = Asking::of(vec![source], &[]);
    assert_eq!(asking.learn(ID, Some("docker")), None);
    assert_eq!(asking.failed(Cause::Untrusted), 1);
    let none: Source = "docker:/nowhere/docker.sock".parse().unwrap();
    let asking = Asking::of(vec![none], &[]);
    assert_eq!(asking.learn(ID, Some("docker")), None);
    let failed = Cause::ALL.iter().map(|&cause| asking.failed(cause));
    assert_eq!(failed.sum::<u64>(), 0, "who is not there has not failed");
}

#[tokio::test]
async fn a_socket_of_somebody_else_is_trusted_only_where_it_is_named() {
    let server = docker();
    if std::os::unix::fs::chown(&server.path, Some(12345), None).is_err() {
        return testkit::skip("needs root to give a socket away");
    }
    let path: Box<std::path::Path> = server.path.as_path().into();
    let mut socket = super::super::socket::Socket {
        path,
        named: false,
        calls: Default::default(),
    };
    let refused = socket.connect().await;
    assert!(
        matches!(refused, Err(Error::Untrusted { uid: 12345, .. })),
        "{refused:?}"
    );
    socket.named = true;
    socket.connect().await.unwrap();
}
