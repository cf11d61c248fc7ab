//! Bounds what reading one file may cost, and what the files of one owner may cost together.
//!
//! Anybody who can run a program chooses the content of the file that the daemon then reads. Each
//! reader is given a [`FileBudget`]: it accounts the memory it uses ([`FileBudget::charge`]) and
//! asks now and then whether it may continue ([`FileBudget::check`]). A file over its budget has no
//! names, or no unwind information, and the outcome tables say so. [`Shares`] bound the sum: many
//! files, each just within its budget, could otherwise keep the reading threads from everybody
//! else's files.
//!
//! Time is CPU time of the reading thread, so a busy host makes no file more expensive. Reading it
//! takes a system call of 0.3 µs, so readers ask once per some thousand entries or some 64 KiB.

use super::counters::SymbolCounters;
use hashbrown::HashMap;
use host::sync::lock;
use host::time::{MonotonicTime, thread_cpu};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Most memory that reading one file takes, what is kept of it included. Unit: bytes. The symbols
/// of three million functions; symbols and unwind information of libLLVM take a fifth of it. Files
/// over it have no names.
pub const FILE_BYTES_MAX: usize = 48 << 20;

/// Memory from which on a reading goes on alone. Unit: bytes. Symbols and unwind information are
/// read by two threads, so both together take at most this and [`FILE_BYTES_MAX`]: 64 MiB. When it
/// is too small the threads wait for each other.
const ALONE_BYTES: usize = 16 << 20;

/// How often a reading that has to wait for its turn asks again.
const TURN_WAIT: Duration = Duration::from_millis(1);

/// Longest wait for the turn. The file is put off then and asked for again: a batch of the
/// symbolizer may have many files, and a symbolizer that stands still for minutes ends the daemon.
/// The largest real files take 0.3 s; when this is too small, files are put off on a busy host.
const TURN_WAIT_MAX: Duration = Duration::from_secs(2);

/// Most CPU time that reading one file takes. The largest binaries of distributions take 0.3 s.
/// Files over it have no names.
pub const FILE_CPU_MAX: Duration = Duration::from_secs(2);

/// Most bytes read from one file. Unit: bytes. Bounds what a sparse file moves through the page
/// cache, and over the network. Files over it have no names.
const FILE_READ_MAX: u64 = 1 << 30;

/// CPU time that the files of one owner may take at once. When it is too small a host where much
/// starts together gets its names late.
const SHARE_MAX: Duration = Duration::from_secs(4);

/// How much is replenished per second: the largest share of one CPU that one owner can use for
/// long.
const SHARE_PER_SECOND: Duration = Duration::from_millis(50);

/// Most owners remembered for each purpose. Beyond it, owners with a full share are forgotten, and
/// if there is none the new owner has to wait.
const OWNERS_MAX: usize = 1024;

/// The bound at which the reading of a file ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Over {
    /// It takes more memory than one file may.
    #[error("the file needs more memory than the limit for one file")]
    Memory,
    /// It takes more CPU time, or more bytes read, than one file may.
    #[error("the file needs more time than the limit for one file")]
    Time,
    /// Another reading takes much memory: the file is to be read later.
    #[error("postponed while another file is read")]
    Later,
}

/// Called by a reader now and then; true while it holds the turn that other threads may wait for.
pub type Pause<'a> = dyn FnMut(bool) + 'a;

/// The budget of one reading of one file. For one thread.
pub struct FileBudget<'a> {
    bytes_max: usize,
    cpu_max: Duration,
    held: Cell<usize>,
    most: Cell<usize>,
    read: Cell<u64>,
    started: Duration,
    over: Cell<Option<Over>>,
    pause: Option<RefCell<&'a mut Pause<'a>>>,
    /// CPU time of the pauses: not the file's.
    paused: Cell<Duration>,
    /// CPU time that the owner was charged with.
    charged: Cell<Duration>,
    shares: Option<Arc<Shares>>,
    payer: Payer,
    /// It is the one reading that may take much memory.
    alone: Cell<bool>,
}

impl Default for FileBudget<'_> {
    fn default() -> Self {
        FileBudget::new(FILE_BYTES_MAX, FILE_CPU_MAX)
    }
}

