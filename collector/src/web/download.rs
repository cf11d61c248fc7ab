//! Profiles as files: `GET /api/profile.FORMAT?selector=…&from=…&to=…`.
//!
//! FORMAT is the file extension of the format (`folded`, `pb.gz`, `speedscope.json`, `svg`, `html`,
//! `json`, `firefox.json`, `perf.txt`, `bundle.html`, `parquet`), or its name (`pprof`). `selector`
//! is the text form of a selector; `type` is the id of a profile type (absent: the CPU of agents);
//! `from` and `to` are nanoseconds since the Unix epoch, and mean the same as in `Selection` if
//! they are 0 or absent; `frame=OP:REGEX`, which may be repeated, is a frame filter (`keep`,
//! `drop`, `focus`, `collapse`); `group_by` lists labels separated by `,`; `step` is the length of
//! stretches of time in seconds, which `parquet` alone can tell apart.
//!
//! A file is written in the place and the memory of its query, and held in pieces until it is read.
//! In steps, one after the other is read and written; each takes half of that memory at most, and
//! the file the other half.

use crate::access::Caller;
use crate::query::{Failed, Queries, RETRY_AFTER, ResponseSlot, Steps, profile_bytes};
use crate::store::{Limits, QueryResult, StoreError};
use hyper::body::Bytes;
use hyper::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    HeaderValue,
};
use hyper::{Response, StatusCode};
use profile::formats::{Format, FormatError, Measure, Options, parquet, write};
use profile::{Info, Profile, key};
use proto::{agent, collector as wire};
use std::io;
use std::time::Instant;
use tonic::Status;

/// Largest file. Unit: bytes. The most stacks of a profile with long names are about half of it.
const FILE_BYTES_MAX: usize = 256 << 20;

/// Piece in which a file is held and sent. Unit: bytes.
const PIECE_BYTES: usize = 128 << 10;

/// The format a name asks for: `profile.svg`, or `profile.pprof` by the format's own name.
///
/// # Errors
/// NOT_FOUND when there is none.
pub(super) fn format(what: &str, name: &str) -> Result<Format, Status> {
    let end = name
        .strip_prefix(what)
        .and_then(|end| end.strip_prefix('.'));
    let mut all = Format::ALL.into_iter();
    let found = all.find(|format| [format.name(), format.extension()].map(Some).contains(&end));
    found.ok_or_else(|| {
        Status::not_found(format!(
            "use {what}.pprof, .folded, .speedscope.json, .svg, .html, .json, .firefox.json, \
             .perf.txt, .bundle.html or .parquet"
        ))
    })
}

fn content_type(format: Format) -> &'static str {
    match format {
        Format::Folded | Format::PerfScript => "text/plain; charset=utf-8",
        Format::Pprof => "application/octet-stream",
        Format::Parquet => "application/vnd.apache.parquet",
        Format::Speedscope | Format::Json | Format::Firefox => "application/json",
        Format::Svg => "image/svg+xml",
        Format::Html | Format::Bundle => "text/html; charset=utf-8",
    }
}

/// What is asked for.
#[derive(Debug, Default)]
struct DownloadQuery {
    selection: wire::Selection,
    group_by: Vec<String>,
    /// Unit: nanoseconds; 0: the range is not cut.
    step_ns: u64,
}

fn parse(pairs: Vec<(String, String)>) -> Result<DownloadQuery, Status> {
    let mut asked = DownloadQuery::default();
    let mut range: Option<agent::TimeRange> = None;
    for (name, value) in pairs {
        let time = || {
            value.parse::<i64>().map_err(|_| {
                Status::invalid_argument(format!(
                    "failed to use `{name}`: expected nanoseconds since the Unix epoch"
                ))
            })
        };
        match name.as_str() {
            "selector" => asked.selection.selector = value,
            "type" => asked.selection.profile_type = value,
            "from" => range.get_or_insert_default().start_unix_ns = time()?,
            "to" => range.get_or_insert_default().end_unix_ns = time()?,
            "frame" => asked.selection.frame_filters.push(filter(&value)?),
            "group_by" => {
                let labels = value.split(',').filter(|label| !label.is_empty());
                asked.group_by.extend(labels.map(str::to_owned));
            }
            "step" => {
                let seconds: Option<u64> = value.parse().ok().filter(|&seconds| seconds > 0);
                let seconds = seconds.ok_or_else(|| {
                    Status::invalid_argument("failed to use `step`: expected seconds")
                })?;
                asked.step_ns = seconds.saturating_mul(1_000_000_000);
            }
            _ => {
                return Err(Status::invalid_argument(format!(
                    "unknown parameter `{name}`: use selector, type, from, to, frame, group_by or \
                     step"
                )));
            }
        }
    }
    asked.selection.range = range;
    Ok(asked)
}

