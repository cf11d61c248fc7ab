//! Defines what each confined thread can still access, and when the process locks itself out of
//! system calls.
//!
//! `fp-uplink` and `fp-debuginfod` use the network. Not confined: `fp-grpc`, whose threads read
//! other processes to answer, and everything that samples, names and captures ([`sandbox`] says
//! why).

use agent_config::{Config, Symbols};
use perf::tracefs;
use sandbox::{Calls, Reach, Sandbox};

/// Access of the thread that uploads: its spool, its pins, its identity. It connects to nothing
/// itself: [`Dialer`](identity::Dialer) does, and only to the collector.
pub(super) fn uplink(config: &Config) -> Reach {
    let tls = &config.collector.tls;
    let files = [&tls.cert_file, &tls.key_file, &tls.ca_file];
    let reach = Reach {
        writes: vec![
            config.collector.spool.dir.clone(),
            config.recorder.pins_dir.clone(),
            config.collector.identity_dir.clone(),
        ],
        ..Reach::default()
    };
    // Where somebody else renews the certificate: it is read again, and so is one in its place.
    let files = files.into_iter().flatten();
    files.fold(reach, |reach, file| reach.renewed(file))
}

/// Access of the thread that fetches debug files: its directory, and the servers, or the proxy for
/// them.
pub(super) fn debuginfod(symbols: &Symbols) -> Reach {
    fetching(symbols, sandbox::proxies())
}

fn fetching(symbols: &Symbols, proxies: Vec<String>) -> Reach {
    let urls: Vec<_> = symbols.debuginfod.iter().cloned().chain(proxies).collect();
    let reach = Reach {
        writes: vec![symbols.debuginfod_dir.clone()],
        ..Reach::default()
    };
    reach.naming().urls(&urls)
}

/// Locks the process out of system calls, now that everything runs, and reports the result.
pub(super) fn settle(sandbox: &Sandbox) {
    // Where the host has no tracefs a capture makes one that no path leads to.
    sandbox.refuse_calls(Calls::Profiler {
        mounts: !tracefs::is_mounted(),
    });
    sandbox.report().tell();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_those_of_the_configuration_and_no_others() {
        let config = Config::default();
        assert!(uplink(&config).ports.is_empty() && uplink(&config).reads.is_empty());
        let symbols = Symbols {
            debuginfod: vec![
                "https://debug.example/x:1/".to_owned(),
                "http://[::1]:8002".to_owned(),
            ],
            ..config.symbols
        };
        assert_eq!(
            fetching(&symbols, Vec::new()).ports,
            [53, 80, 443, 8002].into()
        );
        let proxy = ["http://me:secret@proxy.example:3128/".to_owned()];
        assert!(fetching(&symbols, proxy.into()).ports.contains(&3128));
    }
}
