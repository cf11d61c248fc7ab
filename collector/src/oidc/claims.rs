//! Checks the claims of an ID token and extracts what is used.
//!
//! Its signature is not checked: the token comes from the provider itself, over a connection with a
//! verified certificate, and never through a browser (OpenID Connect Core, 3.1.3.7, no. 6).

use super::provider::object;
use crate::access::SIGN_IN_NAME_BYTES_MAX;
use data_encoding::BASE64URL_NOPAD;
use serde_json::{Map, Value};

/// Claims about a person, by name.
pub(super) type Claims = Map<String, Value>;

/// Largest ID token. Unit: bytes.
const TOKEN_BYTES_MAX: usize = 128 << 10;

/// Longest name of somebody for the provider. Unit: bytes.
const SUBJECT_BYTES_MAX: usize = 255;

/// Most groups of somebody.
const GROUPS_MAX: usize = 2000;

/// How far the clocks of provider and collector may be apart. Unit: seconds.
const SKEW_S: i64 = 120;

/// Expected values in a token.
pub(super) struct Expected<'a> {
    pub(super) issuer: &'a str,
    pub(super) client_id: &'a str,
    pub(super) nonce: &'a str,
    /// When the login was started. Unit: seconds since the Unix epoch.
    pub(super) since: i64,
    pub(super) now: i64,
}

/// The claims of a token that is for this login.
pub(super) fn read(token: &str, expected: &Expected<'_>) -> Result<Claims, String> {
    if token.len() > TOKEN_BYTES_MAX {
        return Err(format!(
            "the ID token has more than {TOKEN_BYTES_MAX} bytes"
        ));
    }
    let parts: Vec<&str> = token.split('.').collect();
    let [head, body, _signature] = parts[..] else {
        return Err("the ID token is not a signed token".to_owned());
    };
    let part = |text: &str| {
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes());
        let bytes = bytes.map_err(|_| "the ID token has an invalid encoding")?;
        object(&bytes).map_err(|_| "the ID token has parts that are not JSON")
    };
    let head = part(head)?;
    match head.get("alg").and_then(Value::as_str) {
        None | Some("none") => return Err("the ID token is not signed".to_owned()),
        Some(_) => {}
    }
    let claims = part(body)?;
    check(&claims, expected)?;
    Ok(claims)
}

fn check(claims: &Claims, expected: &Expected<'_>) -> Result<(), &'static str> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    if text("iss") != Some(expected.issuer) {
        return Err("the ID token is from another issuer");
    }
    let azp = claims.get("azp");
    if azp.is_some_and(|azp| azp.as_str() != Some(expected.client_id)) {
        return Err("the ID token was made for another client (azp)");
    }
    match claims.get("aud") {
        Some(Value::String(own)) if own == expected.client_id => {}
        Some(Value::Array(all)) => {
            let has = all
                .iter()
                .any(|one| one.as_str() == Some(expected.client_id));
            if !has || all.len() > 1 && azp.is_none() {
                return Err("the ID token was made for another audience (aud)");
            }
        }
        _ => return Err("the ID token was made for another client (aud)"),
    }
    if text("nonce") != Some(expected.nonce) {
        return Err("the ID token belongs to another login (nonce)");
    }
    // Some providers write times with a fraction.
    let time = |name: &str| {
        let value = claims.get(name)?;
        let whole = value.as_i64();
        whole.or_else(|| value.as_f64().map(|seconds| seconds as i64))
    };
    let Some(expires) = time("exp") else {
        return Err("the ID token has no expiry time");
    };
    if expires.saturating_add(SKEW_S) <= expected.now {
        return Err("the ID token has expired");
    }
    let Some(issued) = time("iat") else {
        return Err("the ID token has no issue time");
    };
    if issued > expected.now.saturating_add(SKEW_S) {
        return Err("the ID token is from the future: the clocks differ");
    }
    if issued < expected.since.saturating_sub(SKEW_S) {
        return Err("the ID token is older than the login");
    }
    if time("nbf").is_some_and(|start| start > expected.now.saturating_add(SKEW_S)) {
        return Err("the ID token is not valid yet: the clocks differ");
    }
    subject(claims).map(|_| ())
}

/// The permanent id of a person.
pub(super) fn subject(claims: &Claims) -> Result<&str, &'static str> {
    match claims.get("sub").and_then(Value::as_str) {
        Some(text)
            if (1..=SUBJECT_BYTES_MAX).contains(&text.len())
                && !text.chars().any(profile::text::is_hostile) =>
        {
            Ok(text)
        }
        _ => Err("the ID token has no subject (sub), or not in printable text"),
    }
}

/// The name of a person.
pub(super) fn name<'a>(claims: &'a Claims, claim: &str) -> Result<&'a str, String> {
    let shown = config::shown(claim);
    let Some(name) = claims.get(claim).and_then(Value::as_str) else {
        return Err(format!("the claim `{shown}` has no text for the name"));
    };
    // What follows a `#` is the mark of a second person of a name.
    let hostile = |letter| letter == '#' || profile::text::is_hostile(letter);
    let hostile = name.chars().any(hostile) || name.trim() != name;
    if name.is_empty() || name.len() > SIGN_IN_NAME_BYTES_MAX || hostile {
        return Err(format!(
            "the name in the claim `{shown}` must be 1 to {SIGN_IN_NAME_BYTES_MAX} printable bytes \
             without `#`"
        ));
    }
    let verified = claims.get("email_verified");
    if claim == "email" && verified.is_some_and(|it| *it != Value::Bool(true)) {
        return Err(
            "the provider has not verified the email address that is used as the \
            name"
                .to_owned(),
        );
    }
    Ok(name)
}

