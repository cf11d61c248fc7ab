//! A headless Chromium that opens one page: a local file, or one of a server on loopback.

use crate::process::{Output, program, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Longest for one page, on a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Names of Chromium: first the one without a window, which takes half as long.
const NAMES: [&str; 4] = [
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
];

/// Where Chromium is, under any of its names.
pub fn chromium() -> Option<PathBuf> {
    NAMES.iter().find_map(|name| program(name))
}

fn open(page: &str, args: &[&str]) -> Output {
    let profile = tempfile::tempdir().expect("failed to make a directory");
    let mut command = Command::new(chromium().expect("chromium was asked for before"));
    // Root may not use the sandbox; the page is our own output.
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
    ]);
    command.args([
        "--window-size=1200,800",
        "--no-first-run",
        "--disable-background-networking",
    ]);
    command
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(args);
    command.arg(page);
    run(&mut command, LIMIT).ok()
}

/// Longest for a file of the page's own tests.
const PAGE_LIMIT: Duration = Duration::from_secs(240);

/// The page's sources.
fn ui() -> PathBuf {
    crate::repository::root().join("collector/ui")
}

/// What is missing for [`page_test`], if anything.
pub fn missing() -> Option<&'static str> {
    if !ui().join("node_modules/vitest").is_dir() {
        Some("needs the page's packages: `npm ci` in collector/ui")
    } else if program("npx").is_none() {
        Some("needs npx")
    } else if std::env::var_os("CHROMIUM").is_none() && chromium().is_none() {
        Some("needs chromium")
    } else {
        None
    }
}

/// Runs a file of the page's own browser tests against a collector, and returns what it printed.
/// `story`: what it is to find, which it reads from the variable `STORY`.
///
/// # Panics
/// When a test of it fails, with what it printed.
pub fn page_test(file: &str, url: &str, story: &str) -> String {
    let mut command = Command::new("npx");
    command
        .args(["vitest", "run", "--config", "vitest.e2e.config.ts", file])
        .current_dir(ui())
        .env("BASE_URL", url)
        .env("STORY", story);
    run(&mut command, PAGE_LIMIT).ok().text()
}

fn url(page: &Path) -> String {
    format!("file://{}", page.display())
}

/// The document of a file after its scripts ran, as markup.
pub fn dom(page: &Path) -> String {
    dom_of(&url(page))
}

/// The document at an address after its scripts ran, as markup.
pub fn dom_of(page: &str) -> String {
    open(page, &["--virtual-time-budget=3000", "--dump-dom"]).text()
}

/// What a screenshot shows.
#[derive(Clone, Copy, Debug)]
pub struct Shot {
    /// Distinct colours.
    pub colours: usize,
    /// Share of pixels that have not the most frequent colour.
    pub drawn: f64,
}

/// Takes a screenshot into `file` and looks at it.
///
/// # Panics
/// When there is none or it cannot be read.
pub fn screenshot(page: &Path, file: &Path) -> Shot {
    screenshot_of(&url(page), file)
}

/// Takes a screenshot of the page at an address into `file` and looks at it.
///
/// # Panics
/// As [`screenshot`].
pub fn screenshot_of(page: &str, file: &Path) -> Shot {
    open(
        page,
        &[
            "--virtual-time-budget=3000",
            &format!("--screenshot={}", file.display()),
        ],
    );
    look(&std::fs::read(file).expect("no screenshot was written"))
}

fn look(image: &[u8]) -> Shot {
    let mut decoder = png::Decoder::new(std::io::Cursor::new(image));
    decoder.set_transformations(png::Transformations::EXPAND | png::Transformations::STRIP_16);
    let mut reader = decoder.read_info().expect("a PNG header");
    let mut pixels = vec![0; reader.output_buffer_size().expect("a size that fits")];
    let frame = reader.next_frame(&mut pixels).expect("a PNG image");
    let width = frame.color_type.samples();
    let mut colours = std::collections::HashMap::<&[u8], u64>::new();
    for pixel in pixels[..frame.buffer_size()].chunks_exact(width) {
        *colours.entry(pixel).or_default() += 1;
    }
    let total: u64 = colours.values().sum();
    let most = colours.values().max().copied().unwrap_or(0);
    Shot {
        colours: colours.len(),
        drawn: 1.0 - most as f64 / total.max(1) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blank_page_is_told_from_a_drawn_one() {
        if chromium().is_none() {
            crate::skip("needs chromium");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let shot = |name: &str, text: &str| {
            let page = dir.path().join(name);
            std::fs::write(&page, text).unwrap();
            (dom(&page), screenshot(&page, &dir.path().join("shot.png")))
        };
        let (_, blank) = shot("blank.html", "<html></html>");
        assert!(blank.colours == 1 && blank.drawn == 0.0, "{blank:?}");
        let drawn = "<script>document.title='set';document.write('<b>text</b>')</script>\
                     <div style='background:red;width:600px;height:400px'></div>";
        let (dom, drawn) = shot("drawn.html", drawn);
        assert!(
            dom.contains("<title>set</title>") && dom.contains("<b>text</b>"),
            "{dom}"
        );
        assert!(drawn.colours > 1 && drawn.drawn > 0.1, "{drawn:?}");
    }
}
