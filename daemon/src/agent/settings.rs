//! The configuration in force, where it came from, and how a new one is applied.

use super::sampling::sampling_plan;
use super::{Agent, budget, open_sampling};
use agent_config::{Config, ConfigError, Configuration, Loaded};
use export::Settings as ExportSettings;
use host::facts::{Environment, effective_uid};
use host::sync::lock;
use host::time::MonotonicTime;
use perf::error::RingsError;
use perf::plan::Limits;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Where the configuration comes from; read again at a reload.
#[derive(Clone, Debug)]
pub struct ConfigSource {
    /// `--config`.
    pub path: Option<PathBuf>,
    /// `--set` and what other flags stand for.
    pub sets: Vec<String>,
}

impl ConfigSource {
    /// Reads file, environment and flags.
    ///
    /// # Errors
    /// See [`Configuration::load`].
    pub fn load(&self) -> Result<Loaded, ConfigError> {
        let euid = effective_uid();
        Config::load(self.path.as_deref(), std::env::vars_os(), &self.sets, euid)
    }
}

/// Sets the least important level that is logged; given by `main`, which owns the subscriber.
pub type SetLogLevel = Box<dyn Fn(&Config) + Send + Sync>;

/// The configuration in force.
pub struct Settings {
    /// The configuration in force.
    pub active: Mutex<Loaded>,
    /// Where it came from.
    pub source: ConfigSource,
    /// Applies `log.level`.
    pub set_log_level: SetLogLevel,
}

/// Result of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Keys in force with a new value.
    pub changed: Vec<&'static str>,
    /// Keys with a new value that take a restart.
    pub needs_restart: Vec<&'static str>,
}

/// Why a reload was refused. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Sampling as it asks for.
    #[error("failed to apply the new sampling configuration")]
    Sampling(#[source] RingsError),
}

impl Agent {
    /// Reads the configuration again and puts in force what can be: all of it, or nothing.
    ///
    /// # Errors
    /// [`ReloadError`]; the active configuration stays.
    pub fn reload(&self) -> Result<Reloaded, ReloadError> {
        let new = self.settings.source.load()?;
        let mut active = lock(&self.settings.active);
        let diff = active.config.diff(&new.config);
        let touches = |section: &str| diff.changed.iter().any(|key| key.starts_with(section));
        if touches("sampling.") || touches("unwind.") {
            // What the budget has limited stays limited, as far as the new configuration allows.
            let full = sampling_plan(&new.config, &Environment::read(), Limits::NONE);
            let (level, limits) = {
                let budget = lock(&self.budget.state);
                budget.cpu.level_for(full.stack_bytes, full.rate_hz)
            };
            let (rings, facts) =
                open_sampling(&new.config, limits).map_err(ReloadError::Sampling)?;
            {
                let mut budget = lock(&self.budget.state);
                let cpu = &mut budget.cpu;
                cpu.set_full(full.stack_bytes, full.rate_hz, MonotonicTime::now());
                budget.copies = budget::copy_governor(&new.config, &full);
            }
            let mut recorder = self
                .recorder
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            recorder.set_event(facts.event.name(), facts.event.unit());
            drop(recorder);
            self.sampling.sample_with(rings, facts, level > 0);
        }
        if touches("windows.") {
            self.align_windows(new.config.windows.length());
        }
        if touches("windows.") || touches("recorder.") || touches("budget.") {
            self.configure_budget(&new.config);
        }
        if touches("recorder.") {
            self.keep_times(&new.config);
            self.pins.set_budget(new.config.recorder.pins_bytes());
        }
        if touches("triggers")
            && let Err(error) = self.configure_triggers(&new.config)
        {
            // The rest is in force by now. Their thread is tried again with the next change.
            tracing::error!(%error, "failed to start the trigger thread");
        }
        if let (true, Some(uplink)) = (
            touches("collector.") || touches("withhold"),
            self.uplink.get(),
        ) {
            uplink.exporter.configure(ExportSettings::of(&new.config));
        }
        let control = self.uplink.get().and_then(|uplink| uplink.control.get());
        if let (true, Some(control)) = (touches("captures."), control) {
            control.allow(control::Policy::of(&new.config.captures));
        }
        if touches("log.") {
            (self.settings.set_log_level)(&new.config);
        }
        // Only what is in force now: what takes a restart stays as it is.
        active.config.adopt(&new.config);
        active.file = new.file;
        Ok(Reloaded {
            changed: diff.changed,
            needs_restart: diff.needs_restart,
        })
    }
}
