//! Makes names of generated code readable: splits what a runtime writes to its perf map or jitdump
//! into kind, function, file and line. What is not recognized stays as it is.
//!
//! | runtime | it writes | becomes |
//! |---|---|---|
//! | HotSpot, `jcmd PID Compiler.perfmap` | `long com.foo.Bar.baz(int)` | `com.foo.Bar.baz` |
//! | HotSpot, perf-map-agent | `Lcom/foo/Bar;::baz` | `com.foo.Bar.baz` |
//! | … with inlined methods | `Lcom/foo/A;.a in Lcom/foo/B;.b` | `com.foo.B.b->com.foo.A.a` |
//! | V8 | `JS:*get total /srv/app.js:3:9` | `get total`, `/srv/app.js`, 3 |
//! | V8, no name | `JS:~ /srv/app.js:3:9` | `(anonymous)`, interpreted |
//! | V8, WebAssembly | `JS:fib-0-turbofan` | `fib` |
//! | CPython | `py::Shop.buy:/srv/app.py` | `Shop.buy`, `/srv/app.py`, interpreted |
//! | Erlang | `$lists:map/2` | `lists:map/2` |
//! | PHP, functions | `JIT$App\Cart::add` | `App\Cart::add` |
//! | PHP, traces and scripts | `TRACE-1$App\hot$7`, `JIT$/srv/app.php` | `App\hot`, `{main}` |
//! | LuaJIT | `TRACE_1::app.lua:3` | `app.lua:3`, `app.lua`, 3 |
//! | .NET | `void [App] App.Program::Main(string[])[Tier1]` | `App.Program.Main` |
//! | any | `_ZN3foo3barEi` | `foo::bar(int)` |
//!
//! Result types and parameters of Java and .NET methods are dropped. HotSpot agents write none, so
//! a service keeps its names whichever agent wrote its map, and graphs stay readable. Overloads
//! then share a name; their raw names, which are kept too, tell them apart, as they do the tiers of
//! a compiler. Numbers in the names of a JVM's hidden classes (`Bar$$Lambda$1/0x00007fc9c8000400`)
//! are dropped too, because they differ between processes. Stubs, adapters, built-ins, handlers and
//! regular expressions keep their names including prefixes, because they belong to the runtime and
//! not to the program.
//!
//! Checked against Node 20, OpenJDK 17, CPython 3.12 and 3.13, Erlang/OTP 25, PHP 8.2 and wasmtime;
//! LuaJIT, .NET and perf-map-agent against what their sources and manuals say. wasmtime writes a
//! function's own name, or `wasm[0]::function[1]`, and needs no rule.
//!
//! Names are untrusted. Nothing here allocates more than the length of a name, panics, or recurses.

use profile::names;
use profile::{Dictionary, FrameId, FrameKind, FrameRef};
use std::borrow::Cow;

/// Module of generated code in frames.
pub const MODULE: &str = "[jit]";

/// A function without a name.
const ANONYMOUS: &str = "(anonymous)";

/// Parts of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cleaned<'a> {
    /// Compiled, or run by an interpreter.
    pub kind: FrameKind,
    /// The function for people; never empty.
    pub function: Cow<'a, str>,
    /// Source file; empty when the name has none.
    pub file: &'a str,
    /// Where in `file` the function starts, 1-based; 0 when the name does not say.
    pub line: u32,
}

impl<'a> Cleaned<'a> {
    fn of(function: impl Into<Cow<'a, str>>) -> Cleaned<'a> {
        Cleaned {
            kind: FrameKind::Jit,
            function: function.into(),
            file: "",
            line: 0,
        }
    }

    /// A line without a file means nothing, so it is left out.
    fn at(self, file: &'a str, line: u32) -> Cleaned<'a> {
        let line = if file.is_empty() { 0 } else { line };
        Cleaned { file, line, ..self }
    }

    fn interpreted_if(self, is_interpreted: bool) -> Cleaned<'a> {
        match is_interpreted {
            true => Cleaned {
                kind: FrameKind::Interpreted,
                ..self
            },
            false => self,
        }
    }
}

/// Splits a raw name; see the table of the module.
pub fn clean(raw: &str) -> Cleaned<'_> {
    const RULES: [fn(&str) -> Option<Cleaned<'_>>; 9] = [
        v8, cpython, erlang, php, luajit, map_agent, hotspot, dotnet, mangled,
    ];
    let name = raw.trim();
    if name.is_empty() {
        return Cleaned::of("[unknown]");
    }
    RULES
        .iter()
        .find_map(|rule| rule(name))
        .filter(|cleaned| !cleaned.function.trim().is_empty())
        .unwrap_or_else(|| Cleaned::of(name).interpreted_if(is_interpreter(name)))
}

