//! Login with an OpenID Connect provider: authorization code flow with PKCE.
//!
//! A browser is sent to the provider and comes back with a code, which the collector itself
//! exchanges for a token. The browser's data is accepted only if it belongs to a login that was
//! started in the same browser (`pending.rs`); the provider's data only if it is for that login
//! (`claims.rs`). Rules map groups to a role and a scope; somebody without a matching group is
//! rejected.

mod claims;
mod pending;
mod provider;

pub use pending::LASTS as LOGIN_LASTS;

use crate::access::{Role, Scope, Settings, SignIn};
use crate::config::OidcAuth;
use crate::metrics::Metrics;
use crate::outbound::{Client, Question};
use crate::percent::escaped;
use claims::{Claims, Expected};
use data_encoding::BASE64;
use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use pending::{Beginner, Pending};
use provider::{Discovery, Provider, object};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Path below `web.external_url` to which the provider sends browsers back.
pub const CALLBACK: &str = "/login/oidc/callback";

/// Longest code. Unit: bytes.
const CODE_BYTES_MAX: usize = 8 << 10;

/// Longest secret of the client. Unit: bytes.
const SECRET_BYTES_MAX: u64 = 4096;

/// Logins at a time for which the provider is asked, and how long others wait for their turn. A
/// name that is looked up may hold a thread that queries take too.
const ASKED_MAX: usize = 4;
const TURN_MAX: Duration = Duration::from_secs(5);

/// Somebody in a group.
#[derive(Debug)]
struct Rule {
    group: String,
    role: Role,
    scope: Option<Scope>,
}

/// The operator's settings, checked.
#[derive(Debug)]
pub struct OidcSettings {
    issuer: String,
    client_id: String,
    secret_file: PathBuf,
    provider_name: String,
    scopes: String,
    groups_claim: String,
    name_claim: String,
    ca_file: Option<PathBuf>,
    rules: Vec<Rule>,
    redirect: String,
    hash: Settings,
}

impl OidcSettings {
    /// Reads the section, with `web.external_url`. `None`: single sign-on is not configured.
    ///
    /// # Errors
    /// Which key is wrong, and why.
    pub fn read(own: &OidcAuth, url: Option<&str>) -> Result<Option<OidcSettings>, String> {
        let (Some(issuer), Some(client_id), Some(secret_file), Some(url)) =
            (&own.issuer, &own.client_id, &own.client_secret_file, url)
        else {
            return Ok(None);
        };
        let mut rules = Vec::new();
        for (at, rule) in own.rules.iter().enumerate() {
            let failed = |why: String| format!("`auth.oidc.rules[{at}]`: {why}");
            let scope = match rule.scope.trim() {
                "" => None,
                text => Some(Scope::parse(text).map_err(failed)?),
            };
            let role = Role::named(&rule.role);
            rules.push(Rule {
                group: rule.group.clone(),
                role: role.ok_or_else(|| failed(format!("no role `{}`", rule.role)))?,
                scope,
            });
        }
        let mut scopes: Vec<&str> = own.scopes.split_whitespace().collect();
        if !scopes.contains(&"openid") {
            scopes.insert(0, "openid");
        }
        let text = serde_json::to_string(own).map_err(|why| why.to_string())?;
        Ok(Some(OidcSettings {
            issuer: issuer.clone(),
            client_id: client_id.clone(),
            secret_file: secret_file.clone(),
            provider_name: own.provider_name.clone(),
            scopes: scopes.join(" "),
            groups_claim: own.groups_claim.clone(),
            name_claim: own.name_claim.clone(),
            ca_file: own.ca_file.clone(),
            rules,
            redirect: format!("{url}{CALLBACK}"),
            hash: *blake3::hash(text.as_bytes()).as_bytes(),
        }))
    }

    /// Hash by which its sessions are recognized.
    pub fn hash(&self) -> &Settings {
        &self.hash
    }
}

/// See the file.
pub struct Oidc {
    settings: OidcSettings,
    client: Client,
    discovery: Discovery,
    pending: Pending,
    turns: Semaphore,
    metrics: Arc<Metrics>,
}

