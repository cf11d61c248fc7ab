//! Keys of the ClickHouse server.

use super::put_text;
use crate::config::Config;
use config::{Key, Kind, Reload, Value, as_text};
use std::path::PathBuf;

/// In the order of the file.
pub(super) const KEYS: &[Key<Config>] = &[
    Key {
        path: "clickhouse.url",
        kind: Kind::Text(1024),
        unit: "",
        reload: Reload::Restart,
        doc: "Address of the HTTP interface: http://HOST:PORT or https://HOST:PORT.",
        get: |c| Value::Text(c.clickhouse.url.clone()),
        put: |c, v| put_text(&mut c.clickhouse.url, v),
    },
    Key {
        path: "clickhouse.database",
        kind: Kind::Text(64),
        unit: "",
        reload: Reload::Restart,
        doc: "Name of the database, which is created if missing.",
        get: |c| Value::Text(c.clickhouse.database.clone()),
        put: |c, v| put_text(&mut c.clickhouse.database, v),
    },
    Key {
        path: "clickhouse.user",
        kind: Kind::Text(64),
        unit: "",
        reload: Reload::Restart,
        doc: "Name of the user, who needs the rights to create the database and its tables.",
        get: |c| Value::Text(c.clickhouse.user.clone()),
        put: |c, v| put_text(&mut c.clickhouse.user, v),
    },
    Key {
        path: "clickhouse.password_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "File with the user's password; white space around it is ignored. null: no password.",
        get: |c| {
            let file = c.clickhouse.password_file.as_ref();
            file.map_or(Value::Null, |file| {
                Value::Text(file.to_string_lossy().into_owned())
            })
        },
        put: |c, v| c.clickhouse.password_file = as_text(&v).map(PathBuf::from),
    },
];
