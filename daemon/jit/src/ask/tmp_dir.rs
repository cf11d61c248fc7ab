//! Accesses the temporary directory of a process with that process's own rights.
//!
//! A runtime is asked through files in a directory that the process can write to: a trigger, a
//! socket, the map. The thread that accesses them takes the process's effective user and group and
//! drops every capability. So the kernel allows it nothing there that the process could not do
//! itself, the process sees files and a peer of its own user, even in user namespaces, and nothing
//! that an attacker plants can misuse the daemon's rights. The real and saved user stay the
//! daemon's, because otherwise the process's user could send signals to the thread and so to the
//! daemon. Such a thread never switches back: it does one piece of work and ends
//! (`blocking_pool::alone`).
//!
//! The directory is found within the process's root without following links. Inside it only plain
//! file names are used, and no link is followed.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{DumpableBehavior, Gid, Uid, getegid, geteuid, set_dumpable_behavior};
use rustix::thread::{self, CapabilitySet, CapabilitySets};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use symbolize::open::Root;

/// Time between two tries where the kernel gives nothing to wait for: a file that should appear, a
/// socket with a full queue. A JVM takes 10 to 15 ms to open its socket.
const STEP: Duration = Duration::from_millis(5);

/// Longest such pause: what takes longer than a second is not waited for more closely.
const STEP_MAX: Duration = Duration::from_millis(100);

/// The user and group that a thread acts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Effective user, as the daemon sees it.
    pub uid: u32,
    /// Effective group, likewise.
    pub gid: u32,
}

impl Identity {
    /// Gives the calling thread only these rights, for the rest of its life.
    ///
    /// # Errors
    /// When the daemon may not take on another user: it needs `CAP_SETUID` and `CAP_SETGID`.
    pub fn impersonate(self) -> io::Result<()> {
        let own = (geteuid().as_raw(), getegid().as_raw());
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        let groups = thread::set_thread_groups(&[]);
        if own != (self.uid, self.gid) {
            groups?;
            thread::set_thread_res_gid(None, gid, None)?;
            thread::set_thread_res_uid(None, uid, None)?;
        }
        let none = CapabilitySet::empty();
        let sets = CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        };
        let dropped = thread::set_capabilities(None, sets);
        // Changing the user resets this to the value of a sysctl, for the complete process.
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        Ok(dropped?)
    }
}

/// Identifies one state of a file: its inode and when it last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl Mark {
    /// True when both are of one file, whatever was written to it in between.
    pub fn is_same_file(self, other: Mark) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

/// The file at a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStatus {
    /// Identity and state of the file.
    pub mark: Mark,
    /// Its owner.
    pub uid: u32,
    /// True for a regular file with one name.
    pub plain: bool,
    /// True for a socket.
    pub socket: bool,
}

/// See the head of this file.
#[derive(Debug)]
pub struct ProcessTmpDir(OwnedFd);

