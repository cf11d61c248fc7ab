//! The metadata of a provider, which is requested at the first login and cached for a while.

use crate::config::provider_url;
use crate::outbound::{Client, Question};
use hyper::{StatusCode, Uri};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How long it is good.
const FRESH: Duration = Duration::from_secs(3600);

/// How long it is used where no newer one can be had.
const STALE: Duration = Duration::from_secs(86_400);

/// How long a provider that does not say it is left alone.
const REST: Duration = Duration::from_secs(10);

/// The endpoints of a provider.
#[derive(Debug)]
pub(super) struct Provider {
    /// Browsers are sent here.
    pub(super) authorization: Uri,
    /// Codes become tokens here.
    pub(super) token: Uri,
    /// Returns data about a person.
    pub(super) userinfo: Option<Uri>,
    /// Whether the secret is taken in the form only.
    pub(super) secret_in_form: bool,
    /// Whether it says with each code who it is.
    pub(super) says_issuer: bool,
}

#[derive(Default)]
struct Known {
    at: Option<(Instant, Arc<Provider>)>,
    failed: Option<(Instant, String)>,
}

/// See the file.
#[derive(Default)]
pub(super) struct Discovery(Mutex<Known>);

impl Discovery {
    /// Requests the metadata; concurrent callers wait for one answer.
    pub(super) async fn provider(
        &self,
        client: &Client,
        issuer: &str,
    ) -> Result<Arc<Provider>, String> {
        let mut known = self.0.lock().await;
        if let Some((at, provider)) = &known.at
            && at.elapsed() < FRESH
        {
            return Ok(provider.clone());
        }
        let old = known.at.as_ref().filter(|(at, _)| at.elapsed() < STALE);
        let old = old.map(|(_, provider)| provider.clone());
        let resting = known.failed.as_ref().filter(|(at, _)| at.elapsed() < REST);
        if let Some((_, why)) = resting {
            return old.ok_or_else(|| why.clone());
        }
        match ask(client, issuer).await {
            Ok(provider) => {
                let provider = Arc::new(provider);
                *known = Known {
                    at: Some((Instant::now(), provider.clone())),
                    failed: None,
                };
                Ok(provider)
            }
            Err(why) => {
                let shown = profile::text::printable(&why);
                tracing::warn!(
                    "failed to read the configuration of the provider of `auth.oidc`: \
                    {shown}"
                );
                known.failed = Some((Instant::now(), why.clone()));
                old.ok_or(why)
            }
        }
    }
}

async fn ask(client: &Client, issuer: &str) -> Result<Provider, String> {
    let base = issuer.trim_end_matches('/');
    let at = format!("{base}/.well-known/openid-configuration");
    let at: Uri = at
        .parse()
        .map_err(|_| "the issuer is not an address".to_owned())?;
    let question = Question {
        to: &at,
        form: None,
        headers: Vec::new(),
    };
    let (status, body) = client.ask(question).await?;
    let shown = config::shown(&at.to_string());
    if status != StatusCode::OK {
        let hint = match status.is_redirection() {
            true => ", and redirects are not followed",
            false => "",
        };
        return Err(format!("`{shown}` answers {}{hint}", status.as_u16()));
    }
    let document = object(&body).map_err(|why| format!("`{shown}` answers with {why}"))?;
    read(&document, issuer).map_err(|why| format!("`{shown}` {why}"))
}

/// A JSON object.
pub(super) fn object(bytes: &[u8]) -> Result<Map<String, Value>, &'static str> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err("JSON that is not an object"),
        Err(_) => Err("something that is not JSON"),
    }
}

fn read(document: &Map<String, Value>, issuer: &str) -> Result<Provider, String> {
    let text = |name: &str| document.get(name).and_then(Value::as_str);
    match text("issuer") {
        Some(own) if own == issuer => {}
        Some(own) => {
            let (own, issuer) = (config::shown(own), config::shown(issuer));
            return Err(format!(
                "has the issuer `{own}`, but `auth.oidc.issuer` is `{issuer}`: both must be \
                 identical"
            ));
        }
        None => return Err("names no issuer".to_owned()),
    }
    // What is on this machine is for issuers of this machine.
    let local = issuer.starts_with("http://");
    let place = |name: &str| {
        let Some(text) = text(name) else {
            return Ok(None);
        };
        match provider_url(text) {
            Ok(uri) if local || uri.scheme_str() == Some("https") => Ok(Some(uri)),
            Ok(_) => Err(format!("has a `{name}` that does not start with https://")),
            Err(why) => {
                let text = config::shown(text);
                Err(format!("has the `{name}` `{text}`, which {why}"))
            }
        }
    };
    let needed = |name: &str| place(name)?.ok_or_else(|| format!("has no `{name}`"));
    let methods = document.get("token_endpoint_auth_methods_supported");
    let methods = methods.and_then(Value::as_array);
    let has = |method: &str| {
        methods.is_some_and(|methods| methods.iter().any(|one| one.as_str() == Some(method)))
    };
    let says_issuer = document.get("authorization_response_iss_parameter_supported");
    Ok(Provider {
        authorization: needed("authorization_endpoint")?,
        token: needed("token_endpoint")?,
        userinfo: place("userinfo_endpoint")?,
        secret_in_form: has("client_secret_post") && !has("client_secret_basic"),
        says_issuer: says_issuer.and_then(Value::as_bool) == Some(true),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(change: impl Fn(&mut Map<String, Value>)) -> Result<Provider, String> {
        let document = json!({
            "issuer": "https://login.example.net",
            "authorization_endpoint": "https://login.example.net/auth?tenant=1",
            "token_endpoint": "https://token.example.net/token",
        });
        let mut document = document.as_object().expect("one").clone();
        change(&mut document);
        read(&document, "https://login.example.net")
    }

    #[test]
    fn a_provider_says_who_and_where_it_is() {
        let provider = of(|_| {}).expect("sound");
        assert!(provider.userinfo.is_none() && !provider.secret_in_form && !provider.says_issuer);
        let post = json!(["client_secret_post"]);
        let provider = of(|document| {
            document.insert(
                "token_endpoint_auth_methods_supported".to_owned(),
                post.clone(),
            );
        });
        assert!(provider.expect("sound").secret_in_form);
    }

    #[test]
    fn another_issuer_and_addresses_without_tls_are_refused() {
        for (name, value) in [
            ("issuer", json!("https://login.example.net/")),
            ("issuer", json!("https://evil.example\u{1b}[2J")),
            ("issuer", json!(7)),
            ("token_endpoint", json!("http://token.example.net/token")),
            ("token_endpoint", json!("http://127.0.0.1/token")),
            ("token_endpoint", json!("/token")),
            ("token_endpoint", json!("https://a@token.example.net/")),
            ("token_endpoint", json!(null)),
            ("authorization_endpoint", json!("javascript:alert(1)")),
            ("authorization_endpoint", json!(["https://a.example"])),
            ("userinfo_endpoint", json!("http://a.example")),
        ] {
            let refused = of(|document| {
                document.insert(name.to_owned(), value.clone());
            });
            let why = refused.expect_err(name);
            assert!(!why.contains('\u{1b}'), "{why}");
        }
    }
}
