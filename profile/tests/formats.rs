//! Tests every format of a profile full of hostile names, with goldens.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failure"
)]

mod support;

use profile::formats::{self, Annotations, Format, Measure, Options, folded, svg};
use profile::text::is_hostile;
use profile::{
    Diff, FrameKind, FrameRef, GroupBy, LabelSetId, Profile, Query, SampleKey, StackEnd, StackId,
    Value,
};
use support::{from_lines, hostile};

fn bytes(profile: &Profile, format: Format, options: &Options) -> Vec<u8> {
    let mut out = Vec::new();
    formats::write(profile, format, options, &mut out).unwrap();
    out
}

fn text(profile: &Profile, format: Format, options: &Options) -> String {
    String::from_utf8(bytes(profile, format, options)).unwrap()
}

fn no_hostile_character(text: &str) {
    let found = text
        .chars()
        .find(|&found| is_hostile(found) && found != '\n');
    assert_eq!(found, None);
}

#[test]
fn folded_golden() {
    let options = Options {
        annotations: Annotations::ALL,
        root_labels: vec!["comm".into(), "unit".into()],
        ..Options::default()
    };
    let text = text(&hostile(), Format::Folded, &options);
    no_hostile_character(&text);
    insta::assert_snapshot!(text, @r#"
</title>\:\x1b]0\:x\x07;[lost] 1
app;[no unit];[truncated];deep 2
app;[no unit];main;</script><!-- 3
app;[no unit];main;<script>alert(1)</script> 3
app;[no unit];main;\u{202e}gpj.exe 3
app;[no unit];main;\x1b[31mred 3
app;[no unit];main;]]>&amp\:"' 3
app;[no unit];main;back\\slash 3
app;[no unit];main;count\x2012 3
app;[no unit];main;fake_\x5bk] 3
app;[no unit];main;line\u{2028}separator 3
app;[no unit];main;new\nline 3
app;[no unit];main;run.py;handle_[j];copy;fast_copy_[i];do_syscall_64_[k];nft_do_chain_[k] 5
app;[no unit];main;semi\:colon 3
"#);
}

#[test]
fn as_many_samples_are_truncated_as_stand_under_its_frame() {
    let mut profile = from_lines("- main;f 1");
    let (mut key, value) = profile.sorted()[0];
    for &end in StackEnd::ALL {
        key.end = end;
        profile.samples.insert(key, value);
    }
    let profile = profile.query(&Query::default());
    let folded = text(&profile, Format::Folded, &Options::default());
    let quality = profile.info.quality;
    let expected = format!("[truncated];main;f {}", quality.truncated);
    assert!(folded.lines().any(|line| line == expected), "{folded}");
    let cut = StackEnd::ALL.iter().filter(|end| end.is_truncated());
    let cut = cut.count() as u64;
    assert!(cut > 1);
    assert_eq!((quality.truncated, quality.depth_limit), (cut, 1));
}

/// A sample of a process, one of a task without a name, and what was lost of the cgroup of both.
fn with_lost() -> Profile {
    let mut profile = from_lines("cgroup=/a,comm=app main;f 3\ncgroup=/a main;g 2");
    let cgroup = profile.dict.intern_labels([("cgroup", "/a")]);
    let lost = profile.dict.intern_frame(FrameRef {
        kind: FrameKind::Synthetic,
        function: "[lost]",
        ..FrameRef::default()
    });
    let key = SampleKey {
        labels: cgroup,
        stack: profile.dict.stacks.intern([lost]),
        end: StackEnd::Lost,
    };
    let (count, weight) = (1, 10_000_000);
    profile.add(key, Value { count, weight });
    profile
}

