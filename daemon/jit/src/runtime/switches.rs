//! Parses the command line and environment of a runtime for options that affect names and stacks.
//!
//! Pure: words in, answers out. Options in a file are not seen, except for a JVM that publishes its
//! own options in its performance data.

use super::Runtime;
use crate::perfdata;

/// Bits of PHP's `opcache.jit_debug`: write a perf map; write a jitdump.
const PHP_MAP: u32 = 0x10;

/// See [`PHP_MAP`].
const PHP_DUMP: u32 = 0x20;

/// How a runtime was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// It was started with an option to write a perf map or a jitdump.
    pub writes: bool,
    /// A JVM keeps frame pointers.
    pub frame_pointers: bool,
    /// A JVM cannot be attached to, by this switch or its own word.
    pub no_attach: bool,
    /// A JVM leaves signals to the program.
    pub no_signals: bool,
}

impl Settings {
    /// From the words of the command line, the variables of the environment, and a JVM's
    /// performance data.
    pub fn of(
        runtime: Runtime,
        command: &[String],
        environment: &[String],
        perf_data: Option<&[u8]>,
    ) -> Settings {
        let variable = |name: &str| {
            let value = |word: &'_ String| {
                let (found, value) = word.split_once('=')?;
                (found == name).then(|| value.to_owned())
            };
            environment.iter().find_map(value).unwrap_or_default()
        };
        let mut all: Vec<String> = Vec::new();
        let split =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        let mut settings = Settings::default();
        match runtime {
            Runtime::HotSpot => {
                // In the order in which they count: the last wins.
                all.extend(split(&variable("JAVA_TOOL_OPTIONS")));
                all.extend(split(&variable("JDK_JAVA_OPTIONS")));
                all.extend_from_slice(command);
                all.extend(split(&variable("_JAVA_OPTIONS")));
                let told = |name| perf_data.and_then(|data| perfdata::text(data, name));
                all.extend(split(told("java.rt.vmArgs").unwrap_or_default()));
                settings.hotspot(&all);
                if let Some(can) = told("sun.rt.jvmCapabilities") {
                    settings.no_attach = !can.starts_with('1');
                }
            }
            Runtime::Node => {
                all.extend(split(&variable("NODE_OPTIONS")));
                all.extend_from_slice(command);
                settings.writes = all.iter().any(|word| {
                    let word = word.replace('_', "-");
                    word.starts_with("--perf-basic-prof") || word == "--perf-prof"
                });
            }
            Runtime::CPython => {
                let on = |name| !matches!(variable(name).as_str(), "" | "0");
                settings.writes = on("PYTHONPERFSUPPORT")
                    || on("PYTHON_PERF_JIT_SUPPORT")
                    || follows(command, "-X", |value| value.starts_with("perf"))
                    || command.iter().any(|word| word.starts_with("-Xperf"));
            }
            Runtime::Beam => {
                let on = |value: &str| !matches!(value, "false" | "no_fp");
                settings.writes =
                    follows(command, "-JPperf", on) || follows(command, "+JPperf", on);
            }
            Runtime::Php => {
                settings.writes = command.iter().any(|word| {
                    let value = word.split_once("opcache.jit_debug=");
                    let bits = value.map_or(0, |(_, value)| php_number(value));
                    bits & (PHP_MAP | PHP_DUMP) != 0
                });
            }
            Runtime::Wasmtime => {
                let on = |value: &str| matches!(value, "perfmap" | "jitdump");
                settings.writes = follows(command, "--profile", on)
                    || command
                        .iter()
                        .any(|word| word.strip_prefix("--profile=").is_some_and(on));
            }
            Runtime::DotNet => {
                let on = |name| !matches!(variable(name).trim_start_matches('0'), "");
                settings.writes = on("DOTNET_PerfMapEnabled") || on("COMPlus_PerfMapEnabled");
            }
            Runtime::LuaJit | Runtime::Unknown => {}
        }
        settings
    }

    fn hotspot(&mut self, words: &[String]) {
        for word in words {
            match word.as_str() {
                "-XX:+PreserveFramePointer" => self.frame_pointers = true,
                "-XX:-PreserveFramePointer" => self.frame_pointers = false,
                "-XX:+DisableAttachMechanism" => self.no_attach = true,
                "-XX:-DisableAttachMechanism" => self.no_attach = false,
                "-Xrs" | "-XX:+ReduceSignalUsage" => self.no_signals = true,
                "-XX:-ReduceSignalUsage" => self.no_signals = false,
                _ => {}
            }
        }
    }
}

/// True when a word is followed by one that `wanted` takes.
fn follows(words: &[String], first: &str, wanted: impl Fn(&str) -> bool) -> bool {
    let mut pairs = words.windows(2);
    pairs.any(|pair| pair[0] == first && wanted(&pair[1]))
}

