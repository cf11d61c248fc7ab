//! Logins that go well, and the sessions that they become.

use super::{Begun, CALLBACK, Rig, let_in, refused, set, text};
use crate::fake_provider::{Fake, Says};
use crate::login::{Site, exchange, request, with_https};
use proto::collector::Role;
use serde_json::json;
use tokio::net::TcpStream;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_logs_in_is_on_record_and_logs_out() {
    let fake = Fake::start().await;
    let rig = Rig::start(&fake.issuer).await;
    let ways = rig.site.get("/api/login", "").await;
    assert_eq!(text(&ways), r#"{"provider":"Example <SSO>"}"#);
    let asked = "/login/oidc?return=%2F%23view%3Dhosts";
    let reply = rig.site.get(asked, "").await;
    let flags = reply.header("set-cookie").expect("a cookie").to_owned();
    assert!(flags.starts_with("__Host-fleetprof-login="), "{flags}");
    for flag in [
        "; Path=/",
        "; Secure",
        "; HttpOnly",
        "; SameSite=Lax",
        "; Max-Age=600",
    ] {
        assert!(flags.contains(flag), "{flags}");
    }
    let begun = Begun::of(&reply);
    assert!(
        begun
            .location
            .starts_with(&format!("{}/auth?", fake.issuer))
    );
    for (name, value) in [
        ("response_type", "code"),
        ("client_id", "fleetprof"),
        (
            "redirect_uri",
            "https://profiles.example.net/login/oidc/callback",
        ),
        ("scope", "openid profile email"),
        ("code_challenge_method", "S256"),
    ] {
        assert_eq!(begun.asks[name], value);
    }
    fake.give(&rig.claims(&begun, &json!({"groups": ["x", "team-a"]})));
    // As a browser sends it that comes from the provider's page.
    let path = format!("{CALLBACK}?state={}&code=c%2F1", begun.asks["state"]);
    let link = format!(
        "{}Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n",
        begun.cookie
    );
    let reply = rig.site.get(&path, &link).await;
    let own = let_in(&reply);
    assert_eq!(reply.header("location"), Some("/#view=hosts"));
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    assert!(
        reply
            .head
            .contains("__Host-fleetprof-login=; Path=/; Max-Age=0")
    );
    let asked = fake.asked();
    let token = asked
        .iter()
        .find(|one| one.starts_with("POST /token "))
        .expect("asked");
    // RFC 6749, 2.3.1: each is escaped before they are put together.
    let pair = "fleetprof:a%20secret%3A%20with%20%2F%20and%20%25";
    let basic = data_encoding::BASE64.encode(pair.as_bytes());
    assert!(
        token.contains(&format!("authorization: Basic {basic}\r\n")),
        "{token}"
    );
    assert!(token.contains("grant_type=authorization_code&code=c%2F1&redirect_uri="));
    let verifier = token.split("code_verifier=").nth(1).expect("one");
    let digest = ring::digest::digest(&ring::digest::SHA256, verifier.as_bytes());
    let challenge = data_encoding::BASE64URL_NOPAD.encode(digest.as_ref());
    assert_eq!(challenge, begun.asks["code_challenge"]);
    let who = rig.who(&own).await;
    assert_eq!(
        who,
        json!({"name": "oidc:anna", "role": "operator", "can_log_out": true})
    );
    let metrics = rig.site.get("/metrics", &own).await;
    assert_eq!(metrics.status, 403, "the scope is in force: {metrics:?}");
    let line = rig.on_record("page-login", 1).await.remove(0);
    assert_eq!(line["who"], "oidc:anna");
    assert_eq!(line["role"], "operator");
    let what = json!({"by": "oidc", "group": "team-a", "scope": "namespace=a", "subject": "1"});
    assert_eq!(line["what"], what);
    let out = rig.site.ask("POST", "/api/logout", &own, "").await;
    assert_eq!(out.status, 204);
    assert_eq!(rig.site.get("/api/session", &own).await.status, 401);
    let out = rig.on_record("page-logout", 1).await.remove(0);
    assert_eq!(out["who"], "oidc:anna");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_outlives_a_restart_and_ends_with_its_settings_or_by_an_administrator() {
    let fake = Fake::start().await;
    let rig = Rig::start(&fake.issuer).await;
    let first = let_in(&rig.log_in(&fake, &json!({})).await);
    let second = let_in(
        &rig.log_in(&fake, &json!({"sub": "2", "preferred_username": "ben"}))
            .await,
    );
    let listed = rig.site.running.users().await;
    let ben = listed.iter().find(|user| user.name == "oidc:ben");
    let ben = ben.expect("an administrator sees who is logged in");
    assert!(
        ben.signed_in && ben.sessions == 1 && ben.used_unix_s > 0,
        "{ben:?}"
    );
    rig.site.running.remove("oidc:ben").await;
    let listed = rig.site.running.users().await;
    assert!(!listed.iter().any(|user| user.name == "oidc:ben"));
    assert_eq!(rig.site.get("/api/session", &second).await.status, 401);
    assert_eq!(rig.who(&first).await["name"], "oidc:anna");
    let Rig {
        site,
        issuer,
        secret,
    } = rig;
    let (at, path) = (issuer.clone(), secret.path().to_owned());
    let running = site
        .running
        .restart_with(|config| set(config, &at, &path))
        .await;
    let site = Site::of(running).await;
    let rig = Rig {
        site,
        issuer,
        secret,
    };
    assert_eq!(rig.who(&first).await["role"], "viewer");
    assert_eq!(rig.site.get("/api/session", &second).await.status, 401);
    let Rig { site, secret, .. } = rig;
    let running = site.running.restart_with(|config| {
        set(config, &at, &path);
        config.auth.oidc.rules.truncate(2);
    });
    let site = Site::of(running.await).await;
    assert_eq!(site.get("/api/session", &first).await.status, 401);
    let running = site.running.restart_with(with_https).await;
    let site = Site::of(running).await;
    assert_eq!(site.get("/api/session", &first).await.status, 401);
    assert_eq!(site.get("/login/oidc", "").await.status, 404);
    assert_eq!(site.get(CALLBACK, "").await.status, 404);
    drop(secret);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_nobody_elses() {
    let fake = Fake::start().await;
    let rig = Rig::start(&fake.issuer).await;
    let token = rig.site.running.token("anna", Role::Admin).await;
    assert!(!token.is_empty());
    let first = let_in(&rig.log_in(&fake, &json!({})).await);
    let second = let_in(&rig.log_in(&fake, &json!({"sub": "2"})).await);
    let again = let_in(&rig.log_in(&fake, &json!({})).await);
    let proxied = json!({"sub": "3", "preferred_username": "proxy:anna"});
    let proxied = let_in(&rig.log_in(&fake, &proxied).await);
    assert_eq!(rig.who(&first).await["name"], "oidc:anna");
    assert_eq!(rig.who(&again).await["name"], "oidc:anna");
    let marked = rig.who(&second).await["name"].clone();
    let mark = marked
        .as_str()
        .and_then(|name| name.strip_prefix("oidc:anna#"));
    assert_eq!(mark.map(str::len), Some(12), "{marked}");
    assert_eq!(rig.who(&proxied).await["name"], "oidc:proxy:anna");
    for name in ["oidc:anna", "OIDC:anna", "Proxy:anna"] {
        let refused = rig.site.running.refused_user(name).await;
        assert!(
            refused.message().contains("is reserved for names"),
            "{refused:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_token_leaves_out_is_asked_for_and_must_be_of_the_same_person() {
    let fake = Fake::start().await;
    let rig = Rig::start(&fake.issuer).await;
    let short = |begun: &Begun| {
        let mut claims = rig.claims(begun, &json!({"preferred_username": "anna"}));
        claims.as_object_mut().expect("one").remove("groups");
        claims
    };
    let begun = rig.begin().await;
    fake.give(&short(&begun));
    // What the token says counts.
    let more = json!({"sub": "1", "groups": ["admins"], "preferred_username": "root"});
    fake.say("/me", Says::json(&more));
    let own = let_in(&rig.back(&begun, "&code=c").await);
    let who = rig.who(&own).await;
    assert_eq!(
        (&who["name"], &who["role"]),
        (&json!("oidc:anna"), &json!("admin"))
    );
    for says in [
        Says::json(&json!({"sub": "2", "groups": ["admins"]})),
        Says::json(&json!({"groups": ["admins"]})),
        Says::json(&json!({"sub": "1"})),
        Says::with(200, "eyJhbGciOiJSUzI1NiJ9.e30.c2ln"),
        Says::with(401, ""),
    ] {
        let begun = rig.begin().await;
        fake.give(&short(&begun));
        fake.say("/me", says);
        refused(&rig.back(&begun, "&code=c").await, 403);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_comes_back_to_the_name_that_the_provider_knows() {
    let fake = Fake::start().await;
    let rig = Rig::start(&fake.issuer).await;
    let host = format!(
        "127.0.0.1:{}",
        rig.site.running.at.https.expect("one").port()
    );
    let asked = request("GET", "/login/oidc?return=%2F%23a%26b", &host, "", "");
    let reply = exchange(rig.site.encrypted().await, &asked).await;
    let query = "?named=1&return=%2F%23a%26b";
    let own = format!("https://profiles.example.net/login/oidc{query}");
    assert_eq!((reply.status, reply.header("location")), (303, Some(&*own)));
    // Once: a proxy may pass on another name each time.
    let asked = request("GET", &format!("/login/oidc{query}"), &host, "", "");
    let reply = exchange(rig.site.encrypted().await, &asked).await;
    let to = reply.header("location").unwrap_or_default();
    assert!(to.starts_with(&*fake.issuer), "{to}");
    for elsewhere in [
        "%2F%2Fevil.example",
        "https%3A%2F%2Fevil.example",
        "%2Fapi%2Flogout",
    ] {
        let asked = format!("/login/oidc?return={elsewhere}");
        let begun = Begun::of(&rig.site.get(&asked, "").await);
        fake.give(&rig.claims(&begun, &json!({})));
        let reply = rig.back(&begun, "&code=c").await;
        let_in(&reply);
        assert_eq!(reply.header("location"), Some("/"), "{elsewhere}");
    }
    // On the collector's own machine nobody logs in.
    let stream = TcpStream::connect(rig.site.running.at.http)
        .await
        .expect("one");
    let local = request("GET", "/login/oidc", "localhost", "", "");
    assert_eq!(exchange(stream, &local).await.status, 404);
}
