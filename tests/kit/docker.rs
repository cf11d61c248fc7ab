//! A Docker engine of a test's own: the distribution's `dockerd` with data, sockets and processes
//! that are its own and end with it.
//!
//! Everything runs below one process that has pid and mount namespaces of its own: when that is
//! gone, whatever the engine left behind is gone too, mounts included. Containers outlive the
//! engine, as with `live-restore`, so that it can be stopped and started in the middle of a test.
//! Images are made of this machine's programs and their libraries; containers have no network.

use crate::process::{Output, Proc, run, wait_for};
use crate::require::Need;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Longest time until the engine answers, or has ended.
const ENGINE_LIMIT: Duration = Duration::from_secs(60);
/// Longest time for one command of it. Unpacking an image of 100 MB takes some seconds.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// Pid 1 of the engine's namespace: it takes in orphans, and ends after a quarter of an hour, and
/// all others with it, should a test be killed before it can end them.
const INIT: &str = r#"end=$(($(date +%s) + 900))
while [ "$(date +%s)" -lt "$end" ]; do sleep 60 & wait; done"#;

/// What a test with an engine needs.
pub const NEEDS: &[Need] = &[
    Need::Root,
    Need::Cgroup2,
    Need::Program("dockerd"),
    Need::Program("docker"),
    Need::Program("containerd"),
    Need::Program("runc"),
    Need::Program("nsenter"),
    Need::Program("unshare"),
    Need::Program("ldd"),
];

/// A running engine.
pub struct Docker {
    dir: tempfile::TempDir,
    /// Pid 1 of the engine's own namespace. Dropped after the engine.
    init: Proc,
    engine: Option<Proc>,
}

impl Docker {
    /// Starts an engine and waits until it answers; why not, where this machine cannot run one.
    ///
    /// # Errors
    /// With the end of its log.
    pub fn start() -> Result<Docker, String> {
        let dir = tempfile::tempdir_in("/tmp").expect("failed to make a directory");
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-c", INIT]);
        let init = Proc::spawn(&mut command, dir.path(), "init");
        let mut docker = Docker {
            dir,
            init,
            engine: None,
        };
        docker.start_engine()?;
        Ok(docker)
    }

    /// Starts the engine again after [`Docker::stop_engine`]; the containers are its again.
    ///
    /// # Errors
    /// With the end of its log.
    pub fn start_engine(&mut self) -> Result<(), String> {
        let path = |name: &str| self.dir.path().join(name);
        let Some(init) = wait_for(ENGINE_LIMIT, || child_of(self.init.pid())) else {
            return Err(format!("no namespaces: {}", self.init.stderr()));
        };
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--target={init}"))
            .args(["--mount", "--pid", "dockerd", "--iptables=false"])
            .args(["--bridge=none", "--live-restore", "--data-root"])
            .arg(path("data"))
            .arg("--exec-root")
            .arg(path("exec"))
            .arg("--pidfile")
            .arg(path("pid"))
            .arg("--host")
            .arg(format!("unix://{}", self.socket().display()));
        let mut engine = Proc::spawn(&mut command, self.dir.path(), "dockerd");
        let ready = wait_for(ENGINE_LIMIT, || {
            let gone = engine.exited().is_some();
            let answers = || self.docker(&["version"]).code == Some(0);
            (gone || answers()).then_some(!gone)
        });
        let log = engine.stderr();
        self.engine = Some(engine);
        match ready {
            Some(true) => Ok(()),
            _ => {
                let lines: Vec<&str> = log.lines().collect();
                let last = lines[lines.len().saturating_sub(3)..].join("\n");
                Err(format!("dockerd does not run here: {last}"))
            }
        }
    }

    /// Ends the engine. Its containers run on.
    ///
    /// # Panics
    /// When it does not end.
    pub fn stop_engine(&mut self) {
        let Some(mut engine) = self.engine.take() else {
            return;
        };
        // nsenter does not hand signals on: its child is the engine.
        if let Some(pid) = child_of(engine.pid()).and_then(|pid| Pid::from_raw(pid as i32)) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let ended = engine.wait(ENGINE_LIMIT);
        assert!(ended.is_some(), "dockerd does not end: {}", engine.stderr());
    }

