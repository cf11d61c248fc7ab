//! Hosts whose certificates another authority signs: who they are on each stream, and who is none.

use crate::identity::{Running, hello_of, now, refused_push, start_with};
use crate::pins;
use crate::rig::{LIMIT, PushStream, SECOND, channel, starting, window};
use proto::collector::control_service_client::ControlServiceClient;
use proto::collector::pin_service_client::PinServiceClient;
use proto::collector::pin_upload_service_client::PinUploadServiceClient;
use proto::collector::{
    ControlRequest, Hello, InviteRequest, ListHostPinsRequest, ListMembersRequest, Outcome,
    RemoveMemberRequest, UploadPinRequest, control_request,
};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::fake::member::Membership;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// An authority that is not the fleet's.
struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    /// Those between it and the root, itself first where it is no root.
    between: String,
}

/// What a host has: its chain and its key. PEM.
#[derive(Clone)]
struct Pair {
    chain: String,
    key: String,
}

fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

impl Ca {
    fn root(name: &str) -> Ca {
        let key = KeyPair::generate().expect("a key");
        let params = authority(name);
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Ca {
            issuer: Issuer::new(params, key),
            pem,
            between: String::new(),
        }
    }

    fn below(&self, name: &str) -> Ca {
        let key = KeyPair::generate().expect("a key");
        let params = authority(name);
        let signed = params.signed_by(&key, &self.issuer).expect("signed");
        Ca {
            issuer: Issuer::new(params, key),
            pem: self.pem.clone(),
            between: signed.pem() + &self.between,
        }
    }

    fn sign(&self, names: &[SanType], last_year: i32) -> Pair {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.subject_alt_names = names.to_vec();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(last_year, 1, 1);
        let signed = params.signed_by(&key, &self.issuer).expect("signed");
        Pair {
            chain: signed.pem() + &self.between,
            key: key.serialize_pem(),
        }
    }

    /// A host by its SPIFFE IDs.
    fn host(&self, ids: &[&str]) -> Pair {
        let ids = ids
            .iter()
            .map(|id| SanType::URI((*id).try_into().expect("ASCII")));
        self.sign(&ids.collect::<Vec<_>>(), 2099)
    }
}

const PREFIX: &str = "spiffe://prod.example/host/";