pub(super) fn filter(text: &str) -> Result<agent::FrameFilter, Status> {
    use agent::FrameFilterOp::{Collapse, Drop, Focus, Keep};
    let (op, regex) = text.split_once(':').unwrap_or((text, ""));
    let op = match op.to_ascii_lowercase().as_str() {
        "keep" => Keep,
        "drop" => Drop,
        "focus" => Focus,
        "collapse" => Collapse,
        _ => {
            return Err(Status::invalid_argument(
                "failed to use `frame`: expected keep, drop, focus or collapse, then `:` and a \
                 pattern",
            ));
        }
    };
    Ok(agent::FrameFilter {
        op: op.into(),
        regex: regex.to_owned(),
    })
}

/// A file, and the place it holds until it is read.
pub(super) struct File {
    /// Its head.
    pub head: Response<()>,
    /// Its content.
    pub pieces: Vec<Bytes>,
    /// What it holds.
    pub place: ResponseSlot,
}

/// Makes the file `name`.
///
/// # Errors
/// As the query; NOT_FOUND when there is no such file.
pub(super) async fn make(
    queries: &Queries,
    caller: &Caller,
    name: &str,
    pairs: Vec<(String, String)>,
) -> Result<File, Status> {
    let format = format("profile", name)?;
    let asked = parse(pairs)?;
    let in_steps = (asked.step_ns > 0).then_some(asked.step_ns);
    if in_steps.is_some() {
        check_steps(format, &asked.group_by)?;
    }
    let called = slug(&asked.selection.selector);
    let title = match asked.selection.profile_type.as_str() {
        "" => "CPU profile of the fleet".to_owned(),
        id => format!("{} of other senders", profile::text::printable(id)),
    };
    let (queries, selected) = queries.select(Some(asked.selection))?;
    let query = selected.query(&asked.group_by)?;
    let mut place = queries.response_slot()?;
    if let Some(step_ns) = in_steps {
        let make = move |steps: Steps<'_>, limits: &Limits| {
            let (pieces, info) = table(steps, asked.group_by, limits)?;
            place.hold(pieces.iter().map(Bytes::len).sum())?;
            Ok((pieces, named(&called, &info), place))
        };
        let made = queries.profiles(caller, &selected, query, step_ns, make);
        return Ok(finished(format, made.await?));
    }
    let made = queries.profile(caller, &selected, query, 0, move |found, limits| {
        let QueryResult { data, quality } = found;
        if quality.total.is_capped() {
            // A file has no place to say so.
            return Err(too_large().into());
        }
        let pieces = file(&data, format, (title, &asked.group_by[..]), limits)?;
        place.hold(pieces.iter().map(Bytes::len).sum())?;
        Ok((pieces, named(&called, &data.info), place))
    });
    Ok(finished(format, made.await?))
}

/// Refuses to cut a range where that cannot be written.
fn check_steps(format: Format, group_by: &[String]) -> Result<(), Status> {
    if format != Format::Parquet {
        return Err(Status::invalid_argument(format!(
            "failed to use `step`: {format} has one time; use parquet"
        )));
    }
    if group_by.iter().any(|label| label == "*") {
        return Err(Status::invalid_argument(
            "failed to use `group_by=*` with `step`: columns are the same in each step; name the \
             labels",
        ));
    }
    Ok(())
}

/// The profiles of steps as one table, and what is known of all of them.
fn table(
    steps: Steps<'_>,
    labels: Vec<String>,
    limits: &Limits,
) -> Result<(Vec<Bytes>, Info), Failed> {
    let mut out = Bounded::new(limits.memory_bytes.min(FILE_BYTES_MAX), limits);
    let write = || -> Result<Result<Info, FormatError>, Failed> {
        let mut writer = match parquet::Writer::new(&mut out, labels) {
            Ok(writer) => writer,
            Err(error) => return Ok(Err(error)),
        };
        for step in steps {
            let QueryResult { data, quality } = step?;
            if quality.total.is_capped() {
                return Err(too_large().into());
            }
            if let Err(error) = writer.add(&data) {
                return Ok(Err(error));
            }
        }
        Ok(writer.finish())
    };
    match write()? {
        Ok(info) => Ok((out.done(), info)),
        Err(error) => Err(unwritten(&out, error)),
    }
}

/// A content in pieces, each of which gives its memory back once it is sent.
pub(super) fn cut(content: Vec<u8>) -> Vec<Bytes> {
    let mut rest = Bytes::from(content);
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        pieces.push(rest.split_to(PIECE_BYTES.min(rest.len())));
    }
    pieces
}

