//! Logging in with a provider of identities: one that is certified, and one that answers wrong.

use crate::fake_provider::{DOCUMENT, Fake, Says};
use crate::identity::now;
use crate::login::{Reply, Site, exchange, request, with_https};
use collector::config::{Config, OidcRule};
use proto::collector::Role;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use testkit::process::Proc;
use testkit::require::skip;
use testkit::runtimes;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const CALLBACK: &str = "/login/oidc/callback";

fn rule(group: &str, role: &str, scope: &str) -> OidcRule {
    OidcRule {
        group: group.to_owned(),
        role: role.to_owned(),
        scope: scope.to_owned(),
    }
}

/// A collector whose people log in at an issuer. The file of the secret goes with the guard.
struct Rig {
    site: Site,
    issuer: String,
    secret: tempfile::NamedTempFile,
}

fn set(config: &mut Config, issuer: &str, secret: &Path) {
    with_https(config);
    let own = &mut config.auth.oidc;
    own.issuer = Some(issuer.to_owned());
    own.client_id = Some("fleetprof".to_owned());
    own.client_secret_file = Some(secret.to_owned());
    own.provider_name = "Example <SSO>".to_owned();
    own.rules = vec![
        rule("admins", "admin", ""),
        rule("team-a", "operator", "namespace=a"),
        rule("all", "viewer", ""),
    ];
}

impl Rig {
    async fn start(issuer: &str) -> Rig {
        Rig::with(issuer, |_| {}).await
    }

    async fn with(issuer: &str, change: impl Fn(&mut Config)) -> Rig {
        let secret = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(secret.path(), "a secret: with / and %\n").expect("written");
        let path: PathBuf = secret.path().to_owned();
        let site = Site::with(|config| {
            set(config, issuer, &path);
            change(config);
        })
        .await;
        Rig {
            site,
            issuer: issuer.to_owned(),
            secret,
        }
    }

    /// Sends a browser to the provider.
    async fn begin(&self) -> Begun {
        let reply = self.site.get("/login/oidc", "").await;
        assert_eq!(reply.status, 303, "{reply:?}");
        Begun::of(&reply)
    }

    /// Sends it back with what a provider adds.
    async fn back(&self, begun: &Begun, more: &str) -> Reply {
        let path = format!("{CALLBACK}?state={}{more}", begun.asks["state"]);
        self.site.get(&path, &begun.cookie).await
    }

    /// A login with these claims.
    async fn log_in(&self, fake: &Fake, change: &Value) -> Reply {
        let begun = self.begin().await;
        fake.give(&self.claims(&begun, change));
        self.back(&begun, "&code=c").await
    }

    /// Claims that are right, but for these.
    fn claims(&self, begun: &Begun, change: &Value) -> Value {
        let mut claims = json!({
            "iss": self.issuer, "aud": "fleetprof", "nonce": begun.asks["nonce"], "sub": "1",
            "exp": now() + 300, "iat": now(), "groups": ["all"], "preferred_username": "anna",
        });
        for (name, value) in change.as_object().expect("an object") {
            claims[name] = value.clone();
        }
        claims
    }

    /// Lines on record that the test looks for, once there are so many.
    async fn on_record(&self, action: &str, count: usize) -> Vec<Value> {
        let mut found = Vec::new();
        for _ in 0..100 {
            let lines = self.site.running.audit().await;
            found = lines
                .into_iter()
                .filter(|line| line["action"] == action)
                .collect();
            if found.len() >= count {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(found.len(), count, "{found:?}");
        found
    }

    async fn who(&self, session: &str) -> Value {
        let who = self.site.get("/api/session", session).await;
        assert_eq!(who.status, 200, "{who:?}");
        serde_json::from_slice(&who.body).expect("JSON")
    }
}

/// A login under way.
struct Begun {
    /// What the provider is asked.
    asks: BTreeMap<String, String>,
    /// What the browser sends back.
    cookie: String,
    location: String,
}

fn unescaped(text: &str) -> String {
    let (mut out, mut bytes) = (Vec::new(), text.bytes());
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let pair = [bytes.next().expect("a digit"), bytes.next().expect("two")];
                let pair = std::str::from_utf8(&pair).expect("digits");
                out.push(u8::from_str_radix(pair, 16).expect("digits"));
            }
            byte => out.push(byte),
        }
    }
    String::from_utf8(out).expect("text")
}

