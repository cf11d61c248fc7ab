//! The section `auth`: an identity provider with which people log in.

use config::{Field, Item, Items, Kind, Value};
use serde::Serialize;
use std::path::PathBuf;

/// Section `auth`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Auth {
    /// Section `auth.oidc`.
    pub oidc: OidcAuth,
}

/// Section `auth.oidc`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OidcAuth {
    /// The provider; `None`: OpenID Connect is off.
    pub issuer: Option<String>,
    /// The collector's client id at the provider.
    pub client_id: Option<String>,
    /// File with what it proves that with.
    pub client_secret_file: Option<PathBuf>,
    /// Name of the provider on the login page.
    pub provider_name: String,
    /// Requested scopes, separated by spaces.
    pub scopes: String,
    /// Claim with the groups.
    pub groups_claim: String,
    /// Claim with the name.
    pub name_claim: String,
    /// File with authorities that are trusted in addition to those of the system. PEM.
    pub ca_file: Option<PathBuf>,
    /// Rules for who is let in; the first matching one applies.
    pub rules: Vec<OidcRule>,
}

impl Default for OidcAuth {
    fn default() -> OidcAuth {
        OidcAuth {
            issuer: None,
            client_id: None,
            client_secret_file: None,
            provider_name: "single sign-on".to_owned(),
            scopes: "openid profile email".to_owned(),
            groups_claim: "groups".to_owned(),
            name_claim: "preferred_username".to_owned(),
            ca_file: None,
            rules: Vec::new(),
        }
    }
}

/// An entry of `auth.oidc.rules`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OidcRule {
    /// Members of this group …
    pub group: String,
    /// … has this role …
    pub role: String,
    /// … in this part of the fleet; empty: all of it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub scope: String,
}

/// Most rules.
const RULES_MAX: usize = 64;

/// Keys of an entry in `auth.oidc.rules`.
pub(super) static RULES: Items = Items {
    what: "rule",
    max: RULES_MAX,
    fields: FIELDS,
    example: EXAMPLE,
};

const EXAMPLE: &str = "\
auth:
  oidc:
    rules:
      - {group: platform, role: admin}
      - {group: team-a, role: operator, scope: \"namespace=team-a\"}
      - {group: engineers, role: viewer}
";

const FIELDS: &[Field] = &[
    Field {
        name: "group",
        kind: Kind::Text(256),
        required: true,
        default: "",
        doc: "Name of a group, exactly as the provider sends it.",
    },
    Field {
        name: "role",
        kind: Kind::Word(&["viewer", "operator", "admin"]),
        required: true,
        default: "",
        doc: "Role of people in the group.",
    },
    Field {
        name: "scope",
        kind: Kind::Text(4096),
        required: false,
        default: "",
        doc: "Part of the fleet that they see, as in `agent-ctl users add --scope`.",
    },
];

impl OidcRule {
    /// From what was admitted by [`RULES`].
    pub(super) fn of(item: Item) -> OidcRule {
        let mut rule = OidcRule::default();
        for (name, value) in item {
            let Value::Text(text) = value else { continue };
            match name.as_str() {
                "group" => rule.group = text,
                "role" => rule.role = text,
                "scope" => rule.scope = text,
                _ => {}
            }
        }
        rule
    }

    /// As [`RULES`] admits it.
    pub(super) fn item(&self) -> Item {
        let mut item = vec![("group", &self.group), ("role", &self.role)];
        if !self.scope.is_empty() {
            item.push(("scope", &self.scope));
        }
        let owned = |(name, text): (&str, &String)| (name.to_owned(), Value::Text(text.clone()));
        item.into_iter().map(owned).collect()
    }
}
