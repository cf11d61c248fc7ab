//! Has a HotSpot JVM write its perf map, with the attach protocol that the JDK's own tools use.
//!
//! The JVM starts to listen on `/tmp/.java_pid<N>` when it gets SIGQUIT while its `/tmp` has a file
//! `.attach_pid<N>` owned by its own user (`attachListener_linux.cpp`; `<N>` is its pid as it sees
//! it). Then the command `Compiler.perfmap`, available since JDK 17, has it write
//! `/tmp/perf-<N>.map`: a snapshot.
//!
//! SIGQUIT kills a program that does not handle it, and a JVM that finds no trigger file prints the
//! stacks of its threads instead. So it is sent once in the life of a process, and only if all of
//! this holds: the library that the process runs is HotSpot's by its symbols; the process has a
//! handler for the signal; the JVM does not leave signals to the program; attaching is not
//! disabled, according to the JVM's own flags where they are available; the process is not stopped;
//! the trigger file is in place and there is no socket. The signal is sent through a pidfd that was
//! opened before all of these checks. Two risks remain: the process executes another program within
//! those microseconds; or the JVM is frozen from outside (a frozen cgroup) as the signal arrives
//! and resumes only when the trigger file is gone, and then prints its threads.
//!
//! Runs on a thread of its own that takes the rights of the process (`tmp_dir.rs`). It may wait
//! forever where file systems do; everything else has a deadline. A daemon that is killed leaves
//! the map behind and, during an attempt, the trigger file, which does nothing without a signal. If
//! a JVM answers after the deadline, its map is later taken for the process's own.

use super::tmp_dir::{self, Identity, Mark, ProcessTmpDir};
use crate::runtime::{self, Facts, Runtime};
use crate::target::{self, Target};
use host::proc::{effective_id, status_field};
use host::time::MonotonicTime;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Longest wait for the JVM to open its socket. The JDK's own tools wait about as long; 10 to 15 ms
/// is usual.
const LISTEN_MAX: Duration = Duration::from_secs(5);

/// Longest wait for the answer. The map of 20,000 methods takes some 100 ms, at a safepoint.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Longest answer read. Unit: bytes.
const ANSWER_BYTES_MAX: usize = 4 << 10;

/// Characters of the JVM's own words that are kept.
const WORDS_MAX: usize = 160;

/// Open files of the JVM looked at for one that is a map of its own making.
const OPEN_FILES_MAX: usize = 4096;

/// Command of the protocol's first version: version, command, three arguments, each ended by NUL.
const COMMAND: &[u8] = b"1\0jcmd\0Compiler.perfmap\0\0\0";

