//! Tests connections over TLS on which both sides have a certificate.

use super::{options, window};
use crate::front::Front;
use crate::store::draft::store_all;
use crate::store::whole_hour;
use collector::store::clickhouse::{ClickHouseStore, OpenError, Options};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// An authority with a certificate that it signed, as files.
struct Authority {
    own: PathBuf,
    cert: PathBuf,
    key: PathBuf,
    both: PathBuf,
}

fn authority(directory: &Path, name: &str) -> Authority {
    let file = |kind: &str| directory.join(format!("{name}-{kind}.pem"));
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params
        .distinguished_name
        .push(DnType::CommonName, format!("authority {name}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_key = KeyPair::generate().unwrap();
    let ca = params.self_signed(&ca_key).unwrap();
    let issuer = Issuer::new(params, ca_key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let signed = params.signed_by(&key, &issuer).unwrap();
    let all = Authority {
        own: file("ca"),
        cert: file("cert"),
        key: file("key"),
        both: file("both"),
    };
    std::fs::write(&all.own, ca.pem()).unwrap();
    std::fs::write(&all.cert, signed.pem()).unwrap();
    std::fs::write(&all.key, key.serialize_pem()).unwrap();
    std::fs::write(&all.both, signed.pem() + &key.serialize_pem()).unwrap();
    all
}

#[test]
fn both_sides_show_certificates_that_the_other_believes() {
    let directory = TempDir::new().unwrap();
    let ours = authority(directory.path(), "ours");
    let other = authority(directory.path(), "other");
    let tls = format!("tls={},{}", ours.both.display(), ours.own.display());
    let front = match Front::start_with(directory.path(), 0, &[tls]) {
        Ok(front) => front,
        Err(why) => return testkit::skip(format_args!("{why}")),
    };
    let url = format!("https://localhost:{}", front.port());
    let believing = Options {
        ca_file: Some(ours.own.clone()),
        cert: Some((ours.cert.clone(), ours.key.clone())),
        ..options(&url, "secure")
    };
    let store = ClickHouseStore::open(believing.clone()).unwrap();
    store_all(&store, &[window(0)]);
    assert_eq!(whole_hour(&store).quality.windows, 1);
    let refused = |change: &dyn Fn(&mut Options)| {
        let mut options = believing.clone();
        change(&mut options);
        let error = ClickHouseStore::open(options).err().unwrap();
        assert!(matches!(error, OpenError::Away { .. }), "{error}");
    };
    refused(&|options| options.cert = None);
    refused(&|options| options.cert = Some((other.cert.clone(), other.key.clone())));
    refused(&|options| options.ca_file = Some(other.own.clone()));
    // A name that its certificate does not have.
    refused(&|options| options.urls = vec![url.replace("localhost", "127.0.0.1")]);
    let half = Options {
        cert: Some((ours.cert, other.key)),
        ..believing
    };
    let error = ClickHouseStore::open(half).err().unwrap();
    assert!(matches!(error, OpenError::File { .. }), "{error}");
}
