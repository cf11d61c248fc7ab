//! The complete code flow with PKCE, at a provider that is certified.

use super::{Rig, let_in, refused, text};
use crate::login::{Reply, exchange, request};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use testkit::process::Proc;
use testkit::require::skip;
use testkit::runtimes;
use tokio::net::TcpStream;

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
    assert!(said.contains("you have no access here"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_logs_in_at_a_certified_provider() {
    logs_in_at_a_certified_provider("full").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_logs_in_at_a_certified_provider_whose_tokens_are_short() {
    logs_in_at_a_certified_provider("short").await;
}
