//! Generates the sample file from the table of keys.

use crate::Configuration;
use crate::key::{Key, Reload};
use crate::value::Kind;
use crate::value::items::Items;

/// Widest comment line. Unit: bytes, the `# ` included.
const WIDTH: usize = 98;

/// The sample configuration: every key with what it means, its unit, range and default.
pub fn sample_yaml<C: Configuration>() -> String {
    let mut out = C::HEAD.to_owned();
    let mut section = "";
    for key in C::KEYS {
        let (of, name) = key.split();
        let depth = of.matches('.').count();
        if of.is_empty() {
            section = of;
        } else if of != section {
            out.push('\n');
            // One around it that has no keys of its own was not opened before.
            let around = of.rsplit_once('.').map(|(around, _)| around);
            if let Some(around) = around
                && section != around
                && !section.starts_with(&format!("{around}."))
            {
                open::<C>(&mut out, around);
            }
            open::<C>(&mut out, of);
            section = of;
        }
        // Keys that are in no section stand at the margin, after an empty line each.
        let depth = if of.is_empty() {
            out.push('\n');
            0
        } else {
            depth + 1
        };
        comment(&mut out, depth, key.doc);
        comment(&mut out, depth, &facts(key));
        if let Kind::Items(items) = key.kind {
            entry(&mut out, depth, items);
        }
        out.push_str(&format!("{}{name}: {}\n", indent(depth), key.default()));
    }
    out
}

/// A section with its sentence.
fn open<C: Configuration>(out: &mut String, section: &str) {
    let depth = section.matches('.').count();
    let mut docs = C::SECTIONS.iter();
    let doc = docs.find(|(path, _)| *path == section);
    comment(out, depth, doc.map_or("", |(_, doc)| doc));
    let last = section.rsplit('.').next().unwrap_or(section);
    out.push_str(&format!("{}{last}:\n", indent(depth)));
}

/// The keys of an entry of a list, and one that is right.
fn entry(out: &mut String, depth: usize, items: &Items) {
    comment(out, depth, &format!("Keys of a {}:", items.what));
    for field in items.fields {
        let default = match (field.required, field.default) {
            (true, _) => " Needed.".to_owned(),
            (false, "") => String::new(),
            (false, default) => format!(" Left out: {default}."),
        };
        let (name, values) = (field.name, field.kind.expected());
        let text = format!("{name}: {} Values: {values}.{default}", field.doc);
        comment(out, depth, &text);
    }
    comment(out, depth, "For example:");
    for line in items.example.lines() {
        out.push_str(&format!("{}# {line}\n", indent(depth)));
    }
}

/// Unit, range and when a change counts, in one sentence each.
fn facts<C: Configuration>(key: &Key<C>) -> String {
    let mut facts = String::new();
    if !key.unit.is_empty() {
        facts.push_str(&format!("Unit: {}. ", key.unit));
    }
    facts.push_str(&format!("Values: {}.", key.kind.expected()));
    match key.reload {
        Reload::Live => facts.push_str(" In force: at a reload."),
        Reload::Restart => facts.push_str(" In force: at the next start."),
    }
    facts
}

fn indent(depth: usize) -> String {
    "  ".repeat(depth)
}

fn comment(out: &mut String, depth: usize, text: &str) {
    let lead = indent(depth) + "#";
    let mut line = lead.clone();
    for word in text.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            out.push_str(&line);
            out.push('\n');
            line = lead.clone();
        }
        line.push(' ');
        line.push_str(word);
    }
    out.push_str(&line);
    out.push('\n');
}
