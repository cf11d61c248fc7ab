//! The services that talk to the collector: windows, captures that it requests, pins.

use control::Control;
use export::Exporter;
use pins::uploader::PinUploader;
use std::sync::{Arc, OnceLock};

/// See the module.
pub struct Uplink {
    /// Sends windows.
    pub exporter: Arc<Exporter>,
    /// Sends pins.
    pub pins: Arc<PinUploader>,
    /// Handles capture requests, once captures are possible.
    pub control: OnceLock<Arc<Control>>,
    /// Set once all of its threads run.
    pub started: OnceLock<()>,
}
