//! Access to tracefs, where the kernel describes its tracepoints.
//!
//! It is usually mounted at one of two places. If it is not, the daemon creates a mount for itself
//! that has no path (fsopen(2), fsmount(2)), because a profiler should not change what is mounted
//! on a host. Files are read with a bound, and names from outside never leave the folder of events.

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use thiserror::Error;

/// Where it is mounted, the usual place first.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Most bytes of a tracepoint's `format` file. The longest of Linux 6.18 have about 6 KiB.
const FORMAT_BYTES_MAX: u64 = 64 << 10;

/// Most fields of a tracepoint looked at. System calls have a dozen.
const FIELDS_MAX: usize = 64;

/// Longest name of a tracepoint or of its category. Unit: bytes.
const NAME_BYTES_MAX: usize = 128;

/// Why a tracepoint cannot be had.
#[derive(Debug, Error)]
pub enum TracefsError {
    /// There is no tracefs and none can be mounted.
    #[error(
        "failed to find tracefs: it is not mounted, and the daemon may not mount it\n  fix: mount \
         -t tracefs tracefs /sys/kernel/tracing"
    )]
    NotMounted(#[source] io::Error),
    /// It is there and the daemon may not read it.
    #[error(
        "failed to read `{path}`: not permitted\n  the daemon needs CAP_DAC_READ_SEARCH (or root), or: mount -o remount,mode=755 {place}"
    )]
    Permission {
        /// The file.
        path: String,
        /// Where tracefs is mounted.
        place: String,
    },
    /// There is no such tracepoint.
    #[error("failed to find tracepoint `{category}:{name}`{hint}")]
    Unknown {
        /// Its category.
        category: String,
        /// Its name.
        name: String,
        /// What exists instead.
        hint: String,
    },
    /// Reading failed.
    #[error("failed to read `{path}`")]
    Read {
        /// The file.
        path: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// Its id is not a number.
    #[error("failed to read `{path}`: not a number")]
    Damaged {
        /// The file.
        path: String,
    },
}

/// Whether the host has one mounted.
pub fn is_mounted() -> bool {
    places().next().is_some()
}

fn places() -> impl Iterator<Item = PathBuf> {
    let mounted = PLACES.iter().map(PathBuf::from);
    mounted.filter(|place| place.join("events").symlink_metadata().is_ok())
}

/// A tracefs that can be read.
#[derive(Debug)]
pub struct Tracefs {
    root: PathBuf,
    /// Keeps a mount of our own.
    _mount: Option<OwnedFd>,
}