impl<'a> FileBudget<'a> {
    /// A budget of so much memory and CPU time from now on.
    pub fn new(bytes_max: usize, cpu_max: Duration) -> FileBudget<'a> {
        FileBudget {
            bytes_max,
            cpu_max,
            held: Cell::new(0),
            most: Cell::new(0),
            read: Cell::new(0),
            started: thread_cpu(),
            over: Cell::new(None),
            pause: None,
            paused: Cell::new(Duration::ZERO),
            charged: Cell::new(Duration::ZERO),
            shares: None,
            payer: (Owner::Host, Purpose::Profile),
            alone: Cell::new(false),
        }
    }

    /// Calls `pause` whenever the reader asks whether it may go on: for what must not wait as long
    /// as one file may take. Their CPU time does not count.
    pub fn pausing(mut self, pause: &'a mut Pause<'a>) -> FileBudget<'a> {
        self.pause = Some(RefCell::new(pause));
        self
    }

    /// Memory that will be held, until the charge is dropped.
    ///
    /// # Errors
    /// [`Over::Memory`] or [`Over::Later`].
    pub fn charge(&self, bytes: usize) -> Result<Charge<'_>, Over> {
        let mut charge = Charge {
            budget: self,
            bytes: 0,
        };
        charge.set(bytes)?;
        Ok(charge)
    }

    /// Asks whether the reader may go on.
    ///
    /// # Errors
    /// [`Over`] as soon as any bound was met.
    pub fn check(&self) -> Result<(), Over> {
        if let Some(over) = self.over.get() {
            return Err(over);
        }
        self.charge_time();
        if self.spent() > self.cpu_max || self.read.get() > FILE_READ_MAX {
            self.over.set(Some(Over::Time));
            return Err(Over::Time);
        }
        self.pause();
        Ok(())
    }

    fn pause(&self) {
        if let Some(pause) = &self.pause
            && let Ok(mut pause) = pause.try_borrow_mut()
        {
            let started = thread_cpu();
            pause(self.alone.get());
            let took = thread_cpu().saturating_sub(started);
            self.paused.set(self.paused.get() + took);
        }
    }

    /// Waits until no other reading takes much memory, but not for long.
    fn wait_for_turn(&self) -> Result<(), Over> {
        let Some(shares) = self.shares.as_ref().filter(|_| !self.alone.get()) else {
            return Ok(());
        };
        let started = MonotonicTime::now();
        while shares.taken.swap(true, Ordering::Acquire) {
            if MonotonicTime::now().since(started) > TURN_WAIT_MAX {
                self.over.set(Some(Over::Later));
                return Err(Over::Later);
            }
            self.pause();
            std::thread::sleep(TURN_WAIT);
        }
        self.alone.set(true);
        Ok(())
    }

    fn hold(&self, held: usize) -> Result<(), Over> {
        if held > self.bytes_max {
            self.over.set(Some(Over::Memory));
            return Err(Over::Memory);
        }
        if held > ALONE_BYTES {
            self.wait_for_turn()?;
        }
        self.held.set(held);
        self.most.set(self.most.get().max(held));
        Ok(())
    }

    /// Accounts bytes that are about to be read, and asks whether that may be.
    ///
    /// # Errors
    /// [`Over`] as soon as any bound was met.
    pub fn reads(&self, bytes: usize) -> Result<(), Over> {
        self.read.set(self.read.get().saturating_add(bytes as u64));
        self.check()
    }

    /// The bound that was met, if one was.
    pub fn over(&self) -> Option<Over> {
        self.over.get()
    }

    /// Most memory that was charged at a time. Unit: bytes.
    pub fn most_held(&self) -> usize {
        self.most.get()
    }

    /// Charges the owner with what was spent since the last time.
    fn charge_time(&self) {
        if let Some(shares) = &self.shares
            && self.payer.0 != Owner::Host
        {
            let spent = self.spent();
            let more = spent.saturating_sub(self.charged.replace(spent));
            shares.spend(self.payer, more, MonotonicTime::now());
        }
    }

    /// Memory that can still be charged without waiting for another reading. Unit: bytes.
    pub fn room(&self) -> usize {
        let most = match self.alone.get() || self.shares.is_none() {
            true => self.bytes_max,
            false => self.bytes_max.min(ALONE_BYTES),
        };
        most.saturating_sub(self.held.get())
    }

    /// CPU time so far, pauses apart.
    pub fn spent(&self) -> Duration {
        let since = thread_cpu().saturating_sub(self.started);
        since.saturating_sub(self.paused.get())
    }
}

