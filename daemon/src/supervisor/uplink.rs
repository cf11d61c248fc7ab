//! Starts the threads that talk to a collector: with the daemon, or when the host joins a fleet.

use super::confined;
use super::ends::Ends;
use crate::agent::{Agent, Uplink};
use agent_config::Config;
use export::uplink::{self as way, Service};
use export::{Exporter, HostInfo, Identity, Options, Settings, Target};
use host::facts::Environment;
use host::sync::lock;
use host::time::MonotonicTime;
use pins::uploader::PinUploader;
use sandbox::starter::Starter;
use std::io;
use std::sync::{Arc, OnceLock, PoisonError};

/// Unit: nanoseconds.
const SECOND_NS: i64 = 1_000_000_000;

/// Identity of this host for a collector.
pub(super) fn identity(config: &Config, environment: &Environment) -> Identity {
    Identity::of_this_host(config.collector.host_id.as_deref(), &environment.host)
}

/// Says how it is started later.
pub(super) fn prepare(ends: &Ends, agent: &Arc<Agent>) {
    let (ends, weak) = (ends.clone(), Arc::downgrade(agent));
    agent.fleet.set_starter(move |target| {
        let Some(agent) = weak.upgrade() else {
            return Ok(());
        };
        // It follows the host to its next fleet by itself.
        match agent.uplink.get().map(|uplink| uplink.started.get()) {
            Some(Some(())) => return Ok(()),
            Some(None) => {
                let text = "pushing could not be started earlier: restart the agent";
                return Err(io::Error::other(text));
            }
            None => {}
        }
        start(&ends, &agent, target)?;
        Ok(())
    });
}

/// Starts it. Once.
///
/// # Errors
/// When a thread cannot be started.
pub(super) fn start(ends: &Ends, agent: &Arc<Agent>, target: Target) -> io::Result<()> {
    let config = lock(&agent.settings.active).config.clone();
    let confined = config.sandbox == agent_config::Sandbox::Auto;
    let options = Options {
        collector: target.clone(),
        outside: confined.then(Starter::new).transpose()?,
        dir: config.collector.spool.dir.clone(),
        settings: Settings::of(&config),
        identity: identity(&config, &agent.start.environment),
        host: HostInfo::of(&agent.start.environment),
    };
    let (exporter, sink, queue) = Exporter::new(options, Arc::clone(&agent.clock));
    let exporter = Arc::new(exporter);
    let pins = Arc::new(PinUploader::new(
        Arc::clone(&agent.pins),
        Arc::clone(&exporter),
    ));
    let uplink = Uplink {
        pins: Arc::clone(&pins),
        exporter: Arc::clone(&exporter),
        control: OnceLock::new(),
        started: OnceLock::new(),
    };
    if agent.uplink.set(uplink).is_err() {
        return Ok(());
    }
    let spooler = Arc::clone(&exporter);
    ends.spawn_awaited("fp-spool", move || {
        spooler.run_spool(&queue);
        Ok(())
    })?;
    let recorder = agent.recorder.write();
    recorder
        .unwrap_or_else(PoisonError::into_inner)
        .set_sink(sink);
    let pusher = Arc::clone(&exporter);
    let mut services: Vec<Service> = vec![Box::pin(pusher.push()), Box::pin(pins.upload())];
    if let Some(control) = agent.take_commands() {
        services.push(Box::pin(control.run()));
    }
    let reach = confined::uplink(&config);
    if let Target::Fleet(member) = target {
        let clock = Arc::clone(&agent.clock);
        let now = move || clock.to_unix_ns(MonotonicTime::now()) / SECOND_NS;
        services.push(Box::pin(async move {
            tokio::select! {
                () = member.keep_fresh(now) => {}
                () = exporter.stopping() => {}
            }
        }));
    }
    let sandbox = Arc::clone(&agent.sandbox);
    ends.spawn_awaited(way::THREAD, move || {
        sandbox.confine(way::THREAD, &reach);
        Ok(way::run(services)?)
    })?;
    if let Some(uplink) = agent.uplink.get() {
        uplink.started.get_or_init(|| ());
    }
    Ok(())
}
