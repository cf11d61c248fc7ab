//! An incident as Markdown, for a post-mortem, and as one page that needs no collector.
//!
//! Names and notes are other people's text. In Markdown they stand in code, where nothing is a
//! link, a mention or markup; in the page they are escaped, pictures are images without scripts,
//! and its policy allows nothing else.

use data_encoding::BASE64;
use profile::text::{markup, printable};
use proto::collector::{Incident, IncidentEntry, IncidentEntryKind, IncidentState};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// An incident with its timeline, as somebody may see it.
pub struct Told {
    /// The incident.
    pub incident: Incident,
    /// Its timeline, oldest first.
    pub entries: Vec<IncidentEntry>,
}

/// What a bundle shows of a piece of evidence.
pub struct Picture {
    /// Which evidence.
    pub id: u64,
    /// Which side: `at the time` or `baseline`.
    pub side: &'static str,
    /// A flame graph.
    pub svg: Vec<u8>,
    /// The functions with the most CPU time of their own: name, and percent.
    pub top: Vec<(String, f64)>,
}

/// The state in words.
fn state(of: IncidentState) -> &'static str {
    match of {
        IncidentState::Acknowledged => "acknowledged",
        IncidentState::Closed => "closed",
        _ => "open",
    }
}

fn kind(of: IncidentEntryKind) -> &'static str {
    match of {
        IncidentEntryKind::Note => "note",
        IncidentEntryKind::State => "state",
        IncidentEntryKind::Alert => "alert",
        IncidentEntryKind::View => "view",
        IncidentEntryKind::Diff => "comparison",
        IncidentEntryKind::Pin => "pin",
        IncidentEntryKind::Capture => "capture",
        IncidentEntryKind::Unspecified => "entry",
    }
}

fn when(unix_ns: i64) -> String {
    let seconds = unix_ns.div_euclid(1_000_000_000);
    let time = OffsetDateTime::from_unix_timestamp(seconds).ok();
    let text = time.and_then(|time| time.format(&Rfc3339).ok());
    text.unwrap_or_default()
}

/// A name in code.
fn code(text: &str) -> String {
    let text = printable(text).replace(['\n', '\r'], " ").replace('`', "'");
    // An empty span is no span.
    match text.trim() {
        "" => "` `".to_owned(),
        text => format!("`{text}`"),
    }
}

/// Facts of an incident: name and value.
fn facts(told: &Told) -> Vec<(&'static str, String)> {
    let of = &told.incident;
    let labels: BTreeMap<&String, &String> = of.labels.iter().collect();
    let labels: Vec<String> = labels
        .into_iter()
        .map(|(n, v)| format!("{n}={v}"))
        .collect();
    let by = |unix_ns: i64, by: &str| match unix_ns {
        0 => String::new(),
        unix_ns => format!("{} by {by}", when(unix_ns)),
    };
    let all = [
        ("State", state(of.state()).to_owned()),
        ("Opened", by(of.opened_unix_ns, &of.opened_by)),
        (
            "Acknowledged",
            by(of.acknowledged_unix_ns, &of.acknowledged_by),
        ),
        ("Closed", by(of.closed_unix_ns, &of.closed_by)),
        ("Source", of.source.clone()),
        ("About", labels.join(" ")),
        ("Hosts", of.hosts.join(" ")),
    ];
    all.into_iter()
        .filter(|(_, value)| !value.is_empty())
        .collect()
}

/// What an entry keeps, in words.
fn kept(entry: &IncidentEntry) -> String {
    let Some(evidence) = &entry.evidence else {
        return String::new();
    };
    let range = |of: Option<proto::agent::TimeRange>| {
        let of = of.unwrap_or_default();
        format!("{} to {}", when(of.start_unix_ns), when(of.end_unix_ns))
    };
    let title = match evidence.title.as_str() {
        "" => "the complete fleet",
        title => title,
    };
    let mut text = format!("{title}, {}", range(evidence.range));
    if evidence.baseline.is_some() {
        text += &format!(", against {}", range(evidence.baseline));
    }
    text + &format!(", {} samples", evidence.samples)
}

/// As Markdown.
pub fn markdown(told: &Told, page: &str) -> String {
    let mut out = String::new();
    let of = &told.incident;
    let _ = writeln!(out, "# Incident {}: {}\n", of.id, code(&of.title));
    for (name, value) in facts(told) {
        let _ = writeln!(out, "- {name}: {}", code(&value));
    }
    let _ = writeln!(out, "- Page: <{page}/#view=incidents&incident={}>\n", of.id);
    let _ = writeln!(out, "## Timeline\n");
    for entry in &told.entries {
        let (time, by) = (when(entry.at_unix_ns), code(&entry.by));
        let _ = writeln!(out, "- {time} **{}** by {by}", kind(entry.kind()));
        let kept = kept(entry);
        if !kept.is_empty() {
            let _ = writeln!(out, "  {}", code(&kept));
        }
        if !entry.text.is_empty() {
            // A block of code, four deep below the item: no line of it is markup.
            let _ = writeln!(out);
            for line in entry.text.lines() {
                let _ = writeln!(out, "      {}", printable(line));
            }
        }
        let _ = writeln!(out);
    }
    out
}

