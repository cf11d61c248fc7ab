//! Tests names as runtimes write them, and how they are shown.

use super::*;
use proptest::prelude::*;

/// `kind function [file[:line]]`.
#[track_caller]
fn check(raw: &str, expected: &str) {
    let cleaned = clean(raw);
    let mut text = format!("{} {}", cleaned.kind.word(), cleaned.function);
    if !cleaned.file.is_empty() {
        text.push_str(&format!(" @ {}:{}", cleaned.file, cleaned.line));
    }
    assert_eq!(text, expected, "{raw}");
}

#[test]
fn v8_functions_have_name_file_and_line() {
    let file = "/srv/app.js";
    check("JS:*buy /srv/app.js:1:42", &format!("jit buy @ {file}:1"));
    check("JS:^hot /srv/app.js:2:13", &format!("jit hot @ {file}:2"));
    check("JS:+hot /srv/app.js:2:13", &format!("jit hot @ {file}:2"));
    check("JS:*'hot /srv/app.js:2:13", &format!("jit hot @ {file}:2"));
    check(
        "JS:~hot /srv/app.js:2:13",
        &format!("interpreted hot @ {file}:2"),
    );
    check(
        "LazyCompile:*hot /srv/app.js:2",
        &format!("jit hot @ {file}:2"),
    );
    check(
        "Function:~hot /srv/app.js:2",
        &format!("interpreted hot @ {file}:2"),
    );
    check(
        "JS:~realpathSync node:fs:2664:22",
        "interpreted realpathSync @ node:fs:2664",
    );
    check("JS:*forEach", "jit forEach");
}

#[test]
fn v8_functions_without_a_name_say_so() {
    check("JS:* /srv/app.js:8:236", "jit (anonymous) @ /srv/app.js:8");
    check(
        "Script:~ /srv/app.js:1:1",
        "interpreted (script) @ /srv/app.js:1",
    );
    check(
        "Eval:~ /srv/app.js:1:1",
        "interpreted (eval) @ /srv/app.js:1",
    );
    check("Eval:~ :1:1", "interpreted (eval)");
    check("JS:*", "jit (anonymous)");
}

#[test]
fn v8_names_and_files_may_have_spaces() {
    check(
        "JS:~get total /srv/app.js:1:165",
        "interpreted get total @ /srv/app.js:1",
    );
    check(
        "JS:*semi;colon /srv/my app.js:4:51",
        "jit semi;colon @ /srv/my app.js:4",
    );
    check("JS:*o /srv/my app.js:4:19", "jit o @ /srv/my app.js:4");
    check(
        "JS:* /srv/my app.js:4:19",
        "jit (anonymous) @ /srv/my app.js:4",
    );
    check("JS:*get total app.js:4:19", "jit get total @ app.js:4");
}

#[test]
fn v8_code_of_its_own_keeps_its_name() {
    check("Builtin:ArrayMap", "jit Builtin:ArrayMap");
    check("RegExp:a+b(c|d)*e", "jit RegExp:a+b(c|d)*e");
    check("Stub:js-to-wasm:i:i", "jit Stub:js-to-wasm:i:i");
    check("BytecodeHandler:Wide", "interpreted BytecodeHandler:Wide");
}

#[test]
fn v8_runs_web_assembly() {
    check("JS:wasm-function[0]-0-liftoff", "jit wasm-function[0]");
    check("JS:fib-12-turbofan", "jit fib");
}

#[test]
fn cpython_functions_have_a_file() {
    check("py::hot:/srv/app.py", "interpreted hot @ /srv/app.py:0");
    check(
        "py::Shop.<locals>.<lambda>:<a b: string>",
        "interpreted Shop.<locals>.<lambda> @ <a b: string>:0",
    );
    check(
        "py::<module>:<frozen importlib._bootstrap>",
        "interpreted <module> @ <frozen importlib._bootstrap>:0",
    );
    check("py::broken", "interpreted py::broken");
}

