//! Keys of the archive.

use crate::config::Config;
use config::{Key, Kind, Reload, Value, as_text, path_or_null, put_int, text_or_null};
use std::path::PathBuf;

/// In the order of the file.
pub(super) const KEYS: &[Key<Config>] = &[
    Key {
        path: "archive.url",
        kind: Kind::IdOrNull(1024),
        unit: "",
        reload: Reload::Restart,
        doc: "The bucket, and what the names of all objects start with: s3://BUCKET/PREFIX. One \
            collector writes to a prefix. null: no archive.",
        get: |c| text_or_null(&c.archive.url),
        put: |c, v| c.archive.url = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "archive.endpoint",
        kind: Kind::IdOrNull(1024),
        unit: "",
        reload: Reload::Restart,
        doc: "Address of the server: https://HOST:PORT. It must support conditional writes. null: \
            that of AWS for the region.",
        get: |c| text_or_null(&c.archive.endpoint),
        put: |c, v| c.archive.endpoint = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "archive.region",
        kind: Kind::IdOrNull(64),
        unit: "",
        reload: Reload::Restart,
        doc: "Region that requests are signed for. null: AWS_REGION of the environment, or \
            us-east-1.",
        get: |c| text_or_null(&c.archive.region),
        put: |c, v| c.archive.region = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "archive.path_style",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Whether the bucket is in the path of addresses (https://HOST/BUCKET) and not in the \
            name of the host (https://BUCKET.HOST). Many servers other than AWS need it.",
        get: |c| Value::Bool(c.archive.path_style),
        put: |c, v| c.archive.path_style = v == Value::Bool(true),
    },
    Key {
        path: "archive.credentials_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "File with aws_access_key_id and aws_secret_access_key, in the format of \
            ~/.aws/credentials; the first section counts. null: AWS_ACCESS_KEY_ID and \
            AWS_SECRET_ACCESS_KEY of the environment, or else the role of the machine or the pod.",
        get: |c| path_or_null(&c.archive.credentials_file),
        put: |c, v| c.archive.credentials_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "archive.ca_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "PEM file with authorities to trust for archive.endpoint, in addition to the system's.",
        get: |c| path_or_null(&c.archive.ca_file),
        put: |c, v| c.archive.ca_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "archive.local_days",
        kind: Kind::Int(1, 3650),
        unit: "days",
        reload: Reload::Restart,
        doc: "Age at which archived data leaves the local disk. It keeps the resolution that it \
            has then, so the ages of retention beyond it do not apply. Data that is not archived \
            yet stays. Over retention.disk_gib archived data leaves earlier.",
        get: |c| Value::Int(c.archive.local_days.into()),
        put: |c, v| put_int(&mut c.archive.local_days, &v),
    },
    Key {
        path: "archive.retention_days",
        kind: Kind::Int(1, 3650),
        unit: "days",
        reload: Reload::Restart,
        doc: "Age at which objects are removed from the bucket.",
        get: |c| Value::Int(c.archive.retention_days.into()),
        put: |c, v| put_int(&mut c.archive.retention_days, &v),
    },
    Key {
        path: "archive.cache_gib",
        kind: Kind::Int(1, 1 << 20),
        unit: "GiB",
        reload: Reload::Restart,
        doc: "Maximum size of the local cache of what queries fetch from the bucket, in addition \
            to retention.disk_gib. At the limit what was used longest ago is removed.",
        get: |c| Value::Int(c.archive.cache_gib.into()),
        put: |c, v| put_int(&mut c.archive.cache_gib, &v),
    },
];
