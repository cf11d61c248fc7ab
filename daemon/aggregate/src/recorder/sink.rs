//! Hands each closed window to the sink: once, complete, as it closes.
//!
//! The sink sees a window after its parts were added up and before the recorder downsamples, cuts
//! or drops anything for its budget. So the daemon exports what was sampled, whatever the recorder
//! does with its own copy.

use super::accounts::Accounts;
use super::block::{Block, Row};
use super::times::Times;
use super::{Part, Recorder};
use host::time::MonotonicTime;
use profile::{Account, Dictionary, Pressure, Quality};

/// A window that has just closed.
pub struct ClosedWindow<'a> {
    /// Start.
    pub start: MonotonicTime,
    /// End.
    pub end: MonotonicTime,
    /// Weight of one sample at the configured rate; 0 when it varies.
    pub period: u64,
    /// What was taken and missed.
    pub quality: Quality,
    /// For how long tasks of the host waited; `None` if that is not known.
    pub pressure: Option<Pressure>,
    /// The event that was sampled.
    pub event: &'a str,
    /// Unit of weights.
    pub unit: &'a str,
    /// What the ids of rows and accounts mean.
    pub dict: &'a Dictionary,
    /// [`Recorder::epoch`]: ids of `dict` mean the same while it stays.
    pub epoch: u64,
    block: &'a Block,
    accounts: &'a Accounts,
    pub(super) times: &'a Times,
}

impl ClosedWindow<'_> {
    /// The samples in key order.
    pub fn rows(&self) -> impl Iterator<Item = Row> + '_ {
        self.block.iter()
    }

    /// The kernel's accounting; empty when nothing was measured.
    pub fn accounts(&self) -> impl Iterator<Item = Account> + '_ {
        self.accounts.iter()
    }
}

/// Receives closed windows. Called by the symbolizer's thread with the recorder locked, so it must
/// never block.
pub trait ClosedSink: Send + Sync {
    /// Receives the next window.
    fn take(&mut self, window: &ClosedWindow<'_>);
}

impl Recorder {
    /// Shows every window that closes from now on to `sink`.
    pub fn set_sink(&mut self, sink: Box<dyn ClosedSink>) {
        self.sink = Some(sink);
    }

    /// Removes the sink set by [`Recorder::set_sink`]; no window closes any more.
    pub fn drop_sink(&mut self) {
        self.sink = None;
    }

    pub(super) fn show(&mut self, whole: &Part) {
        // Taken out meanwhile, and always put back.
        if let Some(mut sink) = self.sink.take() {
            sink.take(&self.closed(whole));
            self.sink = Some(sink);
        }
    }

    pub(super) fn closed<'a>(&'a self, whole: &'a Part) -> ClosedWindow<'a> {
        ClosedWindow {
            start: whole.start,
            end: whole.end,
            period: whole.period,
            quality: whole.quality,
            pressure: whole.pressure,
            event: &self.event,
            unit: &self.unit,
            dict: &self.dict,
            epoch: self.epoch,
            block: &whole.block,
            accounts: &whole.accounts,
            times: &whole.times,
        }
    }
}