/// The frame of a raw name: the cleaned name, and the raw name if it differs.
///
/// `place` is a file and a line known from elsewhere; it wins over what the name says. Texts are
/// cut at [`names::NAME_BYTES_MAX`], control characters are replaced.
pub fn intern(dict: &mut Dictionary, raw: &str, place: Option<(&str, u32)>) -> FrameId {
    let raw = names::harmless(raw.as_bytes());
    let Cleaned {
        kind,
        function,
        file,
        line,
    } = clean(&raw);
    let function = capped(&function);
    let place = place.filter(|(file, _)| !file.is_empty());
    let (file, line) = place.unwrap_or((file, line));
    dict.intern_frame(FrameRef {
        kind,
        function: &function,
        system_name: &raw,
        module: MODULE,
        file: &names::harmless(file.as_bytes()),
        line,
        ..FrameRef::default()
    })
}

fn capped(text: &str) -> Cow<'_, str> {
    match text.len() > names::NAME_BYTES_MAX {
        true => Cow::Owned(names::capped(text)),
        false => Cow::Borrowed(text),
    }
}

/// Code that runs functions with names that are not in the stack.
fn is_interpreter(name: &str) -> bool {
    name == "Interpreter"
        || name == "Builtin:InterpreterEntryTrampoline"
        || name.starts_with("BytecodeHandler:")
        || name.starts_with("py::")
}

/// `TAG:[marker]name file:line:column`, and code of V8 itself.
fn v8(name: &str) -> Option<Cleaned<'_>> {
    const OWN: [&str; 5] = [
        "Builtin:",
        "BytecodeHandler:",
        "Stub:",
        "RegExp:",
        "Handler:",
    ];
    if OWN.iter().any(|tag| name.starts_with(tag)) {
        return Some(Cleaned::of(name).interpreted_if(is_interpreter(name)));
    }
    let (tag, body) = name.split_once(':')?;
    let nameless = match tag {
        "JS" | "LazyCompile" | "Function" => ANONYMOUS,
        "Eval" => "(eval)",
        "Script" => "(script)",
        _ => return None,
    };
    if let Some(function) = wasm_of_v8(body) {
        return Some(Cleaned::of(function));
    }
    // `~` interpreter, `^` baseline, `+` and `*` optimised; `'` behind it: for one context only.
    let unmarked = body.strip_prefix(['~', '^', '+', '*']);
    let body_is_interpreted = body.starts_with('~');
    let text = unmarked.map_or(body, |rest| rest.strip_prefix('\'').unwrap_or(rest));
    let (text, line) = position(text);
    let (function, file) = match line {
        Some(_) => function_and_file(text),
        None => (text.trim(), ""),
    };
    let function = if function.is_empty() {
        nameless
    } else {
        function
    };
    Some(
        Cleaned::of(function)
            .at(file, line.unwrap_or(0))
            .interpreted_if(body_is_interpreted),
    )
}

/// `name-index-tier`.
fn wasm_of_v8(body: &str) -> Option<&str> {
    let rest = ["-turbofan", "-liftoff"]
        .iter()
        .find_map(|tier| body.strip_suffix(tier))?;
    let (function, index) = rest.rsplit_once('-')?;
    (number(index).is_some() && !function.is_empty()).then_some(function)
}

/// Splits `…:line:column`, or `…:line`, from the end of a text.
fn position(text: &str) -> (&str, Option<u32>) {
    let last = |text| {
        let (rest, digits) = str::rsplit_once(text, ':')?;
        Some((rest, number(digits)?))
    };
    match last(text) {
        None => (text, None),
        Some((rest, only)) => match last(rest) {
            None => (rest, Some(only)),
            Some((rest, line)) => (rest, Some(line)),
        },
    }
}

