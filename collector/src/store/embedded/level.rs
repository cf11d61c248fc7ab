//! The resolution of a partition's data: a partition is downsampled as a unit when it gets older.
//!
//! The level is in the name of the partition's file, so that a rename is what downsamples it.

use super::chunk::{CHUNK_NS, HOUR_NS};
use std::path::{Path, PathBuf};

/// See the module. Finer levels are less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Level {
    /// As windows came: ten seconds.
    #[default]
    Windows,
    /// Minutes, by series.
    Minutes,
    /// Ten minutes, by series.
    TenMinutes,
    /// Hours, by service: samples have no label but their service's.
    ServiceHours,
}

impl Level {
    /// All, finest first.
    pub const ALL: [Level; 4] = [
        Level::Windows,
        Level::Minutes,
        Level::TenMinutes,
        Level::ServiceHours,
    ];

    /// Resolution of times. Unit: nanoseconds.
    pub fn step_ns(self) -> u64 {
        match self {
            Level::Windows => 1,
            Level::Minutes => 60_000_000_000,
            Level::TenMinutes => CHUNK_NS,
            Level::ServiceHours => HOUR_NS,
        }
    }

    /// Its name, in metrics too.
    pub fn name(self) -> &'static str {
        match self {
            Level::Windows => "windows",
            Level::Minutes => "minutes",
            Level::TenMinutes => "ten_minutes",
            Level::ServiceHours => "service_hours",
        }
    }

    /// Suffix of a file's name.
    fn suffix(self) -> &'static str {
        match self {
            Level::Windows => ".sqlite",
            Level::Minutes => ".1m.sqlite",
            Level::TenMinutes => ".10m.sqlite",
            Level::ServiceHours => ".1h.sqlite",
        }
    }

    /// The level of a partition's file, by its name.
    pub fn of(path: &Path) -> Level {
        let name = path.file_name().and_then(|name| name.to_str());
        name.and_then(parse_name)
            .map_or(Level::Windows, |(_, level)| level)
    }

    /// The name that a partition's file has at this level.
    pub fn path(self, path: &Path) -> PathBuf {
        let name = path.file_name().and_then(|name| name.to_str());
        match name.and_then(parse_name) {
            Some((seconds, _)) => path.with_file_name(format!("{seconds}{}", self.suffix())),
            None => path.to_owned(),
        }
    }
}

/// Start in seconds and level of a partition, by the name of its file.
pub fn parse_name(name: &str) -> Option<(i64, Level)> {
    let coarsest_first = Level::ALL.into_iter().rev();
    coarsest_first
        .filter_map(|level| Some((name.strip_suffix(level.suffix())?.parse().ok()?, level)))
        .next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_its_start_when_its_level_changes() {
        for level in Level::ALL {
            let path = level.path(Path::new("/d/-600.sqlite"));
            assert_eq!(Level::of(&path), level);
            let name = path.file_name().unwrap().to_str().unwrap();
            assert_eq!(parse_name(name), Some((-600, level)));
            assert_eq!(Level::Windows.path(&path), Path::new("/d/-600.sqlite"));
        }
        assert_eq!(parse_name("600.2m.sqlite"), None);
        assert_eq!(parse_name("600.sqlite.damaged"), None);
    }
}