/// A browser that is to go to the provider.
#[derive(Debug)]
pub struct Begin {
    /// Address to redirect to.
    pub location: String,
    /// Secret by which the browser is recognized when it comes back.
    pub browser: String,
}

/// Data that a browser brings back.
#[derive(Debug, Default)]
pub struct Answer {
    /// Identifies the login.
    pub state: String,
    /// The code that is exchanged for a token.
    pub code: Option<String>,
    /// The issuer of the answer.
    pub issuer: Option<String>,
    /// Why there is no code.
    pub error: Option<String>,
}

impl Answer {
    /// From the parameters of an address. None: one comes twice.
    pub fn read(pairs: Vec<(String, String)>) -> Option<Answer> {
        let (mut state, mut code, mut issuer, mut error) = (None, None, None, None);
        for (name, value) in pairs {
            let slot = match name.as_str() {
                "state" => &mut state,
                "code" => &mut code,
                "iss" => &mut issuer,
                "error" => &mut error,
                _ => continue,
            };
            if slot.replace(value).is_some() {
                return None;
            }
        }
        Some(Answer {
            state: state.unwrap_or_default(),
            code,
            issuer,
            error,
        })
    }
}

/// Somebody who is let in.
#[derive(Debug)]
pub struct Admitted {
    /// The person who logged in.
    pub sign_in: SignIn,
    /// The group that matched a rule.
    pub group: String,
    /// Where to redirect the browser.
    pub back: String,
}

/// Why somebody is not let in.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    /// For those who keep the collector.
    pub why: String,
    /// For whoever is refused, where that is something else.
    pub told: Option<&'static str>,
    /// Their id at the provider, if known.
    pub subject: Option<String>,
    /// Whether the provider was asked for it.
    pub asked: bool,
}

impl From<&'static str> for Refused {
    fn from(why: &'static str) -> Refused {
        Refused {
            why: why.to_owned(),
            told: None,
            subject: None,
            asked: false,
        }
    }
}

impl Refused {
    /// By the provider, or for lack of it.
    fn provider(why: String) -> Refused {
        Refused {
            why,
            told: Some("the identity provider answers incorrectly: see the collector's log"),
            subject: None,
            asked: true,
        }
    }
}

impl Oidc {
    /// With these settings. The provider is not asked before somebody logs in.
    ///
    /// # Errors
    /// When `auth.oidc.ca_file` cannot be used.
    pub fn new(settings: OidcSettings, metrics: Arc<Metrics>) -> Result<Oidc, String> {
        Ok(Oidc {
            client: Client::new(settings.ca_file.as_deref())?,
            settings,
            discovery: Discovery::default(),
            pending: Pending::default(),
            turns: Semaphore::new(ASKED_MAX),
            metrics,
        })
    }

    /// Name of the provider on the login page.
    pub fn provider_name(&self) -> &str {
        &self.settings.provider_name
    }

    async fn provider(&self) -> Result<Arc<Provider>, Refused> {
        let asked = self
            .discovery
            .provider(&self.client, &self.settings.issuer)
            .await;
        asked.map_err(|why| self.failed(why))
    }

    fn failed(&self, why: String) -> Refused {
        self.metrics.identity_provider_failed.inc();
        Refused::provider(why)
    }

    /// Starts a login, at a time in seconds since the Unix epoch, of a browser that goes `back`
    /// to a path of the page then.
    ///
    /// # Errors
    /// When the provider does not say where it is.
    pub async fn begin(
        &self,
        browser: Option<&str>,
        address: Option<IpAddr>,
        now: i64,
        back: String,
    ) -> Result<Begin, Refused> {
        let provider = self.provider().await?;
        let beginner = Beginner {
            browser,
            address,
            since: now,
            back,
        };
        let begun = self.pending.begin(beginner, Instant::now());
        let Some((ticket, gone)) = begun else {
            return Err("failed to get random numbers".into());
        };
        self.metrics.logins_evicted.inc_by(gone);
        let own = &self.settings;
        let at = provider.authorization.to_string();
        let sign = if at.contains('?') { '&' } else { '?' };
        let query = form(&[
            ("response_type", "code"),
            ("client_id", &own.client_id),
            ("redirect_uri", &own.redirect),
            ("scope", &own.scopes),
            ("state", &ticket.state),
            ("nonce", &ticket.nonce),
            ("code_challenge", &ticket.challenge),
            ("code_challenge_method", "S256"),
        ]);
        Ok(Begin {
            location: format!("{at}{sign}{query}"),
            browser: ticket.browser,
        })
    }

