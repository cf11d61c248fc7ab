//! Starts captures of waits.

use super::{Engine, EngineError, Started};
use crate::offcpu::{Options, Setup};
use host::ids::CaptureId;
use sampler::CaptureStart;
use sampler::filter::Filter;

/// A capture of waits.
#[derive(Debug)]
pub struct OffCpuCapture {
    /// Its id.
    pub id: CaptureId,
    /// Options of the waits.
    pub options: Options,
    /// Selects the waits by process, name and cgroup. The kernel's own cgroup filter is not used,
    /// because the record of the leaving thread shows which thread comes.
    pub filter: Filter,
    /// Say of every wait that ended when it did.
    pub keep_times: bool,
}

impl Engine {
    /// Starts a capture of waits, as [`Engine::start`] does for other events. Weights are
    /// nanoseconds; [`RawBatch::waits`](aggregate::batch::RawBatch::waits) has what was seen
    /// besides waits. Blocks.
    ///
    /// # Errors
    /// [`EngineError`]: then no batch comes.
    pub fn start_off_cpu(&self, wanted: OffCpuCapture) -> Result<Started, EngineError> {
        let setup = Setup::read(wanted.options)?;
        let probes = setup.probes().to_vec();
        self.start_with(wanted.id, probes, None, |set| {
            let mut start = CaptureStart::new(wanted.id, set, wanted.filter);
            start.keep_times = wanted.keep_times;
            start.waits = Some(setup.waits());
            start
        })
    }
}