impl ProcessTmpDir {
    /// The directory `path` below a root, which must be one, with no link on the way.
    ///
    /// # Errors
    /// When it is not there or may not be looked into.
    pub fn open(root: &Root, path: &[u8]) -> io::Result<ProcessTmpDir> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let confined =
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
        let dir = fs::openat2(root.as_fd(), path, flags, Mode::empty(), confined)?;
        Ok(ProcessTmpDir(dir))
    }

    /// The file at a name, if there is one.
    ///
    /// # Errors
    /// When the directory cannot be asked.
    pub fn look(&self, name: &str) -> io::Result<Option<FileStatus>> {
        let facts = match fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        let kind = FileType::from_raw_mode(facts.st_mode);
        Ok(Some(FileStatus {
            mark: Mark {
                device: facts.st_dev,
                inode: facts.st_ino,
                changed: (facts.st_ctime, facts.st_ctime_nsec as i64),
            },
            uid: facts.st_uid,
            plain: kind == FileType::RegularFile && facts.st_nlink == 1,
            socket: kind == FileType::Socket,
        }))
    }

    /// Makes an empty file that was not there; false when something of that name is.
    ///
    /// # Errors
    /// When it cannot be made for another reason.
    pub fn create(&self, name: &str) -> io::Result<bool> {
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        match fs::openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(_) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a name.
    ///
    /// # Errors
    /// When it stays, though it is there.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match fs::unlinkat(&self.0, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Names in it that `wanted` takes, at most `most`, of at most `looked_at` names.
    ///
    /// # Errors
    /// When it cannot be listed.
    pub fn list(
        &self,
        looked_at: usize,
        most: usize,
        wanted: impl Fn(&str) -> bool,
    ) -> io::Result<Vec<String>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = fs::openat(&self.0, ".", flags, Mode::empty())?;
        let names = fs::Dir::new(dir)?.take(looked_at).map_while(Result::ok);
        let names = names.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
        Ok(names.filter(|name| wanted(name)).take(most).collect())
    }

    /// Connects to the socket at a name, if it is one and belongs to `uid`. It is looked at through
    /// a descriptor, and connected to through the same, so that it is the socket that was looked
    /// at.
    ///
    /// # Errors
    /// When it is not such a socket, nobody or another process than `pid` listens, or its queue is
    /// full until the deadline.
    pub fn connect(
        &self,
        name: &str,
        (uid, pid): (u32, u32),
        deadline: Instant,
    ) -> io::Result<UnixStream> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = fs::openat(&self.0, name, flags, Mode::empty())?;
        let facts = fs::fstat(&found)?;
        let socket = FileType::from_raw_mode(facts.st_mode) == FileType::Socket;
        if !socket || facts.st_uid != uid {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let path = format!("/proc/self/fd/{}", found.as_raw_fd());
        let address = SocketAddrUnix::new(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let mut pause = STEP;
        loop {
            match net::connect(&socket, &address) {
                Ok(()) => {
                    // Namesakes of two pid namespaces may share a directory.
                    let listener = net::sockopt::socket_peercred(&socket)?.pid;
                    return match listener.as_raw_nonzero().get() as u32 == pid {
                        true => Ok(socket.into()),
                        false => Err(io::Error::other("another process listens there")),
                    };
                }
                // Its queue of connections is full.
                Err(Errno::AGAIN) if Instant::now() < deadline => {
                    std::thread::sleep(pause.min(left(deadline)));
                    pause = (pause * 2).min(STEP_MAX);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Waits until the descriptor is readable or hangs up; false at the deadline.
///
/// # Errors
/// When it cannot be waited for.
pub fn wait_readable(fd: impl AsFd, deadline: Instant) -> io::Result<bool> {
    loop {
        let time = Timespec::try_from(left(deadline)).unwrap_or_default();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        match poll(&mut fds, Some(&time)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends all of `bytes` by the deadline.
///
/// # Errors
/// When the peer is gone or does not take them in time.
pub fn send(stream: &UnixStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        match net::send(stream, bytes, net::SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let time = Timespec::try_from(left(deadline)).unwrap_or_default();
                let mut fds = [PollFd::new(stream, PollFlags::OUT)];
                if poll(&mut fds, Some(&time))? == 0 {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reads until the peer ends, or `enough` says so, or `most` bytes are there, by the deadline.
///
/// # Errors
/// When the peer does not answer in time.
pub fn receive(
    mut stream: &UnixStream,
    most: usize,
    deadline: Instant,
    enough: impl Fn(&[u8]) -> bool,
) -> io::Result<Vec<u8>> {
    let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
    while answer.len() < most && !enough(&answer) {
        let room = buffer.len().min(most - answer.len());
        match io::Read::read(&mut stream, &mut buffer[..room]) {
            Ok(0) => break,
            Ok(got) => answer.extend_from_slice(&buffer[..got]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !wait_readable(stream, deadline)? {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(error) => return Err(error),
        }
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(answer)
}

/// Asks `ready` again and again, until it has an answer, the process behind the pidfd has ended, or
/// the deadline has come; `None` then.
///
/// # Errors
/// What `ready` fails with, or waiting.
pub fn wait_for<T>(
    pidfd: impl AsFd,
    deadline: Instant,
    mut ready: impl FnMut() -> io::Result<Option<T>>,
) -> io::Result<Option<T>> {
    let mut pause = STEP;
    loop {
        if let Some(found) = ready()? {
            return Ok(Some(found));
        }
        let now = Instant::now();
        if now >= deadline || wait_readable(&pidfd, (now + pause).min(deadline))? {
            return ready();
        }
        pause = (pause * 2).min(STEP_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;
    use tempfile::TempDir;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    fn place_in(dir: &TempDir) -> ProcessTmpDir {
        let root = Root::of_dir(dir.path()).expect("opens");
        ProcessTmpDir::open(&root, b"tmp").expect("opens")
    }

    fn with_tmp() -> TempDir {
        let dir = TempDir::new().expect("temporary directory");
        std::fs::create_dir(dir.path().join("tmp")).expect("makes");
        dir
    }

    #[test]
    fn a_link_is_no_place() {
        let dir = TempDir::new().expect("temporary directory");
        symlink("/tmp", dir.path().join("tmp")).expect("links");
        let root = Root::of_dir(dir.path()).expect("opens");
        assert!(ProcessTmpDir::open(&root, b"tmp").is_err());
        assert!(ProcessTmpDir::open(&root, b"none").is_err());
    }

    #[test]
    fn what_is_there_is_not_made_again_nor_followed() {
        let dir = with_tmp();
        let place = place_in(&dir);
        assert_eq!(place.look("x").expect("looks"), None);
        assert!(place.create("x").expect("makes"));
        assert!(!place.create("x").expect("sees it"));
        symlink("elsewhere", dir.path().join("tmp/y")).expect("links");
        assert!(!place.create("y").expect("sees it"));
        let seen = place.look("y").expect("looks").expect("is there");
        assert!(!seen.plain && !seen.socket);
        assert!(place.look("x").expect("looks").expect("is there").plain);
        place.remove("x").expect("removes");
        place.remove("x").expect("is gone already");
        assert_eq!(place.look("x").expect("looks"), None);
    }

    #[test]
    fn only_sockets_of_the_right_owner_are_connected_to() {
        let dir = with_tmp();
        let place = place_in(&dir);
        let uid = rustix::process::geteuid().as_raw();
        let _listens = UnixListener::bind(dir.path().join("tmp/s")).expect("binds");
        assert!(
            place
                .connect("s", (uid, std::process::id()), soon())
                .is_ok()
        );
        assert!(
            place
                .connect("s", (uid.wrapping_add(1), std::process::id()), soon())
                .is_err()
        );
        assert!(place.connect("s", (uid, 1), soon()).is_err(), "another's");
        assert!(place.create("f").expect("makes"));
        assert!(
            place
                .connect("f", (uid, std::process::id()), soon())
                .is_err()
        );
        symlink("s", dir.path().join("tmp/l")).expect("links");
        assert!(
            place
                .connect("l", (uid, std::process::id()), soon())
                .is_err()
        );
    }

    #[test]
    fn an_answer_is_bounded_in_length_and_time() {
        let (own, mut other) = UnixStream::pair().expect("a pair");
        own.set_nonblocking(true).expect("sets");
        io::Write::write_all(&mut other, &[b'x'; 100]).expect("writes");
        let got = receive(&own, 10, soon(), |_| false).expect("reads");
        assert_eq!(got, [b'x'; 10]);
        let got = receive(&own, 1000, Instant::now() + STEP, |_| false);
        assert_eq!(
            got.expect_err("nobody ends it").kind(),
            io::ErrorKind::TimedOut
        );
        drop(other);
        assert_eq!(
            receive(&own, 1000, soon(), |_| false).expect("ends"),
            b"",
            "what was read is gone"
        );
    }

    #[test]
    fn a_thread_takes_rights_on_for_good_and_alone_needs_root() {
        if rustix::process::geteuid().as_raw() != 0 {
            testkit::skip("needs root");
            return;
        }
        let dir = with_tmp();
        let tmp = dir.path().join("tmp");
        for path in [dir.path(), &tmp] {
            std::fs::set_permissions(path, Permissions::from_mode(0o777)).expect("opens up");
        }
        let place = place_in(&dir);
        let nobody = Identity {
            uid: 65534,
            gid: 65534,
        };
        let other = std::thread::spawn(move || {
            nobody.impersonate().expect("impersonates");
            assert!(place.create("own").expect("makes"));
            let secret = std::fs::File::open("/etc/shadow");
            let back = thread::set_thread_uid(Uid::from_raw(12345));
            (secret.is_err(), back.is_err())
        });
        assert_eq!(other.join().expect("no panic"), (true, true));
        let facts = std::os::unix::fs::MetadataExt::uid(
            &std::fs::metadata(tmp.join("own")).expect("is there"),
        );
        assert_eq!(facts, 65534);
        assert_eq!(rustix::process::geteuid().as_raw(), 0, "only that thread");
    }
}
