//! The text report of a profile, `--format top`: which functions take the CPU, or who calls one of
//! them and what it calls.
//!
//! CPU time is shown in cores, the mean number of CPUs in use over the time that the profile
//! covers; time off the CPU and counted events are shown as they are. Functions are added up by
//! name and module. A tree has a function as its root; below it are its callers, or what it calls.
//! Samples in which it stands more than once count once, where it is outermost; a function that
//! calls itself stands once.

use crate::exit::{self, fail};
use crate::terminal::{Out, Table, clean, fit};
use crate::units;
use anyhow::Result;
use profile::unit::time_unit_ns;
use profile::{FrameKind, Info, Profile, StackId, StrId, TopBy, TopSort, Value};
use regex::Regex;
use std::collections::HashMap;
use std::fmt::Write as _;

/// How the report is made.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Report {
    /// Sort the report by time including callees (with --format top)
    #[arg(long, help_heading = "Report (--format top)")]
    cum: bool,
    /// Show who calls the functions that match
    #[arg(
        long,
        value_name = "REGEX",
        conflicts_with = "callees",
        help_heading = "Report (--format top)"
    )]
    callers: Option<String>,
    /// Show what the functions that match call
    #[arg(long, value_name = "REGEX", help_heading = "Report (--format top)")]
    callees: Option<String>,
    /// Maximum number of rows in the report [default: 30; 80 in a tree]
    #[arg(
        long = "limit",
        id = "report_limit",
        value_name = "ROWS",
        value_parser = crate::number::within::<usize>(1, u64::MAX),
        help_heading = "Report (--format top)"
    )]
    limit: Option<usize>,
}

/// Rows of a table where nothing else is asked for: they fit a screen.
const ROWS: usize = 30;

/// Lines of a tree where nothing else is asked for.
const TREE_ROWS: usize = 80;

/// Part of what matches below which a branch is not shown.
const BRANCH_PART_MIN: u64 = 200;

/// Cells by which a branch is indented.
const BRANCH_CELLS: usize = 2;

/// Most cells of indentation: deeper branches stand below each other.
const INDENT_CELLS_MAX: usize = 40;

/// Cells of a name in a tree that no terminal bounds.
const NAME_CELLS_MAX: usize = 200;

/// Where a report is shown, and what it adds up.
#[derive(Clone, Copy, Default)]
pub struct Place {
    /// The terminal or pipe; `None`: a file.
    pub shown: Option<Out>,
    /// Numbers of samples and not their weight.
    pub counts: bool,
}

impl Report {
    /// True when an option of the report is given, which asks for the report.
    pub fn is_asked(&self) -> bool {
        self.cum || self.callers.is_some() || self.callees.is_some() || self.limit.is_some()
    }

    /// Refuses patterns that cannot be read, before anything is asked.
    ///
    /// # Errors
    /// When one is malformed.
    pub fn check(&self) -> Result<()> {
        for pattern in [&self.callers, &self.callees].into_iter().flatten() {
            compile(pattern)?;
        }
        Ok(())
    }

    /// The report. Samples with labels to group by are added up by those and not by function.
    ///
    /// # Errors
    /// When a pattern is malformed, or no function matches it.
    pub fn write(&self, profile: &Profile, place: Place, labels: &[String]) -> Result<Vec<u8>> {
        let out = place.shown.unwrap_or(Out::plain());
        let measure = Measure::of(profile, place.counts);
        let text = match (&self.callers, &self.callees) {
            (Some(pattern), _) => self.tree(profile, &measure, pattern, Way::Callers, &out)?,
            (_, Some(pattern)) => self.tree(profile, &measure, pattern, Way::Callees, &out)?,
            (None, None) if !labels.is_empty() => self.by_labels(profile, &measure, labels, &out),
            (None, None) => self.functions(profile, &measure, &out),
        };
        Ok(text.into_bytes())
    }

    fn functions(&self, profile: &Profile, measure: &Measure, out: &Out) -> String {
        let sort = match self.cum {
            true => TopSort::Total,
            false => TopSort::Own,
        };
        let limit = self.limit.unwrap_or(ROWS);
        let top = profile.top(&TopBy::Function, sort, limit);
        let of = |value| measure.of_value(value);
        let all = of(top.total);
        let unit = measure.heading();
        let headings = [
            format!(">SELF{unit}"),
            ">%".to_owned(),
            format!(">TOTAL{unit}"),
            ">TOTAL %".to_owned(),
            "FUNCTION".to_owned(),
            "MODULE".to_owned(),
        ];
        let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
        let mut table = Table::new(&headings);
        let mut shown = 0u64;
        for row in &top.rows {
            shown = shown.saturating_add(of(row.own));
            table.row([
                measure.show(of(row.own)),
                share(of(row.own), all),
                measure.show(of(row.total)),
                share(of(row.total), all),
                name(&row.name, row.kind),
                row.module.clone(),
            ]);
        }
        let total = format!("TOTAL{unit}");
        let table = table.sparing(&["MODULE", &total, "TOTAL %"]);
        let mut text = table.show(out);
        if top.omitted > 0 {
            let rest = all.saturating_sub(shown);
            let _ = writeln!(
                text,
                "{} more functions with {} of the self time: --limit shows more",
                units::count(top.omitted as u64),
                units::percent(rest, all)
            );
        }
        text
    }