/// Why attaching to the JVM failed.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The process ended, or another has its pid.
    #[error("the process has ended")]
    Gone,
    /// It is something else.
    #[error("the process is not a HotSpot JVM")]
    NotHotSpot,
    /// Switched off in the JVM.
    #[error("attaching to the JVM is disabled (-XX:+DisableAttachMechanism)")]
    SwitchedOff,
    /// There is no socket, and the signal would reach the program or end it.
    #[error("the JVM leaves signals to its program (-Xrs), and its socket is gone")]
    NoSignals,
    /// The process has no handler for the signal.
    #[error("the JVM does not handle SIGQUIT yet")]
    NoHandler,
    /// SIGSTOP, or a debugger.
    #[error("the JVM is stopped")]
    Stopped,
    /// The daemon may not act as the process's user.
    #[error("failed to act as user `{uid}` of the JVM: the daemon needs CAP_SETUID and CAP_SETGID")]
    Rights {
        /// That user.
        uid: u32,
        /// The refusal.
        #[source]
        source: io::Error,
    },
    /// The JVM's `/tmp` cannot be worked in.
    #[error("failed to use the JVM's /tmp")]
    ProcessTmpDir(#[source] io::Error),
    /// Something else lies where the JVM will write or look.
    #[error("`/tmp/{name}` in the JVM's root is not the JVM's own file")]
    Planted {
        /// The name.
        name: String,
    },
    /// An agent in the JVM is writing a map.
    #[error("the JVM writes a map by its own settings")]
    OwnMap,
    /// It has the signal and no socket yet.
    #[error("the JVM did not open its socket within {} s", LISTEN_MAX.as_secs())]
    Slow,
    /// It got the signal before and still has no socket. It is not asked again.
    #[error("the JVM did not open its socket on request")]
    Deaf,
    /// It cannot be talked to.
    #[error("failed to talk to the JVM")]
    Talk(#[source] io::Error),
    /// It answered no.
    #[error("the JVM refused: {words} (code {code})")]
    Refused {
        /// Its number.
        code: i64,
        /// Its words, made harmless.
        words: String,
    },
    /// It said yes and there is nothing.
    #[error("the JVM reports that it wrote its map, but there is none")]
    NoMap,
}

impl AttachError {
    /// True when asking again cannot help.
    pub fn is_final(&self) -> bool {
        match self {
            // Not `NotHotSpot`: a program may load the JVM later.
            AttachError::Gone
            | AttachError::SwitchedOff
            | AttachError::NoSignals
            | AttachError::Deaf => true,
            // JDK 16 and earlier do not know the command.
            AttachError::Refused { words, .. } => words.contains("Unknown diagnostic command"),
            _ => false,
        }
    }
}

/// A map that was written because the daemon asked, and where it lies.
#[derive(Debug)]
pub struct LeftOver {
    place: ProcessTmpDir,
    name: String,
    mark: Mark,
    owner: Identity,
}

/// A request to one process.
#[derive(Clone, Copy, Debug)]
pub struct AttachRequest {
    /// Its pid.
    pub pid: u32,
    /// The latest time it can have started.
    pub started_by: MonotonicTime,
    /// State of the map after the last attempt; `None` if there was none.
    pub mark: Option<Mark>,
    /// True when it got the signal before.
    pub signalled: bool,
}

/// Result of an attempt.
#[derive(Debug)]
pub struct Attempt {
    /// True when the process has the signal now, from this attempt or an earlier one.
    pub signalled: bool,
    /// If the map exists, what to remove once nobody needs it; `None` inside if the map already
    /// existed and belongs to somebody else.
    pub outcome: Result<Option<LeftOver>, AttachError>,
}

/// Asks one process, on a thread of its own that ends afterwards. Waits as long as the deadlines of
/// the protocol, and forever where a file system does.
pub fn attach(wanted: AttachRequest) -> Attempt {
    let mut signalled = wanted.signalled;
    let outcome = ask(wanted, &mut signalled);
    Attempt { signalled, outcome }
}

fn ask(wanted: AttachRequest, signalled: &mut bool) -> Result<Option<LeftOver>, AttachError> {
    // First of all: what is looked at from here on is the process it stands for, or gone.
    let pidfd = i32::try_from(wanted.pid).ok().and_then(Pid::from_raw);
    let pidfd = pidfd
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
        .ok_or(AttachError::Gone)?;
    let target = Target::look(wanted.pid, wanted.started_by).ok_or(AttachError::Gone)?;
    let state = State::of(wanted.pid).ok_or(AttachError::Gone)?;
    if state.stopped {
        return Err(AttachError::Stopped);
    }
    let facts = runtime::look_at(wanted.pid, &target);
    if facts.runtime != Runtime::HotSpot {
        return Err(AttachError::NotHotSpot);
    }
    if facts.settings.no_attach {
        return Err(AttachError::SwitchedOff);
    }
    let map = format!("perf-{}.map", target.inner_pid);
    let writing = is_open_in(wanted.pid, &map);
    let owner = state.owner;
    let impersonated = owner.impersonate();
    impersonated.map_err(|source| AttachError::Rights {
        uid: owner.uid,
        source,
    })?;
    let place = ProcessTmpDir::open(&target.root, b"tmp").map_err(AttachError::ProcessTmpDir)?;
    let jvm = Jvm {
        pid: wanted.pid,
        inner_pid: target.inner_pid,
        pidfd,
        owner,
        place,
        facts,
    };
    let before = jvm.place.look(&map).map_err(AttachError::ProcessTmpDir)?;
    // The JVM opens it for writing wherever it leads.
    if before.is_some_and(|seen| !seen.plain || seen.uid != owner.uid) {
        return Err(AttachError::Planted { name: map });
    }
    let ours = before.is_none_or(|seen| wanted.mark == Some(seen.mark));
    if !ours && writing {
        return Err(AttachError::OwnMap);
    }
    let stream = jvm.connect(signalled)?;
    command(&stream)?;
    let after = jvm.place.look(&map).map_err(AttachError::ProcessTmpDir)?;
    let after = after.filter(|seen| seen.plain && seen.uid == owner.uid);
    let mark = after.ok_or(AttachError::NoMap)?.mark;
    Ok(ours.then_some(LeftOver {
        place: jvm.place,
        name: map,
        mark,
        owner,
    }))
}

/// A JVM that may be asked.
struct Jvm {
    pid: u32,
    inner_pid: u32,
    pidfd: OwnedFd,
    owner: Identity,
    place: ProcessTmpDir,
    facts: Facts,
}

impl Jvm {
    /// Connects to its socket, which it is had to open where there is none.
    fn connect(&self, signalled: &mut bool) -> Result<UnixStream, AttachError> {
        let name = format!(".java_pid{}", self.inner_pid);
        let deadline = Instant::now() + LISTEN_MAX;
        match self.place.look(&name).map_err(AttachError::ProcessTmpDir)? {
            Some(seen) if !seen.socket || seen.uid != self.owner.uid => {
                return Err(AttachError::Planted { name });
            }
            Some(_) => match self
                .place
                .connect(&name, (self.owner.uid, self.pid), deadline)
            {
                // Left by an earlier process of the same number: the JVM will make it again.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                other => return other.map_err(AttachError::Talk),
            },
            None => {}
        }
        if *signalled {
            return Err(AttachError::Deaf);
        }
        let trigger = Trigger::place(self)?;
        self.signal(signalled)?;
        let open = || match self
            .place
            .connect(&name, (self.owner.uid, self.pid), deadline)
        {
            Ok(stream) => Ok(Some(stream)),
            // It binds its socket, and listens and gives it its name afterwards.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        };
        let stream = tmp_dir::wait_for(&self.pidfd, deadline, open);
        drop(trigger);
        stream.map_err(AttachError::Talk)?.ok_or(AttachError::Slow)
    }

    /// Sends the signal, if the process is still one that expects it.
    fn signal(&self, signalled: &mut bool) -> Result<(), AttachError> {
        if self.facts.settings.no_signals {
            return Err(AttachError::NoSignals);
        }
        let state = State::of(self.pid).ok_or(AttachError::Gone)?;
        if state.stopped {
            return Err(AttachError::Stopped);
        }
        if !state.handles_quit {
            return Err(AttachError::NoHandler);
        }
        pidfd_send_signal(&self.pidfd, Signal::QUIT).map_err(|error| match error {
            rustix::io::Errno::SRCH => AttachError::Gone,
            other => AttachError::Talk(other.into()),
        })?;
        *signalled = true;
        Ok(())
    }
}

/// The file that makes the JVM start attaching on the signal. Removed when dropped, if it was
/// created here.
struct Trigger<'a> {
    jvm: &'a Jvm,
    name: String,
    made: bool,
}

impl Trigger<'_> {
    fn place(jvm: &Jvm) -> Result<Trigger<'_>, AttachError> {
        let name = format!(".attach_pid{}", jvm.inner_pid);
        let made = jvm
            .place
            .create(&name)
            .map_err(AttachError::ProcessTmpDir)?;
        if !made {
            // Somebody else's that attaches now, or left behind: as good, if the JVM will believe
            // it.
            let seen = jvm.place.look(&name).map_err(AttachError::ProcessTmpDir)?;
            if seen.is_some_and(|seen| !seen.plain || seen.uid != jvm.owner.uid) {
                return Err(AttachError::Planted { name });
            }
        }
        Ok(Trigger { jvm, name, made })
    }
}

