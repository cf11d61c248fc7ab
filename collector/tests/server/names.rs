//! Names of hosts that are as long as those of nodes may be.

use crate::identity::{hello_of, now, start};
use crate::rig::{PushStream, starting, window};
use profile::fleet::HOST_NAME_BYTES_MAX;
use proto::collector::{InviteRequest, Outcome};
use testkit::fake::member::{EnrollError, Host};
use tonic::Code;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_the_longest_name_of_its_cluster_is_a_host() {
    let running = start().await;
    // A cluster, and a node's name in DNS. The id has three bytes before it here.
    let name = format!("{}/{}", "c".repeat(31), "n".repeat(253));
    assert_eq!(name.len() + 3, HOST_NAME_BYTES_MAX);
    let (host, membership) = running.member(&name).await;
    assert_eq!(membership.name, name);
    let channel = host.connect(running.tls(), &membership).await;
    let stream = PushStream::connect(channel.expect("a connection")).await;
    let mut stream = stream.expect("a stream");
    stream.hello(hello_of(&name)).await;
    let part = starting((now() - 30) * 1_000_000_000, window(1, &["x"]));
    let ack = stream.store_part(part, &["x"]).await;
    assert_eq!(ack.outcome, Outcome::Stored as i32, "{ack:?}");
    let windows = running.store.windows();
    assert_eq!(windows[0].label_sets[0].get("host"), name);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_longer_name_is_refused_with_its_bound() {
    let running = start().await;
    let host = Host::new(&"n".repeat(HOST_NAME_BYTES_MAX + 1));
    let invitation = running.invite(InviteRequest::default()).await;
    let refused = host.join(running.tls(), &invitation, now()).await;
    let Err(EnrollError::Refused(status)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(status.message().contains("288 printable bytes"), "{status}");
}