    fn by_labels(
        &self,
        profile: &Profile,
        measure: &Measure,
        labels: &[String],
        out: &Out,
    ) -> String {
        let mut by_set: HashMap<_, u64> = HashMap::new();
        for (sample, &value) in &profile.samples {
            let sum = by_set.entry(sample.labels).or_default();
            *sum = sum.saturating_add(measure.of_value(value));
        }
        let mut rows: HashMap<Vec<&str>, u64> = HashMap::new();
        for (set, weight) in by_set {
            let values = labels.iter();
            let values = values.map(|label| profile.dict.label(set, label).unwrap_or("-"));
            let sum = rows.entry(values.collect()).or_default();
            *sum = sum.saturating_add(weight);
        }
        let all = measure.of_value(profile.total());
        let mut rows: Vec<_> = rows.into_iter().collect();
        rows.sort_unstable_by(|left, right| right.1.cmp(&left.1).then(left.0.cmp(&right.0)));
        let names: Vec<String> = labels.iter().map(|label| label.to_uppercase()).collect();
        let unit = measure.heading();
        let first = match unit.trim() {
            "" => ">TOTAL".to_owned(),
            unit => format!(">{unit}"),
        };
        let mut headings = vec![first.as_str(), ">%"];
        headings.extend(names.iter().map(String::as_str));
        let mut table = Table::new(&headings);
        let limit = self.limit.unwrap_or(ROWS);
        for (values, weight) in rows.iter().take(limit) {
            let numbers = [measure.show(*weight), share(*weight, all)];
            let values = values.iter().map(|&value| value.to_owned());
            table.row(numbers.into_iter().chain(values));
        }
        let mut text = table.show(out);
        if let Some(rest) = rows.get(limit..).filter(|rest| !rest.is_empty()) {
            let sum = rest.iter().map(|row| row.1).fold(0, u64::saturating_add);
            let _ = writeln!(
                text,
                "{} more with {}: --limit shows more",
                units::count(rest.len() as u64),
                units::percent(sum, all)
            );
        }
        text
    }

    fn tree(
        &self,
        profile: &Profile,
        measure: &Measure,
        pattern: &str,
        way: Way,
        out: &Out,
    ) -> Result<String> {
        let matched = matches(profile, &compile(pattern)?);
        let tree = Tree::of(profile, measure, &matched, way);
        if tree.nodes.is_empty() {
            let all = profile.total().count;
            return Err(fail(
                exit::PARTIAL,
                format!(
                    "failed to show {} of `{}`: no function of the {} samples matches",
                    way.word(),
                    clean(pattern),
                    units::count(all)
                ),
            ));
        }
        let all = measure.of_value(profile.total());
        let matched = tree.sum();
        let unit = match measure.unit {
            Unit::Cores(_) => " cores",
            Unit::Weight(_) | Unit::Count => "",
        };
        let mut text = format!(
            "{} of `{}`, which is in {} of all samples ({}{unit})\n{:>7}  {:>7}\n",
            way.word(),
            clean(pattern),
            units::percent(matched, all),
            measure.show(matched),
            "%",
            measure.heading().trim(),
        );
        tree.print(
            self.limit.unwrap_or(TREE_ROWS),
            measure,
            way,
            out,
            &mut text,
        );
        Ok(text)
    }
}

fn compile(pattern: &str) -> Result<Regex> {
    // The same bounds as those of frame filters.
    let filter = profile::FrameFilter::new(profile::FrameFilterOp::Keep, pattern);
    filter.map_err(|error| fail(exit::USAGE, error.to_string()))?;
    Regex::new(pattern).map_err(|error| fail(exit::USAGE, error.to_string()))
}

fn share(part: u64, all: u64) -> String {
    match all {
        0 => "-".to_owned(),
        _ => format!("{:.1}", units::share(part, all) * 100.0),
    }
}