fn id(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// A collector that takes hosts of this authority, whose file is in `dir`.
async fn taking(ca: &Ca, dir: &Path, hosts: &str) -> Running {
    let file = dir.join("ca.pem");
    std::fs::write(&file, &ca.pem).expect("written");
    let data = tempfile::tempdir().expect("a directory");
    start_with(data, Arc::default(), |config| {
        config.identity.outside.ca_files = vec![file.clone()];
        config.identity.outside.hosts = Some(hosts.to_owned());
    })
    .await
}

/// As an agent with files has it.
async fn connect(running: &Running, pair: &Pair) -> Channel {
    let authority: PathBuf = running.dir.path().join("identity/authority.crt");
    let authority = std::fs::read_to_string(authority).expect("it is there");
    named(running, pair, authority, "").await.expect("TLS")
}

async fn named(
    running: &Running,
    pair: &Pair,
    authority: String,
    server_name: &str,
) -> Result<Channel, tonic::transport::Error> {
    let membership = Membership {
        certificate: pair.chain.clone(),
        authorities: vec![authority],
        server_name: server_name.to_owned(),
        ..Membership::default()
    };
    let endpoint = Endpoint::from_shared(format!("https://{}", running.tls()))?;
    let tls = membership.tls(&pair.key);
    endpoint
        .connect_timeout(LIMIT)
        .tls_config(tls)?
        .connect()
        .await
}

/// Pushes one window, of now and so many seconds before.
async fn push(running: &Running, pair: &Pair, hello: Hello, before: i64) -> Result<(), Status> {
    let mut agent = PushStream::connect(connect(running, pair).await).await?;
    agent
        .send(proto::collector::push_request::Body::Hello(hello))
        .await;
    agent.next().await?;
    let part = starting((now() - before) * SECOND, window(1, &["x"]));
    let ack = agent.store_part(part, &["x"]).await;
    assert_eq!(ack.outcome, Outcome::Stored as i32, "{ack:?}");
    Ok(())
}

/// Ids and names of the hosts that have windows.
fn hosts(running: &Running) -> Vec<(String, String)> {
    let windows = running.store.windows();
    let named = windows.iter().flat_map(|window| {
        let id = &window.origin.host.host_id;
        let sets = window.label_sets.iter();
        sets.map(|set| (id.clone(), set.get("host").to_owned()))
    });
    let mut hosts: Vec<_> = named.collect();
    hosts.sort();
    hosts.dedup();
    hosts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_is_who_its_certificate_says_whatever_it_says() {
    let (ca, files) = (Ca::root("prod"), tempfile::tempdir().expect("one"));
    let running = taking(&ca, files.path(), PREFIX).await;
    let (a, b) = (ca.host(&[&id("a")]), ca.host(&[&id("b")]));
    push(&running, &b, hello_of("b"), 60).await.expect("taken");
    // With the id, the name and a label of another.
    let mut claims = hello_of("b");
    claims.host_id = id("b");
    let facts = claims.facts.as_mut().expect("facts");
    facts.hostname = "b".to_owned();
    facts.labels.insert("spiffe_id".to_owned(), id("b"));
    push(&running, &a, claims.clone(), 30).await.expect("taken");
    let expected = [(id("a"), "a".to_owned()), (id("b"), "b".to_owned())];
    assert_eq!(hosts(&running), expected);
    for window in running.store.windows() {
        for set in &window.label_sets {
            assert_eq!(set.get("spiffe_id"), window.origin.host.host_id);
            assert_eq!(id(set.get("host")), window.origin.host.host_id);
        }
    }
    // The stream for captures: that of b stays b's.
    let control = async |pair: &Pair| {
        let request = ControlRequest {
            body: Some(control_request::Body::Hello(claims.clone())),
        };
        let requests =
            tokio_stream::StreamExt::chain(tokio_stream::iter([request]), tokio_stream::pending());
        let mut client = ControlServiceClient::new(connect(&running, pair).await);
        let answers = client.control(requests).await.expect("a stream");
        let mut answers = answers.into_inner();
        answers
            .message()
            .await
            .expect("no status")
            .expect("Welcome");
        answers
    };
    let mut of_b = control(&b).await;
    let _of_a = control(&a).await;
    let heard = tokio::time::timeout(Duration::from_millis(500), of_b.message()).await;
    assert!(heard.is_err(), "nobody took its place: {heard:?}");
    let mut again = control(&b).await;
    let ended = tokio::time::timeout(LIMIT, of_b.message()).await;
    let status = ended.expect("in time").expect_err("its own does");
    assert_eq!(status.code(), Code::Aborted, "{status}");
    let heard = tokio::time::timeout(Duration::from_millis(100), again.message()).await;
    assert!(heard.is_err(), "{heard:?}");
    // Pins.
    let requests: Vec<_> = pins::all(&id("b"), 7, None)
        .into_iter()
        .map(|body| UploadPinRequest { body: Some(body) })
        .collect();
    let mut client = PinUploadServiceClient::new(connect(&running, &a).await)
        .send_compressed(tonic::codec::CompressionEncoding::Zstd)
        .accept_compressed(tonic::codec::CompressionEncoding::Zstd);
    client
        .upload(tokio_stream::iter(requests))
        .await
        .expect("kept");
    let mut people = PinServiceClient::new(channel(running.at.grpc).await);
    let listed = people.list(ListHostPinsRequest::default()).await;
    let listed = listed.expect("a list").into_inner().pins;
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].host_id, id("a"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_no_host_of_the_fleet_pushes_nothing() {
    let (ca, files) = (Ca::root("prod"), tempfile::tempdir().expect("one"));
    let other = Ca::root("prod");
    let running = taking(&ca, files.path(), PREFIX).await;
    let fleet = {
        let mut admin = running.admin().await;
        let listed = admin.list_members(ListMembersRequest {}).await;
        listed.expect("a list").into_inner().fleet_id
    };
    running.member("own").await;
    let uri = |text: &str| SanType::URI(text.try_into().expect("ASCII"));
    let wrong = [
        ("another authority", other.host(&[&id("a")])),
        ("another domain", ca.host(&["spiffe://dev.example/host/a"])),
        ("another path", ca.host(&["spiffe://prod.example/user/a"])),
        ("two URIs", ca.host(&[&id("a"), &id("b")])),
        ("no name", ca.host(&[])),
        ("no end", ca.host(&[PREFIX])),
        // As a member of the fleet's own authority.
        ("ours", ca.host(&[&format!("spiffe://{fleet}/host/id-own")])),
        ("expired", ca.sign(&[uri(&id("a"))], 2021)),
    ];
    for (what, pair) in wrong {
        let pushed = push(&running, &pair, hello_of("own"), 30).await;
        assert!(pushed.is_err(), "{what}");
    }
    assert_eq!(hosts(&running), []);
    let good = ca.host(&[&id("a")]);
    push(&running, &good, hello_of("a"), 30)
        .await
        .expect("taken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_leads_to_the_authority() {
    let (root, files) = (Ca::root("root"), tempfile::tempdir().expect("one"));
    let running = taking(&root, files.path(), PREFIX).await;
    let pair = root.below("between").below("nearer").host(&[&id("a")]);
    push(&running, &pair, hello_of("a"), 30)
        .await
        .expect("taken");
    let (first, _) = pair
        .chain
        .split_once("-----END CERTIFICATE-----\n")
        .expect("PEM");
    let alone = Pair {
        chain: format!("{first}-----END CERTIFICATE-----\n"),
        key: pair.key,
    };
    assert!(push(&running, &alone, hello_of("a"), 20).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_by_its_name_in_dns() {
    let (ca, files) = (Ca::root("prod"), tempfile::tempdir().expect("one"));
    let running = taking(&ca, files.path(), "dns:*.hosts.example").await;
    let names = |names: &[&str]| {
        let names = names
            .iter()
            .map(|name| SanType::DnsName((*name).try_into().expect("ASCII")));
        ca.sign(&names.collect::<Vec<_>>(), 2099)
    };
    let a = names(&["a.hosts.example", "a"]);
    push(&running, &a, hello_of("x"), 30).await.expect("taken");
    let expected = (
        "dns:a.hosts.example".to_owned(),
        "a.hosts.example".to_owned(),
    );
    assert_eq!(hosts(&running), [expected]);
    for wrong in [&["a.example"][..], &["a.hosts.example", "b.hosts.example"]] {
        let pushed = push(&running, &names(wrong), hello_of("x"), 20).await;
        assert!(pushed.is_err(), "{wrong:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_host_is_refused_by_name_until_it_is_invited() {
    let (ca, files) = (Ca::root("prod"), tempfile::tempdir().expect("one"));
    let running = taking(&ca, files.path(), PREFIX).await;
    let pair = ca.host(&[&id("a")]);
    let mut open = PushStream::connect(connect(&running, &pair).await)
        .await
        .expect("a stream");
    open.hello(hello_of("a")).await;
    let listed = running
        .admin()
        .await
        .list_members(ListMembersRequest {})
        .await;
    let listed = listed.expect("a list").into_inner().members;
    assert_eq!(
        (listed[0].name.as_str(), listed[0].host_id.clone()),
        ("a", id("a"))
    );
    assert!(listed[0].key_sha256.is_empty(), "no key is its own");
    let remove = RemoveMemberRequest {
        host: "a".to_owned(),
    };
    running
        .admin()
        .await
        .remove_member(remove)
        .await
        .expect("removed");
    // The stream that is open ends by itself.
    open.end().await;
    // Also with another certificate.
    for pair in [&pair, &ca.host(&[&id("a")])] {
        let refused = refused_push(connect(&running, pair).await, hello_of("a")).await;
        assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    }
    let file = files.path().join("ca.pem");
    let running = running
        .restart_with(|config| {
            config.identity.outside.ca_files = vec![file.clone()];
            config.identity.outside.hosts = Some(PREFIX.to_owned());
        })
        .await;
    let refused = refused_push(connect(&running, &pair).await, hello_of("a")).await;
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    let why = "failed: the host was removed from the fleet";
    let is_refusal = |line: &Value| line["action"] == "join" && line["outcome"] == why;
    let on_record = async {
        while !running.audit().await.iter().any(is_refusal) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let on_record = tokio::time::timeout(LIMIT, on_record).await;
    on_record.expect("the refusal is on record");
    running
        .invite(InviteRequest {
            name: "a".to_owned(),
            ..InviteRequest::default()
        })
        .await;
    push(&running, &pair, hello_of("a"), 30)
        .await
        .expect("taken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_of_one_host_whoever_signs() {
    let (ca, files) = (Ca::root("prod"), tempfile::tempdir().expect("one"));
    let running = taking(&ca, files.path(), PREFIX).await;
    running.member("own").await;
    let taken = push(&running, &ca.host(&[&id("own")]), hello_of("x"), 30).await;
    assert!(taken.is_err());
    push(&running, &ca.host(&[&id("other")]), hello_of("x"), 30)
        .await
        .expect("taken");
    let invitation = running.invite(InviteRequest::default()).await;
    let host = testkit::fake::member::Host::new("other");
    let joined = host.join(running.tls(), &invitation, now()).await;
    assert!(joined.is_err(), "its name is another's");
    let mut given = testkit::fake::member::Host::new("third");
    given.name.host_id = id("third");
    let joined = given.join(running.tls(), &invitation, now()).await;
    assert!(joined.is_err(), "its id is one that certificates give");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authorities_are_replaced_while_hosts_come() {
    let (old, new) = (Ca::root("old"), Ca::root("new"));
    let files = tempfile::tempdir().expect("one");
    let running = Arc::new(taking(&old, files.path(), PREFIX).await);
    let put = |text: String| {
        std::fs::write(files.path().join("fresh"), text).expect("written");
        std::fs::rename(files.path().join("fresh"), files.path().join("ca.pem")).expect("renamed");
    };
    let done = Arc::new(AtomicBool::new(false));
    let coming = [0, 1].map(|number| {
        let (running, done) = (running.clone(), done.clone());
        let ids = [id(&format!("h{number}"))];
        let pair = old.host(&[&ids[0]]);
        tokio::spawn(async move {
            let mut times = 0;
            while !done.load(Ordering::Relaxed) {
                let channel = connect(&running, &pair).await;
                let mut agent = PushStream::connect(channel).await.expect("a stream");
                agent.hello(hello_of("x")).await;
                times += 1;
            }
            times
        })
    });
    for _ in 0..20 {
        put(new.pem.clone() + &old.pem);
        tokio::time::sleep(Duration::from_millis(20)).await;
        put(old.pem.clone() + &new.pem);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    done.store(true, Ordering::Relaxed);
    for task in coming {
        assert!(task.await.expect("nobody was refused") > 2);
    }
    let later = new.host(&[&id("later")]);
    push(&running, &later, hello_of("x"), 30)
        .await
        .expect("taken");
    // An authority that is gone lets nobody in any more.
    put(new.pem.clone());
    let gone = old.host(&[&id("gone")]);
    assert!(push(&running, &gone, hello_of("x"), 30).await.is_err());
    // A file that is damaged changes nothing.
    put("nonsense".to_owned());
    push(&running, &later, hello_of("x"), 20)
        .await
        .expect("taken");
    assert_eq!(hosts(&running).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_for_another_name_is_shown_another_certificate() {
    let (ca, files) = (Ca::root("prod"), tempfile::tempdir().expect("one"));
    let name = SanType::DnsName("c1.example".try_into().expect("ASCII"));
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![name];
    let server = params.signed_by(&key, &ca.issuer).expect("signed");
    let at = |name: &str| files.path().join(name);
    std::fs::write(at("ca.pem"), &ca.pem).expect("written");
    std::fs::write(at("c1.pem"), server.pem()).expect("written");
    std::fs::write(at("c1.key"), key.serialize_pem()).expect("written");
    let data = tempfile::tempdir().expect("a directory");
    let running = start_with(data, Arc::default(), |config| {
        let outside = &mut config.identity.outside;
        outside.ca_files = vec![at("ca.pem")];
        outside.hosts = Some(PREFIX.to_owned());
        outside.cert_file = Some(at("c1.pem"));
        outside.key_file = Some(at("c1.key"));
    })
    .await;
    let pair = ca.host(&[&id("a")]);
    let by_name = named(&running, &pair, ca.pem.clone(), "c1.example").await;
    let mut agent = PushStream::connect(by_name.expect("TLS"))
        .await
        .expect("a stream");
    agent.hello(hello_of("a")).await;
    // Members and people find what they know.
    push(&running, &pair, hello_of("a"), 30)
        .await
        .expect("taken");
    running.member("own").await;
    assert!(named(&running, &pair, ca.pem.clone(), "").await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn collectors_of_one_authority_take_its_hosts_each_by_its_own_list() {
    let (ca, files) = (Ca::root("prod"), tempfile::tempdir().expect("one"));
    let first = taking(&ca, files.path(), PREFIX).await;
    let second = taking(&ca, files.path(), PREFIX).await;
    let pair = ca.host(&[&id("a")]);
    for running in [&first, &second] {
        push(running, &pair, hello_of("a"), 30)
            .await
            .expect("taken");
        assert_eq!(hosts(running), [(id("a"), "a".to_owned())]);
    }
    let remove = RemoveMemberRequest {
        host: "a".to_owned(),
    };
    let removed = first.admin().await.remove_member(remove).await;
    removed.expect("removed");
    let refused = refused_push(connect(&first, &pair).await, hello_of("a")).await;
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    // The other knows nothing of it.
    push(&second, &pair, hello_of("a"), 20)
        .await
        .expect("taken");
}