impl Tracefs {
    /// Finds it, or makes a mount that only this process has. Blocks for a few system calls.
    ///
    /// # Errors
    /// [`TracefsError::NotMounted`].
    pub fn find() -> Result<Tracefs, TracefsError> {
        if let Some(root) = places().next() {
            return Ok(Tracefs { root, _mount: None });
        }
        let mount = mount_unseen().map_err(TracefsError::NotMounted)?;
        Ok(Tracefs {
            root: PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd())),
            _mount: Some(mount),
        })
    }

    /// Number of a tracepoint: `perf_event_attr.config`.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn id(&self, category: &str, name: &str) -> Result<u64, TracefsError> {
        let text = self.read(category, name, "id", 32)?;
        text.trim().parse().map_err(|_| TracefsError::Damaged {
            path: format!("events/{category}/{name}/id"),
        })
    }

    /// How a tracepoint lays out what it records, as the kernel describes it.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn format(&self, category: &str, name: &str) -> Result<String, TracefsError> {
        self.read(category, name, "format", FORMAT_BYTES_MAX)
    }

    /// Names of what a tracepoint records, which its filter may speak of; empty where they cannot
    /// be read.
    pub fn fields(&self, category: &str, name: &str) -> Vec<String> {
        let format = self.format(category, name).unwrap_or_default();
        let fields = format.lines().filter_map(|line| {
            let declared = line.trim().strip_prefix("field:")?.split(';').next()?;
            let name = declared.rsplit([' ', '*']).next()?;
            let name = name.split('[').next()?;
            (!name.is_empty()).then(|| name.to_owned())
        });
        fields.take(FIELDS_MAX).collect()
    }

    /// Names of the tracepoints of a category, or of the categories where it is none.
    fn list(&self, category: &str) -> Vec<String> {
        let events = self.root.join("events");
        let folder = match is_name(category) {
            true => std::fs::read_dir(events.join(category)),
            false => std::fs::read_dir(&events),
        };
        let folder = folder.or_else(|_| std::fs::read_dir(&events));
        let entries = folder.into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.collect()
    }

    fn read(
        &self,
        category: &str,
        name: &str,
        file: &str,
        bytes_max: u64,
    ) -> Result<String, TracefsError> {
        if !is_name(category) || !is_name(name) {
            return Err(self.unknown(category, name));
        }
        let path = self.root.join("events").join(category).join(name);
        let path = path.join(file);
        let shown = || path.display().to_string();
        let read = || {
            let mut text = String::new();
            File::open(&path)?
                .take(bytes_max)
                .read_to_string(&mut text)?;
            Ok(text)
        };
        read().map_err(|source: io::Error| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => self.unknown(category, name),
            io::ErrorKind::PermissionDenied => TracefsError::Permission {
                path: shown(),
                place: self.root.display().to_string(),
            },
            _ => TracefsError::Read {
                path: shown(),
                source,
            },
        })
    }

    fn unknown(&self, category: &str, name: &str) -> TracefsError {
        let known = self.list(category);
        let whole = self.root.join("events").join(category).is_dir() && is_name(category);
        let wanted = if whole { name } else { category };
        let nearest = config::nearest(known.iter().cloned(), wanted);
        let hint = match nearest.map(|at| &known[at]) {
            Some(near) if whole => format!("; the nearest is `{category}:{near}`"),
            Some(near) => format!("; the nearest category is `{near}`"),
            None => String::new(),
        };
        let shown = |text: &str| text.chars().take(NAME_BYTES_MAX).collect();
        TracefsError::Unknown {
            category: shown(category),
            name: shown(name),
            hint,
        }
    }
}

/// True for what may be the name of a tracepoint: no path leads out of its folder.
fn is_name(text: &str) -> bool {
    let named = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && text.bytes().all(named)
}

/// Mounts it without attaching it anywhere: the descriptor is its root.
fn mount_unseen() -> io::Result<OwnedFd> {
    let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        attributes,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracefs() -> Option<Tracefs> {
        Tracefs::find()
            .inspect_err(|error| testkit::skip(format_args!("no tracefs: {error}")))
            .ok()
    }

    #[test]
    fn names_lead_nowhere_else() {
        for name in ["..", "a/b", "", "a\0b", "ä", &"x".repeat(200)] {
            assert!(!is_name(name), "{name:?}");
        }
        assert!(is_name("sched_switch") && is_name("x86_fpu") && is_name("9p"));
    }

    #[test]
    fn a_tracepoint_has_a_number_and_a_format_needs_root() {
        let Some(tracefs) = tracefs() else { return };
        assert!(tracefs.id("sched", "sched_switch").expect("there") > 0);
        let format = tracefs.format("sched", "sched_switch").expect("there");
        assert!(format.contains("prev_state"), "{format}");
        let fields = tracefs.fields("sched", "sched_switch");
        for field in ["common_pid", "prev_comm", "prev_state", "next_pid"] {
            assert!(fields.iter().any(|known| known == field), "{fields:?}");
        }
    }

    #[test]
    fn what_there_is_not_is_told_with_what_there_is_needs_root() {
        let Some(tracefs) = tracefs() else { return };
        let told = |category, name| tracefs.id(category, name).expect_err("none").to_string();
        assert_eq!(
            told("sched", "sched_swich"),
            "failed to find tracepoint `sched:sched_swich`; the nearest is `sched:sched_switch`"
        );
        assert!(told("shed", "x").ends_with("; the nearest category is `sched`"));
        assert_eq!(told("../..", "x"), "failed to find tracepoint `../..:x`");
    }
}
