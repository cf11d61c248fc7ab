//! Decides which names in certificates of other authorities are hosts of the fleet: the value of
//! `identity.outside.hosts`.

/// Start of an ID by SPIFFE, and of ours by a name in DNS.
pub const SPIFFE: &str = "spiffe://";
/// See there.
pub const DNS: &str = "dns:";

/// Longest name in DNS. Unit: bytes.
const DNS_BYTES_MAX: usize = 253;

/// The names that are hosts of the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostNames {
    /// SPIFFE IDs that start so: `spiffe://DOMAIN/PATH/`.
    Spiffe(String),
    /// Names in DNS that end so: `.hosts.example.net`.
    Dns(String),
}

impl HostNames {
    /// Reads `spiffe://DOMAIN/PATH/` or `dns:*.NAME`.
    ///
    /// # Errors
    /// What is wrong with it, for the end of a sentence.
    pub fn parse(text: &str) -> Result<HostNames, &'static str> {
        if let Some(rest) = text.strip_prefix(SPIFFE) {
            let (domain, path) = rest
                .split_once('/')
                .ok_or("has no `/` after its trust domain")?;
            let path = match path {
                "" => Some(""),
                path => path.strip_suffix('/'),
            };
            let path = path.ok_or("does not end with `/`, so it would match part of a name")?;
            if !is_domain(domain) || !(path.is_empty() || is_path(path)) {
                return Err("is not the start of a SPIFFE ID");
            }
            return Ok(HostNames::Spiffe(text.to_owned()));
        }
        let suffix = text
            .strip_prefix(DNS)
            .and_then(|name| name.strip_prefix('*'))
            .ok_or("starts neither with `spiffe://` nor with `dns:*.`")?;
        match suffix.strip_prefix('.') {
            Some(name) if is_name(name) => Ok(HostNames::Dns(suffix.to_owned())),
            _ => Err("is not a DNS suffix: expected a form such as `dns:*.hosts.example.net`"),
        }
    }

    /// The trust domain, where it is of SPIFFE.
    pub fn domain(&self) -> Option<&str> {
        match self {
            HostNames::Spiffe(prefix) => prefix.strip_prefix(SPIFFE)?.split('/').next(),
            HostNames::Dns(_) => None,
        }
    }
}

/// A trust domain, as SPIFFE has it.
pub fn is_domain(text: &str) -> bool {
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"._-".contains(&c);
    !text.is_empty() && text.bytes().all(plain)
}

/// A path, as SPIFFE has it: nothing in it is empty, or leads up.
pub fn is_path(text: &str) -> bool {
    let plain = |c: u8| c.is_ascii_alphanumeric() || b"._-".contains(&c);
    text.split('/')
        .all(|part| !["", ".", ".."].contains(&part) && part.bytes().all(plain))
}

/// A name in DNS, in small letters and without `*`.
pub fn is_name(text: &str) -> bool {
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"_-".contains(&c);
    text.len() <= DNS_BYTES_MAX
        && text
            .split('.')
            .all(|part| !part.is_empty() && part.bytes().all(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_names_are_hosts_is_said_without_doubt() {
        for text in [
            "spiffe://prod.example/",
            "spiffe://td/ns/fleetprof/",
            "dns:*.a.example",
        ] {
            assert!(HostNames::parse(text).is_ok(), "{text}");
        }
        for text in [
            "",
            "spiffe://prod.example",
            "spiffe://prod.example/host",
            "spiffe:///host/",
            "spiffe://Prod/host/",
            "spiffe://td/a//b/",
            "spiffe://td/../",
            "spiffe://td/a?b/",
            "https://td/a/",
            "dns:a.example",
            "dns:*",
            "dns:*a.example",
            "dns:*.",
            "dns:*.a..b",
            "*.example",
        ] {
            assert!(HostNames::parse(text).is_err(), "{text}");
        }
    }
}
