//! Which top-level modules of a crate use which, as its sources say.
//!
//! A scan of tokens, not a parser: it reads paths that start with `crate::`, or that climb to the
//! crate's root with `super::`. It skips comments, texts and what stands under `#[cfg(test)]`,
//! which may look upwards. A name that the root re-exports counts as a use of the module that has
//! it. Paths that macros put together are not seen.

use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// For each module those that it uses, each with the first place that says so.
pub type Graph = BTreeMap<String, BTreeMap<String, String>>;

/// The modules of the crate whose root file lies in `src`, from sources by their paths.
pub fn graph(sources: &[(PathBuf, String)], src: &Path) -> Graph {
    let of_tests = files_of_tests(sources);
    let built = |file: &Path| !of_tests.iter().any(|tests| file.starts_with(tests));
    let ours: Vec<_> = sources
        .iter()
        .filter(|(file, _)| built(file))
        .filter_map(|(file, text)| Some((file, text, module_path(file.strip_prefix(src).ok()?)?)))
        .collect();
    let mut graph = Graph::new();
    let mut exported = BTreeMap::new();
    for (_, text, path) in &ours {
        match path.first() {
            Some(top) => drop(graph.entry(top.clone()).or_default()),
            None => exported.extend(re_exports(&tokens(text))),
        }
    }
    let modules: BTreeSet<String> = graph.keys().cloned().collect();
    for (file, text, path) in &ours {
        let Some(used) = path.first().and_then(|top| graph.get_mut(top)) else {
            continue;
        };
        for (line, name) in uses(&tokens(text), path.len()) {
            let to = exported.get(&name).unwrap_or(&name);
            if modules.contains(to) && Some(to) != path.first() {
                let place = || format!("{}:{line}", file.display());
                used.entry(to.clone()).or_insert_with(place);
            }
        }
    }
    graph
}

/// The modules that reach each other, in groups; empty where there is no cycle.
pub fn cycles(graph: &Graph) -> Vec<BTreeSet<&str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = graph
        .keys()
        .map(|from| (from.as_str(), reached_from(graph, from)))
        .collect();
    let mut groups = BTreeSet::new();
    for (from, to) in reached.iter().filter(|(from, to)| to.contains(*from)) {
        let back = |it: &&str| reached[it].contains(from);
        groups.insert(to.iter().copied().filter(back).collect::<BTreeSet<_>>());
    }
    groups.into_iter().collect()
}

fn reached_from<'g>(graph: &'g Graph, from: &str) -> BTreeSet<&'g str> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&str> = vec![from];
    while let Some(module) = next.pop() {
        for to in graph[module].keys() {
            if reached.insert(to.as_str()) {
                next.push(to);
            }
        }
    }
    reached
}

/// The modules on the way to a file below the root; none for the root itself. `None` for what is no
/// Rust source.
fn module_path(file: &Path) -> Option<Vec<String>> {
    let stem = file.with_extension("");
    let mut path: Vec<String> = stem
        .iter()
        .map(|part| Some(part.to_str()?.to_owned()))
        .collect::<Option<_>>()?;
    let is_root = path.len() == 1 && matches!(path[0].as_str(), "lib" | "main");
    if is_root || path.last()? == "mod" {
        path.pop();
    }
    Some(path)
}

/// Files and folders of modules that are declared under `#[cfg(test)]`.
fn files_of_tests(sources: &[(PathBuf, String)]) -> Vec<PathBuf> {
    let declared =
        r#"#\[cfg\(test\)\]\s*(?:#\[path = "([^"]+)"\]\s*)?(?:pub(?:\([a-z]+\))? )?mod (\w+);"#;
    let declared = Regex::new(declared).expect("a sound pattern");
    let mut found = Vec::new();
    for (file, text) in sources {
        let folder = file.parent().unwrap_or(Path::new(""));
        let stem = file.file_stem().unwrap_or_default();
        let below = match stem.to_str() {
            Some("mod" | "lib" | "main") => folder.to_owned(),
            _ => folder.join(stem),
        };
        for declaration in declared.captures_iter(text) {
            match declaration.get(1) {
                Some(path) => found.push(folder.join(path.as_str())),
                None => {
                    found.push(below.join(&declaration[2]));
                    found.push(below.join(format!("{}.rs", &declaration[2])));
                }
            }
        }
    }
    found
}

