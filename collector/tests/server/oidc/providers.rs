//! Providers that are slow, answer wrong, or must prove who they are.

use super::{CALLBACK, Rig, let_in, refused};
use crate::fake_provider::{DOCUMENT, Fake, Says};
use crate::login::request;
use proto::collector::Role;
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_says_who_it_is_says_so_each_time() {
    let fake = Fake::start().await;
    let mut document = fake.document();
    document["authorization_response_iss_parameter_supported"] = json!(true);
    fake.say(DOCUMENT, Says::json(&document));
    let rig = Rig::start(&fake.issuer).await;
    let said = refused(&rig.log_in(&fake, &json!({})).await, 403);
    assert!(said.contains("does not name its provider"), "{said}");
    let begun = rig.begin().await;
    fake.give(&rig.claims(&begun, &json!({})));
    let own = fake.issuer.replace(':', "%3A").replace('/', "%2F");
    let_in(&rig.back(&begun, &format!("&code=c&iss={own}")).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_that_is_wrong_begins_no_login() {
    let other = Fake::start().await;
    type Wrong = fn(&Fake, &Fake) -> Says;
    let cases: [(Wrong, &str); 6] = [
        (|_, _| Says::with(200, "<html>"), "not JSON"),
        (|_, _| Says::with(500, "{}"), "an error"),
        (
            |_, other| Says::redirect(&format!("{}{DOCUMENT}", other.issuer)),
            "a redirect",
        ),
        (|_, other| Says::json(&other.document()), "another issuer"),
        (
            |fake, _| {
                let mut document = fake.document();
                document["token_endpoint"] = json!("http://evil.example/token");
                Says::json(&document)
            },
            "no TLS",
        ),
        (|_, _| Says::with(200, vec![b' '; 1 << 20]), "huge"),
    ];
    for (says, what) in cases {
        let fake = Fake::start().await;
        fake.say(DOCUMENT, says(&fake, &other));
        let rig = Rig::start(&fake.issuer).await;
        for _ in 0..3 {
            let said = refused(&rig.site.get("/login/oidc", "").await, 502);
            assert!(said.contains("answers incorrectly"), "{what}: {said}");
        }
        // A provider in trouble is left alone for a moment.
        assert_eq!(fake.asked().len(), 1, "{what}");
        // Those with tokens are not in trouble.
        let token = rig.site.running.token("anna", Role::Viewer).await;
        let bearer = format!("Authorization: Bearer {token}\r\n");
        assert_eq!(rig.site.get("/", &bearer).await.status, 200);
    }
    assert!(other.asked().is_empty(), "redirects are not followed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_provider_is_given_up_and_holds_nobody_else() {
    let fake = Fake::start().await;
    let rig = Rig::start(&fake.issuer).await;
    let begun = rig.begin().await;
    fake.say(
        "/token",
        Says::with(200, "{}").after(Duration::from_secs(60)),
    );
    let started = Instant::now();
    let back = rig.back(&begun, "&code=c");
    let health = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        rig.site.get("/healthz", "").await
    };
    let (reply, health) = tokio::join!(back, health);
    assert_eq!(health.status, 200);
    refused(&reply, 403);
    let took = started.elapsed();
    assert!((5..30).contains(&took.as_secs()), "{took:?}");
    let line = rig.on_record("login", 1).await.remove(0);
    assert!(
        line["outcome"]
            .as_str()
            .expect("text")
            .contains("within 10 s")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_wait_for_the_answer_is_on_record_all_the_same() {
    let fake = Fake::start().await;
    let rig = Rig::start(&fake.issuer).await;
    let begun = rig.begin().await;
    let wrong = Says::with(400, r#"{"error": "invalid_grant"}"#);
    fake.say("/token", wrong.after(Duration::from_secs(1)));
    let path = format!("{CALLBACK}?state={}&code=c", begun.asks["state"]);
    let asks = request("GET", &path, "profiles.example.net", &begun.cookie, "");
    let mut stream = rig.site.encrypted().await;
    stream.write_all(asks.as_bytes()).await.expect("sent");
    stream.flush().await.expect("sent");
    let asked = || fake.asked().iter().any(|one| one.contains("/token"));
    for _ in 0..100 {
        if asked() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(stream);
    let line = rig.on_record("login", 1).await.remove(0);
    let outcome = line["outcome"].as_str().expect("text");
    assert!(outcome.contains("400 invalid_grant"), "{outcome}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_proves_its_name_by_an_authority_that_is_known() {
    let files = tempfile::tempdir().expect("a directory");
    let ca = files.path().join("ca.pem");
    let fake = Fake::start_encrypted(&ca).await;
    let rig = Rig::start(&fake.issuer).await;
    refused(&rig.site.get("/login/oidc", "").await, 502);
    assert!(fake.asked().is_empty());
    let rig = Rig::with(&fake.issuer, |config| {
        config.auth.oidc.ca_file = Some(ca.clone());
    })
    .await;
    let_in(&rig.log_in(&fake, &json!({})).await);
}