    /// Ends a login with what a browser brought back, at a time in seconds since the Unix epoch.
    ///
    /// # Errors
    /// Why nobody is let in by it.
    pub async fn finish(
        &self,
        answer: Answer,
        browser: Option<&str>,
        now: impl Fn() -> i64,
    ) -> Result<Admitted, Refused> {
        let begun = self.pending.take(&answer.state, browser, Instant::now())?;
        let provider = self.provider().await?;
        // Who sends a browser here with a code of another provider says so, or does not know this.
        match &answer.issuer {
            Some(issuer) if *issuer != self.settings.issuer => {
                return Err("the answer is from another provider (iss)".into());
            }
            None if provider.says_issuer => {
                return Err("the answer does not name its provider (iss)".into());
            }
            _ => {}
        }
        if let Some(error) = &answer.error {
            let why = format!("the provider refused the login: {}", word(error));
            return Err(Refused {
                told: Some("the identity provider did not let you in"),
                asked: false,
                ..Refused::provider(why)
            });
        }
        let Some(code) = answer
            .code
            .filter(|code| (1..=CODE_BYTES_MAX).contains(&code.len()))
        else {
            return Err("the answer has no code, or its code is too long".into());
        };
        let turn = tokio::time::timeout(TURN_MAX, self.turns.acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            return Err("too many people are logging in: try again".into());
        };
        let tokens = self.exchange(&provider, &code, &begun.verifier).await?;
        let Some(token) = tokens.get("id_token").and_then(|token| token.as_str()) else {
            return Err(self.failed("the provider sent no ID token".to_owned()));
        };
        let expected = Expected {
            issuer: &self.settings.issuer,
            client_id: &self.settings.client_id,
            nonce: &begun.nonce,
            since: begun.since,
            now: now(),
        };
        let mut claims = claims::read(token, &expected).map_err(|why| self.failed(why))?;
        let access = tokens.get("access_token").and_then(|token| token.as_str());
        self.complete(&provider, &mut claims, access).await?;
        let (sign_in, group) = self.admit(&claims)?;
        Ok(Admitted {
            sign_in,
            group,
            back: begun.back,
        })
    }