/// Comments, texts, words, `::`, and any other sign alone.
static TOKEN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"(?s)//[^\n]*|/\*.*?\*/",
        r###"|b?r"[^"]*"|b?r#".*?"#|b?r##".*?"##"###,
        r###"|[bc]?"(?:\\.|[^"\\])*"|b?'(?:\\u\{[^}]*\}|\\x..|\\.|[^'\\])'|'\w+"###,
        r"|\w+|::|\S",
    ))
    .expect("a sound pattern")
});

/// A word, `::` or a sign, with its line.
type Token<'t> = (usize, &'t str);

/// The tokens of a source without comments, texts and what is for tests.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let (mut line, mut counted) = (1, 0);
    for token in TOKEN.find_iter(text) {
        line += text[counted..token.start()].matches('\n').count();
        counted = token.start();
        let token = token.as_str();
        // A sign alone may be any of these; a comment or a text is longer.
        if token.len() == 1 || !token.contains(['/', '"', '\'']) {
            found.push((line, token));
        }
    }
    without_tests(&found)
}

fn without_tests<'t>(all: &[Token<'t>]) -> Vec<Token<'t>> {
    let words: Vec<&str> = all.iter().map(|&(_, word)| word).collect();
    let mut kept = Vec::new();
    let mut at = 0;
    while at < all.len() {
        let rest = &words[at..];
        let is_test = rest.starts_with(&["#", "[", "cfg", "(", "test", ")", "]"])
            || rest.starts_with(&["#", "[", "cfg", "(", "all", "(", "test"]);
        if is_test {
            at += item_len(rest);
        } else {
            kept.push(all[at]);
            at += 1;
        }
    }
    kept
}

/// How many tokens an item has with its attributes: up to the end of its block, `;`, or what ends
/// the list that it stands in.
fn item_len(words: &[&str]) -> usize {
    let mut at = 0;
    while words[at..].starts_with(&["#", "["]) {
        at += 1 + group_len(&words[at + 1..]);
    }
    let is_item = |word: &&str| {
        ["fn", "mod", "impl", "struct", "enum", "trait", "const"].contains(word) || *word == "use"
    };
    let starts = words[at..].iter().take(4).find(|word| is_item(word));
    let ends_with_block = starts.is_some_and(|word| !["use", "const"].contains(word));
    while let Some(&word) = words.get(at) {
        match word {
            "{" | "(" | "[" => {
                at += group_len(&words[at..]);
                if word == "{" && (ends_with_block || starts.is_none()) {
                    return at;
                }
            }
            ";" => return at + 1,
            "," if starts.is_none() => return at + 1,
            "}" | ")" | "]" => return at,
            _ => at += 1,
        }
    }
    at
}

/// How many tokens there are up to what closes the first one.
fn group_len(words: &[&str]) -> usize {
    let mut depth = 0;
    for (at, word) in words.iter().enumerate() {
        match *word {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    words.len()
}

/// The names below the root that a file uses, `depth` modules below it.
fn uses(tokens: &[Token<'_>], depth: usize) -> Vec<(usize, String)> {
    let words: Vec<&str> = tokens.iter().map(|&(_, word)| word).collect();
    let mut found = Vec::new();
    for at in 0..words.len() {
        if at > 0 && words[at - 1] == "::" {
            continue;
        }
        let mut below = at;
        while words[below..].starts_with(&["super", "::"]) {
            below += 2;
        }
        if words[at..].starts_with(&["crate", "::"]) {
            below = at + 2;
        } else if below == at || (below - at) / 2 != depth {
            continue;
        }
        let names = first_names(&words[below..]);
        found.extend(
            names
                .into_iter()
                .map(|name| (tokens[at].0, name.to_owned())),
        );
    }
    found
}

/// The first name of a path, or of each path of a group.
fn first_names<'t>(words: &[&'t str]) -> Vec<&'t str> {
    if words.first() != Some(&"{") {
        return words.first().copied().into_iter().collect();
    }
    let mut names = Vec::new();
    let mut at = 1;
    while at < group_len(words) - 1 {
        names.push(words[at]);
        while !matches!(words[at], "," | "}") {
            at += match words[at] {
                "{" => group_len(&words[at..]),
                _ => 1,
            };
        }
        at += 1;
    }
    names
}

