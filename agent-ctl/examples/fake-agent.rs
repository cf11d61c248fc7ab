//! A fake agent for trying out the command: `cargo run -p agent-ctl --example fake-agent --
//! SOCKET`. With `HOST:PORT` in place of the socket it is a fake collector. They sample and store
//! nothing, and their data is made up. Ends with Ctrl-C.

use std::path::Path;
use testkit::fake::{agent, collector};

fn main() {
    let place = std::env::args().nth(1);
    let place = place.unwrap_or_else(|| "/tmp/fake-agent.sock".to_owned());
    if !place.contains('/') {
        let address = place.parse().expect("HOST:PORT");
        let _fake = collector::FakeCollector::at(address, collector::Behaviour::default());
        println!("a fake collector listens at {place}");
        return wait();
    }
    let _ = std::fs::remove_file(&place);
    let behaviour = agent::Behaviour {
        stream_interval: std::time::Duration::from_secs(1),
        degraded: true,
        ..agent::Behaviour::default()
    };
    let _fake = agent::serve(Path::new(&place), behaviour);
    println!("a fake agent listens at unix:{place}");
    wait();
}

fn wait() {
    loop {
        std::thread::park();
    }
}