    /// Changes a code for tokens.
    async fn exchange(
        &self,
        provider: &Provider,
        code: &str,
        verifier: &str,
    ) -> Result<Claims, Refused> {
        let secret = self.secret().await.map_err(|why| self.failed(why))?;
        let own = &self.settings;
        let mut fields = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &own.redirect),
            ("code_verifier", verifier),
        ];
        let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
        let mut headers = vec![(CONTENT_TYPE, kind)];
        if provider.secret_in_form {
            fields.extend([
                ("client_id", own.client_id.as_str()),
                ("client_secret", &secret),
            ]);
        } else {
            let pair = format!("{}:{}", escaped(&own.client_id), escaped(&secret));
            let text = format!("Basic {}", BASE64.encode(pair.as_bytes()));
            let value = HeaderValue::from_str(&text);
            let mut value = value.map_err(|_| {
                Refused::from(
                    "the secret cannot be sent in a \
                header",
                )
            })?;
            value.set_sensitive(true);
            headers.push((AUTHORIZATION, value));
        }
        let question = Question {
            to: &provider.token,
            form: Some(form(&fields)),
            headers,
        };
        let (status, body) = self
            .client
            .ask(question)
            .await
            .map_err(|why| self.failed(why))?;
        let answered = object(&body);
        if status != StatusCode::OK {
            let error = answered.ok().and_then(|answer| {
                let error = answer.get("error")?.as_str()?;
                Some(word(error))
            });
            let error = error.unwrap_or_default();
            let code = status.as_u16();
            let why = format!("the provider sent no token for the code: {code} {error}");
            return Err(self.failed(why.trim_end().to_owned()));
        }
        answered.map_err(|why| self.failed(format!("the provider's answer to the code is {why}")))
    }

    async fn secret(&self) -> Result<String, String> {
        let path = &self.settings.secret_file;
        let failed = |why: &str| {
            format!(
                "failed to read `{}` (`auth.oidc.client_secret_file`): {why}",
                path.display()
            )
        };
        let read = async {
            let known = tokio::fs::metadata(path).await?;
            match known.is_file() && known.len() <= SECRET_BYTES_MAX {
                true => tokio::fs::read_to_string(path).await,
                false => Err(std::io::Error::other("it is not a file of at most 4 KiB")),
            }
        };
        let text = read.await.map_err(|why| failed(&why.to_string()))?;
        match text.trim() {
            "" => Err(failed("it is empty")),
            text => Ok(text.to_owned()),
        }
    }

    /// Asks for what the ID token leaves out: some providers keep it short.
    async fn complete(
        &self,
        provider: &Provider,
        claims: &mut Claims,
        access: Option<&str>,
    ) -> Result<(), Refused> {
        let own = &self.settings;
        let wanted = [
            own.groups_claim.as_str(),
            own.name_claim.as_str(),
            "email_verified",
        ];
        let missing = |claims: &Claims| wanted[..2].iter().any(|name| !claims.contains_key(*name));
        let (Some(to), Some(access)) = (&provider.userinfo, access) else {
            return Ok(());
        };
        if !missing(claims) {
            return Ok(());
        }
        let bearer = HeaderValue::from_str(&format!("Bearer {access}"));
        let mut bearer = bearer.map_err(|_| {
            self.failed(
                "the access token cannot be sent in a \
                header"
                    .to_owned(),
            )
        })?;
        bearer.set_sensitive(true);
        let question = Question {
            to,
            form: None,
            headers: vec![(AUTHORIZATION, bearer)],
        };
        let (status, body) = self
            .client
            .ask(question)
            .await
            .map_err(|why| self.failed(why))?;
        if status != StatusCode::OK {
            let why = format!(
                "the provider's userinfo address answers {}",
                status.as_u16()
            );
            return Err(self.failed(why));
        }
        let more = object(&body);
        let mut more = more.map_err(|why| {
            self.failed(format!(
                "the provider's userinfo address answers with {why}"
            ))
        })?;
        // Or it could be about somebody else (OpenID Connect Core, 5.3.2).
        if more.get("sub") != claims.get("sub") {
            let why = "the provider's userinfo address describes another person".to_owned();
            return Err(self.failed(why));
        }
        for name in wanted {
            if let Some(value) = more.remove(name) {
                claims.entry(name).or_insert(value);
            }
        }
        Ok(())
    }

    /// The role and scope from claims, and the group that decided.
    fn admit(&self, claims: &Claims) -> Result<(SignIn, String), Refused> {
        let own = &self.settings;
        let subject = claims::subject(claims)?;
        let refused = |why: String| Refused {
            why,
            told: Some(
                "the identity provider knows you, but you have no access here: ask an \
                 administrator of the collector; its audit log has the reason",
            ),
            subject: Some(subject.to_owned()),
            asked: true,
        };
        let name = claims::name(claims, &own.name_claim).map_err(refused)?;
        let groups = claims::groups(claims, &own.groups_claim).map_err(refused)?;
        let rule = own
            .rules
            .iter()
            .find(|rule| groups.contains(&rule.group.as_str()));
        let Some(rule) = rule else {
            return Err(refused(format!(
                "`{name}` is in {} groups, but in none of `auth.oidc.rules`",
                groups.len()
            )));
        };
        let sign_in = SignIn {
            issuer: own.issuer.clone(),
            subject: subject.to_owned(),
            name: name.to_owned(),
            role: rule.role,
            scope: rule.scope.clone(),
            settings: own.hash,
        };
        Ok((sign_in, rule.group.clone()))
    }
}

