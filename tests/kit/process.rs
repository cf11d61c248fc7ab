//! Child processes that end with their owner, with output in files and waits that are bounded.

use rustix::process::{Pid, Signal};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Shortest pause between two questions of a bounded wait. Short beside everything waited for.
const POLL: Duration = Duration::from_millis(10);
/// Longest pause.
const POLL_MAX: Duration = Duration::from_secs(1);
/// Pauses are this many times as long as the question took.
const PAUSE_FACTOR: u32 = 2;

/// Longest time for a child to say that it is ready. Only a failing test waits for it.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// Longest that the end of a killed child is waited for.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Asks `ready` again until it gives something or `limit` is over. A question that takes long is
/// asked less often: who waits leaves the CPUs to what it waits for.
pub fn wait_for<T>(limit: Duration, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        let asked = Instant::now();
        if let Some(value) = ready() {
            return Some(value);
        }
        let now = Instant::now();
        if now >= end {
            return None;
        }
        let pause = (now - asked) * PAUSE_FACTOR;
        std::thread::sleep(pause.clamp(POLL, POLL_MAX));
    }
}

/// Where a program of this name is on `PATH`.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// A child with its output in files; killed when dropped.
#[derive(Debug)]
pub struct Proc {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    name: String,
}

/// Starts a program that may just have been written: another thread that forks at that moment holds
/// the file open for writing until its child runs.
///
/// # Errors
/// When it cannot be started.
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    let started = wait_for(Duration::from_secs(10), || match command.spawn() {
        Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => None,
        started => Some(started),
    });
    started.unwrap_or_else(|| Err(io::ErrorKind::ExecutableFileBusy.into()))
}

/// Waits for the first byte that a child prints, by which it says that it is ready.
///
/// # Panics
/// When its output is not piped, or ends before; and when nothing comes in a minute: then it is
/// killed, and nobody waits for its end, which may not come either.
pub fn wait_until_ready(child: &mut Child) {
    let mut stdout = child.stdout.take().expect("the output is piped");
    let (send, answer) = sync_channel(1);
    std::thread::spawn(move || {
        let read = stdout.read_exact(&mut [0]);
        let _ = send.send((read, stdout));
    });
    let why = match answer.recv_timeout(READY_LIMIT) {
        Ok((Ok(()), stdout)) => {
            child.stdout = Some(stdout);
            return;
        }
        Ok((Err(error), _)) => format!("its output ended: {error}"),
        Err(RecvTimeoutError::Timeout) => format!("it printed nothing in {READY_LIMIT:?}"),
        Err(RecvTimeoutError::Disconnected) => "its reader ended".to_owned(),
    };
    let _ = child.kill();
    let status = wait_for(Duration::from_secs(1), || child.try_wait().ok().flatten());
    panic!("child {} is not ready: {why} ({status:?})", child.id());
}

impl Proc {
    /// Starts `command` with output to `DIR/NAME.out` and `DIR/NAME.err`.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn spawn(command: &mut Command, dir: &Path, name: &str) -> Proc {
        let (stdout, stderr) = (
            dir.join(format!("{name}.out")),
            dir.join(format!("{name}.err")),
        );
        let file = |path: &Path| File::create(path).expect("failed to create an output file");
        command
            .stdin(Stdio::null())
            .stdout(file(&stdout))
            .stderr(file(&stderr));
        let child = spawn(command)
            .unwrap_or_else(|e| panic!("failed to start `{name}` ({command:?}): {e}"));
        Proc {
            child,
            stdout,
            stderr,
            name: name.to_owned(),
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal; nothing when it has ended.
    pub fn signal(&mut self, signal: Signal) {
        if self.exited().is_none()
            && let Some(pid) = Pid::from_raw(self.child.id() as i32)
        {
            // Not reaped yet, so the pid is still this child's.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// How it ended, if it has.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child
            .try_wait()
            .expect("failed to ask for a child's state")
    }

    /// Waits for its end, at most `limit`.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        wait_for(limit, || self.exited())
    }

    /// Ends it with SIGTERM and returns how it ended.
    ///
    /// # Panics
    /// When it does not end within `limit`.
    pub fn terminate(&mut self, limit: Duration) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait(limit)
            .unwrap_or_else(|| panic!("`{}` did not end in {limit:?}", self.name))
    }

    /// What it wrote to standard output so far.
    pub fn stdout(&self) -> String {
        read_lossy(&self.stdout)
    }

    /// What it wrote to standard error so far.
    pub fn stderr(&self) -> String {
        read_lossy(&self.stderr)
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // A file system that never answers can prevent its end forever.
        if self.wait(END_LIMIT).is_none() {
            eprintln!("`{}` does not end although it was killed", self.name);
        }
    }
}

fn read_lossy(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

/// What a finished command left.
#[derive(Debug)]
pub struct Output {
    /// Exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error as text.
    pub stderr: String,
}

impl Output {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Itself, when the command ended with 0.
    ///
    /// # Panics
    /// When it did not, with all it said.
    pub fn ok(self) -> Output {
        assert_eq!(
            self.code,
            Some(0),
            "stderr: {}\nstdout: {}",
            self.stderr,
            self.text()
        );
        self
    }
}

/// Runs a command to its end.
///
/// # Panics
/// When it cannot be started or takes longer than `limit`.
pub fn run(command: &mut Command, limit: Duration) -> Output {
    let dir = tempfile::tempdir().expect("failed to make a directory");
    let mut proc = Proc::spawn(command, dir.path(), "run");
    let status = proc.wait(limit).unwrap_or_else(|| {
        panic!(
            "{command:?} took longer than {limit:?}; stderr: {}",
            proc.stderr()
        )
    });
    Output {
        code: status.code(),
        stdout: std::fs::read(&proc.stdout).unwrap_or_default(),
        stderr: proc.stderr(),
    }
}

/// Copies a file to where it can be executed. A process of its own does it: what this one has open
/// to write, a child that another thread starts at that moment has open too, and a file that is
/// open to write cannot be executed.
///
/// # Panics
/// When it cannot be copied.
pub fn install(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let mut command = Command::new("install");
    command.args(["-m", "755"]);
    run(
        command.arg(from.as_ref()).arg(to.as_ref()),
        Duration::from_secs(60),
    )
    .ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_child_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let proc = Proc::spawn(Command::new("sleep").arg("60"), dir.path(), "sleep");
        let path = PathBuf::from(format!("/proc/{}", proc.pid()));
        assert!(path.exists());
        drop(proc);
        assert!(!path.exists());
    }

    #[test]
    fn a_command_tells_its_code_and_output() {
        let out = run(
            Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]),
            Duration::from_secs(10),
        );
        assert_eq!((out.code, out.text().as_str()), (Some(3), "out\n"));
        assert_eq!(out.stderr, "err\n");
    }

    #[test]
    #[should_panic(expected = "took longer")]
    fn a_command_without_end_is_ended() {
        run(Command::new("sleep").arg("60"), Duration::from_millis(50));
    }
}
