//! Formats on a synthetic profile of realistic size, and reading it back.

use super::Lines;
use super::folding::SAMPLES;
use super::recording::rows;
use super::synthetic::Synthetic;
use profile::formats::{self, Format, Options};
use profile::{Info, Profile};

/// Every format that is written, and those that are read.
pub fn measure(lines: &mut Lines) -> anyhow::Result<()> {
    let synthetic = Synthetic::new(SAMPLES);
    let mut profile = Profile::default();
    profile.info.unit = "nanoseconds".to_owned();
    for (key, value) in rows(&synthetic, &mut profile.dict) {
        profile.add(key, value);
    }
    let rows = profile.samples.len() as u64;
    let options = Options::default();
    let mut sizes = Vec::new();
    for format in Format::ALL {
        let mut out = Vec::new();
        formats::write(&profile, format, &options, &mut out)?;
        sizes.push(format!("{format} {}", out.len()));
        lines.run(&format!("write {format}"), "row", rows, || {
            out.clear();
            formats::write(&profile, format, &options, &mut out)
        });
    }
    let mut folded = Vec::new();
    formats::write(&profile, Format::Folded, &options, &mut folded)?;
    let folded = String::from_utf8(folded)?;
    lines.run("read folded", "row", rows, || {
        formats::folded::read(&folded, Info::default())
    });
    let mut packed = Vec::new();
    formats::write(&profile, Format::Pprof, &options, &mut packed)?;
    lines.run("read pprof", "row", rows, || {
        formats::pprof::decode(&packed, u64::MAX)
    });
    lines.note(format!("formats: {rows} rows; bytes: {}", sizes.join(", ")));
    Ok(())
}