/// Splits `name file`. Both may have spaces: a name like `get total` is not cut where the rest
/// looks like no file, unless nothing does.
fn function_and_file(text: &str) -> (&str, &str) {
    if let Some(file) = text.strip_prefix(' ') {
        return ("", file.trim());
    }
    let spaces = || text.match_indices(' ').map(|(at, _)| at);
    let cut = spaces()
        .find(|&at| looks_like_a_file(&text[at + 1..]))
        .or(spaces().next_back());
    match cut {
        Some(at) => (text[..at].trim(), text[at + 1..].trim()),
        None => (text.trim(), ""),
    }
}

fn looks_like_a_file(text: &str) -> bool {
    const STARTS: [&str; 14] = [
        "/",
        "./",
        "../",
        "\\\\",
        "node:",
        "file:",
        "http:",
        "https:",
        "internal/",
        "webpack",
        "evalmachine.",
        "wasm:",
        "data:",
        "[eval",
    ];
    let drive = text.as_bytes();
    let has_drive = drive.len() > 2 && drive[0].is_ascii_alphabetic() && &drive[1..3] == b":\\";
    has_drive || STARTS.iter().any(|start| text.starts_with(start))
}

/// `py::qualified.name:file`.
fn cpython(name: &str) -> Option<Cleaned<'_>> {
    let (function, file) = name.strip_prefix("py::")?.split_once(':')?;
    Some(Cleaned::of(function).at(file, 0).interpreted_if(true))
}

/// `$module:function/arity`, and `-CodeInfoPrologue` for what stands before the code.
fn erlang(name: &str) -> Option<Cleaned<'_>> {
    let body = name.strip_prefix('$')?;
    let body = body.strip_suffix("-CodeInfoPrologue").unwrap_or(body);
    body.contains(':').then(|| Cleaned::of(body))
}

/// `JIT$function`, `JIT$/the/script.php`, `TRACE-number$function$line`; `JIT$$stub` is PHP's own.
fn php(name: &str) -> Option<Cleaned<'_>> {
    let (function, line) = match name.strip_prefix("JIT$") {
        Some(function) if function.starts_with('$') => return Some(Cleaned::of(name)),
        Some(function) => (function, 0),
        None => {
            let (nth, rest) = name.strip_prefix("TRACE-")?.split_once('$')?;
            number(nth)?;
            let (function, line) = rest.rsplit_once('$')?;
            (function, number(line)?)
        }
    };
    // Code outside of functions goes by its file.
    Some(match function.starts_with('/') {
        true => Cleaned::of("{main}").at(function, line),
        false => Cleaned::of(function),
    })
}

/// `TRACE_number::chunk:line`: a trace goes by where it starts.
fn luajit(name: &str) -> Option<Cleaned<'_>> {
    let (nth, place) = name.strip_prefix("TRACE_")?.split_once("::")?;
    number(nth)?;
    let (chunk, line) = place.rsplit_once(':')?;
    Some(Cleaned::of(place).at(chunk, number(line)?))
}

/// `Lcom/foo/Bar;::baz`, alone or several with ` in ` (innermost first) or `->` (outermost first).
fn map_agent(name: &str) -> Option<Cleaned<'_>> {
    // Nothing else starts so, and few names do: the rest is spared the look.
    if !name.starts_with(['L', '[']) || !name.contains(';') {
        return None;
    }
    let mut methods: Vec<AgentMethod<'_>> = match name.contains("->") {
        true => name.split("->").map(agent_method).collect::<Option<_>>()?,
        false => {
            let inner_first = name.split(" in ").map(agent_method);
            inner_first.collect::<Option<_>>()?
        }
    };
    if !name.contains("->") {
        methods.reverse();
    }
    let last = methods.last()?;
    let (file, line, is_interpreted) = (last.file, last.line, last.is_interpreted);
    let text: Vec<String> = methods
        .into_iter()
        .map(|method| format!("{}.{}", method.class, method.method))
        .collect();
    Some(
        Cleaned::of(text.join("->"))
            .at(file, line)
            .interpreted_if(is_interpreted),
    )
}

