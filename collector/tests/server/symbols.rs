//! Symbols: uploaded by people who also send what is none, fetched from servers, kept, and listed.

use crate::rig::{LIMIT, NOW, Rig};
use collector::metrics::Metrics;
use collector::store::Names;
use collector::symbols::{SymbolOptions, Symbols};
use collector::time::Clock;
use object::read::{Object, ObjectSymbol};
use profile::NameSource;
use proto::collector::symbol_service_client::SymbolServiceClient;
use proto::collector::{ListSymbolsRequest, UploadSymbolsRequest, UploadSymbolsResponse};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use testkit::wait::until_blocking;
use tokio::sync::watch;
use tonic::transport::Channel;
use tonic::{Code, Status};

const PIECE: usize = 1 << 20;

/// This test's program: its content, its build id, and where its `main` is.
fn own() -> (Vec<u8>, String, u64) {
    let content = std::fs::read(std::env::current_exe().expect("a path")).expect("its content");
    let image = object::File::parse(&content[..]).expect("an ELF file");
    let id = image
        .build_id()
        .expect("notes")
        .expect("linked with a build id");
    let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut symbols = image.symbols();
    let main = symbols
        .find(|symbol| symbol.name() == Ok("main"))
        .expect("it has one");
    let main = main.address();
    (content, id, main)
}

async fn upload(
    service: &mut SymbolServiceClient<Channel>,
    name: &str,
    content: &[u8],
) -> Result<UploadSymbolsResponse, Status> {
    let messages = content
        .chunks(PIECE)
        .enumerate()
        .map(|(at, piece)| UploadSymbolsRequest {
            name: if at == 0 {
                name.to_owned()
            } else {
                String::new()
            },
            data: piece.to_vec(),
        });
    let messages: Vec<_> = messages.collect();
    let call = service.upload(tokio_stream::iter(messages));
    let answer = tokio::time::timeout(LIMIT, call).await.expect("in time");
    answer.map(|answer| answer.into_inner())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_is_kept_by_its_build_and_listed() {
    let rig = Rig::start().await;
    let mut service = SymbolServiceClient::new(rig.channel().await);
    let (content, id, _) = own();
    let first = upload(&mut service, "/somewhere/api\u{1b}[2J", &content)
        .await
        .expect("it is answered");
    assert_eq!(first.build_id, id);
    assert!(first.functions > 1000 && !first.replaced);
    let again = upload(&mut service, "api", &content)
        .await
        .expect("it is taken");
    assert!(again.replaced);
    let list = service
        .list(ListSymbolsRequest { limit: 0 })
        .await
        .expect("it is answered")
        .into_inner();
    let [file] = &list.files[..] else {
        panic!("{list:?}");
    };
    assert_eq!(
        (&*file.build_id, &*file.name, &*file.source),
        (&*id, "api", "upload")
    );
    assert_eq!(list.stored_bytes, file.stored_bytes);
    assert_eq!(file.functions, first.functions);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_of_no_use_is_refused_and_leaves_nothing() {
    let rig = Rig::start().await;
    let mut service = SymbolServiceClient::new(rig.channel().await);
    let stripped = std::fs::read("/bin/sh").expect("a shell");
    for content in [&b"#!/bin/sh\n"[..], &stripped, &stripped[..100], b""] {
        let refused = upload(&mut service, "x", content)
            .await
            .expect_err("it is of no use");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    }
    let list = service
        .list(ListSymbolsRequest { limit: 0 })
        .await
        .expect("it is answered")
        .into_inner();
    assert!(list.files.is_empty() && list.stored_bytes == 0);
    assert_eq!(rig.metrics.symbol_uploads_refused.get(), 4);
    assert_eq!(incoming(&rig.symbols_dir()), Vec::<String>::new());
}

/// A debuginfod server that has one build.
fn server(id: String, content: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut lines = BufReader::new(stream.try_clone().expect("a socket")).lines();
            let first = lines.next().expect("a request").expect("its first line");
            while lines
                .next()
                .is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
            {}
            let (status, body) = match first.contains(&id) {
                true => ("200 OK", &content[..]),
                false => ("404 Not Found", &b"no"[..]),
            };
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n");
            let _ = write!(stream, "{head}Connection: close\r\n\r\n");
            let _ = stream.write_all(body);
        }
    });
    url
}

fn open(dir: &Path, url: String) -> (Symbols, Arc<Metrics>) {
    let options = SymbolOptions {
        dir: dir.to_owned(),
        disk_bytes: 1 << 30,
        debuginfod: vec![url],
    };
    let metrics = Arc::new(Metrics::default());
    let (_, ending) = watch::channel(false);
    let symbols = Symbols::open(&options, Clock::new(|| NOW), metrics.clone(), ending);
    let symbols = symbols.expect("a thread");
    (symbols, metrics)
}