#[test]
fn what_was_lost_has_no_frame_for_labels_that_it_cannot_have() {
    let by = |labels: &[&str]| {
        let root_labels = labels.iter().map(|&label| label.to_owned()).collect();
        let options = Options {
            root_labels,
            ..Options::default()
        };
        text(&with_lost(), Format::Folded, &options)
    };
    insta::assert_snapshot!(by(&["comm"]), @r"
[lost] 1
[no comm];main;g 2
app;main;f 3
");
    insta::assert_snapshot!(by(&["cgroup", "comm"]), @r"
/a;[lost] 1
/a;[no comm];main;g 2
/a;app;main;f 3
");
}

#[test]
fn what_was_lost_is_a_speedscope_profile_of_its_own_name() {
    let options = Options {
        split_by: Some("comm".into()),
        ..Options::default()
    };
    let text = text(&with_lost(), Format::Speedscope, &options);
    let file: serde_json::Value = serde_json::from_str(&text).unwrap();
    let profiles = file["profiles"].as_array().unwrap();
    let names: Vec<_> = profiles.iter().map(|found| &found["name"]).collect();
    assert_eq!(names, ["app", "[no comm]", "[lost]"]);
}

#[test]
fn folded_is_plain_when_nothing_is_asked() {
    let profile = from_lines("comm=a main;sys_read@kernel 2\ncomm=b main;f@jit 3\ncomm=a main;f 4");
    let weight = Options {
        measure: Measure::Weight,
        ..Options::default()
    };
    assert_eq!(
        text(&profile, Format::Folded, &Options::default()),
        "main;f 7\nmain;sys_read 2\n"
    );
    assert_eq!(
        text(&profile, Format::Folded, &weight),
        "main;f 70000000\nmain;sys_read 20000000\n"
    );
}

#[test]
fn functions_are_told_apart_by_line_where_that_is_wanted() {
    let mut profile = Profile::default();
    for (file, line) in [("/src/a.c", 7), ("/src/a.c", 9), ("", 0)] {
        let frame = profile.dict.intern_frame(FrameRef {
            function: "hot",
            file,
            line,
            ..FrameRef::default()
        });
        let key = SampleKey {
            labels: LabelSetId::default(),
            stack: profile.dict.stacks.child(StackId::EMPTY, frame),
            end: StackEnd::Complete,
        };
        let value = Value {
            count: 1,
            weight: 1,
        };
        profile.add(key, value);
    }
    let options = |lines| Options {
        lines,
        ..Options::default()
    };
    let folded = |lines| text(&profile, Format::Folded, &options(lines));
    assert_eq!(folded(false), "hot 3\n");
    assert_eq!(folded(true), "hot 1\nhot a.c:7 1\nhot a.c:9 1\n");
    for format in [Format::Svg, Format::Html] {
        assert!(text(&profile, format, &options(true)).contains("hot a.c:7"));
        assert!(!text(&profile, format, &options(false)).contains("a.c:7"));
    }
}

#[test]
fn differential_folded_has_both_counts() {
    let before = from_lines("- main;old 10\n- main;same 30");
    let after = from_lines("- main;new 5\n- main;same 15");
    let diff = Diff::new(&before, &after, &GroupBy::All).unwrap();
    let text = |normalise| {
        let mut out = Vec::new();
        folded::write_diff(&diff, normalise, &Options::default(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert_eq!(
        text(false),
        "main;new 0 5\nmain;old 10 0\nmain;same 30 15\n"
    );
    assert_eq!(text(true), "main;new 0 5\nmain;old 5 0\nmain;same 15 15\n");
}

#[test]
fn json_golden() {
    let text = text(&hostile(), Format::Json, &Options::default());
    no_hostile_character(&text);
    let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
    let functions: Vec<_> = parsed["frames"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f["function"].clone())
        .collect();
    assert!(
        functions.contains(&"\x1b[31mred".into()),
        "the text itself is unchanged"
    );
    insta::assert_snapshot!(text, @r#"
{"schema":"fleetprof.profile/1",
"info":{"start_unix_ns":1700000000000000000,"duration_ns":10000000000,"event":"cpu-clock","unit":"nanoseconds","period":10000000},
"quality":{"taken":41,"idle":0,"lost":1,"throttled":0,"folded":0,"truncated":2,"depth_limit":2,"unnamed":0,"malformed":0,"lost_samples":0,"reduced":0,"lost_late":0},
"coverage":{"expected_ns":0,"estimated_ns":0,"expected_samples":0,"taken_ns":0,"windows":0,"windows_unmeasured":0},
"total":{"count":41,"weight":410000000},
"frames":[
{"function":"\u001b[31mred","kind":"native","module":"app"},
{"function":"\u003c/script\u003e\u003c!--","kind":"native","module":"app"},
{"function":"\u003cscript\u003ealert(1)\u003c/script\u003e","kind":"native","module":"app"},
{"function":"[lost]","kind":"synthetic"},
{"function":"]]\u003e\u0026amp;\"'","kind":"native","module":"app"},
{"function":"back\\slash","kind":"native","module":"app"},
{"function":"copy","kind":"native","module":"libc.so.6"},
{"function":"count 12","kind":"native","module":"app"},
{"function":"deep","kind":"native","module":"app"},
{"function":"do_syscall_64","kind":"kernel","module":"[kernel]"},
{"function":"fake_[k]","kind":"native","module":"app"},
{"function":"fast_copy","kind":"inlined","module":"libc.so.6"},
{"function":"handle","kind":"jit"},
{"function":"line\u2028separator","kind":"native","module":"app"},
{"function":"main","kind":"native","module":"app"},
{"function":"new\nline","kind":"native","module":"app"},
{"function":"nft_do_chain","kind":"kernel","module":"nf_tables"},
{"function":"run.py","kind":"interpreted","system_name":"~run.py","module":"python3"},
{"function":"semi;colon","kind":"native","module":"app"},
{"function":"\u202egpj.exe","kind":"native","module":"app"}],
"samples":[
{"count":5,"weight":50000000,"labels":{"comm":"app","pid":"7"},"end":"complete","frames":[14,17,12,6,11,9,16]},
{"count":3,"weight":30000000,"labels":{"comm":"app","pid":"7"},"end":"complete","frames":[14,0]},
{"count":3,"weight":30000000,"labels":{"comm":"app","pid":"7"},"end":"complete","frames":[14,1]},
{"count":3,"weight":30000000,"labels":{"comm":"app","pid":"7"},"end":"complete","frames":[14,2]},
{"count":3,"weight":30000000,"labels":{"comm":"app","pid":"7"},"end":"complete","frames":[14,4]},
{"count":3,"weight":30000000,"labels":{"comm":"app","pid":"7"},"end":"complete","frames":[14,5]},
{"count":3,"weight":30000000,"labels":{"comm":"app","pid":"7"},"end":"complete","frames":[14,7]},
{"count":3,"weight":30000000,"labels":{"comm":"app","pid":"7"},"end":"complete","frames":[14,10]},
{"count":3,"weight":30000000,"labels":{"comm":"app","pid":"7"},"end":"complete","frames":[14,13]},
{"count":3,"weight":30000000,"labels":{"comm":"app","pid":"7"},"end":"complete","frames":[14,15]},
{"count":3,"weight":30000000,"labels":{"comm":"app","pid":"7"},"end":"complete","frames":[14,18]},
{"count":3,"weight":30000000,"labels":{"comm":"app","pid":"7"},"end":"complete","frames":[14,19]},
{"count":2,"weight":20000000,"labels":{"comm":"app","pid":"7"},"end":"depth_limit","frames":[8]},
{"count":1,"weight":10000000,"labels":{"comm":"\u003c/title\u003e;\u001b]0;x\u0007","pid":"7"},"end":"lost","frames":[3]}]}
"#);
}

#[test]
fn speedscope_golden() {
    let options = Options {
        split_by: Some("comm".into()),
        ..Options::default()
    };
    let text = text(&hostile(), Format::Speedscope, &options);
    no_hostile_character(&text);
    let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
    insta::assert_snapshot!(serde_json::to_string_pretty(&parsed["profiles"][1]).unwrap(), @r#"
{
  "endValue": 10000000,
  "fleetprofCounts": [
    1
  ],
  "name": "</title>;\\x1b]0;x\\x07",
  "samples": [
    [
      20
    ]
  ],
  "startValue": 0,
  "type": "sampled",
  "unit": "nanoseconds",
  "weights": [
    10000000
  ]
}
"#);
    insta::assert_snapshot!(parsed["shared"], @r#"
{"frames":[{"file":"app","name":"</script><!--"},{"file":"app","name":"<script>alert(1)</script>"},{"name":"[truncated]"},{"file":"app","name":"\\u{202e}gpj.exe"},{"file":"app","name":"\\x1b[31mred"},{"file":"app","name":"]]>&amp;\"'"},{"file":"app","name":"back\\slash"},{"file":"libc.so.6","name":"copy"},{"file":"app","name":"count 12"},{"file":"app","name":"deep"},{"file":"[kernel]","name":"do_syscall_64"},{"file":"app","name":"fake_[k]"},{"file":"libc.so.6","name":"fast_copy"},{"name":"handle"},{"file":"app","name":"line\\u{2028}separator"},{"file":"app","name":"main"},{"file":"app","name":"new\\x0aline"},{"file":"nf_tables","name":"nft_do_chain"},{"file":"python3","name":"run.py"},{"file":"app","name":"semi;colon"},{"name":"[lost]"}]}
"#);
    for profile in parsed["profiles"].as_array().unwrap() {
        let weights: u64 = profile["weights"]
            .as_array()
            .unwrap()
            .iter()
            .map(|w| w.as_u64().unwrap())
            .sum();
        assert_eq!(profile["endValue"], weights);
        assert_eq!(profile["unit"], "nanoseconds");
    }
}

/// What an SVG shows, without its script and style: a line for each element with text.
fn shown(svg: &str) -> String {
    let frames = &svg[svg.find("<rect x=\"0\"").unwrap_or(0)..];
    frames
        .split('<')
        .filter(|part| part.starts_with("title>") || part.starts_with("text "))
        .filter_map(|part| part.split_once('>'))
        .map(|(_, text)| text.trim())
        .filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn svg_golden() {
    let options = Options {
        title: "t </svg> & more".into(),
        ..Options::default()
    };
    let svg = text(&hostile(), Format::Svg, &options);
    no_hostile_character(&svg);
    assert!(!svg.contains("<script>alert") && svg.matches("</svg>").count() == 2);
    insta::assert_snapshot!(shown(&svg), @r"
t &lt;/svg&gt; &amp; more
41 samples of cpu-clock · 2023-11-14 22:13:20 – 22:13:30 UTC · 1 records lost · 4.9 % truncated (4.9 % by the depth limit) · 0 unnamed
Reset Zoom
Search
[lost] (1 samples, 2.44%)
[l..
[truncated] (2 samples, 4.88%)
[trunc..
deep (2 samples, 4.88%)
deep
&lt;/script&gt;&lt;!-- (3 samples, 7.32%)
&lt;/script&gt;&lt;..
&lt;script&gt;alert(1)&lt;/script&gt; (3 samples, 7.32%)
&lt;script&gt;al..
\u{202e}gpj.exe (3 samples, 7.32%)
\u{202e}gp..
\x1b[31mred (3 samples, 7.32%)
\x1b[31mred
]]&gt;&amp;amp\:&quot;&apos; (3 samples, 7.32%)
]]&gt;&amp;amp\:&quot;&apos;
back\\slash (3 samples, 7.32%)
back\\slash
count\x2012 (3 samples, 7.32%)
count\x2012
fake_\x5bk] (3 samples, 7.32%)
fake_\x5bk]
line\u{2028}separator (3 samples, 7.32%)
line\u{202..
new\nline (3 samples, 7.32%)
new\nline
run.py (5 samples, 12.20%)
run.py
handle (5 samples, 12.20%)
handle
copy (5 samples, 12.20%)
copy
fast_copy (5 samples, 12.20%)
fast_copy
do_syscall_64 (5 samples, 12.20%)
do_syscall_64
nft_do_chain (5 samples, 12.20%)
nft_do_chain
all (41 samples, 100%)
main (38 samples, 92.68%)
main
semi\:colon (3 samples, 7.32%)
semi\:colon
");
}

#[test]
fn svg_has_the_colours_of_the_page() {
    let svg = text(&hostile(), Format::Svg, &Options::default());
    let fill = |name: &str| {
        let frame = &svg[svg.find(&format!("<title>{name} (")).unwrap()..];
        let rgb = frame.split("fill=\"rgb(").nth(1).unwrap();
        let rgb = rgb.split(')').next().unwrap().split(',');
        let rgb: Vec<u8> = rgb.map(|part| part.trim().parse().unwrap()).collect();
        [rgb[0], rgb[1], rgb[2]]
    };
    let [red, green, blue] = fill("do_syscall_64");
    assert!(red > green && green > blue, "the kernel is warm");
    let [red, green, blue] = fill("handle");
    assert!(green > red && green > blue, "generated code is green");
    let [red, green, blue] = fill("run.py");
    assert!(blue > green && red > green, "interpreted code is violet");
    let [red, green, blue] = fill("main");
    assert!(blue > red && blue >= green, "native code is blue-grey");
}

#[test]
fn svg_is_the_same_each_time() {
    let options = Options {
        icicle: true,
        ..Options::default()
    };
    assert_eq!(
        text(&hostile(), Format::Svg, &options),
        text(&hostile(), Format::Svg, &options)
    );
}

#[test]
fn svg_of_a_diff_shows_what_grew() {
    let before = from_lines("- main;a 10\n- main;b 10");
    let after = from_lines("- main;a 30\n- main;b 10");
    let diff = Diff::new(&before, &after, &GroupBy::All).unwrap();
    let mut out = Vec::new();
    svg::write_diff(&diff, true, &Options::default(), &mut out).unwrap();
    let shown = shown(&String::from_utf8(out).unwrap());
    assert!(shown.contains("a (30 samples, 75.00%; +25.00%)"), "{shown}");
    assert!(shown.contains("b (10 samples, 25.00%; -25.00%)"), "{shown}");
}

#[test]
fn svg_keeps_equal_callers_together() {
    // In order of text `a b` stands between `a` and `a;x`, which would draw `a` twice.
    let profile = from_lines("- a 1\n- a;x 2");
    let mut other = from_lines("- a_b 4");
    let frame = other.dict.intern_frame(profile::FrameRef {
        function: "a b",
        ..profile::FrameRef::default()
    });
    let stack = other.dict.stacks.intern([frame]);
    let (&key, &value) = other.samples.iter().next().unwrap();
    other.samples.clear();
    other.add(profile::SampleKey { stack, ..key }, value);
    other.merge(&profile).unwrap();
    let shown = shown(&text(&other, Format::Svg, &Options::default()));
    assert_eq!(shown.matches("a (3 samples").count(), 1, "{shown}");
}

fn embedded(page: &str) -> &str {
    let begin = "<script type=\"application/json\" id=\"data\">";
    let data = &page[page.find(begin).unwrap() + begin.len()..];
    &data[..data.find("</script>").unwrap()]
}

#[test]
fn html_golden() {
    let options = Options {
        title: "</title><script>alert(1)</script>".into(),
        root_labels: vec!["comm".into()],
        ..Options::default()
    };
    let page = text(&hostile(), Format::Html, &options);
    no_hostile_character(&page);
    assert_eq!(
        page.matches("<script").count(),
        2,
        "the data and the page's own script"
    );
    assert_eq!(page.matches("</script>").count(), 2);
    let data = embedded(&page);
    assert!(!data.contains(['<', '>', '&']));
    serde_json::from_str::<serde_json::Value>(data).unwrap();
    insta::assert_snapshot!(data.replace("],\"", "],\n\""), @r#"
{"unit":"nanoseconds","weighs":"CPU time","measure":0,"icicle":false,"kinds":["native","kernel","jit","interpreted","inlined","synthetic","label"],
"modules":["","[kernel]","app","libc.so.6","nf_tables","python3"],
"names":{"function":["","\u003c/script\u003e\u003c!--","\u003c/title\u003e;\\x1b]0;x\\x07","\u003cscript\u003ealert(1)\u003c/script\u003e","[lost]","[truncated]","\\u{202e}gpj.exe","\\x1b[31mred","]]\u003e\u0026amp;\"'","app","back\\slash","copy","count 12","deep","do_syscall_64","fake_[k]","fast_copy","handle","line\\u{2028}separator","main","new\\x0aline","nft_do_chain","run.py","semi;colon"],
"module":[0,2,0,2,0,0,2,2,2,0,2,3,2,2,1,2,3,0,2,2,2,4,5,2],
"kind":[0,0,6,0,5,5,0,0,0,6,0,0,0,0,1,0,4,2,0,0,0,1,3,0]},"nodes":{"depth":[0,1,2,1,2,3,2,3,3,3,3,3,3,3,3,3,3,3,4,5,6,7,8,3],
"name":[0,2,4,9,5,13,19,1,3,6,7,8,10,12,15,18,20,22,17,11,16,14,21,23],
"count":[0,0,1,0,0,2,0,3,3,3,3,3,3,3,3,3,3,0,0,0,0,0,5,3],
"weight":[0,0,10000000,0,0,20000000,0,30000000,30000000,30000000,30000000,30000000,30000000,30000000,30000000,30000000,30000000,0,0,0,0,0,50000000,30000000]},"about":{"start_unix_ns":1700000000000000000,"duration_ns":10000000000,"event":"cpu-clock","period":10000000,"missed":{"taken":41,"idle":0,"lost":1,"throttled":0,"folded":0,"truncated":2,"depth_limit":2,"unnamed":0,"malformed":0,"lost_samples":0,"reduced":0,"lost_late":0}}}
"#);
}

#[test]
fn html_asks_for_nothing_over_the_network() {
    let page = text(&hostile(), Format::Html, &Options::default());
    // What elements of XML are called is no address that is asked.
    let page = page.replace("http://www.w3.org/", "");
    for outside in [
        "http:",
        "https:",
        "@import",
        "url(",
        "fetch(",
        "XMLHttp",
        "WebSocket",
        "Worker(",
        " src=",
        "href=",
        "import(",
        "eval(",
        "Function(",
    ] {
        let at = page.find(outside);
        let found = at.map(|at| page.get(at.saturating_sub(40)..at + 40));
        assert!(found.is_none(), "{outside}: {found:?}");
    }
    assert!(page.contains("default-src 'none'"));
    assert!(
        !page.contains("'unsafe-"),
        "nothing runs but what was built"
    );
}

#[test]
fn html_has_its_title_and_quality_as_text() {
    let options = Options {
        title: "a < b & c".into(),
        ..Options::default()
    };
    let page = text(&hostile(), Format::Html, &options);
    for part in [
        "<title>a &lt; b &amp; c</title>",
        "<h1 id=\"title\">a &lt; b &amp; c</h1>",
        "<p id=\"quality\">41 samples of cpu-clock · 2023-11-14 22:13:20 – 22:13:30 UTC · 1 records lost",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("<!--fill:"), "a place was not filled");
}

#[test]
fn html_says_what_it_folded() {
    let lines: Vec<String> = (1..=50).map(|at| format!("- main;f{at} {at}")).collect();
    let options = Options {
        max_bars: 20,
        ..Options::default()
    };
    let page = text(&from_lines(&lines.join("\n")), Format::Html, &options);
    let data: serde_json::Value = serde_json::from_str(embedded(&page)).unwrap();
    assert!(page.contains("the 31 smallest bars are folded into [other]"));
    let total: u64 = data["nodes"]["count"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| n.as_u64().unwrap())
        .sum();
    assert_eq!(total, 50 * 51 / 2);
}

#[test]
fn an_empty_profile_has_every_format() {
    for format in Format::ALL {
        assert!(
            !bytes(&Profile::default(), format, &Options::default()).is_empty()
                || format == Format::Folded
        );
    }
    assert!(text(&Profile::default(), Format::Svg, &Options::default()).contains("no samples"));
}

#[test]
fn a_full_disk_is_an_error() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    for format in Format::ALL {
        assert!(
            formats::write(&hostile(), format, &Options::default(), &mut Full).is_err(),
            "{format}"
        );
    }
}

#[test]
fn a_total_that_readers_of_pprof_cannot_add_up_is_refused() {
    let mut profile = from_lines("- main;a 1\n- main;b 1");
    for value in profile.samples.values_mut() {
        value.weight = i64::MAX as u64;
    }
    let mut out = Vec::new();
    let written = formats::write(&profile, Format::Pprof, &Options::default(), &mut out);
    assert!(matches!(
        written,
        Err(formats::FormatError::TotalTooLarge { .. })
    ));
    assert!(out.is_empty());
}