/// A function as it is shown: kernel functions are marked, for they have no module of their own.
fn name(function: &str, kind: FrameKind) -> String {
    let function = match function {
        "" => "(no function)",
        function => function,
    };
    match kind {
        FrameKind::Kernel => format!("{function} [k]"),
        _ => function.to_owned(),
    }
}

/// What is added up, and how it is shown.
struct Measure {
    unit: Unit,
}

enum Unit {
    /// CPUs in use: weights that one of them has over the time covered.
    Cores(f64),
    /// As it was weighed.
    Weight(String),
    /// Samples.
    Count,
}

impl Measure {
    fn of(profile: &Profile, counts: bool) -> Measure {
        let Info {
            unit, duration_ns, ..
        } = &profile.info;
        let core = time_unit_ns(unit).map(|ns| *duration_ns as f64 / ns as f64);
        Measure {
            unit: match (counts, core) {
                (true, _) => Unit::Count,
                (_, Some(core)) if core > 0.0 && profile.info.is_cpu_time() => Unit::Cores(core),
                _ if unit.is_empty() => Unit::Count,
                _ => Unit::Weight(unit.clone()),
            },
        }
    }

    fn of_value(&self, value: Value) -> u64 {
        match self.unit {
            Unit::Count => value.count,
            Unit::Cores(_) | Unit::Weight(_) => value.weight,
        }
    }

    fn show(&self, weight: u64) -> String {
        match &self.unit {
            Unit::Cores(core) => cores(weight as f64 / core),
            Unit::Weight(unit) => units::weight(weight, unit),
            Unit::Count => units::count(weight),
        }
    }

    /// What stands behind a heading.
    fn heading(&self) -> &'static str {
        match self.unit {
            Unit::Cores(_) => " CORES",
            Unit::Weight(_) => "",
            Unit::Count => " SAMPLES",
        }
    }
}

/// CPUs in use, with three digits where there are few.
pub fn cores(cores: f64) -> String {
    match cores {
        0.0 => "0".to_owned(),
        few if few < 9.995 => format!("{few:.3}"),
        many if many < 99.95 => format!("{many:.2}"),
        many => format!("{many:.1}"),
    }
}

/// Which way a tree goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Callers,
    Callees,
}

impl Way {
    fn word(self) -> &'static str {
        match self {
            Way::Callers => "callers",
            Way::Callees => "callees",
        }
    }
}

/// By stack: the outermost one of its frames that matches; `None` where none does.
fn matches(profile: &Profile, pattern: &Regex) -> Vec<Option<StackId>> {
    let dict = &profile.dict;
    let frames = dict.frames.iter();
    let is_match: Vec<bool> = frames
        .map(|frame| {
            let is = |text: StrId| pattern.is_match(dict.strings.get(text));
            is(frame.function) || (frame.system_name != StrId::EMPTY && is(frame.system_name))
        })
        .collect();
    let mut found: Vec<Option<StackId>> = vec![None; dict.stacks.len()];
    for (id, parent, frame) in dict.stacks.iter() {
        let own = is_match.get(frame.0 as usize).copied().unwrap_or(false);
        found[id.0 as usize] = found[parent.0 as usize].or_else(|| own.then_some(id));
    }
    found
}

/// One function at one place of a tree.
struct Node<'p> {
    parent: Option<usize>,
    name: &'p str,
    module: &'p str,
    kind: FrameKind,
    weight: u64,
}

/// Callers or callees of functions; a node stands behind the one that it belongs to.
struct Tree<'p> {
    nodes: Vec<Node<'p>>,
}