/// Files of a directory that are still to be taken.
fn incoming(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("incoming")).collect()
}

/// The name at an address.
fn name(symbols: &Symbols, build_id: &str, address: u64) -> Option<(NameSource, String)> {
    let (source, mut names) = symbols.names(build_id, &[address])?;
    names.remove(0).map(|name| (source, name))
}

const OTHER: &str = "ffffffffffffffffffff";

#[test]
fn a_build_that_was_wanted_is_fetched_and_named_afterwards() {
    let dir = tempfile::tempdir().expect("a directory");
    let (content, id, main) = own();
    let (symbols, metrics) = open(dir.path(), server(id.clone(), content));
    assert_eq!(name(&symbols, &id, main), None);
    symbols.want(vec![id.clone(), OTHER.to_owned()]);
    until_blocking("it is fetched", || symbols.version(&id).is_some());
    let expected = (NameSource::Debuginfod, "main".to_owned());
    assert_eq!(name(&symbols, &id, main), Some(expected));
    until_blocking("the other is asked for", || {
        metrics.debuginfod_absent.get() == 1
    });
    // Wanted again, it is not asked for again.
    symbols.want(vec![OTHER.to_owned()]);
    std::thread::sleep(Duration::from_secs(1));
    let counts = (
        metrics.debuginfod_fetched.get(),
        metrics.debuginfod_absent.get(),
    );
    assert_eq!(counts, (1, 1));
    assert_eq!(incoming(dir.path()), Vec::<String>::new());
}

#[test]
fn a_file_of_another_build_than_was_asked_for_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let (content, _, _) = own();
    let (symbols, metrics) = open(dir.path(), server(OTHER.to_owned(), content));
    symbols.want(vec![OTHER.to_owned()]);
    until_blocking("it is refused", || metrics.debuginfod_refused.get() == 1);
    assert_eq!(symbols.version(OTHER), None);
}

#[test]
fn where_no_database_can_be_nothing_has_names_and_that_is_told() {
    let (symbols, metrics) = open(Path::new("/proc/nowhere"), "http://127.0.0.1:1".to_owned());
    symbols.want(vec![OTHER.to_owned()]);
    assert_eq!(name(&symbols, OTHER, 1), None);
    assert_eq!(metrics.symbols_unavailable.get(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_stands_still_keeps_no_other_waiting() {
    let rig = Rig::start().await;
    let (messages, waiting) = tokio::sync::mpsc::channel(1);
    let mut slow = SymbolServiceClient::new(rig.channel().await);
    let stalled = tokio::spawn(async move {
        let messages = tokio_stream::wrappers::ReceiverStream::new(waiting);
        slow.upload(messages).await
    });
    let piece = UploadSymbolsRequest {
        name: "slow".to_owned(),
        data: vec![0; 100],
    };
    messages.send(piece).await.expect("it is read");
    let mut service = SymbolServiceClient::new(rig.channel().await);
    let (content, _, _) = own();
    upload(&mut service, "api", &content)
        .await
        .expect("it is taken");
    drop(messages);
    let ended = stalled.await.expect("it ends");
    assert_eq!(
        ended.expect_err("it is no file").code(),
        Code::InvalidArgument
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_are_on_record_with_what_came_of_them() {
    use proto::collector::AuditRequest;
    use proto::collector::access_service_client::AccessServiceClient;
    let running = crate::identity::start().await;
    let at = crate::rig::channel(running.at.grpc).await;
    let mut service = SymbolServiceClient::new(at.clone());
    let (content, _, _) = own();
    let uploaded = upload(&mut service, "prog", &content).await;
    let build = uploaded.expect("taken").build_id;
    assert!(upload(&mut service, "none", b"no program").await.is_err());
    let recorded = tokio::time::timeout(LIMIT, async {
        loop {
            let mut client = AccessServiceClient::new(at.clone());
            let answer = client.audit(AuditRequest::default()).await;
            let mut answer = answer.expect("an answer").into_inner();
            let mut found = Vec::new();
            while let Some(part) = answer.message().await.expect("well") {
                let own = |line: &String| line.contains("symbols-upload");
                found.extend(part.lines.into_iter().filter(own));
            }
            if found.len() == 2 {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let found = recorded.await.expect("both are there");
    assert!(
        found[0].contains(&build) && found[0].contains("done"),
        "{found:?}"
    );
    assert!(found[1].contains("failed: "), "{found:?}");
}
