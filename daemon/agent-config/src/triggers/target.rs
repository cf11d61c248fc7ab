//! Parses the target of a trigger.

/// Ends of the names of units that have a cgroup (systemd.unit(5)).
const UNITS: [&str; 6] = [".service", ".scope", ".slice", ".socket", ".mount", ".swap"];

/// The target of a trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The complete host.
    Host,
    /// The cgroups with a path that matches this pattern.
    Cgroups(Vec<Part>),
}

/// A part of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// This name.
    Name(String),
    /// A name like this: `*` is any characters, `?` any one.
    Pattern(String),
    /// Any number of names, none included.
    Any,
}

/// Why a text is no target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// Neither of the forms.
    #[error("expected `host`, a path that starts with `/`, or a unit such as `api.service`")]
    Form,
    /// The root.
    #[error("the root cgroup is the complete machine: use `host`")]
    Root,
    /// `.` or `..`.
    #[error("a cgroup path cannot have `.` or `..`")]
    Dots,
    /// It would name too many.
    #[error("a name must follow the last `**`")]
    Open,
}

impl Target {
    /// Reads `host`, `/a/b*/c`, `api.service`.
    ///
    /// # Errors
    /// [`TargetError`].
    pub fn parse(text: &str) -> Result<Target, TargetError> {
        if text == "host" {
            return Ok(Target::Host);
        }
        let Some(below) = text.strip_prefix('/') else {
            let unit = UNITS
                .iter()
                .any(|end| text.ends_with(end) && text.len() > end.len());
            return match unit && !text.contains('/') {
                true => Ok(Target::Cgroups(vec![Part::Any, Part::of(text)])),
                false => Err(TargetError::Form),
            };
        };
        let names = below.split('/').filter(|name| !name.is_empty());
        let parts: Vec<Part> = names.map(Part::of).collect();
        if parts.is_empty() {
            return Err(TargetError::Root);
        }
        let dots = |part: &Part| matches!(part, Part::Name(name) if name == "." || name == "..");
        if parts.iter().any(dots) {
            return Err(TargetError::Dots);
        }
        match parts.last() {
            Some(Part::Any) => Err(TargetError::Open),
            _ => Ok(Target::Cgroups(parts)),
        }
    }
}

impl Part {
    /// A name, a pattern, or `**`.
    pub fn of(text: &str) -> Part {
        match text {
            "**" => Part::Any,
            _ if text.contains(['*', '?']) => Part::Pattern(text.to_owned()),
            _ => Part::Name(text.to_owned()),
        }
    }
}