impl<'p> Tree<'p> {
    fn of(
        profile: &'p Profile,
        measure: &Measure,
        matched: &[Option<StackId>],
        way: Way,
    ) -> Tree<'p> {
        let dict = &profile.dict;
        let mut nodes: Vec<Node<'p>> = Vec::new();
        let mut index: HashMap<(Option<usize>, StrId, StrId), usize> = HashMap::new();
        let mut path = Vec::new();
        for (key, value) in profile.sorted() {
            let Some(root) = matched.get(key.stack.0 as usize).copied().flatten() else {
                continue;
            };
            path.clear();
            match way {
                Way::Callers => path.extend(dict.stacks.leaf_first(root)),
                Way::Callees => {
                    let depth = dict.stacks.leaf_first(root).count();
                    path.extend(dict.stacks.leaf_first(key.stack));
                    path.reverse();
                    path.drain(..depth - 1);
                }
            }
            let weight = measure.of_value(value);
            let (mut parent, mut last) = (None, None);
            for &id in &path {
                let frame = dict.frames.get(id);
                // A function that calls itself stands once, as do neighbours without a name.
                if last.replace((frame.function, frame.module))
                    == Some((frame.function, frame.module))
                {
                    continue;
                }
                let at = *index
                    .entry((parent, frame.function, frame.module))
                    .or_insert_with(|| {
                        nodes.push(Node {
                            parent,
                            name: dict.strings.get(frame.function),
                            module: dict.strings.get(frame.module),
                            kind: frame.kind,
                            weight: 0,
                        });
                        nodes.len() - 1
                    });
                nodes[at].weight = nodes[at].weight.saturating_add(weight);
                parent = Some(at);
            }
        }
        Tree { nodes }
    }

    /// Sum over the roots.
    fn sum(&self) -> u64 {
        let roots = self.nodes.iter().filter(|node| node.parent.is_none());
        roots.map(|node| node.weight).fold(0, u64::saturating_add)
    }

    /// The heaviest nodes. None is heavier than the one that it belongs to, so all of these hang
    /// together.
    fn heaviest(&self, limit: usize) -> Vec<bool> {
        let least = self.sum() / BRANCH_PART_MIN;
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by_key(|&at| (std::cmp::Reverse(self.nodes[at].weight), at));
        let mut shown = vec![false; self.nodes.len()];
        for at in order.into_iter().take(limit) {
            shown[at] = self.nodes[at].weight >= least;
        }
        shown
    }

    fn print(&self, limit: usize, measure: &Measure, way: Way, out: &Out, text: &mut String) {
        let all = self.sum();
        let shown = self.heaviest(limit);
        let mut below: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        let mut open: Vec<(usize, usize)> = Vec::new();
        let mut roots = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            match node.parent {
                Some(parent) => below[parent].push(at),
                None => roots.push(at),
            }
        }
        let by_weight = |list: &mut Vec<usize>| {
            list.sort_by_key(|&at| (self.nodes[at].weight, std::cmp::Reverse(at)));
        };
        by_weight(&mut roots);
        let mut hidden = roots.iter().filter(|&&root| !shown[root]).count();
        open.extend(roots.iter().filter(|&&root| shown[root]).map(|&at| (at, 0)));
        while let Some((at, depth)) = open.pop() {
            let node = &self.nodes[at];
            let line = line(node, depth, all, measure, out.columns());
            text.push_str(&line);
            text.push('\n');
            by_weight(&mut below[at]);
            hidden += below[at].iter().filter(|&&child| !shown[child]).count();
            // A chain stays where it is: stacks are deeper than terminals are wide.
            let depth = match below[at].as_slice() {
                [_] if depth > 0 => depth,
                _ => depth + 1,
            };
            let children = below[at].iter().filter(|&&child| shown[child]);
            open.extend(children.map(|&child| (child, depth)));
        }
        if hidden > 0 {
            let _ = writeln!(
                text,
                "{} lighter {} are not shown: --limit shows more, down to {:.1} %",
                units::count(hidden as u64),
                way.word(),
                100.0 / BRANCH_PART_MIN as f64
            );
        }
    }
}