impl Begun {
    fn of(reply: &Reply) -> Begun {
        let location = reply.header("location").expect("a place").to_owned();
        let (_, query) = location.split_once('?').expect("a query");
        let pairs = query.split('&').map(|pair| {
            let (name, value) = pair.split_once('=').expect("a pair");
            (name.to_owned(), unescaped(value))
        });
        Begun {
            asks: pairs.collect(),
            cookie: reply.cookie(),
            location,
        }
    }
}

/// The cookie of the session that an answer sets; none: it sets none.
fn session(reply: &Reply) -> Option<String> {
    let lines = reply.head.lines();
    let mut set = lines.filter_map(|line| line.split_once(": "));
    let value = set.find_map(|(name, value)| {
        let is_one = name.eq_ignore_ascii_case("set-cookie");
        (is_one && value.starts_with("__Host-fleetprof=")).then_some(value)
    })?;
    let (pair, flags) = value.split_once(';').expect("flags");
    for flag in [
        "Path=/",
        "Secure",
        "HttpOnly",
        "SameSite=Lax",
        "Max-Age=604800",
    ] {
        assert!(flags.contains(flag), "{value}");
    }
    Some(format!("Cookie: {pair}\r\n"))
}

fn let_in(reply: &Reply) -> String {
    assert_eq!(reply.status, 303, "{} {}", reply.head, text(reply));
    session(reply).expect("a session")
}

fn text(reply: &Reply) -> String {
    String::from_utf8_lossy(&reply.body).into_owned()
}

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