/// The file of what was made for it: its pieces, its name without an end, and its place.
pub(super) fn finished(
    format: Format,
    (pieces, name, place): (Vec<Bytes>, String, ResponseSlot),
) -> File {
    let length = pieces.iter().map(Bytes::len).sum::<usize>();
    let mut head = Response::new(());
    let headers = head.headers_mut();
    // So that a file that was interrupted in the middle does not look complete.
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type(format)));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // A page of its own, with a script in it: it is kept, not opened here.
    let policy = HeaderValue::from_static("default-src 'none'; sandbox");
    headers.insert(CONTENT_SECURITY_POLICY, policy);
    let name = format!("attachment; filename=\"{name}.{}\"", format.extension());
    if let Ok(name) = HeaderValue::from_str(&name) {
        headers.insert(CONTENT_DISPOSITION, name);
    }
    File {
        head,
        pieces,
        place,
    }
}

/// Longest part of a name that is a selector's. Unit: bytes.
const SLUG_BYTES_MAX: usize = 48;

/// A selector's part in a file name: its values.
fn slug(selector: &str) -> String {
    let parsed: Result<profile::Selector, _> = selector.parse();
    let values = parsed.map_or_else(
        |_| String::new(),
        |selector| {
            let matchers = selector.matchers().iter();
            let values: Vec<&str> = matchers.map(|matcher| matcher.value()).collect();
            values.join("-")
        },
    );
    plain_name(&values)
}

/// Text as a part of a name of a file: letters and digits, and `-` for everything else.
pub(super) fn plain_name(text: &str) -> String {
    let mut plain = String::new();
    for found in text.chars() {
        match found.is_ascii_alphanumeric() || matches!(found, '.' | '_') {
            true => plain.push(found),
            false if plain.ends_with('-') || plain.is_empty() => {}
            false => plain.push('-'),
        }
        if plain.len() >= SLUG_BYTES_MAX {
            break;
        }
    }
    // A name with a dot in front is hidden.
    plain.trim_matches(['-', '.']).to_owned()
}

/// Returns the name of a file without its extension: what it is of, when that started, and how long
/// it is, such as `fleetprof-api.service-20261122T162500Z-240s`.
pub(super) fn named(called: &str, info: &Info) -> String {
    let seconds = info.start_unix_ns.div_euclid(1_000_000_000);
    let when = crate::time::compact(seconds);
    let length = info.duration_ns.div_ceil(1_000_000_000);
    let parts = ["fleetprof", called, &when, &format!("{length}s")];
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-")
}

pub(super) fn too_large() -> Status {
    Status::out_of_range(
        "the total is too large for the format: use a shorter range or fewer hosts",
    )
}

/// The content of a file, with its title and the labels that stand at the root of stacks.
pub(super) fn file(
    profile: &Profile,
    format: Format,
    (title, group_by): (String, &[String]),
    limits: &Limits,
) -> Result<Vec<Bytes>, Failed> {
    let options = Options {
        title,
        // Hosts may sample at different rates; only weights add up.
        measure: Measure::Weight,
        root_labels: group_by.to_vec(),
        split_by: group_by
            .iter()
            .any(|label| label == key::HOST)
            .then(|| key::HOST.to_owned()),
        ..Options::default()
    };
    let left = limits.memory_bytes.saturating_sub(profile_bytes(profile));
    let mut out = Bounded::new(left.min(FILE_BYTES_MAX), limits);
    match write(profile, format, &options, &mut out) {
        Ok(()) => Ok(out.done()),
        Err(error) => Err(unwritten(&out, error)),
    }
}

/// Why a file was not written.
fn unwritten(out: &Bounded<'_>, error: FormatError) -> Failed {
    match error {
        FormatError::TotalTooLarge { .. } | FormatError::Units(_) => too_large().into(),
        FormatError::TooManyLabels { .. } => Status::invalid_argument(error.to_string()).into(),
        _ if out.given_up => StoreError::Cancelled.into(),
        _ => Failed::Status(Status::resource_exhausted(format!(
            "the file takes more than the {} bytes that are left (`query.memory_mib`): use fewer \
             labels or a shorter range",
            out.bytes_max
        ))),
    }
}

/// Memory up to a bound, in pieces, for as long as the query may take.
struct Bounded<'l> {
    full: Vec<Bytes>,
    piece: Vec<u8>,
    bytes_max: usize,
    left: usize,
    limits: &'l Limits,
    given_up: bool,
}