#[test]
fn hotspot_methods_lose_types_and_numbers_of_hidden_classes() {
    check("long com.foo.Bar.baz(int)", "jit com.foo.Bar.baz");
    check(
        "long com.foo.Bar$Inner.baz(java.lang.Object, int[], java.lang.String[])",
        "jit com.foo.Bar$Inner.baz",
    );
    check("char[][] com.foo.Bar.arr(char[])", "jit com.foo.Bar.arr");
    check("void com.foo.Bar.<init>(int)", "jit com.foo.Bar.<init>");
    check("void Main.main(java.lang.String[])", "jit Main.main");
    check(
        "java.lang.Object com.foo.Bar$$Lambda$1/0x00007fc9c8000400.apply(long)",
        "jit com.foo.Bar$$Lambda$1.apply",
    );
}

#[test]
fn hotspot_code_of_its_own_keeps_its_name() {
    for name in [
        "I2C/C2I adapters(0xbbb)",
        "StubRoutines (1)",
        "vtable stub",
        "InlineCacheBuffer",
        "forward_exception Runtime1 stub",
        "native signature handlers",
    ] {
        check(name, &format!("jit {name}"));
    }
    check("Interpreter", "interpreted Interpreter");
}

#[test]
fn agents_of_hotspot_write_signatures_of_classes() {
    check("Lcom/foo/Bar;::baz", "jit com.foo.Bar.baz");
    check("Lcom/foo/Bar;.baz(I)V", "jit com.foo.Bar.baz");
    check("Lcom/foo/Bar;::baz_[j]", "jit com.foo.Bar.baz");
    check("Lcom/foo/Bar;::baz_[i]", "interpreted com.foo.Bar.baz");
    check(
        "Lcom/foo/Bar;.baz(I)V(Bar.java:12)",
        "jit com.foo.Bar.baz @ Bar.java:12",
    );
    check(
        "Lcom/foo/Bar$$Lambda$14.0x0000000800c03000;.run",
        "jit com.foo.Bar$$Lambda$14.run",
    );
    check(
        "Lcom/foo/A;.a in Lcom/foo/B;.b",
        "jit com.foo.B.b->com.foo.A.a",
    );
    check(
        "Lcom/foo/B;::b->Lcom/foo/A;::a",
        "jit com.foo.B.b->com.foo.A.a",
    );
}

#[test]
fn erlang_functions_keep_their_arity() {
    check("$hot:fib/1", "jit hot:fib/1");
    check("$hot:'odd name'/1-CodeInfoPrologue", "jit hot:'odd name'/1");
    check("$global::call_bif_shared", "jit global::call_bif_shared");
}

#[test]
fn php_functions_traces_and_scripts() {
    check(r"JIT$App\Shop\Cart::add", r"jit App\Shop\Cart::add");
    check(r"JIT$App\Shop\{closure}", r"jit App\Shop\{closure}");
    check("JIT$/srv/app.php", "jit {main} @ /srv/app.php:0");
    check("JIT$$trace_exit", "jit JIT$$trace_exit");
    check(r"TRACE-1$App\hot$7", r"jit App\hot");
    check("TRACE-2$/srv/app.php$7", "jit {main} @ /srv/app.php:7");
}

#[test]
fn luajit_traces_go_by_where_they_start() {
    check("TRACE_1::app.lua:3", "jit app.lua:3 @ app.lua:3");
}

#[test]
fn dotnet_methods_lose_types_assembly_and_tier() {
    for (raw, function) in [
        (
            "void [App] App.Program::Main(string[])[Tier1]",
            "App.Program.Main",
        ),
        (
            "instance void [App] App.Program::.ctor()[OptimizedTier1]",
            "App.Program..ctor",
        ),
        (
            "class [System.Runtime]System.Object [App] App.P`1[System.__Canon]::Get(int32)[PreJIT]",
            "App.P`1[System.__Canon].Get",
        ),
        ("void [App] App.P::Old(valuetype [A]B)", "App.P.Old"),
    ] {
        check(raw, &format!("jit {function}"));
    }
    let stub = "stub<1> AllocateTemporaryEntryPoints<PRECODE_FIXUP>";
    check(stub, &format!("jit {stub}"));
}

