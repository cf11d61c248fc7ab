//! The listeners of the page: their names, who is let in, and their TLS settings.

use super::{Addresses, ServeError};
use crate::access::{PageAddress, People, Role};
use crate::config::{Config, Login, external};
use crate::identity::Fleet;
use crate::listen::hostname;
use crate::oidc::{Oidc, OidcSettings};
use crate::web::{Certificates, Door, Entrance, Names, Proxy, without_port};
use hyper::header::HeaderName;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Whether `listen.http` asks for a login too: where a proxy may lead there.
pub(super) fn asks(config: &Config) -> bool {
    config.web.login == Login::Always || config.web.proxy.user_header.is_some()
}

/// Where the page is, for a link to it.
pub(super) fn address(config: &Config, addresses: &Addresses) -> PageAddress {
    let url = match (&config.web.external_url, addresses.https) {
        (Some(url), _) => url.clone(),
        (None, Some(https)) if https.ip().is_unspecified() => {
            format!("https://{}:{}", hostname(), https.port())
        }
        (None, Some(https)) => format!("https://{https}"),
        (None, None) => format!("http://{}", addresses.http),
    };
    PageAddress {
        url,
        asks: asks(config) || addresses.https.is_some(),
    }
}

/// That of `listen.http`, and that of `listen.https` where there is one.
pub(super) fn entrances(
    config: &Config,
    addresses: &Addresses,
    people: Option<&Arc<People>>,
    fleet: Option<&Arc<Fleet>>,
) -> Result<Vec<Entrance>, ServeError> {
    // The configuration was checked.
    let ancestors: Arc<str> = config.web.ancestors().unwrap_or_default().join(" ").into();
    let open = || Entrance {
        ancestors: ancestors.clone(),
        ..Entrance::open()
    };
    let (Some(people), Some(fleet)) = (people, fleet) else {
        return Ok(vec![open()]);
    };
    let settings = oidc(config).map_err(ServeError::Page)?;
    people.keep_sign_ins_of(settings.as_ref().map(OidcSettings::hash))?;
    let oidc = settings.map(|settings| Oidc::new(settings, people.metrics().clone()));
    let oidc = oidc.transpose().map_err(ServeError::Page)?;
    let door = Arc::new(Door {
        people: people.clone(),
        proxy: proxy(config),
        oidc: oidc.map(Arc::new),
        audit_reads: config.audit.queries,
    });
    let url = config.web.external_url.as_deref().and_then(external);
    let names = |scheme| Names {
        scheme,
        external: url.map(|(scheme, host)| (scheme.to_owned(), host.to_owned())),
        hostname: Some(hostname()),
        addresses: true,
    };
    let plain = match asks(config) {
        true => Entrance {
            names: names("http"),
            door: Some(door.clone()),
            tls: None,
            ancestors: ancestors.clone(),
        },
        false => open(),
    };
    let Some(https) = addresses.https else {
        return Ok(vec![plain]);
    };
    let certificates = match (&config.web.tls.cert_file, &config.web.tls.key_file) {
        (Some(certificate), Some(key)) => Certificates::files(certificate, key),
        _ => {
            let mut own = vec!["localhost".to_owned(), hostname()];
            if !https.ip().is_unspecified() {
                own.push(https.ip().to_string());
            }
            let named = url.and_then(|(_, host)| without_port(host));
            own.extend(named.map(str::to_owned));
            Certificates::signed(fleet.clone(), own)
        }
    };
    // Reported at the start, and not at the first connection.
    certificates.config().map_err(ServeError::Page)?;
    let encrypted = Entrance {
        names: names("https"),
        door: Some(door),
        tls: Some(Arc::new(certificates)),
        ancestors,
    };
    Ok(vec![plain, encrypted])
}

/// The provider of identities, where one is set.
///
/// # Errors
/// Which key is wrong, and why.
pub fn oidc(config: &Config) -> Result<Option<OidcSettings>, String> {
    OidcSettings::read(&config.auth.oidc, config.web.external_url.as_deref())
}

fn proxy(config: &Config) -> Option<Proxy> {
    let own = &config.web.proxy;
    let header = |text: &Option<String>| {
        let text = text.as_ref()?;
        HeaderName::from_bytes(text.as_bytes()).ok()
    };
    Some(Proxy {
        from: own.addresses().ok()?,
        user_header: header(&own.user_header)?,
        role_header: header(&own.role_header),
        scope_header: header(&own.scope_header),
        role: Role::named(&own.role)?,
    })
}

/// Completes when one of them has failed, which ends the others, or when all have ended on request.
pub(super) async fn all(mut pages: JoinSet<()>) {
    while let Some(Ok(())) = pages.join_next().await {}
}
