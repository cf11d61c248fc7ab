//! The facts that a bundle shows next to its pictures, as text of the page.

use crate::coverage::Coverage;
use crate::formats::Fact;
use crate::formats::summary::utc;
use crate::heatmap::{HeatMap, HeatMapError};
use crate::profile::Profile;
use crate::sample::{Quality, Waits};
use crate::text::grouped;
use crate::text::{markup, printable};
use std::fmt::Write as _;

/// Longest text of a fact. Unit: bytes; longer ones are cut, which shows.
const VALUE_BYTES_MAX: usize = 16 << 10;

/// Most facts from outside.
const FACTS_MAX: usize = 1_000;

/// The facts as HTML: what was given, then what the profile says of itself.
pub(super) fn html(
    profile: &Profile,
    map: &Result<HeatMap, HeatMapError>,
    folded: Option<&str>,
    given: &[Fact],
) -> String {
    let mut all: Vec<(&str, &str, String)> = Vec::new();
    for fact in given.iter().take(FACTS_MAX) {
        all.push((&fact.group, &fact.name, fact.value.clone()));
    }
    if given.len() > FACTS_MAX {
        let left = grouped((given.len() - FACTS_MAX) as u64);
        all.push(("Left out", "facts", left));
    }
    own(profile, map, folded, &mut all);
    let mut out =
        "<details id=\"facts\">\n<summary>Facts: query, host, what is missing</summary>\n"
            .to_owned();
    let mut open = "";
    for (group, name, value) in &all {
        if *group != open {
            if !open.is_empty() {
                out.push_str("</dl>\n");
            }
            let _ = writeln!(out, "<h2>{}</h2>\n<dl>", text(group));
            open = group;
        }
        let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", text(name), text(value));
    }
    if !open.is_empty() {
        out.push_str("</dl>\n");
    }
    out.push_str("</details>\n");
    out
}

fn own(
    profile: &Profile,
    map: &Result<HeatMap, HeatMapError>,
    folded: Option<&str>,
    all: &mut Vec<(&str, &str, String)>,
) {
    let (info, total) = (&profile.info, profile.total());
    let second = |ns: i64| format!("{} UTC", utc(ns.div_euclid(1_000_000_000)));
    let length = |ns: u64| format!("{:.3} s", ns as f64 * 1e-9);
    all.push(("Profile", "event", info.event.clone()));
    all.push(("Profile", "begin", second(info.start_unix_ns)));
    all.push(("Profile", "length", length(info.duration_ns)));
    all.push(("Profile", "samples", grouped(total.count)));
    let weight = format!("{} {}", grouped(total.weight), info.unit);
    all.push(("Profile", "weight", weight));
    match map {
        Ok(map) => {
            let timestamps = &profile.timestamps;
            all.push(("Times", "from", second(timestamps.start_unix_ns)));
            all.push(("Times", "length", length(timestamps.duration_ns)));
            all.push(("Times", "samples", grouped(map.total.count)));
            all.push(("Times", "not kept", grouped(map.dropped)));
        }
        Err(HeatMapError::NoTimes) => {
            let none = "not known: there is no heat map".to_owned();
            all.push(("Times", "of samples", none));
        }
        Err(error) => all.push(("Times", "no heat map", error.to_string())),
    }
    for (name, value) in Quality::FIELDS.iter().zip(info.quality.numbers()) {
        all.push(("Ledger: samples by cause", name, grouped(value)));
    }
    if info.waits != Waits::default() {
        for (name, value) in Waits::FIELDS.iter().zip(info.waits.numbers()) {
            all.push(("Waits", name, grouped(value)));
        }
        if !info.waits_cause.is_empty() {
            all.push(("Waits", "ends not seen", info.waits_cause.clone()));
        }
    }
    if let Some(share) = info.coverage.share() {
        let share = format!("{:.1} % of what the kernel accounts", share * 100.0);
        all.push(("Ledger: the kernel's accounting", "covered", share));
    }
    for (name, value) in Coverage::FIELDS.iter().zip(info.coverage.numbers()) {
        all.push(("Ledger: the kernel's accounting", name, grouped(value)));
    }
    if let Some(folded) = folded {
        all.push(("This file", "folded", folded.to_owned()));
    }
}

/// Text that is nothing but text in HTML.
fn text(text: &str) -> String {
    let text = printable(text);
    let end = text.floor_char_boundary(VALUE_BYTES_MAX);
    let cut = if end < text.len() { "…" } else { "" };
    format!("{}{cut}", markup(&text[..end]))
}
