//! Keys of people on other machines: the page and logins.

use super::put_text;
use crate::config::auth::RULES;
use crate::config::{Config, Login, OidcRule};
use config::{
    Key, Kind, Reload, Value, as_text, path_or_null, put_bool, put_word, text_or_null, word,
};
use std::path::PathBuf;

const LOGINS: &[(Login, &str)] = &[(Login::Auto, "auto"), (Login::Always, "always")];

/// In the order of the file.
pub(super) const KEYS: &[Key<Config>] = &[
    Key {
        path: "web.external_url",
        kind: Kind::IdOrNull(256),
        unit: "",
        reload: Reload::Restart,
        doc: "Address of the page for browsers on other machines: https://profiles.example.net. \
            Requests for other names are refused, except for the machine's own name and IP \
            addresses.",
        get: |c| text_or_null(&c.web.external_url),
        put: |c, v| c.web.external_url = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "web.login",
        kind: Kind::Word(&["auto", "always"]),
        unit: "",
        reload: Reload::Restart,
        doc: "Where the page needs a login. auto: at listen.https, and at listen.http if \
            web.proxy.user_header is set. always: at listen.http too, for a proxy that forwards \
            there.",
        get: |c| word(&c.web.login, LOGINS),
        put: |c, v| put_word(&mut c.web.login, &v, LOGINS),
    },
    Key {
        path: "web.embed_ancestors",
        kind: Kind::IdOrNull(1024),
        unit: "",
        reload: Reload::Restart,
        doc: "Sites whose pages may show a panel of the page in a frame, separated by `,`: \
            https://grafana.example.net. Nothing in such a panel changes anything. null: no site.",
        get: |c| text_or_null(&c.web.embed_ancestors),
        put: |c, v| c.web.embed_ancestors = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "web.pyroscope",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Answer Pyroscope's query API, for Grafana: next to the page, and on the ports of \
            gRPC. The same logins, scopes and limits apply as to the page.",
        get: |c| Value::Bool(c.web.pyroscope),
        put: |c, v| put_bool(&mut c.web.pyroscope, &v),
    },
    Key {
        path: "web.tls.cert_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "PEM file with the certificate and the certificates that signed it. The collector \
            reads it again when it changes.",
        get: |c| path_or_null(&c.web.tls.cert_file),
        put: |c, v| c.web.tls.cert_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "web.tls.key_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "PEM file with the key of the certificate.",
        get: |c| path_or_null(&c.web.tls.key_file),
        put: |c, v| c.web.tls.key_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "web.proxy.from",
        kind: Kind::IdOrNull(512),
        unit: "",
        reload: Reload::Restart,
        doc: "IP addresses that the proxy connects from, separated by `,`. Every process on the \
            proxy's machine can act as any person.",
        get: |c| text_or_null(&c.web.proxy.from),
        put: |c, v| c.web.proxy.from = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "web.proxy.user_header",
        kind: Kind::IdOrNull(64),
        unit: "",
        reload: Reload::Restart,
        doc: "Header with the name of the person, such as X-Forwarded-User. The proxy must set or \
            remove it on every request. null: trust no proxy.",
        get: |c| text_or_null(&c.web.proxy.user_header),
        put: |c, v| c.web.proxy.user_header = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "web.proxy.role_header",
        kind: Kind::IdOrNull(64),
        unit: "",
        reload: Reload::Restart,
        doc: "Header with the role of the person: metrics, viewer, operator or admin. null: \
            everybody has the role web.proxy.role.",
        get: |c| text_or_null(&c.web.proxy.role_header),
        put: |c, v| c.web.proxy.role_header = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "web.proxy.scope_header",
        kind: Kind::IdOrNull(64),
        unit: "",
        reload: Reload::Restart,
        doc: "Header with the scope of the person: a selector, or * for the whole fleet. People \
            without the header are refused, except admins, who have no scope. null: nobody has a \
            scope.",
        get: |c| text_or_null(&c.web.proxy.scope_header),
        put: |c, v| c.web.proxy.scope_header = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "web.proxy.role",
        kind: Kind::Word(&["metrics", "viewer", "operator", "admin"]),
        unit: "",
        reload: Reload::Restart,
        doc: "Role of people without a role from the proxy.",
        get: |c| Value::Text(c.web.proxy.role.clone()),
        put: |c, v| put_text(&mut c.web.proxy.role, v),
    },
    Key {
        path: "auth.oidc.issuer",
        kind: Kind::IdOrNull(512),
        unit: "",
        reload: Reload::Restart,
        doc: "Issuer of the provider, exactly as in /.well-known/openid-configuration below this \
            address: https://login.example.net/realms/main. null: no login with a provider.",
        get: |c| text_or_null(&c.auth.oidc.issuer),
        put: |c, v| c.auth.oidc.issuer = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "auth.oidc.client_id",
        kind: Kind::IdOrNull(256),
        unit: "",
        reload: Reload::Restart,
        doc: "Id of the collector at the provider: a confidential client with the redirect address \
            web.external_url followed by /login/oidc/callback.",
        get: |c| text_or_null(&c.auth.oidc.client_id),
        put: |c, v| c.auth.oidc.client_id = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "auth.oidc.client_secret_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "File with the secret of that client; white space around it is ignored. The collector \
            reads it at each login.",
        get: |c| path_or_null(&c.auth.oidc.client_secret_file),
        put: |c, v| c.auth.oidc.client_secret_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "auth.oidc.provider_name",
        kind: Kind::Text(64),
        unit: "",
        reload: Reload::Restart,
        doc: "Text of the login button after `Sign in with`.",
        get: |c| Value::Text(c.auth.oidc.provider_name.clone()),
        put: |c, v| put_text(&mut c.auth.oidc.provider_name, v),
    },
    Key {
        path: "auth.oidc.scopes",
        kind: Kind::Text(512),
        unit: "",
        reload: Reload::Restart,
        doc: "Scopes to request from the provider, separated by spaces; openid is always included. \
            Some providers send groups only for a special scope, and some refuse unknown scopes.",
        get: |c| Value::Text(c.auth.oidc.scopes.clone()),
        put: |c, v| put_text(&mut c.auth.oidc.scopes, v),
    },
    Key {
        path: "auth.oidc.groups_claim",
        kind: Kind::Text(128),
        unit: "",
        reload: Reload::Restart,
        doc: "Claim with the groups of a person: a list of texts at the top level of the ID token, \
            or of the answer from the provider's userinfo address.",
        get: |c| Value::Text(c.auth.oidc.groups_claim.clone()),
        put: |c, v| put_text(&mut c.auth.oidc.groups_claim, v),
    },
    Key {
        path: "auth.oidc.name_claim",
        kind: Kind::Text(128),
        unit: "",
        reload: Reload::Restart,
        doc: "Claim with the name of a person, which is oidc:NAME in the audit log. If two people \
            have the same name, the second one gets a suffix.",
        get: |c| Value::Text(c.auth.oidc.name_claim.clone()),
        put: |c, v| put_text(&mut c.auth.oidc.name_claim, v),
    },
    Key {
        path: "auth.oidc.ca_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "PEM file with authorities that may sign the provider's certificate, in addition to \
            those of the system.",
        get: |c| path_or_null(&c.auth.oidc.ca_file),
        put: |c, v| c.auth.oidc.ca_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "auth.oidc.rules",
        kind: Kind::Items(&RULES),
        unit: "",
        reload: Reload::Restart,
        doc: "Roles by group: the first rule with a group of the person decides. People in none of \
            these groups are refused. A change of auth.oidc ends all earlier sessions.",
        get: |c| Value::Items(c.auth.oidc.rules.iter().map(OidcRule::item).collect()),
        put: |c, v| {
            if let Value::Items(list) = v {
                c.auth.oidc.rules = list.into_iter().map(OidcRule::of).collect();
            }
        },
    },
];