fn line(
    node: &Node<'_>,
    depth: usize,
    all: u64,
    measure: &Measure,
    columns: Option<usize>,
) -> String {
    let indent = (depth * BRANCH_CELLS).min(INDENT_CELLS_MAX);
    let module = match node.module {
        "" => String::new(),
        module => format!("  {}", clean(module)),
    };
    let start = format!(
        "{:>7}  {:>7}  {:indent$}",
        share(node.weight, all),
        measure.show(node.weight),
        ""
    );
    let name = name(node.name, node.kind);
    let name = clean(&name);
    let name = fit(&name, NAME_CELLS_MAX);
    let line = format!("{start}{name}{module}");
    match columns {
        Some(columns) => fit(&line, columns).into_owned(),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::{FrameRef, SampleKey, StackEnd};

    /// Samples of `;`-separated stacks over a time, a CPU second each.
    fn profile(stacks: &[(&str, u64)], seconds: u64) -> Profile {
        let mut profile = Profile::default();
        profile.info.unit = "nanoseconds".to_owned();
        profile.info.duration_ns = seconds * 1_000_000_000;
        for &(stack, count) in stacks {
            let mut at = StackId::EMPTY;
            for function in stack.split(';') {
                let frame = profile.dict.intern_frame(FrameRef {
                    function,
                    module: "libx.so",
                    ..FrameRef::default()
                });
                at = profile.dict.stacks.child(at, frame);
            }
            let key = SampleKey {
                labels: Default::default(),
                stack: at,
                end: StackEnd::default(),
            };
            let weight = count * 1_000_000_000;
            profile.add(key, Value { count, weight });
        }
        profile
    }

    fn report(options: Report, profile: &Profile) -> String {
        let text = options.write(profile, Place::default(), &[]);
        String::from_utf8(text.unwrap()).unwrap()
    }

    fn sound() -> Profile {
        profile(
            &[
                ("main;serve;parse;alloc", 6),
                ("main;serve;send", 2),
                ("main;gc;alloc", 1),
                ("main;serve;parse;parse;alloc", 1),
            ],
            20,
        )
    }

    #[test]
    fn functions_have_self_and_total_in_cores_and_shares() {
        assert_eq!(
            report(Report::default(), &sound()),
            "\
SELF CORES     %  TOTAL CORES  TOTAL %  FUNCTION  MODULE
     0.400  80.0        0.400     80.0  alloc     libx.so
     0.100  20.0        0.100     20.0  send      libx.so
         0   0.0        0.500    100.0  main      libx.so
         0   0.0        0.450     90.0  serve     libx.so
         0   0.0        0.350     70.0  parse     libx.so
         0   0.0        0.050     10.0  gc        libx.so
"
        );
        let by_total = Report {
            cum: true,
            limit: Some(2),
            ..Report::default()
        };
        let text = report(by_total, &sound());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].ends_with("main      libx.so"), "{text}");
        assert!(lines[2].contains("90.0  serve"), "{text}");
        assert_eq!(
            lines[3],
            "4 more functions with 100.0 % of the self time: --limit shows more"
        );
    }

    #[test]
    fn callers_are_a_tree_with_the_function_as_its_root() {
        let callers = Report {
            callers: Some("^alloc$".to_owned()),
            ..Report::default()
        };
        assert_eq!(
            report(callers, &sound()),
            "\
callers of `^alloc$`, which is in 80.0 % of all samples (0.400 cores)
      %    CORES
  100.0    0.400  alloc  libx.so
   87.5    0.350    parse  libx.so
   87.5    0.350    serve  libx.so
   87.5    0.350    main  libx.so
   12.5    0.050    gc  libx.so
   12.5    0.050    main  libx.so
"
        );
    }

    #[test]
    fn callees_start_where_a_function_is_outermost_and_count_once() {
        let callees = Report {
            callees: Some("^parse$".to_owned()),
            limit: Some(2),
            ..Report::default()
        };
        assert_eq!(
            report(callees, &sound()),
            "\
callees of `^parse$`, which is in 70.0 % of all samples (0.350 cores)
      %    CORES
  100.0    0.350  parse  libx.so
  100.0    0.350    alloc  libx.so
"
        );
    }

    #[test]
    fn what_the_limit_leaves_out_of_a_tree_is_counted() {
        let callees = Report {
            callees: Some("^serve$".to_owned()),
            limit: Some(2),
            ..Report::default()
        };
        let text = report(callees, &sound());
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(lines[0], "  100.0    0.450  serve  libx.so", "{text}");
        assert_eq!(lines[1], "   77.8    0.350    parse  libx.so", "{text}");
        let told = "2 lighter callees are not shown: --limit shows more, down to 0.5 %";
        assert_eq!(lines[2], told);
    }

    #[test]
    fn a_pattern_that_matches_nothing_says_so() {
        let callers = Report {
            callers: Some("^nosuch".to_owned()),
            ..Report::default()
        };
        let refused = callers.write(&sound(), Place::default(), &[]).unwrap_err();
        assert_eq!(exit::code_of(&refused), exit::PARTIAL);
        let text = refused.to_string();
        assert!(
            text.contains("no function of the 10 samples matches"),
            "{text}"
        );
        let broken = Report {
            callees: Some("(".to_owned()),
            ..Report::default()
        };
        assert_eq!(exit::code_of(&broken.check().unwrap_err()), exit::USAGE);
    }

    #[test]
    fn what_has_no_time_is_counted() {
        let mut counted = sound();
        counted.info.unit = String::new();
        let text = report(Report::default(), &counted);
        assert!(text.starts_with("SELF SAMPLES     %"), "{text}");
        counted.info.unit = "faults".to_owned();
        let text = report(Report::default(), &counted);
        assert!(text.contains("8,000,000,000  80.0"), "{text}");
    }

    #[test]
    fn hostile_names_are_made_visible_in_a_tree() {
        let profile = profile(&[("main;a\x1b[2J\nb", 1)], 1);
        let callees = Report {
            callees: Some("main".to_owned()),
            ..Report::default()
        };
        let text = report(callees, &profile);
        assert!(text.contains("a\\x1b[2J\\nb  libx.so\n"), "{text}");
    }
}
