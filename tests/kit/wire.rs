//! A network that can be cut and listened to: a loopback port that carries bytes to another one, or
//! to nowhere.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Step at which the port looks whether it shall close.
const POLL: Duration = Duration::from_millis(20);

/// True when a text is somewhere in these bytes. Quick also in a build without optimization, which
/// makes a look at each place dear.
pub fn has_bytes(bytes: &[u8], text: &str) -> bool {
    memchr::memmem::find(bytes, text.as_bytes()).is_some()
}

/// Carries connections until it is dropped.
#[derive(Debug)]
pub struct Wire {
    address: SocketAddr,
    state: Arc<State>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    cut: AtomicBool,
    ended: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
    /// All that it carried, where it is listened to.
    heard: Option<Mutex<Vec<u8>>>,
}

impl State {
    fn hang_up(&self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        for stream in open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Wire {
    /// A wire to `HOST:PORT`, whole.
    ///
    /// # Panics
    /// When no port can be bound.
    pub fn to(target: &str) -> Wire {
        Wire::with(target, State::default())
    }

    /// A wire to `HOST:PORT` that keeps a copy of all bytes, of both directions.
    ///
    /// # Panics
    /// When no port can be bound.
    pub fn tapped(target: &str) -> Wire {
        let heard = Some(Mutex::default());
        Wire::with(
            target,
            State {
                heard,
                ..State::default()
            },
        )
    }

    fn with(target: &str, state: State) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").expect("failed to bind a port");
        listener
            .set_nonblocking(true)
            .expect("failed to set a socket up");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(state);
        let (shared, target) = (state.clone(), target.to_owned());
        let thread = std::thread::spawn(move || accept(&listener, &target, &shared));
        Wire {
            address,
            state,
            thread: Some(thread),
        }
    }

    /// `HOST:PORT` of this end.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// What a tapped wire has carried so far.
    ///
    /// # Panics
    /// When it is not tapped.
    pub fn heard(&self) -> Vec<u8> {
        let heard = self.state.heard.as_ref().expect("a tapped wire");
        heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends all connections; new ones end at once.
    pub fn cut(&self) {
        self.state.cut.store(true, Ordering::SeqCst);
        self.state.hang_up();
    }

    /// Carries again.
    pub fn restore(&self) {
        self.state.cut.store(false, Ordering::SeqCst);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::SeqCst);
        self.state.hang_up();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, target: &str, state: &Arc<State>) {
    while !state.ended.load(Ordering::SeqCst) {
        let Ok((near, _)) = listener.accept() else {
            std::thread::sleep(POLL);
            continue;
        };
        if state.cut.load(Ordering::SeqCst) {
            continue;
        }
        let Ok(far) = TcpStream::connect(target) else {
            continue;
        };
        let _ = near.set_nonblocking(false);
        let ends = [near.try_clone(), far.try_clone()];
        let [Ok(near_again), Ok(far_again)] = ends else {
            continue;
        };
        let mut open = state.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.extend([near.try_clone(), far.try_clone()].into_iter().flatten());
        drop(open);
        for (from, to) in [(near, far), (far_again, near_again)] {
            let state = state.clone();
            std::thread::spawn(move || carry(from, to, state.heard.as_ref()));
        }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, heard: Option<&Mutex<Vec<u8>>>) {
    let mut bytes = [0; 16 << 10];
    while let Ok(len) = from.read(&mut bytes) {
        if let Some(heard) = heard {
            let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            heard.extend_from_slice(&bytes[..len]);
        }
        if len == 0 || to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
