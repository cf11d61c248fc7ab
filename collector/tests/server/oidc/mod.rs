//! Logging in with a provider of identities: one that is certified, and one that answers wrong.

mod certified;
mod providers;
mod refusals;
mod sessions;

use crate::fake_provider::Fake;
use crate::identity::now;
use crate::login::{Reply, Site, with_https};
use collector::config::{Config, OidcRule};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