/// A number of PHP's configuration: decimal, hexadecimal, or octal.
fn php_number(text: &str) -> u32 {
    let (digits, radix) = match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if text.starts_with('0') => (text, 8),
        None => (text, 10),
    };
    u32::from_str_radix(digits.trim(), radix).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(runtime: Runtime, command: &str, environment: &[&str]) -> Settings {
        let command: Vec<String> = command.split(' ').map(str::to_owned).collect();
        let environment: Vec<String> = environment.iter().map(|&word| word.to_owned()).collect();
        Settings::of(runtime, &command, &environment, None)
    }

    fn writes(runtime: Runtime, command: &str, environment: &[&str], expected: bool) {
        let found = settings(runtime, command, environment).writes;
        assert_eq!(found, expected, "{command} {environment:?}");
    }

    #[test]
    fn a_jvm_is_judged_by_all_its_options_and_the_last_wins() {
        let jvm = |command, environment: &[&str]| settings(Runtime::HotSpot, command, environment);
        assert_eq!(jvm("java -jar x.jar", &[]), Settings::default());
        assert!(jvm("java -XX:+PreserveFramePointer Main", &[]).frame_pointers);
        for variable in ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"] {
            let value = format!("{variable}=-Xmx1g -XX:+PreserveFramePointer");
            assert!(jvm("java Main", &[&value]).frame_pointers, "{variable}");
        }
        let turned = ["_JAVA_OPTIONS=-XX:-DisableAttachMechanism"];
        assert!(jvm("java -XX:+DisableAttachMechanism Main", &[]).no_attach);
        assert!(!jvm("java -XX:+DisableAttachMechanism Main", &turned).no_attach);
        assert!(jvm("java -Xrs Main", &[]).no_signals);
    }

    #[test]
    fn a_jvm_knows_best_itself() {
        let data = perfdata::tests::file(&[
            ("java.rt.vmArgs", "-XX:+PreserveFramePointer -Xrs"),
            ("sun.rt.jvmCapabilities", "0100"),
        ]);
        let found = Settings::of(Runtime::HotSpot, &[], &[], Some(&data));
        assert!(found.frame_pointers && found.no_attach && found.no_signals);
        let data = perfdata::tests::file(&[("sun.rt.jvmCapabilities", "1100")]);
        let command = ["-XX:+DisableAttachMechanism".to_owned()];
        assert!(!Settings::of(Runtime::HotSpot, &command, &[], Some(&data)).no_attach);
    }

    #[test]
    fn node_is_asked_by_options_or_environment() {
        writes(Runtime::Node, "node app.js", &[], false);
        writes(Runtime::Node, "node --perf-basic-prof app.js", &[], true);
        writes(
            Runtime::Node,
            "node --perf_basic_prof_only_functions x",
            &[],
            true,
        );
        writes(
            Runtime::Node,
            "node app.js",
            &["NODE_OPTIONS=--perf-prof"],
            true,
        );
        writes(Runtime::Node, "node app.js", &["OTHER=--perf-prof"], false);
    }

    #[test]
    fn other_runtimes_are_asked_in_their_own_ways() {
        writes(Runtime::CPython, "python3 app.py", &[], false);
        writes(Runtime::CPython, "python3 -X perf app.py", &[], true);
        writes(Runtime::CPython, "python3 -Xperf_jit app.py", &[], true);
        writes(
            Runtime::CPython,
            "python3 app.py",
            &["PYTHONPERFSUPPORT=1"],
            true,
        );
        writes(
            Runtime::CPython,
            "python3 app.py",
            &["PYTHONPERFSUPPORT=0"],
            false,
        );
        writes(Runtime::Beam, "beam.smp -JPperf true -- -root x", &[], true);
        writes(
            Runtime::Beam,
            "beam.smp -JPperf false -- -root x",
            &[],
            false,
        );
        writes(
            Runtime::Php,
            "php -d opcache.jit_debug=0x10 x.php",
            &[],
            true,
        );
        writes(Runtime::Php, "php -dopcache.jit_debug=48 x.php", &[], true);
        writes(Runtime::Php, "php -d opcache.jit_debug=1 x.php", &[], false);
        writes(
            Runtime::Wasmtime,
            "wasmtime run --profile=perfmap a.wasm",
            &[],
            true,
        );
        writes(
            Runtime::Wasmtime,
            "wasmtime --profile jitdump a.wasm",
            &[],
            true,
        );
        writes(
            Runtime::DotNet,
            "dotnet a.dll",
            &["DOTNET_PerfMapEnabled=3"],
            true,
        );
        writes(
            Runtime::DotNet,
            "dotnet a.dll",
            &["COMPlus_PerfMapEnabled=0"],
            false,
        );
    }
}