impl Drop for FileBudget<'_> {
    fn drop(&mut self) {
        let Some(shares) = &self.shares else { return };
        if self.alone.get() {
            shares.taken.store(false, Ordering::Release);
        }
        self.charge_time();
    }
}

/// Memory charged to a budget; given back when this is dropped.
pub struct Charge<'b> {
    budget: &'b dyn Held,
    bytes: usize,
}

/// The part of a budget that charges need.
trait Held {
    fn held(&self) -> usize;
    fn bytes_max(&self) -> usize;
    fn hold(&self, held: usize) -> Result<(), Over>;
    fn give_back(&self, bytes: usize);
}

impl Held for FileBudget<'_> {
    fn held(&self) -> usize {
        self.held.get()
    }

    fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    fn hold(&self, held: usize) -> Result<(), Over> {
        FileBudget::hold(self, held)
    }

    fn give_back(&self, bytes: usize) {
        self.held.set(self.held.get() - bytes);
    }
}

impl Charge<'_> {
    /// Changes what is charged.
    ///
    /// # Errors
    /// [`Over::Memory`] or [`Over::Later`]; what was charged stays.
    pub fn set(&mut self, bytes: usize) -> Result<(), Over> {
        let others = self.budget.held() - self.bytes;
        self.budget.hold(others.saturating_add(bytes))?;
        self.bytes = bytes;
        Ok(())
    }

    /// The most that this can be set to. Unit: bytes.
    pub fn room(&self) -> usize {
        let others = self.budget.held() - self.bytes;
        self.budget.bytes_max().saturating_sub(others)
    }

    /// Keeps the charge for the lifetime of the budget.
    pub fn keep(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

/// The owner of a file, who is charged for the time it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// Root's file among what the host has installed: it has no share but its own budget. Root of a
    /// container can make one only in a directory there that the host lent it for writing.
    Host,
    /// Root's file on another file system: that of a container, most likely.
    Root {
        /// The device of the file system.
        device: u64,
    },
    /// A user's, or those of a range of 65,536: one user has as many in a user namespace.
    Users {
        /// The user, or the number of the range.
        user: u32,
        /// True for a range.
        range: bool,
    },
}

impl Owner {
    /// The owner of a file by user and device; `host` are the devices of what the host has
    /// installed.
    pub fn of(user: u32, device: u64, host: &[u64]) -> Owner {
        match user {
            0 if host.contains(&device) => Owner::Host,
            0 => Owner::Root { device },
            1..0x1_0000 => Owner::Users { user, range: false },
            _ => Owner::Users {
                user: user >> 16,
                range: true,
            },
        }
    }
}

/// The purpose of reading a file. Each has shares of its own: captures take no names from the
/// continuous profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Purpose {
    /// The continuous profile.
    #[default]
    Profile,
    /// Source lines of captures.
    Captures,
}

/// The owner and purpose that are charged.
pub type Payer = (Owner, Purpose);

/// CPU time left of one owner's share.
#[derive(Clone, Copy, Debug)]
struct Share {
    left_ns: i64,
    at: MonotonicTime,
}

impl Share {
    fn now(self, now: MonotonicTime) -> Share {
        let more = now.since(self.at).as_nanos() as i64;
        let more = more.saturating_mul(SHARE_PER_SECOND.as_millis() as i64) / 1000;
        let left_ns = self.left_ns.saturating_add(more);
        Share {
            left_ns: left_ns.min(SHARE_MAX.as_nanos() as i64),
            at: now.max(self.at),
        }
    }

    fn is_full(self) -> bool {
        self.left_ns >= SHARE_MAX.as_nanos() as i64
    }
}

/// The CPU time that the files of each owner may take, and who may take much memory. Shared by all
/// threads that read files.
#[derive(Debug, Default)]
pub struct Shares {
    of: Mutex<HashMap<Payer, Share>>,
    counters: Arc<SymbolCounters>,
    /// A reading takes much memory now. Acquired by the one who finds it false, released by the
    /// same.
    taken: AtomicBool,
}

impl Shares {
    /// Creates shares that add their sum to these counters.
    pub fn counted(counters: Arc<SymbolCounters>) -> Shares {
        Shares {
            counters,
            ..Shares::default()
        }
    }

