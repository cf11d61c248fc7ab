//! Opens the SQLite files that the collector keeps next to its store: people, members, annotations,
//! alerts, incidents.

use rusqlite::Connection;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Why a database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// Its directory cannot be made.
    #[error("failed to create directory `{}`", path.display())]
    Directory {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A later version wrote it.
    #[error("failed to use `{}`: a later version of the collector wrote it", .0.display())]
    Later(PathBuf),
    /// The database failed.
    #[error("failed to use the database")]
    Store(#[from] rusqlite::Error),
}

/// What a database with a directory of its own looks like.
pub struct Layout {
    /// Its name in the directory.
    pub file: &'static str,
    /// Makes what is not there yet.
    pub schema: &'static str,
    /// What makes version 2 of version 1, version 3 of version 2, and so on. The newest version is
    /// one more than there are of these.
    pub upgrades: &'static [&'static str],
}

/// Opens a file, makes it where there is none. A commit is on disk before anybody is told of it.
pub fn open(path: &Path) -> rusqlite::Result<Connection> {
    let database = Connection::open(path)?;
    database.pragma_update(None, "journal_mode", "WAL")?;
    database.pragma_update(None, "synchronous", "FULL")?;
    // The sandbox leaves it no other place.
    database.pragma_update(None, "temp_store", "MEMORY")?;
    Ok(database)
}

/// Opens a database in a directory that nobody else may read, makes both where there is none, and
/// brings it to the newest version.
pub fn open_in(dir: &Path, layout: &Layout) -> Result<Connection, DatabaseError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|source| DatabaseError::Directory {
        path: dir.to_owned(),
        source,
    })?;
    let path = dir.join(layout.file);
    let mut database = open(&path)?;
    // All or nothing: half an upgrade could be neither finished nor used.
    let change = database.transaction()?;
    let version: i64 = change.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let newest = layout.upgrades.len() as i64 + 1;
    if version > newest {
        return Err(DatabaseError::Later(path));
    }
    // A new file has version 0, and nothing to upgrade.
    if version > 0 {
        let missing = layout.upgrades.iter().skip(version as usize - 1);
        for upgrade in missing {
            change.execute_batch(upgrade)?;
        }
    }
    change.execute_batch(layout.schema)?;
    change.pragma_update(None, "user_version", newest)?;
    change.commit()?;
    Ok(database)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Layout = Layout {
        file: "x.sqlite",
        schema: "CREATE TABLE IF NOT EXISTS t (a INTEGER) STRICT;",
        upgrades: &[],
    };
    const SECOND: Layout = Layout {
        file: "x.sqlite",
        schema: "CREATE TABLE IF NOT EXISTS t (a INTEGER, b INTEGER NOT NULL DEFAULT 7) STRICT;",
        upgrades: &["ALTER TABLE t ADD COLUMN b INTEGER NOT NULL DEFAULT 7;"],
    };

    #[test]
    fn an_older_one_is_upgraded_once_and_a_newer_one_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let old = open_in(dir.path(), &FIRST).expect("made");
        old.execute_batch("INSERT INTO t VALUES (1);")
            .expect("written");
        drop(old);
        for _ in 0..2 {
            let new = open_in(dir.path(), &SECOND).expect("upgraded");
            let read: i64 = new
                .query_row("SELECT b FROM t", [], |row| row.get(0))
                .expect("read");
            assert_eq!(read, 7);
        }
        let refused = open_in(dir.path(), &FIRST);
        assert!(matches!(refused, Err(DatabaseError::Later(_))));
    }

    #[test]
    fn half_an_upgrade_changes_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        drop(open_in(dir.path(), &FIRST).expect("made"));
        let broken = Layout {
            upgrades: &["ALTER TABLE t ADD COLUMN b INTEGER; SELECT nothing FROM nowhere;"],
            ..SECOND
        };
        assert!(open_in(dir.path(), &broken).is_err());
        open_in(dir.path(), &SECOND).expect("upgraded");
    }
}