/// Names that the root gives out, with the module that each is of.
fn re_exports(tokens: &[Token<'_>]) -> BTreeMap<String, String> {
    let words: Vec<&str> = tokens.iter().map(|&(_, word)| word).collect();
    let mut found = BTreeMap::new();
    for at in 0..words.len() {
        let ["use", module, "::", rest @ ..] = &words[at..] else {
            continue;
        };
        let end = rest.iter().position(|word| *word == ";").unwrap_or(0);
        let names = rest[..end]
            .iter()
            .filter(|word| word.starts_with(char::is_alphabetic));
        found.extend(names.map(|&name| (name.to_owned(), (*module).to_owned())));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], expected: &[(&str, &[&str])]) {
        let sources: Vec<_> = files
            .iter()
            .map(|&(file, text)| (PathBuf::from("x/src").join(file), text.to_owned()))
            .collect();
        let found = graph(&sources, Path::new("x/src"));
        let found: Vec<(&str, Vec<&str>)> = found
            .iter()
            .map(|(from, to)| (from.as_str(), to.keys().map(String::as_str).collect()))
            .collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|(from, to)| (*from, to.to_vec()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_path_of_any_form_is_a_use() {
        let text = "use crate::b::{self, X};\nfn f() -> crate::c::Y { crate::Z }\n\
            use crate::{d, e::{F, G}};\nuse super::f::H;";
        let files = [
            ("lib.rs", "pub use g::{Z, W};\nuse crate::a;"),
            ("a.rs", text),
            ("b.rs", ""),
            ("c/mod.rs", ""),
            ("d.rs", ""),
            ("e.rs", ""),
            ("f.rs", ""),
            ("g.rs", ""),
        ];
        let uses: &[&str] = &["b", "c", "d", "e", "f", "g"];
        let none: &[&str] = &[];
        let others = uses.iter().map(|name| (*name, none));
        let all: Vec<_> = std::iter::once(("a", uses)).chain(others).collect();
        check(&files, &all);
    }

    #[test]
    fn names_within_a_module_are_no_uses() {
        let files = [
            ("a/mod.rs", "use crate::a::b::X; use self::b::Y;"),
            ("a/b.rs", "use super::c::Z;"),
            ("b.rs", ""),
            ("c.rs", ""),
        ];
        check(&files, &[("a", &[]), ("b", &[]), ("c", &[])]);
    }

    #[test]
    fn a_file_below_climbs_to_the_root_by_as_many_steps_as_it_is_deep() {
        let files = [("a/b.rs", "use super::super::c::Z;"), ("c.rs", "")];
        check(&files, &[("a", &["c"]), ("c", &[])]);
    }

    #[test]
    fn comments_texts_and_tests_may_look_anywhere() {
        let text = "// crate::b::X\n/* crate::b */ const A: &str = \"crate::b\\\"\"; fn f<'a>(c: char) { c == '\"' }\n\
            #[cfg(test)]\nuse crate::b::X;\n#[cfg(test)]\nmod tests { use crate::b::X; mod m {} }\n\
            struct S { #[cfg(test)] x: crate::b::X, y: crate::c::Y }\n\
            #[cfg(test)]\npub(crate) fn g(x: crate::b::X) {}\n#[cfg(test)]\nmod more;\nuse crate::d::Z;";
        let files = [
            ("a.rs", text),
            ("a/more.rs", "use crate::b::X;"),
            ("a/more/deep.rs", "use crate::b::X;"),
            ("b.rs", ""),
            ("c.rs", ""),
            ("d.rs", ""),
        ];
        check(
            &files,
            &[("a", &["c", "d"]), ("b", &[]), ("c", &[]), ("d", &[])],
        );
    }

    #[test]
    fn modules_that_reach_each_other_are_a_cycle() {
        let files = [
            ("a.rs", "use crate::b::X;"),
            ("b.rs", "use crate::c::X;"),
            ("c.rs", "use crate::b::X; use crate::d::X;"),
            ("d.rs", ""),
        ];
        let sources = files.map(|(file, text)| (PathBuf::from(file), text.to_owned()));
        let graph = graph(&sources, Path::new(""));
        assert_eq!(cycles(&graph), [BTreeSet::from(["b", "c"])]);
        assert_eq!(graph["c"]["b"], "c.rs:1");
    }
}
