//! Whom a collector does not let in, and what it tells them.

use super::{CALLBACK, Rig, let_in, refused};
use crate::fake_provider::{Fake, Says};
use crate::identity::now;
use proto::collector::Role;
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_not_for_this_login_lets_nobody_in() {
    let fake = Fake::start().await;
    let changes = [
        (json!({"nonce": "another"}), "nonce"),
        (json!({"aud": "another"}), "aud"),
        (json!({"aud": ["fleetprof", "another"]}), "aud"),
        (json!({"azp": "another"}), "azp"),
        (json!({"iss": "https://evil.example"}), "issuer"),
        (json!({"exp": now() - 3600}), "expired"),
        (json!({"iat": now() - 3600}), "older than the login"),
        (json!({"sub": "a\nb"}), "sub"),
    ];
    // Fewer than are too many from one address.
    let rig = Rig::start(&fake.issuer).await;
    for (at, (change, why)) in changes.iter().enumerate() {
        let said = refused(&rig.log_in(&fake, change).await, 403);
        assert!(said.contains("answers incorrectly"), "{change}: {said}");
        let lines = rig.on_record("login", at + 1).await;
        let outcome = lines[at]["outcome"].as_str().expect("text");
        assert!(outcome.contains(why), "{change}: {outcome}");
    }
    let_in(&rig.log_in(&fake, &json!({})).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_in_no_group_of_the_rules_is_refused_and_named_on_record() {
    let fake = Fake::start().await;
    let rig = Rig::start(&fake.issuer).await;
    let many: Vec<String> = (0..3000).map(|at| at.to_string()).collect();
    let changes = [
        (json!({"groups": ["ALL", "other"]}), "none of"),
        (json!({"groups": []}), "none of"),
        (json!({"groups": ["all", 7]}), "not texts"),
        (json!({"groups": {"all": true}}), "not a list"),
        (json!({"groups": many}), "3000 groups"),
        (
            json!({"preferred_username": "anna\u{1b}[2J\nroot"}),
            "printable",
        ),
        (
            json!({"preferred_username": "anna\u{202e}nimda"}),
            "printable",
        ),
        (json!({"preferred_username": 7}), "no text"),
    ];
    for (at, (change, why)) in changes.iter().enumerate() {
        let said = refused(&rig.log_in(&fake, change).await, 403);
        assert!(said.contains("ask an administrator"), "{said}");
        let line = rig.on_record("login", at + 1).await.remove(at);
        let outcome = line["outcome"].as_str().expect("text");
        assert!(outcome.contains(why), "{change}: {outcome}");
        assert_eq!(line["what"]["subject"], "1", "{line}");
        assert!(!line.to_string().contains('\u{1b}'));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_good_once_and_in_the_browser_that_asked() {
    let fake = Fake::start().await;
    let rig = Rig::start(&fake.issuer).await;
    let begun = rig.begin().await;
    fake.give(&rig.claims(&begun, &json!({})));
    let path = format!("{CALLBACK}?state={}&code=c", begun.asks["state"]);
    let other = rig.begin().await;
    for cookie in [
        "",
        other.cookie.as_str(),
        "Cookie: __Host-fleetprof-login=\r\n",
    ] {
        let said = refused(&rig.site.get(&path, cookie).await, 403);
        assert!(said.contains("another browser"), "{said}");
    }
    assert!(!fake.asked().iter().any(|one| one.contains("/token")));
    // Others cannot spoil it either.
    let_in(&rig.back(&begun, "&code=c").await);
    let said = refused(&rig.back(&begun, "&code=c").await, 403);
    assert!(said.contains("already used"), "{said}");
    let tokens = fake
        .asked()
        .iter()
        .filter(|one| one.contains("/token"))
        .count();
    assert_eq!(tokens, 1);
    let twice = format!("{path}&state=x");
    refused(&rig.site.get(&twice, &begun.cookie).await, 403);
    refused(&rig.site.get(CALLBACK, &begun.cookie).await, 403);
    let begun = rig.begin().await;
    let said = refused(&rig.back(&begun, "&error=access_denied%3Cb%3E").await, 403);
    assert!(
        !said.contains("access_denied") && !said.contains("<b>"),
        "{said}"
    );
    let begun = rig.begin().await;
    let said = refused(
        &rig.back(&begun, "&code=c&iss=https%3A%2F%2Fevil.example")
            .await,
        403,
    );
    assert!(said.contains("another provider"), "{said}");
    assert!(
        rig.site.get("/", "").await.status == 303,
        "nobody is logged in by any of it"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_are_none_let_nobody_in() {
    let fake = Fake::start().await;
    let rig = Rig::start(&fake.issuer).await;
    let cases = [
        (Says::with(200, "id_token=x"), "not JSON"),
        (Says::with(200, "[]"), "not an object"),
        (Says::with(200, "{}"), "no ID token"),
        (Says::json(&json!({"id_token": "x"})), "not a signed token"),
        (Says::json(&json!({"id_token": 7})), "no ID token"),
        (
            Says::with(400, r#"{"error": "invalid_grant\u001b"}"#),
            "400 invalid_grant",
        ),
        (Says::redirect("https://evil.example/"), "302"),
        (Says::with(200, vec![b' '; 1 << 20]), "length limit"),
    ];
    for (at, (says, why)) in cases.into_iter().enumerate() {
        let begun = rig.begin().await;
        fake.say("/token", says);
        refused(&rig.back(&begun, "&code=c").await, 403);
        let line = rig.on_record("login", at + 1).await.remove(at);
        let outcome = line["outcome"].as_str().expect("text");
        assert!(outcome.contains(why), "{outcome}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_fails_again_and_again_is_told_to_wait_and_the_provider_is_left_alone() {
    let fake = Fake::start().await;
    let rig = Rig::start(&fake.issuer).await;
    let good = rig.begin().await;
    let guess = format!("{CALLBACK}?state=x&code=c");
    for _ in 0..10 {
        refused(&rig.site.get(&guess, "").await, 403);
    }
    rig.on_record("login", 10).await;
    for _ in 0..20 {
        let reply = rig.site.get(&guess, "").await;
        refused(&reply, 429);
        assert!(reply.header("retry-after").is_some());
    }
    rig.on_record("login", 10).await;
    // Guesses keep nobody out who has the same address.
    fake.give(&rig.claims(&good, &json!({})));
    let_in(&rig.back(&good, "&code=c").await);
    for _ in 0..10 {
        let reply = rig.log_in(&fake, &json!({"groups": []})).await;
        refused(&reply, 429);
    }
    let asked = fake.asked().len();
    for _ in 0..5 {
        let reply = rig.log_in(&fake, &json!({})).await;
        refused(&reply, 429);
    }
    assert_eq!(fake.asked().len(), asked, "it is left alone");
    // Those with tokens are let in all the same.
    let token = rig.site.running.token("anna", Role::Viewer).await;
    let bearer = format!("Authorization: Bearer {token}\r\n");
    assert_eq!(rig.site.get("/", &bearer).await.status, 200);
}