const STYLE: &str = "\
:root{color-scheme:light dark}body{font:15px/1.45 system-ui,sans-serif;max-width:60rem;margin:0 auto;\
padding:1rem}h1{font-size:1.3rem;overflow-wrap:anywhere}dl{display:grid;grid-template-columns:auto 1fr;\
gap:.2rem 1rem}dt{opacity:.7}dd{margin:0;overflow-wrap:anywhere}ol{list-style:none;padding:0}\
li{border-left:3px solid #8888;padding:.2rem 0 .6rem .8rem}li>p{margin:.2rem 0;overflow-wrap:anywhere}\
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.3rem 0;font:inherit}.soft{opacity:.7}\
img{max-width:100%;background:#fff}table{border-collapse:collapse}td{padding:.1rem .6rem .1rem 0;\
overflow-wrap:anywhere}td:first-child{text-align:right;white-space:nowrap}";

/// As one page.
pub fn html(told: &Told, pictures: &[Picture]) -> Vec<u8> {
    let text = |text: &str| markup(&printable(text));
    let of = &told.incident;
    let mut out = String::new();
    let _ = write!(
        out,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\"><title>Incident \
         {id}: {title}</title><style>{STYLE}</style><h1>Incident {id}: {title}</h1><dl>",
        id = of.id,
        title = text(&of.title)
    );
    for (name, value) in facts(told) {
        let _ = write!(out, "<dt>{name}<dd>{}", text(&value));
    }
    out += "</dl><h2>Timeline</h2><ol>";
    for entry in &told.entries {
        let _ = write!(
            out,
            "<li><p><b>{}</b> <span class=\"soft\">{} by {}</span>",
            kind(entry.kind()),
            when(entry.at_unix_ns),
            text(&entry.by)
        );
        if !entry.text.is_empty() {
            let lines: Vec<String> = entry.text.lines().map(&text).collect();
            let _ = write!(out, "<pre>{}</pre>", lines.join("\n"));
        }
        let kept = kept(entry);
        if !kept.is_empty() {
            let _ = write!(out, "<p>{}", text(&kept));
        }
        let id = entry.evidence.as_ref().map_or(0, |evidence| evidence.id);
        for picture in pictures.iter().filter(|one| one.id == id && id != 0) {
            let _ = write!(
                out,
                "<p class=\"soft\">{}<p><img alt=\"Flame graph\" src=\"data:image/svg+xml;base64,{}\">",
                picture.side,
                BASE64.encode(&picture.svg)
            );
            out += "<table>";
            for (name, percent) in &picture.top {
                let _ = write!(out, "<tr><td>{percent:.1} %<td>{}", text(name));
            }
            out += "</table>";
        }
        out += "</li>";
    }
    out += "</ol></html>\n";
    out.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::collector::IncidentEvidence;

    const HOSTILE: &str = "<script>alert(1)</script> [x](javascript:alert(1)) `y` @all\n# z";

    fn told() -> Told {
        Told {
            incident: Incident {
                id: 7,
                title: HOSTILE.to_owned(),
                labels: [("unit".to_owned(), HOSTILE.to_owned())].into(),
                hosts: vec![HOSTILE.to_owned()],
                opened_unix_ns: 1_700_000_000_000_000_000,
                opened_by: HOSTILE.to_owned(),
                ..Incident::default()
            },
            entries: vec![IncidentEntry {
                by: HOSTILE.to_owned(),
                text: HOSTILE.to_owned(),
                kind: IncidentEntryKind::View as i32,
                evidence: Some(IncidentEvidence {
                    id: 3,
                    title: HOSTILE.to_owned(),
                    ..IncidentEvidence::default()
                }),
                ..IncidentEntry::default()
            }],
        }
    }

    #[test]
    fn text_of_others_is_code_in_markdown() {
        let text = markdown(&told(), "https://p.example");
        for line in text.lines() {
            if line.starts_with("      ") {
                continue;
            }
            // What is outside of code has nothing of it.
            let outside: String = line.split('`').step_by(2).collect();
            for word in ["<script", "javascript:", "@all"] {
                assert!(!outside.contains(word), "{line}");
            }
        }
        assert!(text.contains("      # z"), "{text}");
        assert!(!text.contains("\n# z"), "{text}");
    }

    #[test]
    fn text_of_others_is_text_in_a_bundle() {
        let picture = Picture {
            id: 3,
            side: "now",
            svg: b"<svg onload=\"alert(1)\"/>".to_vec(),
            top: vec![(HOSTILE.to_owned(), 12.5)],
        };
        let page = String::from_utf8(html(&told(), &[picture])).expect("text");
        assert!(
            !page.contains("<script") && !page.contains("onload"),
            "{page}"
        );
        assert!(page.contains("default-src 'none'") && page.contains("12.5 %"));
    }
}