#[test]
fn names_of_other_runtimes_stay() {
    for name in [
        "fib",
        "wasm[0]::function[1]",
        "std::vector<int>::push_back(int const&)",
        "void foo::bar(int)",
        "JIT$",
        "TRACE-x$a$1",
        "Lcom/foo/Bar;",
    ] {
        check(name, &format!("jit {name}"));
    }
    check("_ZN3foo3barEi", "jit foo::bar(int)");
}

#[test]
fn a_place_known_from_elsewhere_wins() {
    let mut dict = Dictionary::default();
    let id = intern(&mut dict, "JS:*hot /srv/app.js:2:13", Some(("app.ts", 7)));
    let frame = dict.frame(id);
    assert_eq!((frame.file, frame.line), ("app.ts", 7));
    assert_eq!(frame.system_name, "JS:*hot /srv/app.js:2:13");
    let id = intern(&mut dict, "JS:*hot /srv/app.js:2:13", Some(("", 7)));
    assert_eq!(dict.frame(id).file, "/srv/app.js");
}

#[test]
fn a_raw_name_is_kept_where_it_is_another() {
    let mut dict = Dictionary::default();
    let overloads = ["long a.B.c(int)", "long a.B.c(char)"].map(|raw| intern(&mut dict, raw, None));
    assert_ne!(overloads[0], overloads[1]);
    let [one, other] = overloads.map(|id| dict.frame(id));
    assert_eq!((one.function, other.function), ("a.B.c", "a.B.c"));
    assert_eq!(one.system_name, "long a.B.c(int)");
    let id = intern(&mut dict, "Builtin:ArrayMap", None);
    assert_eq!(dict.frame(id).system_name, "");
}

#[test]
fn control_characters_are_replaced() {
    let mut dict = Dictionary::default();
    let id = intern(&mut dict, "JS:*h\u{1b}ot /srv/a\npp.js:2:13", None);
    let frame = dict.frame(id);
    let shown = (frame.function, frame.file);
    assert_eq!(shown, ("h\u{fffd}ot", "/srv/a\u{fffd}pp.js"));
}

#[test]
fn a_name_of_a_megabyte_is_cut() {
    let mut dict = Dictionary::default();
    let raw = format!("JS:*{} /srv/app.js:1:1", "é".repeat(1 << 19));
    let id = intern(&mut dict, &raw, None);
    let function = dict.frame(id).function;
    assert!(function.len() <= names::NAME_BYTES_MAX && function.ends_with('…'));
}

proptest! {
    #[test]
    fn no_name_panics_or_has_no_function(raw in hostile()) {
        let cleaned = clean(&raw);
        prop_assert!(!cleaned.function.trim().is_empty());
        prop_assert!(cleaned.line == 0 || !cleaned.file.is_empty());
    }

    #[test]
    fn a_function_of_v8_comes_back(name in "[a-zA-Z_$][a-zA-Z0-9_$.#]{0,20}", line in 1u32..) {
        let raw = format!("JS:*{name} /srv/app.js:{line}:1");
        let cleaned = clean(&raw);
        prop_assert_eq!(cleaned.function.as_ref(), name);
        prop_assert_eq!((cleaned.file, cleaned.line), ("/srv/app.js", line));
    }
}

fn hostile() -> impl Strategy<Value = String> {
    let token = prop_oneof![
        proptest::sample::select(vec![
            "JS:",
            "Eval:",
            "*",
            "~",
            "'",
            "py::",
            "JIT$",
            "TRACE-1$",
            "TRACE_1::",
            "$",
            ":",
            "::",
            "L",
            ";",
            "/",
            ".",
            "(",
            ")",
            "[",
            "]",
            "] ",
            " [",
            " ",
            "->",
            " in ",
            "_[j]",
            "void ",
            "a.b",
            "1",
            "99999999999",
            "\u{0}",
            "\u{1b}[2J",
            "\n",
            "é",
            "_Z",
            "_R",
            "-0-liftoff",
            "-CodeInfoPrologue",
            "0x",
            "\u{202e}",
        ])
        .prop_map(str::to_owned),
        ".{0,4}",
    ];
    proptest::collection::vec(token, 0..12).prop_map(|tokens| tokens.concat())
}
