//! Section `archive`: the bucket that keeps the partitions of the embedded store.

use serde::Serialize;
use std::path::PathBuf;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Archive {
    /// The bucket and what the names of objects start with: `s3://BUCKET/PREFIX`.
    pub url: Option<String>,
    /// URL of the server.
    pub endpoint: Option<String>,
    /// Region that requests are signed for.
    pub region: Option<String>,
    /// The bucket's name is in the path of URLs.
    pub path_style: bool,
    /// File with the key.
    pub credentials_file: Option<PathBuf>,
    /// Further authorities that are trusted.
    pub ca_file: Option<PathBuf>,
    /// Age at which archived partitions leave the local disk, days.
    pub local_days: u32,
    /// Age at which objects are removed, days.
    pub retention_days: u32,
    /// Disk for what queries fetch, GiB.
    pub cache_gib: u32,
}

impl Default for Archive {
    fn default() -> Archive {
        Archive {
            url: None,
            endpoint: None,
            region: None,
            path_style: false,
            credentials_file: None,
            ca_file: None,
            local_days: 14,
            retention_days: 365,
            cache_gib: 8,
        }
    }
}

impl Archive {
    /// The bucket and the prefix; `None` without an archive, or if the address is none.
    pub fn place(&self) -> Option<(&str, &str)> {
        place(self.url.as_deref()?)
    }

    /// Who is asked: the server, and where keys come from if there is no file.
    pub fn urls(&self) -> Vec<String> {
        if self.url.is_none() {
            return Vec::new();
        }
        let server = self.endpoint.clone();
        let mut urls = vec![server.unwrap_or_else(|| "https://s3.amazonaws.com".to_owned())];
        if self.credentials_file.is_none() {
            // The metadata services of machines and of containers, and STS.
            urls.push("http://169.254.169.254".to_owned());
            urls.push("https://sts.amazonaws.com".to_owned());
            urls.extend(std::env::var("AWS_CONTAINER_CREDENTIALS_FULL_URI").ok());
        }
        urls
    }

    /// Files with tokens that the environment names.
    pub fn token_files() -> impl Iterator<Item = PathBuf> {
        let names = [
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        ];
        let files = names.into_iter().filter_map(std::env::var_os);
        files.map(PathBuf::from)
    }

    /// Problems that concern several values.
    pub(super) fn settle(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        if let Some(url) = &self.url
            && place(url).is_none()
        {
            let url = config::shown(url);
            let text = format!("is `{url}`: expected s3://BUCKET or s3://BUCKET/PREFIX");
            found.push(("archive.url", text));
        }
        if let Some(endpoint) = &self.endpoint
            && super::external(endpoint).is_none()
        {
            let endpoint = config::shown(endpoint);
            let text = format!("is `{endpoint}`: expected https://HOST or https://HOST:PORT");
            found.push(("archive.endpoint", text));
        }
        if self.retention_days < self.local_days {
            let text = format!(
                "is {}, less than `archive.local_days`, which is {}: objects would be removed \
                 before the local files",
                self.retention_days, self.local_days
            );
            found.push(("archive.retention_days", text));
        }
        found
    }
}

fn place(url: &str) -> Option<(&str, &str)> {
    let rest = url.strip_prefix("s3://")?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = prefix.trim_end_matches('/');
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let is_name = |name: &str| !name.is_empty() && name.chars().all(plain) && name != "..";
    let sound = is_name(bucket) && (prefix.is_empty() || prefix.split('/').all(is_name));
    sound.then_some((bucket, prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_bucket_and_a_prefix_of_plain_names() {
        assert_eq!(place("s3://b"), Some(("b", "")));
        assert_eq!(place("s3://b/"), Some(("b", "")));
        assert_eq!(place("s3://b.c/fleet/eu-1/"), Some(("b.c", "fleet/eu-1")));
        for wrong in [
            "b",
            "s3://",
            "s3:///p",
            "https://b",
            "s3://b/a//c",
            "s3://b/..",
            "s3://b/a b",
        ] {
            assert_eq!(place(wrong), None, "{wrong}");
        }
    }
}
