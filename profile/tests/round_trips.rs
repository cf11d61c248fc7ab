//! Tests that what is written is read back, and that damaged input is rejected.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failure"
)]

mod support;

use profile::formats::pprof::{self, DECODE_BYTES_MAX, DecodeError};
use profile::formats::{self, Annotations, Format, Import, ImportOptions, Known, Options, folded};
use profile::{
    FrameKind, FrameRef, Profile, Quality, Query, SampleKey, StackEnd, UnnamedReason, Value,
};
use proptest::prelude::*;
use std::io::Write;
use std::process::{Command, Stdio};
use support::{Sample, build, canonical, hostile, info, samples};

fn through_pprof(profile: &Profile) -> Profile {
    let mut bytes = Vec::new();
    pprof::write(profile, &mut bytes).unwrap();
    pprof::decode(&bytes, DECODE_BYTES_MAX).unwrap()
}

/// What text can carry: no labels, no modules, kinds that have an annotation.
fn as_text_can(samples: &[Sample]) -> Vec<Sample> {
    samples
        .iter()
        .map(|sample| Sample {
            labels: Vec::new(),
            end: StackEnd::Complete,
            frames: sample
                .frames
                .iter()
                .map(|(kind, function, _)| {
                    let kind = match kind {
                        FrameKind::Interpreted | FrameKind::Synthetic => FrameKind::Native,
                        kind => *kind,
                    };
                    (kind, function.clone(), String::new())
                })
                .collect(),
            ..*sample
        })
        .collect()
}

