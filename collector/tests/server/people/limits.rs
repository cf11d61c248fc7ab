//! Tests what people may use up, and how guesses are bounded.

use super::bearer;
use super::roles::call;
use crate::identity::start;
use proto::collector::query_service_client::QueryServiceClient;
use proto::collector::{Role, StatusRequest};
use proto::credential::Credential;
use std::time::Duration;
use tonic::Code;
use tonic::service::interceptor::InterceptedService;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_guesses_are_bounded_and_lock_nobody_out() {
    let running = start().await;
    let token = running.token("anna", Role::Viewer).await;
    let credential = Credential::parse_token(&token).expect("a token");
    let mut connection = running.connection().await;
    let before = running.audit().await.len();
    let (mut told, mut limited) = (0, 0);
    let mut number = 0_u32;
    while number < 10_000 {
        let mut guess = credential.clone();
        guess.secret[..4].copy_from_slice(&number.to_be_bytes());
        let asking = InterceptedService::new(connection.clone(), bearer(&guess.reveal_token()));
        let refused = QueryServiceClient::new(asking)
            .status(StatusRequest {})
            .await
            .expect_err("refused");
        match refused.code() {
            Code::Unauthenticated => told += 1,
            Code::ResourceExhausted => limited += 1,
            // A connection that nobody proves who they are on is closed after a while.
            Code::Unknown | Code::Unavailable | Code::Cancelled => {
                connection = running.connection().await;
                continue;
            }
            other => panic!("{other:?} {refused}"),
        }
        number += 1;
    }
    // Ten a minute, and the test may take some.
    assert!(told <= 40 && limited >= 9_960, "{told} {limited}");
    let lines = running.audit().await;
    assert!(lines.len() - before < 20, "{} lines", lines.len() - before);
    assert!(lines.iter().any(|line| {
        line["action"] == "login"
            && line["outcome"]
                .as_str()
                .expect("text")
                .starts_with("failed")
    }));
    let mut own = QueryServiceClient::new(running.as_(&token).await);
    own.status(StatusRequest {}).await.expect("an answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_person_takes_so_many_calls_and_no_more() {
    let running = start().await;
    let (anna, ben) = (
        running.token("anna", Role::Viewer).await,
        running.token("ben", Role::Viewer).await,
    );
    let mut streams = Vec::new();
    let mut limited = None;
    'all: for _ in 0..4 {
        // So many calls as one connection takes.
        let asking = running.as_(&anna).await;
        for _ in 0..12 {
            let mut health = HealthClient::new(asking.clone());
            let request = HealthCheckRequest {
                service: String::new(),
            };
            match health.watch(request).await {
                Ok(stream) => streams.push(stream),
                Err(status) => {
                    limited = Some(status);
                    break 'all;
                }
            }
        }
    }
    let limited = limited.expect("a limit");
    assert_eq!(limited.code(), Code::ResourceExhausted);
    assert_eq!(streams.len(), 32);
    let status = "/fleetprof.collector.v1.QueryService/Status";
    call(running.as_(&ben).await, status)
        .await
        .expect("his own");
    drop(streams);
    let asking = running.as_(&anna).await;
    for _ in 0..100 {
        if call(asking.clone(), status).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the places do not come back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_people_outlast_those_of_strangers() {
    let running = start().await;
    let token = running.token("anna", Role::Viewer).await;
    let status = "/fleetprof.collector.v1.QueryService/Status";
    let asking = running.as_(&token).await;
    call(asking.clone(), status).await.expect("an answer");
    // Strangers take all of their places, and none of those of people.
    let connection = running.connection().await;
    let mut strangers = Vec::new();
    for _ in 0..100 {
        let stream = tokio::net::TcpStream::connect(running.tls()).await;
        strangers.push(stream.expect("a connection"));
    }
    drop(connection);
    call(asking, status).await.expect("an answer");
}
