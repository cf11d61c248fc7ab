//! Which modules of a crate use which of their siblings, as the crate's sources say.
//!
//! A scan of tokens, not a parser: it reads paths that start with `crate::`, `self::` or `super::`,
//! and what `use` takes from modules that lie in the file's own. It skips comments, texts and what
//! stands under `#[cfg(test)]`, which may look anywhere. A name that a module above has from
//! another by `use` counts as of the module that it comes from. Paths that macros put together are
//! not seen, and neither is which module a method is written in.

use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The names on the way from the crate's root to a module, or to what is in it.
type Names = Vec<String>;

/// For each module those of its siblings that it uses, each with the first place that says so.
pub type Graph = BTreeMap<String, BTreeMap<String, String>>;

/// What the modules of one crate use.
struct Crate {
    /// All modules that have a file.
    modules: BTreeSet<Names>,
    /// What modules have by `use`: where each name comes from.
    taken: BTreeMap<Names, BTreeMap<String, Names>>,
    /// The module that uses something, that thing, and where that stands.
    uses: Vec<(Names, Names, String)>,
}

/// What lies in the crate whose root file is in `src`, from sources by their paths: for each module
/// that has others, by its path from `crate` on, which of these use which.
pub fn graphs(sources: &[(PathBuf, String)], src: &Path) -> BTreeMap<String, Graph> {
    let of_tests = files_of_tests(sources);
    let built = |file: &Path| !of_tests.iter().any(|tests| file.starts_with(tests));
    let mut all = Crate {
        modules: BTreeSet::new(),
        taken: BTreeMap::new(),
        uses: Vec::new(),
    };
    let ours: Vec<_> = sources
        .iter()
        .filter(|(file, _)| built(file))
        .filter_map(|(file, text)| Some((file, text, module_path(file.strip_prefix(src).ok()?)?)))
        .collect();
    all.modules = ours.iter().map(|(_, _, module)| module.clone()).collect();
    for (file, text, module) in &ours {
        all.read(file, &tokens(text), module);
    }
    all.graphs()
}

