//! Keys for what is read from the tables that runtimes have of their own code.

use super::Config;
use config::{Key, Kind, Reload, Value, put_bool};

/// The key `jit.hotspot`.
pub(super) const fn hotspot_key() -> Key<Config> {
    Key {
        path: "jit.hotspot",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Read the structures that JVMs publish of themselves (OpenJDK): their stacks are \
              complete and their functions named, interpreted ones too, without a flag, an agent \
              or a restart.",
        get: |c| Value::Bool(c.jit.hotspot),
        put: |c, v| put_bool(&mut c.jit.hotspot, &v),
    }
}

/// The key `symbols.go_lines`.
pub(super) const fn go_lines_key() -> Key<Config> {
    Key {
        path: "symbols.go_lines",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Record lines, inlined functions and the first lines of functions of programs built \
            with Go 1.20 or later, from the tables that each has, stripped or not. This is what \
            `go build -pgo` needs. Stacks that differ by a line alone are then separate, so \
            windows of such programs are larger.",
        get: |c| Value::Bool(c.symbols.go_lines),
        put: |c, v| put_bool(&mut c.symbols.go_lines, &v),
    }
}