struct AgentMethod<'a> {
    class: String,
    method: &'a str,
    file: &'a str,
    line: u32,
    is_interpreted: bool,
}

/// `Lclass;::method` or `Lclass;.method`, with `(I)V`, `(Bar.java:12)` and `_[j]` behind it or not.
fn agent_method(name: &str) -> Option<AgentMethod<'_>> {
    let (class, rest) = name.trim().strip_prefix('L')?.split_once(';')?;
    let rest = rest.strip_prefix("::").or_else(|| rest.strip_prefix('.'))?;
    let is_interpreted = rest.ends_with("_[i]");
    let rest = ["_[j]", "_[i]", "_[0]", "_[1]"]
        .iter()
        .find_map(|tier| rest.strip_suffix(tier))
        .unwrap_or(rest);
    let method = rest.split('(').next()?;
    let place = rest.strip_suffix(')').and_then(|rest| {
        let (_, place) = rest.rsplit_once('(')?;
        let (file, line) = place.rsplit_once(':')?;
        Some((file, number(line)?))
    });
    let (file, line) = place.unwrap_or_default();
    // In signatures the number of a hidden class follows a dot, or a slash of old ones.
    let class = match class.rsplit_once(['/', '.']) {
        Some((class, last)) if is_hidden_number(last) => class,
        _ => class,
    };
    (is_java_name(class) && !method.is_empty()).then(|| AgentMethod {
        class: class.replace('/', "."),
        method,
        file,
        line,
        is_interpreted,
    })
}

/// `type package.Class.method(types)`.
fn hotspot(name: &str) -> Option<Cleaned<'_>> {
    let (head, _) = name.strip_suffix(')')?.split_once('(')?;
    let (kind, path) = head.split_once(' ')?;
    let (class, method) = path.rsplit_once('.')?;
    let is_method = is_java_name(kind)
        && is_java_name(class)
        && !method.is_empty()
        && !method.contains([' ', ':', '/', '[', ']']);
    if !is_method {
        return None;
    }
    Some(match class.split_once('/') {
        Some((class, number)) if is_hidden_number(number) => {
            Cleaned::of(format!("{class}.{method}"))
        }
        _ => Cleaned::of(path),
    })
}

/// The suffix by which a JVM distinguishes hidden classes of one name: an address or a number.
fn is_hidden_number(text: &str) -> bool {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        // Names of classes and packages do not start with a digit.
        && text.starts_with(|first: char| first.is_ascii_digit())
}

/// True for what may be a Java class or type: most characters are allowed in one.
fn is_java_name(text: &str) -> bool {
    !text.is_empty() && !text.contains([' ', ':', ';', '(', ')', '"', '\'', ',', '<', '>'])
}

/// `type [Assembly] Class::method(types)[tier]`.
fn dotnet(name: &str) -> Option<Cleaned<'_>> {
    let (signature, tier) = name.rsplit_once(')')?;
    let has_tier = tier.starts_with('[') && tier.ends_with(']');
    if !(tier.is_empty() || has_tier) {
        return None;
    }
    // The result's type may name assemblies too, but without a space behind.
    let assembly = signature.match_indices("] ").find_map(|(end, _)| {
        let start = signature[..end].rfind('[')?;
        let is_word = start == 0 || signature[..start].ends_with(' ');
        (is_word && end > start + 1).then_some(end)
    })?;
    let method = &signature[assembly + 2..];
    let (path, _) = method.split_once('(')?;
    let (class, method) = path.rsplit_once("::")?;
    (!class.is_empty() && !method.is_empty()).then(|| Cleaned::of(format!("{class}.{method}")))
}

/// Names of C++ and Rust, of WebAssembly for one.
fn mangled(name: &str) -> Option<Cleaned<'_>> {
    let may_be = ["_Z", "_R"].iter().any(|start| name.starts_with(start));
    may_be.then(|| Cleaned::of(names::readable(name.as_bytes())))
}

/// A number in digits alone.
fn number(digits: &str) -> Option<u32> {
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok())?
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod tests;