fn folded_text(profile: &Profile) -> String {
    let options = Options {
        annotations: Annotations::ALL,
        ..Options::default()
    };
    let mut out = Vec::new();
    folded::write(profile, &options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// A profile of one stack with an unnamed leaf, and one with cut callers.
fn degraded() -> Profile {
    let mut profile = Profile {
        info: info(),
        ..Profile::default()
    };
    for (reason, end) in [
        (UnnamedReason::NoSymbols, StackEnd::Complete),
        (UnnamedReason::FileGone, StackEnd::Complete),
        (UnnamedReason::No, StackEnd::Unmapped),
    ] {
        let frames = [UnnamedReason::No, reason].map(|unnamed| {
            profile.dict.intern_frame(FrameRef {
                function: if unnamed == UnnamedReason::No {
                    "main"
                } else {
                    "[app]"
                },
                module: "app",
                unnamed,
                ..FrameRef::default()
            })
        });
        let key = SampleKey {
            labels: Default::default(),
            stack: profile.dict.stacks.intern(frames),
            end,
        };
        let value = Value {
            count: 2,
            weight: 20,
        };
        profile.add(key, value);
    }
    profile.query(&Query::default())
}

fn imported(profile: &Profile, format: Format) -> Import {
    let mut bytes = Vec::new();
    formats::write(profile, format, &Options::default(), &mut bytes).unwrap();
    let options = ImportOptions {
        bytes_max: 1 << 20,
        profile: None,
    };
    formats::import(&bytes, options).unwrap().0
}

#[test]
fn why_a_frame_has_no_symbol_comes_back_from_pprof() {
    let profile = degraded();
    assert_eq!(profile.info.quality.unnamed, 4);
    let back = through_pprof(&profile);
    let reasons = |profile: &Profile| {
        let mut found: Vec<UnnamedReason> = profile
            .samples
            .keys()
            .filter_map(|key| profile.dict.stacks.leaf_first(key.stack).next())
            .map(|frame| profile.dict.frame(frame).unnamed)
            .collect();
        found.sort_unstable();
        found
    };
    assert_eq!(reasons(&back), reasons(&profile));
    // A query of the file read back counts the same.
    assert_eq!(back.query(&Query::default()).info.quality.unnamed, 4);
}

#[test]
fn a_file_says_what_it_knows_of_its_quality() {
    let profile = degraded();
    for (format, known) in [
        (Format::Json, Known::ALL),
        (Format::Pprof, Known::ALL),
        (Format::Html, Known::ALL),
        (Format::Bundle, Known::ALL),
        (
            Format::Speedscope,
            Known {
                lost: false,
                ..Known::ALL
            },
        ),
        (
            Format::PerfScript,
            Known {
                unnamed: true,
                ..Known::SAMPLES
            },
        ),
        (Format::Folded, Known::default()),
    ] {
        let Import {
            profile: back,
            known: found,
            ..
        } = imported(&profile, format);
        assert_eq!(found, known, "{format}");
        assert_eq!(back.total().count, profile.total().count, "{format}");
        let (asked, told) = (profile.info.quality, back.info.quality);
        if known.truncated || format == Format::Folded {
            assert_eq!(told.truncated, asked.truncated, "{format}");
        }
        if known.unnamed {
            assert_eq!(told.unnamed, asked.unnamed, "{format}");
        }
    }
}

#[test]
fn a_page_gives_back_its_stacks() {
    let profile = hostile();
    let page = imported(&profile, Format::Html).profile;
    // As stacks of text: a page has labels and marks as frames.
    assert_eq!(folded_text(&page).lines().count(), {
        let plain = Options::default();
        let mut out = Vec::new();
        folded::write(&profile, &plain, &mut out).unwrap();
        String::from_utf8(out).unwrap().lines().count()
    });
    assert_eq!(page.total(), profile.total());
    for damage in ["\"depth\":[0,9", "\"depth\":[0,1,1,1,1,1,1,1"] {
        let mut bytes = Vec::new();
        formats::write(&profile, Format::Html, &Options::default(), &mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let (begin, _) = text.split_once("\"depth\":[").unwrap();
        let cut = format!("{begin}{damage}]}}</script>");
        assert!(formats::html::read(cut.as_bytes()).is_err());
    }
}

#[test]
fn a_page_keeps_weights_of_64_bits() {
    let mut profile = hostile();
    // The last digit is beyond what a number of JavaScript holds.
    for (value, weight) in profile.samples.values_mut().zip((1 << 53) + 1..) {
        value.weight = weight;
    }
    let page = imported(&profile, Format::Html).profile;
    assert_eq!(page.total(), profile.total());
}

#[test]
fn hostile_names_come_back_from_pprof() {
    let profile = hostile();
    let back = through_pprof(&profile);
    assert_eq!(canonical(&back), canonical(&profile));
    assert_eq!(back.info, profile.info);
}

#[test]
fn a_unit_with_the_name_of_the_count_comes_back_from_pprof() {
    let mut profile = hostile();
    for unit in ["samples", "count", "weight", "cpu"] {
        profile.info.unit = unit.to_owned();
        let back = through_pprof(&profile);
        assert_eq!(canonical(&back), canonical(&profile), "{unit}");
        assert_eq!(back.info, profile.info);
    }
}

proptest! {
    #[test]
    fn pprof_comes_back(samples in samples()) {
        let profile = build(&samples);
        let back = through_pprof(&profile);
        prop_assert_eq!(canonical(&back), canonical(&profile));
        prop_assert_eq!(back.info, profile.info);
    }

    #[test]
    fn folded_comes_back(samples in samples()) {
        let profile = build(&as_text_can(&samples));
        let text = folded_text(&profile);
        let back = folded::read(&text, info()).unwrap();
        prop_assert_eq!(canonical(&back), canonical(&profile), "{}", text);
        prop_assert_eq!(folded_text(&back), text);
    }

    #[test]
    fn any_text_is_folded_or_refused(text in any::<String>()) {
        let _ = folded::read(&text, info());
    }

    #[test]
    fn damaged_pprof_does_not_panic(samples in samples(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut packed = Vec::new();
        pprof::write(&build(&samples), &mut packed).unwrap();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(packed.as_slice()), &mut bytes).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = to;
        let _ = pprof::decode(&bytes, DECODE_BYTES_MAX);
    }
}

#[test]
fn pprof_keeps_every_field_of_the_quality() {
    let numbers = std::array::from_fn(|at| u64::MAX - at as u64);
    let mut profile = Profile::default();
    profile.info.quality = Quality::of_numbers(numbers);
    let mut bytes = Vec::new();
    pprof::write(&profile, &mut bytes).unwrap();
    let back = pprof::decode(&bytes, DECODE_BYTES_MAX).unwrap();
    assert_eq!(back.info.quality.numbers(), numbers);
}

#[test]
fn folded_of_other_tools_is_read() {
    let text = "# a comment\nswapper;[unknown];do_idle_[k] 3\r\n\nApp\\Kernel;f 1.5\n";
    let back = folded::read(text, info()).unwrap();
    assert_eq!(
        support::short(&back),
        [" App\\Kernel;f 1", " swapper;[unknown];do_idle 3"]
    );
    assert_eq!(back.info.quality.taken, 4);
}

#[test]
fn folded_errors_name_the_line() {
    let error = |text: &str| folded::read(text, info()).err().unwrap().to_string();
    insta::assert_snapshot!(error("a;b 1\na;b\n"), @"failed to read folded stacks: line 2 does not end in a count");
    insta::assert_snapshot!(error("a;b -1\n"), @"failed to read folded stacks: line 1 does not end in a count");
    let deep = format!("{} 1", "a;".repeat(folded::STACK_FRAMES_MAX));
    insta::assert_snapshot!(error(&deep), @"failed to read folded stacks: line 1 has more than 8192 frames");
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

#[test]
fn a_gzip_bomb_is_refused() {
    let bomb = gzip(&vec![0; 10 << 20]);
    assert!(bomb.len() < 20_000);
    let error = pprof::decode(&bomb, 1 << 20).err().unwrap();
    assert!(
        matches!(error, DecodeError::TooLarge { limit } if limit == 1 << 20),
        "{error}"
    );
}

#[test]
fn a_bomb_of_inlined_frames_is_refused() {
    // One location of 5,000 lines, named twice by each stack: 10,000 frames from a few bytes.
    let mut bytes = vec![0x0a, 0x00, 0x2a, 0x02, 0x08, 0x01];
    let mut location = vec![0x08, 0x01];
    for _ in 0..5000 {
        location.extend([0x22, 0x02, 0x08, 0x01]);
    }
    bytes.push(0x22);
    bytes.extend([
        (location.len() & 0x7f) as u8 | 0x80,
        (location.len() >> 7 & 0x7f) as u8 | 0x80,
        (location.len() >> 14) as u8,
    ]);
    bytes.extend(location);
    bytes.extend([0x12, 0x07, 0x0a, 0x02, 0x01, 0x01, 0x12, 0x01, 0x01]);
    let error = pprof::decode(&bytes, DECODE_BYTES_MAX).err().unwrap();
    assert!(
        matches!(error, DecodeError::TooManyFrames { sample: 0 }),
        "{error}"
    );
}

#[test]
fn dangling_ids_are_refused() {
    for (bytes, expected) in [
        (
            &[][..],
            "failed to decode pprof: there is no sample type `0`",
        ),
        (
            &[0x0a, 0x02, 0x08, 0x05][..],
            "failed to decode pprof: there is no string `5`",
        ),
        (
            &[0x0a, 0x00, 0x12, 0x06, 0x0a, 0x01, 0x09, 0x12, 0x01, 0x01][..],
            "failed to decode pprof: there is no location `9`",
        ),
        (
            &[0x0a, 0x00, 0x12, 0x00][..],
            "failed to decode pprof: sample 0 has another number of values than there are types",
        ),
        (&[0xff][..], "failed to decode pprof"),
    ] {
        assert_eq!(
            pprof::decode(bytes, DECODE_BYTES_MAX)
                .err()
                .unwrap()
                .to_string(),
            expected
        );
    }
}

/// Needs `go` on the PATH; says so and passes nothing when it is not there.
#[test]
fn go_tool_pprof_reads_it() {
    if Command::new("go")
        .arg("version")
        .stdout(Stdio::null())
        .status()
        .is_err()
    {
        testkit::skip("go_tool_pprof_reads_it needs `go` on the PATH");
        return;
    }
    let dir = std::env::temp_dir().join(format!("fleetprof-pprof-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("profile.pb.gz");
    let mut file = std::fs::File::create(&path).unwrap();
    pprof::write(&hostile(), &mut file).unwrap();
    drop(file);
    let run = |args: &[&str]| {
        let out = Command::new("go")
            .args(["tool", "pprof"])
            .args(args)
            .arg(&path)
            .env("PPROF_TMPDIR", &dir)
            .env("HOME", &dir)
            .output()
            .unwrap();
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        let errors = String::from_utf8_lossy(&out.stderr).into_owned();
        (String::from_utf8(out.stdout).unwrap(), errors)
    };
    let (top, errors) = run(&["-top", "-sample_index=samples"]);
    let (tags, _) = run(&["-tags"]);
    let (comments, _) = run(&["-comments"]);
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(top.contains("of 41 total"), "{top}");
    let row = |function: &str| {
        top.lines()
            .find(|line| line.ends_with(function))
            .unwrap_or_else(|| panic!("{top}"))
    };
    assert!(row(" nft_do_chain").trim_start().starts_with("5 "), "{top}");
    // 38 of 41: all but the cut stack and the lost sample.
    assert!(row(" main").contains(" 38 "), "{top}");
    assert!(top.contains("fast_copy (inline)"), "{top}");
    assert!(
        tags.contains("stack_end: Total") && tags.contains("depth_limit"),
        "{tags}"
    );
    assert!(comments.contains("41 samples of cpu-clock"), "{comments}");
    assert!(
        !errors.contains("rror") && !errors.contains("not available"),
        "{errors}"
    );
}