/// The groups that somebody is in.
pub(super) fn groups<'a>(claims: &'a Claims, claim: &str) -> Result<Vec<&'a str>, String> {
    let shown = config::shown(claim);
    match claims.get(claim) {
        // Some providers send a single group as a string.
        Some(Value::String(group)) => Ok(vec![group.as_str()]),
        Some(Value::Array(all)) if all.len() > GROUPS_MAX => Err(format!(
            "the claim `{shown}` has {} groups, and at most {GROUPS_MAX} are read",
            all.len()
        )),
        Some(Value::Array(all)) => {
            let texts: Option<Vec<&str>> = all.iter().map(Value::as_str).collect();
            texts.ok_or_else(|| format!("the claim `{shown}` has groups that are not texts"))
        }
        Some(_) => Err(format!("the claim `{shown}` is not a list of groups")),
        None => Err(format!(
            "there is no claim `{shown}` with groups: the provider sends none, or there are too \
             many for a claim"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: i64 = 1_800_000_000;

    fn sound() -> Value {
        json!({
            "iss": "https://i.example", "aud": "fleetprof", "nonce": "n", "sub": "1",
            "exp": NOW + 300, "iat": NOW, "groups": ["a"], "preferred_username": "anna",
        })
    }

    fn token(head: &Value, body: &Value) -> String {
        let part = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
        format!("{}.{}.c2ln", part(head), part(body))
    }

    fn expected() -> Expected<'static> {
        Expected {
            issuer: "https://i.example",
            client_id: "fleetprof",
            nonce: "n",
            since: NOW - 10,
            now: NOW,
        }
    }

    fn of(change: &Value) -> Result<Claims, String> {
        let mut body = sound();
        for (name, value) in change.as_object().expect("an object") {
            body[name] = value.clone();
        }
        read(&token(&json!({"alg": "RS256"}), &body), &expected())
    }

    #[test]
    fn a_token_for_this_login_is_taken() {
        for change in [
            json!({}),
            json!({"aud": ["fleetprof"]}),
            json!({"aud": ["fleetprof", "other"], "azp": "fleetprof"}),
            json!({"exp": NOW - 60}),
            json!({"exp": 1_800_000_300.5}),
            json!({"iat": NOW + 60, "nbf": NOW + 60}),
        ] {
            assert!(of(&change).is_ok(), "{change}");
        }
    }

    #[test]
    fn a_token_for_anything_else_is_refused() {
        for change in [
            json!({"iss": "https://i.example/"}),
            json!({"iss": ["https://i.example"]}),
            json!({"aud": "other"}),
            json!({"aud": ["other"]}),
            json!({"aud": []}),
            json!({"aud": null}),
            json!({"aud": ["fleetprof", "other"]}),
            json!({"azp": "other"}),
            json!({"azp": null}),
            json!({"nonce": "m"}),
            json!({"nonce": null}),
            json!({"exp": NOW - 300}),
            json!({"exp": "never"}),
            json!({"iat": NOW + 300}),
            json!({"iat": NOW - 300}),
            json!({"iat": null}),
            json!({"nbf": NOW + 300}),
            json!({"sub": ""}),
            json!({"sub": 7}),
            json!({"sub": "a\nb"}),
            json!({"sub": "a".repeat(300)}),
        ] {
            assert!(of(&change).is_err(), "{change}");
        }
    }

    #[test]
    fn what_is_no_signed_token_is_refused() {
        let signed = json!({"alg": "RS256"});
        for text in [
            String::new(),
            "a.b".to_owned(),
            "a.b.c".to_owned(),
            "a.b.c.d.e".to_owned(),
            token(&json!({"alg": "none"}), &sound()),
            token(&json!({}), &sound()),
            token(&json!([]), &sound()),
            token(&signed, &json!("text")),
            token(&signed, &sound()).replace('.', ".."),
            "a".repeat(TOKEN_BYTES_MAX + 1),
        ] {
            assert!(read(&text, &expected()).is_err(), "{text:.60}");
        }
    }

    #[test]
    fn names_are_printable_and_their_own() {
        let of = |value: Value| {
            let claims = json!({"n": value});
            name(claims.as_object().expect("one"), "n").map(str::to_owned)
        };
        assert_eq!(
            of(json!("anna@example.net")).as_deref(),
            Ok("anna@example.net")
        );
        for wrong in [
            json!(""),
            json!(" anna"),
            json!("anna\n2026 root"),
            json!("\u{1b}[2Janna"),
            json!("anna\u{202e}nimda"),
            json!("a".repeat(101)),
            json!("anna#0123456789ab"),
            json!(["anna"]),
            json!(null),
        ] {
            assert!(of(wrong.clone()).is_err(), "{wrong}");
        }
        for verified in [json!(false), json!("false"), json!(1)] {
            let mail = json!({"email": "a@b.example", "email_verified": verified});
            assert!(name(mail.as_object().expect("one"), "email").is_err());
        }
    }

    #[test]
    fn groups_are_a_list_of_texts_within_bounds() {
        let of = |value: Value| {
            let claims = json!({"g": value});
            let groups = groups(claims.as_object().expect("one"), "g");
            groups.map(|groups| groups.len())
        };
        assert_eq!(of(json!(["a", "b"])), Ok(2));
        assert_eq!(of(json!("a")), Ok(1));
        assert_eq!(of(json!([])), Ok(0));
        let many: Vec<String> = (0..=GROUPS_MAX).map(|at| at.to_string()).collect();
        for wrong in [
            json!(["a", 1]),
            json!({"a": true}),
            json!(null),
            json!(many),
        ] {
            assert!(of(wrong.clone()).is_err());
        }
        assert!(groups(&Claims::new(), "g").is_err());
    }
}
