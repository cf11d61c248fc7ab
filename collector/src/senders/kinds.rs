//! Names of profile types, as Pyroscope's clients and Grafana have them.

use crate::pyroscope::AGENTS_NAME;
use crate::store::CAPTURED;
use profile::formats::pprof::TypeName;

/// Name of CPU time that a sender measured: the usual one is that of agents, and its id would be
/// theirs.
const SENT_CPU: &str = "sent_cpu";

/// Longest part of an id. Unit: bytes.
const PART_BYTES_MAX: usize = 64;

/// A part of an id: without `:`, which separates parts.
fn part(text: &str) -> String {
    let plain = |found: char| match found.is_ascii_alphanumeric() || "_.-/".contains(found) {
        true => found,
        false => '_',
    };
    text.chars().take(PART_BYTES_MAX).map(plain).collect()
}

/// The id of a profile type.
///
/// # Errors
/// With the reason, when it counts nothing that has a name, or claims to be a capture.
pub(super) fn id(name: &str, of: &TypeName, period: &TypeName) -> Result<String, &'static str> {
    let name = match part(name) {
        name if name == AGENTS_NAME => SENT_CPU.to_owned(),
        name if name == CAPTURED => {
            return Err(
                "failed to take the profile: the name `captured` is that of captures over the \
                 fleet; send it under another name",
            );
        }
        name => name,
    };
    let parts = [
        name,
        part(&of.name),
        part(&of.unit),
        part(&period.name),
        part(&period.unit),
    ];
    match parts[..3].iter().all(|part| !part.is_empty()) {
        true => Ok(parts.join(":")),
        false => Err("failed to read the profile: its name, sample type or unit is empty"),
    }
}

/// The name for a file of pprof that has none, by what it counts.
pub(super) fn name_of(types: &[&str]) -> &'static str {
    let any = |of: &dyn Fn(&str) -> bool| types.iter().any(|name| of(name));
    if any(&|name| name == "wall") {
        "wall"
    } else if any(&|name| name == "cpu") {
        AGENTS_NAME
    } else if any(&|name| {
        name.starts_with("alloc")
            || name.starts_with("inuse")
            || ["space", "objects"].contains(&name)
    }) {
        "memory"
    } else if any(&|name| name.starts_with("mutex")) {
        "mutex"
    } else if any(&|name| name.starts_with("block")) {
        "block"
    } else if any(&|name| name.starts_with("goroutine")) {
        "goroutines"
    } else {
        "other"
    }
}

/// What the counts of folded stacks are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Folded {
    pub name: &'static str,
    pub of: TypeName,
    pub period: TypeName,
    /// Whether counts are samples, of which each stands for some time.
    pub is_time: bool,
}

/// What the last part of an application's name says that is counted; `None` when it is a part of
/// the name.
pub(super) fn by_suffix(suffix: &str) -> Option<Folded> {
    let (name, of, period) = match suffix {
        "cpu" | "itimer" => (AGENTS_NAME, ("cpu", "nanoseconds"), ("cpu", "nanoseconds")),
        "wall" => ("wall", ("wall", "nanoseconds"), ("wall", "nanoseconds")),
        "alloc_objects" => ("memory", ("alloc_objects", "count"), ("space", "bytes")),
        "alloc_space" => ("memory", ("alloc_space", "bytes"), ("space", "bytes")),
        "inuse_objects" => ("memory", ("inuse_objects", "count"), ("space", "bytes")),
        "inuse_space" => ("memory", ("inuse_space", "bytes"), ("space", "bytes")),
        "goroutines" => ("goroutines", ("goroutine", "count"), ("goroutine", "count")),
        "mutex_count" => ("mutex", ("contentions", "count"), ("contentions", "count")),
        "mutex_duration" => ("mutex", ("delay", "nanoseconds"), ("contentions", "count")),
        "block_count" => ("block", ("contentions", "count"), ("contentions", "count")),
        "block_duration" => ("block", ("delay", "nanoseconds"), ("contentions", "count")),
        _ => return None,
    };
    let type_name = |(name, unit): (&str, &str)| TypeName {
        name: name.to_owned(),
        unit: unit.to_owned(),
    };
    Some(Folded {
        name,
        of: type_name(of),
        period: type_name(period),
        is_time: of == period && of.1 == "nanoseconds",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, unit: &str) -> TypeName {
        TypeName {
            name: name.to_owned(),
            unit: unit.to_owned(),
        }
    }

    #[test]
    fn no_sender_has_the_id_of_the_agents_cpu_time() {
        let cpu = of("cpu", "nanoseconds");
        let found = id("process_cpu", &cpu, &cpu).expect("an id");
        assert_eq!(found, "sent_cpu:cpu:nanoseconds:cpu:nanoseconds");
        let hostile = id("process_cpu:x", &cpu, &cpu).expect("an id");
        assert_eq!(hostile.split(':').count(), 5, "{hostile}");
    }

    #[test]
    fn what_has_no_name_has_no_id() {
        assert!(id("", &of("a", "b"), &TypeName::default()).is_err());
        assert!(id("x", &of("", "b"), &TypeName::default()).is_err());
        assert_eq!(
            id(
                "off_cpu",
                &of("off_cpu", "nanoseconds"),
                &TypeName::default()
            )
            .as_deref(),
            Ok("off_cpu:off_cpu:nanoseconds::")
        );
    }

    #[test]
    fn no_sender_has_the_name_of_captures() {
        let time = of("off_cpu", "nanoseconds");
        let refused = id("captured", &time, &time).expect_err("refused");
        assert!(refused.contains("another name"), "{refused}");
        for other in ["captured:x", "Captured", "captured2"] {
            let id = id(other, &time, &time).expect(other);
            assert!(!crate::store::is_captured(&id), "{id}");
        }
    }

    #[test]
    fn files_without_a_name_are_named_by_what_they_count() {
        assert_eq!(name_of(&["samples", "wall", "cpu"]), "wall");
        assert_eq!(name_of(&["samples", "cpu"]), "process_cpu");
        assert_eq!(name_of(&["alloc_objects", "inuse_space"]), "memory");
        assert_eq!(name_of(&["goroutine"]), "goroutines");
        assert_eq!(name_of(&["bananas"]), "other");
        assert_eq!(name_of(&["off_cpu"]), "other", "waiting is no CPU time");
    }
}