    /// The socket it answers on.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("docker.sock")
    }

    /// The setting that has a daemon ask this engine and nobody else.
    pub fn setting(&self) -> String {
        format!("containers.sources=docker:{}", self.socket().display())
    }

    /// The setting that has a daemon read what this engine keeps in files.
    pub fn files_setting(&self) -> String {
        let data = self.dir.path().join("data");
        format!("containers.sources=docker-files:{}", data.display())
    }

    /// Runs `docker` with these arguments.
    pub fn docker<S: AsRef<OsStr>>(&self, args: &[S]) -> Output {
        let host = format!("unix://{}", self.socket().display());
        let mut command = Command::new("docker");
        command
            .env("DOCKER_HOST", host)
            .env("DOCKER_CONFIG", self.dir.path())
            .args(args);
        run(&mut command, COMMAND_LIMIT)
    }

    /// Makes an image of a directory, with instructions of a Dockerfile.
    ///
    /// # Panics
    /// When the engine refuses.
    pub fn import(&self, image: &str, root: &Path, changes: &[&str]) {
        let tar = self.dir.path().join("image.tar");
        let mut pack = Command::new("tar");
        pack.arg("-C").arg(root).arg("-cf").arg(&tar).arg(".");
        run(&mut pack, COMMAND_LIMIT).ok();
        let mut args: Vec<&OsStr> = vec!["import".as_ref()];
        for change in changes {
            args.extend(["--change".as_ref(), OsStr::new(*change)]);
        }
        args.extend([tar.as_os_str(), image.as_ref()]);
        self.docker(&args).ok();
        std::fs::remove_file(tar).expect("failed to remove the archive");
    }

    /// Starts a container and returns its id.
    ///
    /// # Panics
    /// When the engine refuses.
    pub fn run(&self, name: &str, options: &[&str], image: &str, words: &[&str]) -> String {
        let mut args = vec!["run", "--detach", "--network=none", "--name", name];
        args.extend(options);
        args.push(image);
        args.extend(words);
        let id = self.docker(&args).ok().text().trim().to_owned();
        assert_eq!(id.len(), 64, "{id}");
        id
    }

    /// Starts a container of a description that no command line has room for, and returns its id.
    ///
    /// # Panics
    /// When the engine refuses.
    pub fn create(&self, name: &str, description: &serde_json::Value) -> String {
        let body = description.to_string();
        let mut stream = UnixStream::connect(self.socket()).expect("failed to connect");
        write!(
            stream,
            "POST /containers/create?name={name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .expect("failed to ask");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("failed to read");
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
        self.docker(&["start", name]).ok();
        let id = self.docker(&["inspect", "--format={{.Id}}", name]);
        id.ok().text().trim().to_owned()
    }

    /// Ends a container and removes all of it.
    ///
    /// # Panics
    /// When the engine refuses.
    pub fn remove(&self, name: &str) {
        self.docker(&["rm", "--force", name]).ok();
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        if self.engine.is_some() && self.docker(&["version"]).code == Some(0) {
            let all = self.docker(&["ps", "--all", "--quiet"]).text();
            let mut args = vec!["rm", "--force"];
            args.extend(all.split_whitespace());
            if args.len() > 2 {
                self.docker(&args);
            }
        }
        // The end of pid 1 is the end of all in its namespace, and that of the mounts: then the
        // directories can be removed.
        self.engine = None;
        if let Some(init) = child_of(self.init.pid()).and_then(|pid| Pid::from_raw(pid as i32)) {
            let _ = kill_process(init, Signal::KILL);
        }
        self.init.wait(ENGINE_LIMIT);
    }
}

/// The only child of a process.
fn child_of(pid: u32) -> Option<u32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    list.ok()?.split_whitespace().next()?.parse().ok()
}

/// A directory that becomes an image.
pub struct Root {
    dir: tempfile::TempDir,
}

impl Root {
    /// With `/tmp` and nothing else.
    ///
    /// # Panics
    /// When it cannot be made.
    #[expect(
        clippy::new_without_default,
        reason = "making a directory is no default"
    )]
    pub fn new() -> Root {
        let dir = tempfile::tempdir_in("/tmp").expect("failed to make a directory");
        let root = Root { dir };
        std::fs::create_dir(root.path().join("tmp")).expect("failed to make a directory");
        let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o1777);
        std::fs::set_permissions(root.path().join("tmp"), open).expect("failed to set a mode");
        root
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Puts a program there, with the libraries it is linked with at their own places.
    ///
    /// # Panics
    /// When it cannot be copied.
    pub fn program(self, file: &Path, at: &str) -> Root {
        self.copy(file, at);
        let listed = run(Command::new("ldd").arg(file), COMMAND_LIMIT);
        // A static program has none, and ldd says so with an error.
        for word in listed.text().split_whitespace() {
            if word.starts_with('/') && Path::new(word).is_file() {
                self.copy(Path::new(word), word);
            }
        }
        self
    }

    /// Puts a file or a directory there.
    ///
    /// # Panics
    /// When it cannot be copied.
    pub fn file(self, file: &Path, at: &str) -> Root {
        self.copy(file, at);
        self
    }

    fn copy(&self, from: &Path, at: &str) {
        let to = self.path().join(at.trim_start_matches('/'));
        if to.exists() {
            return;
        }
        let parent = to.parent().expect("a file has a directory");
        std::fs::create_dir_all(parent).expect("failed to make a directory");
        let mut copy = Command::new("cp");
        copy.args(["--recursive", "--dereference", "--preserve=mode"]);
        run(copy.arg(from).arg(&to), COMMAND_LIMIT).ok();
    }
}