/// A code of an error, of what a stranger wrote.
fn word(text: &str) -> String {
    let known = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
    text.chars().filter(known).take(40).collect()
}

/// Pairs as the body of a form, or as a query.
pub(crate) fn form(fields: &[(&str, &str)]) -> String {
    let pairs = fields.iter();
    let pairs: Vec<String> = pairs
        .map(|(name, value)| format!("{name}={}", escaped(value)))
        .collect();
    pairs.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::OidcRule;
    use serde_json::json;

    fn section() -> OidcAuth {
        let rule = |group: &str, role: &str, scope: &str| OidcRule {
            group: group.to_owned(),
            role: role.to_owned(),
            scope: scope.to_owned(),
        };
        OidcAuth {
            issuer: Some("https://i.example".to_owned()),
            client_id: Some("fleetprof".to_owned()),
            client_secret_file: Some("/s".into()),
            scopes: "profile  groups".to_owned(),
            rules: vec![
                rule("admins", "admin", ""),
                rule("team-a", "operator", "namespace=a"),
                rule("all", "viewer", ""),
            ],
            ..OidcAuth::default()
        }
    }

    fn settings() -> OidcSettings {
        let settings = OidcSettings::read(&section(), Some("https://p.example"));
        settings.expect("sound").expect("set")
    }

    #[test]
    fn settings_are_whole_or_none_and_openid_is_always_asked_for() {
        let settings = settings();
        assert_eq!(settings.scopes, "openid profile groups");
        assert_eq!(settings.redirect, "https://p.example/login/oidc/callback");
        assert!(matches!(OidcSettings::read(&section(), None), Ok(None)));
        let mut wrong = section();
        wrong.rules[1].scope = "comm=x".to_owned();
        let why = OidcSettings::read(&wrong, Some("https://p.example")).expect_err("refused");
        assert!(
            why.contains("auth.oidc.rules[1]") && why.contains("comm"),
            "{why}"
        );
        let mut other = section();
        other.rules.pop();
        let other = OidcSettings::read(&other, Some("https://p.example"));
        assert_ne!(other.expect("sound").expect("set").hash, settings.hash);
    }

    #[test]
    fn the_first_rule_decides_and_who_is_in_none_is_refused() {
        let oidc = Oidc::new(settings(), Arc::default()).expect("sound");
        let of = |groups: &[&str]| {
            let claims = json!({"sub": "1", "preferred_username": "anna", "groups": groups});
            oidc.admit(claims.as_object().expect("one"))
        };
        let (sign_in, group) = of(&["all", "team-a"]).expect("let in");
        assert_eq!((sign_in.role, group.as_str()), (Role::Operator, "team-a"));
        assert_eq!(sign_in.scope.expect("one").text, "namespace=a");
        let (sign_in, _) = of(&["all", "team-a", "admins"]).expect("let in");
        assert_eq!(sign_in.role, Role::Admin);
        for groups in [&[][..], &["Admins"], &["admins "], &["other"]] {
            let refused = of(groups).expect_err("refused");
            assert_eq!(refused.subject.as_deref(), Some("1"));
            assert!(refused.why.contains("none of"), "{}", refused.why);
        }
    }

    #[test]
    fn what_comes_back_twice_is_nothing() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let answer = Answer::read(vec![pair("state", "a"), pair("code", "b"), pair("x", "c")]);
        let answer = answer.expect("one of each");
        assert_eq!(
            (answer.state.as_str(), answer.code.as_deref()),
            ("a", Some("b"))
        );
        assert!(Answer::read(vec![pair("state", "a"), pair("state", "a")]).is_none());
    }

    #[test]
    fn nothing_in_a_text_means_something_in_a_form() {
        assert_eq!(form(&[("a", "x&b=c d+%é")]), "a=x%26b%3Dc%20d%2B%25%C3%A9");
        assert_eq!(word("access_denied\r\n<script>"), "access_deniedscript");
    }
}
