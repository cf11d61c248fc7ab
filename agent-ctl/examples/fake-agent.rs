//! A FAKE agent to look at the command with: `cargo run -p agent-ctl --example fake-agent -- SOCKET`,
//! or with `HOST:PORT` in place of the socket a FAKE collector. They sample and store nothing; what they
//! tell is made up. Ends with Ctrl-C.

#[path = "../tests/fake/mod.rs"]
mod fake;

fn main() {
    let socket = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "/tmp/fake-agent.sock".to_owned());
    let (_stop, stopped) = tokio::sync::oneshot::channel();
    if !socket.contains('/') {
        let listener = std::net::TcpListener::bind(&socket).expect("a port");
        println!("a fake collector listens at {socket}");
        let behaviour = fake::collector::Behaviour::default();
        return fake::collector::serve(listener, behaviour, Default::default(), stopped);
    }
    let _ = std::fs::remove_file(&socket);
    let listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    println!("a fake agent listens at unix:{socket}");
    let behaviour = fake::Behaviour {
        stream_interval: std::time::Duration::from_secs(1),
        degraded: true,
        ..fake::Behaviour::default()
    };
    fake::serve(listener, behaviour, stopped);
}
