//! Reports the daemon's state to the service manager, without ever waiting for it: `sd_notify(3)`.
//!
//! The manager's socket holds a few messages (`net.unix.max_dgram_qlen`, 10 by default). If the
//! manager is stopped or busy, the socket fills up, and a plain send would block the thread that
//! handles signals and heartbeats. Messages that do not fit are kept here and sent later.

use sd_notify::NotifyState;
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Messages kept for a manager that does not read. A reload makes two, the end one; of more the
/// oldest are forgotten.
const UNSENT_MAX: usize = 8;

/// The connection to the service manager, if there is one.
#[derive(Default)]
pub struct Notifier {
    address: Option<SocketAddr>,
    unsent: VecDeque<String>,
}

impl Notifier {
    /// To the manager that `NOTIFY_SOCKET` names.
    pub fn from_env() -> Notifier {
        let name = std::env::var_os("NOTIFY_SOCKET");
        name.map_or_else(Notifier::default, |name| Notifier::to(&name))
    }

    /// To the socket of this name: a path, or `@` and a name without a file.
    fn to(name: &OsStr) -> Notifier {
        let address = match name.as_bytes().split_first() {
            Some((b'@', name)) => SocketAddr::from_abstract_name(name),
            _ => SocketAddr::from_pathname(name),
        };
        Notifier {
            address: address.inspect_err(log).ok(),
            unsent: VecDeque::new(),
        }
    }

    /// Sends a state, after states that were not sent yet. Never waits.
    pub fn tell(&mut self, state: &NotifyState<'_>) {
        let message = state.to_string();
        // A sign of life says nothing more when it is said twice.
        if self.address.is_some() && !self.unsent.contains(&message) {
            if self.unsent.len() == UNSENT_MAX {
                self.unsent.pop_front();
            }
            self.unsent.push_back(message);
        }
        self.send();
    }

    /// Tries again what found no room.
    pub fn send(&mut self) {
        let (Some(address), false) = (&self.address, self.unsent.is_empty()) else {
            return;
        };
        let socket = UnixDatagram::unbound().and_then(|socket| {
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        let socket = match socket {
            Ok(socket) => socket,
            Err(error) => return log(&error),
        };
        while let Some(message) = self.unsent.front() {
            match socket.send_to_addr(message.as_bytes(), address) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => log(&error),
                Ok(_) => {}
            }
            self.unsent.pop_front();
        }
    }

    /// True if something still has to be sent.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }
}

fn log(error: &io::Error) {
    tracing::debug!(%error, "failed to notify the service manager");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A manager with a full socket.
    fn stalled() -> (tempfile::TempDir, UnixDatagram, Notifier, usize) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("binds");
        manager.set_nonblocking(true).expect("a flag");
        let filler = UnixDatagram::unbound().expect("a socket");
        filler.set_nonblocking(true).expect("a flag");
        let full = (0..).find(|_| filler.send_to(b"x", &path).is_err());
        let notifier = Notifier::to(path.as_os_str());
        (dir, manager, notifier, full.expect("it fills up"))
    }

    fn read(manager: &UnixDatagram) -> Option<String> {
        let mut buffer = [0; 64];
        let length = manager.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    #[test]
    fn a_manager_that_does_not_read_is_told_when_it_does() {
        let (_dir, manager, mut notifier, filled) = stalled();
        notifier.tell(&NotifyState::Ready);
        notifier.tell(&NotifyState::Watchdog);
        notifier.tell(&NotifyState::Watchdog);
        assert!(notifier.has_unsent());
        (0..filled).for_each(|_| assert_eq!(read(&manager).as_deref(), Some("x")));
        notifier.send();
        assert!(!notifier.has_unsent());
        assert_eq!(read(&manager).as_deref(), Some("READY=1"));
        assert_eq!(read(&manager).as_deref(), Some("WATCHDOG=1"));
        assert_eq!(read(&manager), None, "one sign of life is enough");
    }

    #[test]
    fn what_is_kept_for_a_manager_is_bounded() {
        let (_dir, _manager, mut notifier, _) = stalled();
        (0..100).for_each(|code| notifier.tell(&NotifyState::Errno(code)));
        assert_eq!(notifier.unsent.len(), UNSENT_MAX);
        assert_eq!(notifier.unsent.back().map(String::as_str), Some("ERRNO=99"));
    }

    #[test]
    fn a_manager_that_is_gone_is_told_nothing_later() {
        let (dir, manager, mut notifier, _) = stalled();
        drop((manager, dir));
        notifier.tell(&NotifyState::Ready);
        assert!(!notifier.has_unsent());
    }

    #[test]
    fn a_socket_without_a_file_is_found() {
        let name = format!("fleetprof-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let manager = UnixDatagram::bind_addr(&address).expect("binds");
        Notifier::to(format!("@{name}").as_ref()).tell(&NotifyState::Ready);
        manager.set_nonblocking(true).expect("a flag");
        assert_eq!(read(&manager).as_deref(), Some("READY=1"));
    }
}