/// What a refusal says, and that nobody was let in by it.
fn refused(reply: &Reply, status: u16) -> String {
    assert_eq!(reply.status, status, "{} {}", reply.head, text(reply));
    assert!(session(reply).is_none(), "{}", reply.head);
    let said = text(reply);
    assert!(
        said.contains("You are not logged in") && said.contains("/login"),
        "{said}"
    );
    said
}

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
        assert!(
            said.contains("does not answer as it should"),
            "{change}: {said}"
        );
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
        (json!({"groups": ["all", 7]}), "no texts"),
        (json!({"groups": {"all": true}}), "no list"),
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
    assert!(said.contains("used already"), "{said}");
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
async fn a_provider_that_says_who_it_is_says_so_each_time() {
    let fake = Fake::start().await;
    let mut document = fake.document();
    document["authorization_response_iss_parameter_supported"] = json!(true);
    fake.say(DOCUMENT, Says::json(&document));
    let rig = Rig::start(&fake.issuer).await;
    let said = refused(&rig.log_in(&fake, &json!({})).await, 403);
    assert!(said.contains("which provider"), "{said}");
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
            assert!(
                said.contains("does not answer as it should"),
                "{what}: {said}"
            );
        }
        // A provider in trouble is left alone for a moment.
        assert_eq!(fake.asked().len(), 1, "{what}");
        // Those with tokens are not in trouble.
        let token = rig.site.running.token("anna", Role::Viewer).await;
        let bearer = format!("Authorization: Bearer {token}\r\n");
        assert_eq!(rig.site.get("/", &bearer).await.status, 200);
    }
    assert!(other.asked().is_empty(), "no redirect is followed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_are_none_let_nobody_in() {
    let fake = Fake::start().await;
    let rig = Rig::start(&fake.issuer).await;
    let cases = [
        (Says::with(200, "id_token=x"), "no JSON"),
        (Says::with(200, "[]"), "no object"),
        (Says::with(200, "{}"), "no ID token"),
        (Says::json(&json!({"id_token": "x"})), "no signed token"),
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
            refused.message().contains("stands before names"),
            "{refused:?}"
        );
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

/// A browser at a provider that is no fake: what it keeps, and one request.
struct Browser {
    jar: BTreeMap<String, String>,
    host: String,
}

impl Browser {
    async fn ask(&mut self, method: &str, path: &str, body: &str) -> Reply {
        let pairs: Vec<String> = self.jar.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let kind = "Content-Type: application/x-www-form-urlencoded\r\n";
        let more = format!("Cookie: {}\r\n{kind}", pairs.join("; "));
        let stream = TcpStream::connect(&self.host).await.expect("a connection");
        let reply = exchange(stream, &request(method, path, &self.host, &more, body)).await;
        for line in reply.head.lines() {
            let Some((name, value)) = line.split_once(": ") else {
                continue;
            };
            if name.eq_ignore_ascii_case("set-cookie")
                && let Some((name, value)) = value.split(';').next().and_then(|p| p.split_once('='))
            {
                self.jar.insert(name.to_owned(), value.to_owned());
            }
        }
        reply
    }

    /// Logs in as somebody at the provider's own pages. Returns where it is sent then.
    async fn log_in(&mut self, start: &str, name: &str) -> String {
        let mut at = start.to_owned();
        let login = format!("prompt=login&login={}&password=x", name.replace('+', "%2B"));
        for _ in 0..10 {
            let own = format!("http://{}", self.host);
            let path = match at.strip_prefix(&own) {
                Some(path) => path.to_owned(),
                None if at.starts_with('/') => at.clone(),
                None => return at,
            };
            let mut reply = self.ask("GET", &path, "").await;
            if path.starts_with("/interaction/") {
                let asks_login = text(&reply).contains("value=\"login\"");
                let body = if asks_login {
                    login.as_str()
                } else {
                    "prompt=consent"
                };
                reply = self.ask("POST", &path, body).await;
            }
            let next = reply.header("location");
            at = next
                .unwrap_or_else(|| panic!("{} {}", reply.head, text(&reply)))
                .to_owned();
        }
        panic!("it leads in a circle: {at}");
    }
}

/// The whole code flow with PKCE. `kind`: whether ID tokens are `full` or `short`.
async fn logs_in_at_a_certified_provider(kind: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/oidc_provider.mjs");
    let command = runtimes::oidc_provider(&script);
    let mut command = match command {
        Ok(command) => command,
        Err(missing) => return skip(missing),
    };
    command.args(["https://profiles.example.net/login/oidc/callback", kind]);
    let dir = tempfile::tempdir().expect("a directory");
    let mut provider = Proc::spawn(&mut command, dir.path(), "oidc-provider");
    let mut port = None;
    for _ in 0..600 {
        port = provider
            .stdout()
            .lines()
            .next()
            .and_then(|line| line.parse::<u16>().ok());
        if port.is_some() || provider.exited().is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let port = port.unwrap_or_else(|| panic!("{}", provider.stderr()));
    let host = format!("127.0.0.1:{port}");
    let rig = Rig::with(&format!("http://{host}"), |config| {
        config.auth.oidc.scopes = "openid profile".to_owned();
    })
    .await;
    let begun = rig.begin().await;
    let mut browser = Browser {
        jar: BTreeMap::new(),
        host: host.clone(),
    };
    let sent = browser.log_in(&begun.location, "anna+other+team-a").await;
    let path = sent.strip_prefix("https://profiles.example.net");
    let path = path.unwrap_or_else(|| panic!("{sent}"));
    assert!(path.starts_with("/login/oidc/callback?code="), "{path}");
    let own = let_in(&rig.site.get(path, &begun.cookie).await);
    let who = rig.who(&own).await;
    assert_eq!(
        (&who["name"], &who["role"]),
        (&json!("oidc:anna"), &json!("operator"))
    );
    // A code is good once for the provider too, and a verifier for its own code alone.
    let again = rig.begin().await;
    let code = path
        .split("code=")
        .nth(1)
        .and_then(|rest| rest.split('&').next());
    let iss = format!("&iss=http%3A%2F%2F127.0.0.1%3A{port}");
    let used = format!("&code={}{iss}", code.expect("a code"));
    refused(&rig.back(&again, &used).await, 403);
    let (mine, theirs) = (rig.begin().await, rig.begin().await);
    let mut other = Browser {
        jar: BTreeMap::new(),
        host,
    };
    let sent = other.log_in(&theirs.location, "mallory+admins").await;
    let code = sent
        .split("code=")
        .nth(1)
        .and_then(|rest| rest.split('&').next());
    let injected = format!("&code={}{iss}", code.expect("a code"));
    refused(&rig.back(&mine, &injected).await, 403);
    let lines = rig.on_record("login", 2).await;
    for line in lines {
        let outcome = line["outcome"].as_str().expect("text");
        assert!(outcome.contains("400 invalid_grant"), "{outcome}");
    }
    let nobody = rig.begin().await;
    let mut browser = Browser {
        jar: BTreeMap::new(),
        host: format!("127.0.0.1:{port}"),
    };
    let sent = browser.log_in(&nobody.location, "carl+other").await;
    let path = sent
        .strip_prefix("https://profiles.example.net")
        .expect("back");
    let said = refused(&rig.site.get(path, &nobody.cookie).await, 403);
    assert!(said.contains("not let in here"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_logs_in_at_a_certified_provider() {
    logs_in_at_a_certified_provider("full").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_logs_in_at_a_certified_provider_whose_tokens_are_short() {
    logs_in_at_a_certified_provider("short").await;
}