impl Crate {
    /// Takes in what a file says.
    fn read(&mut self, file: &Path, tokens: &[Token<'_>], module: &[String]) {
        let words: Vec<&str> = tokens.iter().map(|&(_, word)| word).collect();
        for at in 0..words.len() {
            let is_start = at == 0 || words[at - 1] != "::";
            let Some((base, below)) = self.base(&words[at..], module).filter(|_| is_start) else {
                continue;
            };
            let is_taken = at > 0 && words[at - 1] == "use";
            let line = tokens[at].0;
            for (path, name) in paths(&words[at + below..], &base) {
                if is_taken {
                    let names = self.taken.entry(module.to_vec()).or_default();
                    names.insert(name, path.clone());
                }
                let place = format!("{}:{line}", file.display());
                self.uses.push((module.to_vec(), path, place));
            }
        }
    }

    /// What a path starts from that may lead to a module, and after how many tokens it goes on.
    fn base(&self, words: &[&str], module: &[String]) -> Option<(Names, usize)> {
        let mut base = module.to_vec();
        match words {
            ["crate", "::", ..] => Some((Names::new(), 2)),
            ["self", "::", ..] => Some((base, 2)),
            ["super", "::", ..] => {
                let mut at = 0;
                while words[at..].starts_with(&["super", "::"]) {
                    base.pop();
                    at += 2;
                }
                Some((base, at))
            }
            [name, "::", ..] => {
                base.push((*name).to_owned());
                let is_own = self.modules.contains(&base);
                base.pop();
                is_own.then_some((base, 0))
            }
            _ => None,
        }
    }

    /// The module that a path in `from` leads to, or that has what it leads to. What a module above
    /// `from` has by `use` is of the module that it comes from; what others have is theirs.
    fn module_of(&self, path: &[String], from: &[String]) -> Names {
        let (mut module, mut rest) = (Names::new(), path.to_vec());
        // Modules may have names from each other in a circle.
        for _ in 0..64 {
            let Some(name) = rest.first().cloned() else {
                break;
            };
            module.push(name.clone());
            if self.modules.contains(&module) {
                rest.remove(0);
                continue;
            }
            module.pop();
            let taken = self.taken.get(&module).and_then(|names| names.get(&name));
            let Some(whence) = taken.filter(|_| from.starts_with(&module)) else {
                break;
            };
            rest.splice(..1, whence.iter().cloned());
            module.clear();
        }
        module
    }

    fn graphs(&self) -> BTreeMap<String, Graph> {
        let mut graphs: BTreeMap<String, Graph> = BTreeMap::new();
        for module in &self.modules {
            if let Some((own, above)) = module.split_last() {
                let graph = graphs.entry(shown(above)).or_default();
                graph.entry(own.clone()).or_default();
            }
        }
        for (from, path, place) in &self.uses {
            let to = self.module_of(path, from);
            let alike = from.iter().zip(&to).take_while(|(from, to)| from == to);
            let depth = alike.count();
            let (Some(own), Some(other)) = (from.get(depth), to.get(depth)) else {
                continue;
            };
            let graph = graphs.entry(shown(&from[..depth])).or_default();
            let used = graph.entry(own.clone()).or_default();
            used.entry(other.clone()).or_insert_with(|| place.clone());
        }
        graphs
    }
}

/// A module's path as sources have it.
fn shown(module: &[String]) -> String {
    let names = module.iter().map(String::as_str);
    let path: Vec<&str> = std::iter::once("crate").chain(names).collect();
    path.join("::")
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
        for to in graph.get(module).into_iter().flat_map(BTreeMap::keys) {
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
    let declared = Regex::new(concat!(
        r"#\[cfg\((?:test|all\(test\b[^\]]*\))\)\](?:\s|//[^\n]*)*",
        r#"(?:#\[path = "([^"]+)"\]\s*)?(?:pub(?:\([a-z]+\))? )?mod (\w+);"#,
    ));
    let declared = declared.expect("a sound pattern");
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

/// The paths of a tree of names, as `use` has them, below `base`; each with the name that it gets.
fn paths(words: &[&str], base: &[String]) -> Vec<(Names, String)> {
    let mut path = base.to_vec();
    let mut at = 0;
    while let Some(&word) = words.get(at) {
        match word {
            "{" => {
                let within = &words[at + 1..at + group_len(&words[at..]) - 1];
                let parts = split(within).into_iter();
                return parts.flat_map(|part| paths(part, &path)).collect();
            }
            // What all of a module is taken from is the module.
            "self" | "*" => break,
            word if word.starts_with(|sign: char| sign == '_' || sign.is_alphanumeric()) => {
                path.push(word.to_owned());
            }
            _ => break,
        }
        match words.get(at + 1) {
            Some(&"::") => at += 2,
            _ => break,
        }
    }
    let renamed = words.get(at + 1).filter(|word| **word == "as");
    let name = match renamed.and(words.get(at + 2)) {
        Some(&name) => name.to_owned(),
        None => path.last().cloned().unwrap_or_default(),
    };
    vec![(path, name)]
}

/// The parts of a list, which commas are between.
fn split<'w, 't>(words: &'w [&'t str]) -> Vec<&'w [&'t str]> {
    let (mut parts, mut start, mut at) = (Vec::new(), 0, 0);
    while at < words.len() {
        match words[at] {
            "{" => at += group_len(&words[at..]),
            "," => {
                parts.push(&words[start..at]);
                at += 1;
                start = at;
            }
            _ => at += 1,
        }
    }
    parts.push(&words[start..]);
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which modules in `parent` use which.
    fn check_in(parent: &str, files: &[(&str, &str)], expected: &[(&str, &[&str])]) {
        let sources: Vec<_> = files
            .iter()
            .map(|&(file, text)| (PathBuf::from("x/src").join(file), text.to_owned()))
            .collect();
        let found = &graphs(&sources, Path::new("x/src"))[parent];
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

    fn check(files: &[(&str, &str)], expected: &[(&str, &[&str])]) {
        check_in("crate", files, expected);
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
    fn modules_at_any_depth_use_their_siblings() {
        let files = [
            ("lib.rs", "use a::b::X;"),
            (
                "a/mod.rs",
                "pub use b::{X, deep::Y as Other};\nuse crate::f;",
            ),
            (
                "a/b/mod.rs",
                "use super::c::{self, Z}; fn f() { deep::run::<u8>() }",
            ),
            (
                "a/b/deep.rs",
                "use super::super::d::W; use super::Z; use super::wide::V;",
            ),
            ("a/b/wide.rs", "use crate::a::b::deep::*;"),
            ("a/c.rs", "use super::Other; use crate::X; use super::f::g;"),
            (
                "a/d.rs",
                "use self::e::U; fn f() { super::b::deep::run::<u8>() }",
            ),
            ("a/d/e.rs", "use super::super::missing::T;"),
            ("f.rs", ""),
        ];
        check(&files, &[("a", &["f"]), ("f", &[])]);
        let within: &[(&str, &[&str])] = &[("b", &["c", "d"]), ("c", &["b"]), ("d", &["b"])];
        check_in("crate::a", &files, within);
        check_in(
            "crate::a::b",
            &files,
            &[("deep", &["wide"]), ("wide", &["deep"])],
        );
    }

    #[test]
    fn comments_texts_and_tests_may_look_anywhere() {
        let text = "// crate::b::X\n/* crate::b */ const A: &str = \"crate::b\\\"\"; fn f<'a>(c: char) { c == '\"' }\n\
            #[cfg(test)]\nuse crate::b::X;\n#[cfg(test)]\nmod tests { use crate::b::X; mod m {} }\n\
            struct S { #[cfg(test)] x: crate::b::X, y: crate::c::Y }\n\
            #[cfg(test)]\npub(crate) fn g(x: crate::b::X) {}\n#[cfg(test)]\nmod more;\n\
            #[cfg(all(test, unix))] // Why.\nmod last;\nuse crate::d::Z;";
        let files = [
            ("a.rs", text),
            ("a/more.rs", "use crate::b::X;"),
            ("a/more/deep.rs", "use crate::b::X;"),
            ("a/last.rs", "use crate::b::X;"),
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
        let graph = &graphs(&sources, Path::new(""))["crate"];
        assert_eq!(cycles(graph), [BTreeSet::from(["b", "c"])]);
        assert_eq!(graph["c"]["b"], "c.rs:1");
    }
}