impl<'l> Bounded<'l> {
    fn new(bytes_max: usize, limits: &'l Limits) -> Bounded<'l> {
        Bounded {
            full: Vec::new(),
            piece: Vec::new(),
            bytes_max,
            left: bytes_max,
            limits,
            given_up: false,
        }
    }

    fn next(&mut self) -> io::Result<()> {
        let limits = self.limits;
        self.given_up = limits.cancel.is_cancelled() || Instant::now() >= limits.deadline;
        if self.given_up {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let piece = Vec::with_capacity(PIECE_BYTES.min(self.left));
        let full = std::mem::replace(&mut self.piece, piece);
        if !full.is_empty() {
            self.full.push(full.into());
        }
        Ok(())
    }

    fn done(mut self) -> Vec<Bytes> {
        self.piece.shrink_to_fit();
        if !self.piece.is_empty() {
            self.full.push(self.piece.into());
        }
        self.full
    }
}

impl io::Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.left {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.piece.len() == self.piece.capacity() {
                self.next()?;
            }
            let room = self.piece.capacity() - self.piece.len();
            let (now, later) = rest.split_at(room.min(rest.len()));
            self.piece.extend_from_slice(now);
            self.left -= now.len();
            rest = later;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// HTTP response for a rejection: its status, and when to retry.
pub(super) fn refusal(status: &Status) -> Response<Bytes> {
    let retry_after = status.metadata().get(RETRY_AFTER);
    let retry_after = retry_after.and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok());
    let mut response = super::refused(status);
    if let Some(value) = retry_after {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response
            .headers_mut()
            .insert(hyper::header::RETRY_AFTER, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        let list = list.iter();
        list.map(|(name, value)| (name.to_string(), value.to_string()))
            .collect()
    }

    #[test]
    fn parameters_are_taken_or_refused() {
        let found = parse(pairs(&[
            ("selector", "unit=\"a\""),
            ("from", "5"),
            ("to", "9"),
            ("frame", "focus:^main$"),
            ("frame", "drop:a:b"),
            ("group_by", "host,,unit"),
            ("step", "60"),
        ]))
        .expect("valid");
        assert_eq!(found.step_ns, 60_000_000_000);
        assert_eq!(found.group_by, ["host", "unit"]);
        assert_eq!(found.selection.frame_filters[1].regex, "a:b");
        let range = found.selection.range.expect("a range");
        assert_eq!((range.start_unix_ns, range.end_unix_ns), (5, 9));
        assert!(parse(Vec::new()).expect("valid").selection.range.is_none());
        for wrong in [
            ("from", "now"),
            ("frame", "x:y"),
            ("hello", "1"),
            ("step", "0"),
        ] {
            assert!(parse(pairs(&[wrong])).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_file_is_held_in_pieces_up_to_its_bound() {
        use std::io::Write;
        let limits = |left_ms| Limits {
            hosts: None,
            waiting: true,
            reports: true,
            cancel: crate::store::Cancel::default(),
            deadline: Instant::now() + std::time::Duration::from_millis(left_ms),
            memory_bytes: 0,
            nodes: 0,
            lines: 0,
        };
        let ample = limits(3_600_000);
        let mut out = Bounded::new(3 * PIECE_BYTES, &ample);
        let text: Vec<u8> = (0..PIECE_BYTES * 5 / 2).map(|at| at as u8).collect();
        for some in text.chunks(7777) {
            out.write_all(some).expect("fits");
        }
        assert!(out.write_all(&[0; PIECE_BYTES]).is_err());
        let pieces = out.done();
        assert_eq!(pieces.len(), 3);
        assert_eq!(pieces.concat(), text);

        let mut small = Bounded::new(5, &ample);
        small.write_all(b"12345").expect("fits");
        assert!(small.write_all(b"6").is_err() && !small.given_up);
        let over = limits(0);
        let mut late = Bounded::new(5, &over);
        assert!(late.write_all(b"1").is_err() && late.given_up);
    }

    #[test]
    fn every_format_has_a_name() {
        for format in Format::ALL {
            let name = format!("profile.{}", format.extension());
            assert_eq!(super::format("profile", &name).ok(), Some(format), "{name}");
        }
        for name in ["profile.exe", "x.svg", "profilesvg", "capture.svg"] {
            assert!(super::format("profile", name).is_err(), "{name}");
        }
    }

    #[test]
    fn names_say_what_it_is_and_nothing_of_a_stranger_s_makes_a_path() {
        let info = Info {
            start_unix_ns: 1_700_000_000_500_000_000,
            duration_ns: 239_100_000_000,
            ..Info::default()
        };
        for (selector, expected) in [
            ("", "fleetprof-20231114T221320Z-240s"),
            (
                "unit=\"redis.service\"",
                "fleetprof-redis.service-20231114T221320Z-240s",
            ),
            (
                "unit=\"../../\\\"x\",comm=\"a b\"",
                "fleetprof-x-a-b-20231114T221320Z-240s",
            ),
        ] {
            assert_eq!(named(&slug(selector), &info), expected, "{selector}");
        }
        assert!(plain_name(&"ü".repeat(500)).is_empty());
        assert!(plain_name(&"x".repeat(500)).len() <= SLUG_BYTES_MAX);
    }
}