    /// The budget of one reading; `None` while the owner's files have taken more than their share.
    pub fn budget<'a>(
        self: &Arc<Self>,
        payer: Payer,
        now: MonotonicTime,
    ) -> Option<FileBudget<'a>> {
        if payer.0 != Owner::Host && !self.has_time(payer, now) {
            return None;
        }
        let mut budget = FileBudget::default();
        (budget.shares, budget.payer) = (Some(Arc::clone(self)), payer);
        Some(budget)
    }

    fn has_time(&self, payer: Payer, now: MonotonicTime) -> bool {
        let mut shares = lock(&self.of);
        if let Some(share) = shares.get(&payer) {
            return share.now(now).left_ns > 0;
        }
        let count = |shares: &HashMap<Payer, Share>| {
            let same = shares.keys().filter(|(_, purpose)| *purpose == payer.1);
            same.count()
        };
        // Most often there are few of both together.
        if shares.len() < OWNERS_MAX || count(&shares) < OWNERS_MAX {
            return true;
        }
        shares.retain(|_, share| !share.now(now).is_full());
        count(&shares) < OWNERS_MAX
    }

    /// Leaves an owner no time for twenty seconds.
    #[cfg(test)]
    pub fn take_all(&self, payer: Payer) {
        self.spend(
            payer,
            SHARE_MAX + Duration::from_secs(1),
            MonotonicTime::now(),
        );
    }

    fn spend(&self, payer: Payer, spent: Duration, now: MonotonicTime) {
        // Work for captures is counted separately.
        if payer.1 == Purpose::Profile {
            let sum = &self.counters.owners_files_cpu_ns;
            sum.fetch_add(spent.as_nanos() as u64, Ordering::Relaxed);
        }
        let mut shares = lock(&self.of);
        let full = Share {
            left_ns: SHARE_MAX.as_nanos() as i64,
            at: now,
        };
        let mut share = shares.get(&payer).copied().unwrap_or(full).now(now);
        share.left_ns = share.left_ns.saturating_sub(spent.as_nanos() as i64);
        shares.insert(payer, share);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn memory_is_charged_while_it_is_held() {
        let budget = FileBudget::new(100, FILE_CPU_MAX);
        let first = budget.charge(60).expect("within");
        assert!(budget.charge(41).is_err());
        assert_eq!(budget.check(), Err(Over::Memory), "and it stays over");
        drop(first);
        let budget = FileBudget::new(100, FILE_CPU_MAX);
        drop(budget.charge(60).expect("within"));
        budget.charge(40).expect("within").keep();
        assert!(budget.charge(61).is_err());
        assert_eq!(budget.most_held(), 60);
    }

    #[test]
    fn one_reading_at_a_time_takes_much_memory() {
        let shares = Arc::new(Shares::default());
        fn budget<'a>(shares: &Arc<Shares>) -> FileBudget<'a> {
            let budget = shares.budget((Owner::Host, Purpose::Profile), MonotonicTime::now());
            budget.expect("a budget")
        }
        let (done, waits) = std::sync::mpsc::sync_channel(1);
        {
            let first = budget(&shares);
            let _held = first.charge(ALONE_BYTES + 1).expect("within");
            let shares = Arc::clone(&shares);
            std::thread::spawn(move || {
                let paused = Cell::new(0);
                let mut pause = |_| paused.set(paused.get() + 1);
                let second = budget(&shares).pausing(&mut pause);
                second.charge(ALONE_BYTES).expect("within").keep();
                let more = second.charge(1).map(drop);
                drop(second);
                done.send((more, paused.get())).expect("somebody waits");
            });
            std::thread::sleep(Duration::from_millis(20));
            assert!(waits.try_recv().is_err(), "the first is not done");
        }
        let (more, paused) = waits.recv().expect("it goes on");
        assert!(more.is_ok() && paused > 0, "{paused}");
    }

    #[test]
    fn a_reading_that_waits_too_long_for_its_turn_is_put_off() {
        let shares = Arc::new(Shares::default());
        let first = shares
            .budget((Owner::Host, Purpose::Profile), MonotonicTime::now())
            .expect("a budget");
        let _held = first.charge(ALONE_BYTES + 1).expect("within");
        let second = shares
            .budget((Owner::Host, Purpose::Profile), MonotonicTime::now())
            .expect("a budget");
        assert_eq!(second.charge(ALONE_BYTES + 1).map(drop), Err(Over::Later));
        assert_eq!(second.over(), Some(Over::Later));
        drop(_held);
        drop(first);
        let third = shares
            .budget((Owner::Host, Purpose::Profile), MonotonicTime::now())
            .expect("a budget");
        assert!(third.charge(ALONE_BYTES + 1).is_ok());
    }

    #[test]
    fn what_is_done_in_a_pause_is_not_the_files_time() {
        let mut pause = |_| {
            let started = thread_cpu();
            while thread_cpu().saturating_sub(started) < Duration::from_millis(20) {}
        };
        let budget = FileBudget::new(0, Duration::from_millis(10)).pausing(&mut pause);
        assert_eq!([budget.check(), budget.check()], [Ok(()), Ok(())]);
    }

    #[test]
    fn time_is_that_of_the_thread() {
        let budget = FileBudget::new(0, Duration::from_millis(5));
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(budget.check(), Ok(()), "nobody worked");
        let started = thread_cpu();
        while thread_cpu().saturating_sub(started) < Duration::from_millis(10) {}
        assert_eq!(budget.check(), Err(Over::Time));
    }

    #[test]
    fn bytes_read_are_bounded() {
        let budget = FileBudget::default();
        assert_eq!(budget.reads(FILE_READ_MAX as usize), Ok(()));
        assert_eq!(budget.reads(1), Err(Over::Time));
    }

    #[test]
    fn an_owner_that_took_its_share_waits_and_others_do_not() {
        let shares = Arc::new(Shares::default());
        let (heavy, other) = (Owner::of(1000, 1, &[1]), Owner::of(1001, 1, &[1]));
        let now = MonotonicTime::now();
        let may = |owner, at| shares.budget((owner, Purpose::Profile), at).is_some();
        shares.spend((heavy, Purpose::Profile), SHARE_MAX + SECOND, now);
        assert_eq!([may(heavy, now), may(other, now)], [false, true]);
        assert!(!may(heavy, now.plus(19 * SECOND)));
        assert!(may(heavy, now.plus(21 * SECOND)));
    }

    #[test]
    fn what_captures_read_takes_no_time_from_the_profile() {
        let shares = Arc::new(Shares::default());
        let (owner, now) = (Owner::of(1000, 1, &[]), MonotonicTime::now());
        shares.spend((owner, Purpose::Captures), SHARE_MAX + SECOND, now);
        assert!(!shares.has_time((owner, Purpose::Captures), now));
        assert!(shares.has_time((owner, Purpose::Profile), now));
    }

    #[test]
    fn for_long_an_owner_gets_a_twentieth_of_one_cpu() {
        let shares = Arc::new(Shares::default());
        let payer = (Owner::of(1000, 1, &[]), Purpose::Profile);
        let (mut taken, started) = (Duration::ZERO, MonotonicTime::now());
        for second in 0..600 {
            let now = started.plus(second * SECOND);
            if shares.has_time(payer, now) {
                shares.spend(payer, FILE_CPU_MAX, now);
                taken += FILE_CPU_MAX;
            }
        }
        assert!(
            taken <= SHARE_MAX + FILE_CPU_MAX + 600 * SHARE_PER_SECOND,
            "{taken:?}"
        );
    }

    #[test]
    fn the_users_of_a_user_namespace_are_one_owner_and_the_hosts_root_is_none() {
        assert_eq!(Owner::of(100_000, 1, &[]), Owner::of(101_000, 2, &[]));
        assert_ne!(Owner::of(1000, 1, &[]), Owner::of(1001, 1, &[]));
        assert_eq!(Owner::of(0, 7, &[7]), Owner::Host);
        assert_ne!(Owner::of(0, 8, &[7]), Owner::of(0, 9, &[7]));
    }

    #[test]
    fn the_owners_remembered_are_bounded() {
        let shares = Arc::new(Shares::default());
        let now = MonotonicTime::now();
        let payer = |user| (Owner::of(user, 1, &[]), Purpose::Profile);
        for user in 1..=OWNERS_MAX as u32 {
            shares.spend(payer(user), SECOND, now);
        }
        let another = payer(OWNERS_MAX as u32 + 1);
        assert!(!shares.has_time(another, now));
        // Those of one purpose leave the other its room.
        let mut of_captures = another;
        of_captures.1 = Purpose::Captures;
        assert!(shares.has_time(of_captures, now));
        assert!(shares.has_time(another, now.plus(60 * SECOND)));
    }
}
