//! Generates the page of the reference from the table of keys.

use crate::Configuration;
use crate::key::{Key, Reload};
use crate::value::Kind;
use crate::value::items::Items;
use std::fmt::Write;

/// A page in Markdown: every key with what it means, its unit, range and default, by section.
/// `file`: the sample file, next to which the page belongs.
pub fn reference_page<C: Configuration>(program: &str, file: &str) -> String {
    let mut out = format!(
        "# Configuration of {program}\n\n\
         `config/{file}` is the same as a file, with every default. The program reads `{}` unless\n\
         `--config` names another file. Every key can also be a variable, with the prefix `{}` and\n\
         `_` for each dot, and a flag, `--set key=value`. A flag wins over a variable, and a\n\
         variable over the file. Generated from the program's table of keys.\n",
        C::DEFAULT_PATH,
        C::ENV_PREFIX,
    );
    let mut section = None;
    for key in C::KEYS {
        let (of, _) = key.split();
        if section != Some(of) {
            section = Some(of);
            let docs = C::SECTIONS.iter().find(|(path, _)| *path == of);
            let title = if of.is_empty() { "At the top" } else { of };
            let _ = write!(out, "\n## {title}\n");
            if let Some((_, doc)) = docs.filter(|(_, doc)| !doc.is_empty()) {
                let _ = write!(out, "\n{}\n", text(doc));
            }
        }
        entry(&mut out, key);
    }
    out
}

fn entry<C: Configuration>(out: &mut String, key: &Key<C>) {
    let _ = write!(out, "\n### {}\n\n{}\n\n", key.path, text(key.doc));
    let default = key.default().to_string();
    let _ = writeln!(out, "- Default: `{default}`");
    if !key.unit.is_empty() {
        let _ = writeln!(out, "- Unit: {}", text(key.unit));
    }
    let _ = writeln!(out, "- Values: {}", text(&key.kind.expected()));
    let when = match key.reload {
        Reload::Live => "at a reload",
        Reload::Restart => "at the next start",
    };
    let _ = writeln!(out, "- In force: {when}");
    if let Kind::Items(items) = key.kind {
        fields(out, items);
    }
}

/// The keys of an entry of a list, and one that is right.
fn fields(out: &mut String, items: &Items) {
    let _ = write!(
        out,
        "\n| key of a {} | values | left out | |\n|---|---|---|---|\n",
        items.what
    );
    for field in items.fields {
        let default = match (field.required, field.default) {
            (true, _) => "must be there".to_owned(),
            (false, "") => "–".to_owned(),
            (false, default) => text(default),
        };
        let (name, values) = (field.name, cell(&field.kind.expected()));
        let _ = writeln!(
            out,
            "| `{name}` | {values} | {} | {} |",
            cell(&default),
            cell(field.doc)
        );
    }
    let _ = write!(out, "\n```yaml\n{}\n```\n", items.example.trim_end());
}

/// Words as they are: what Markdown or HTML would take for its own is not.
fn text(words: &str) -> String {
    let mut out = String::with_capacity(words.len());
    let mut code = false;
    for word in words.split_inclusive('`') {
        match code {
            true => out.push_str(word),
            false => out.push_str(&word.replace('<', "&lt;").replace('*', "\\*")),
        }
        code ^= word.ends_with('`');
    }
    out
}

fn cell(words: &str) -> String {
    text(words).replace('|', "\\|")
}