impl Drop for Trigger<'_> {
    fn drop(&mut self) {
        if self.made
            && let Err(error) = self.jvm.place.remove(&self.name)
        {
            tracing::warn!(pid = self.jvm.pid, %error, "failed to remove `/tmp/{}` of a JVM", self.name);
        }
    }
}

/// Makes the JVM write its map.
fn command(stream: &UnixStream) -> Result<(), AttachError> {
    let deadline = Instant::now() + ANSWER_MAX;
    tmp_dir::send(stream, COMMAND, deadline).map_err(AttachError::Talk)?;
    let answer = tmp_dir::receive(stream, ANSWER_BYTES_MAX, deadline, |_| false);
    let answer = answer.map_err(AttachError::Talk)?;
    match parse_answer(&answer) {
        Some((0, _)) => Ok(()),
        Some((code, words)) => Err(AttachError::Refused { code, words }),
        None => Err(AttachError::Talk(io::ErrorKind::InvalidData.into())),
    }
}

/// The number on the first line, and one line of words made from the rest.
fn parse_answer(answer: &[u8]) -> Option<(i64, String)> {
    let text = String::from_utf8_lossy(answer);
    let (code, words) = text.split_once('\n')?;
    let words = words.lines().map(str::trim).find(|line| !line.is_empty());
    let harmless = words.unwrap_or("no reason given").chars();
    let harmless = harmless.map(|c| if c.is_control() { '\u{fffd}' } else { c });
    Some((
        code.trim().parse().ok()?,
        harmless.take(WORDS_MAX).collect(),
    ))
}

/// State of a process from the kernel at this moment.
#[derive(Debug, PartialEq, Eq)]
struct State {
    owner: Identity,
    /// Stopped, traced or ended.
    stopped: bool,
    handles_quit: bool,
}

impl State {
    fn of(pid: u32) -> Option<State> {
        State::parse(&target::status_of(pid)?)
    }

    fn parse(status: &str) -> Option<State> {
        let caught = u64::from_str_radix(status_field(status, "SigCgt")?, 16).ok()?;
        Some(State {
            owner: Identity {
                uid: effective_id(status, "Uid")?,
                gid: effective_id(status, "Gid")?,
            },
            stopped: status_field(status, "State")?.starts_with(['T', 't', 'Z', 'X']),
            handles_quit: caught & 1 << (Signal::QUIT.as_raw() - 1) != 0,
        })
    }
}

/// True when the process has a file of this name open: an agent in it writes a map line by line,
/// and would go on at its own place in what was rewritten.
fn is_open_in(pid: u32, name: &str) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    let mut links = open
        .take(OPEN_FILES_MAX)
        .map_while(Result::ok)
        .filter_map(|entry| fs::read_link(entry.path()).ok());
    links.any(|link| link.file_name().is_some_and(|found| found == name))
}

impl LeftOver {
    /// Identity and state of the file.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// Removes the map if it is unchanged, on a thread of its own that ends afterwards: a map
    /// written since belongs to somebody else. May wait forever.
    ///
    /// # Errors
    /// When it stays though it should go.
    pub fn remove(self) -> io::Result<()> {
        self.owner.impersonate()?;
        match self.place.look(&self.name)? {
            Some(seen) if seen.mark == self.mark && seen.plain => self.place.remove(&self.name),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_number_and_words() {
        assert_eq!(parse_answer(b"0\n"), Some((0, "no reason given".into())));
        assert_eq!(
            parse_answer(b"-1\n\n java.lang.X: no\x1b[0m\nmore\n"),
            Some((-1, "java.lang.X: no\u{fffd}[0m".into()))
        );
        assert_eq!(parse_answer(b"0"), None);
        assert_eq!(parse_answer(b"yes\n"), None);
        let long = parse_answer(format!("1\n{}", "ä".repeat(1000)).as_bytes());
        assert_eq!(
            long.map(|(_, words)| words.chars().count()),
            Some(WORDS_MAX)
        );
    }

    #[test]
    fn the_state_of_a_process_is_read() {
        let status = |state: &str, caught: &str| {
            format!(
                "Name:\tx\nState:\t{state}\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nSigCgt:\t{caught}\n"
            )
        };
        let owner = Identity { uid: 2, gid: 6 };
        let read = |state, caught| State::parse(&status(state, caught));
        let runs = State {
            owner,
            stopped: false,
            handles_quit: true,
        };
        assert_eq!(read("S (sleeping)", "0000000000000004"), Some(runs));
        let handles = |caught| read("R (running)", caught).map(|state| state.handles_quit);
        assert_eq!(handles("0000000000000008"), Some(false));
        let stopped = |word| read(word, "0").map(|state| state.stopped);
        assert_eq!(stopped("T (stopped)"), Some(true));
        assert_eq!(stopped("t (tracing stop)"), Some(true));
        assert_eq!(State::parse("State:\tR\n"), None);
    }

    #[test]
    fn this_process_is_not_signalled() {
        let wanted = AttachRequest {
            pid: std::process::id(),
            started_by: MonotonicTime::now(),
            mark: None,
            signalled: false,
        };
        // On a thread of its own, as always: it may have given up its rights.
        let attempt = std::thread::spawn(move || attach(wanted));
        let attempt = attempt.join().expect("no panic");
        assert!(matches!(attempt.outcome, Err(AttachError::NotHotSpot)));
        assert!(!attempt.signalled);
    }
}
