//! `POST /ingest` of Pyroscope's older clients: pprof, as it is or as a form, and folded stacks.
//!
//! The query says what it is: `name` is the application with labels, `app.suffix{k=v,…}` (values
//! are not quoted), `from` and `until` are times, `format` is `pprof`, `folded`, `groups` or
//! `lines`. Files of pprof are never scaled by `sampleRate`, which clients send wrong; folded
//! stacks of CPU time have nothing else.

use super::kinds::{by_suffix, name_of};
use super::{Budget, Labels, Refusal, Senders, Sent, identity_of, pprof_types};
use crate::access::Caller;
use crate::pyroscope::{SERVICE_NAME, time_of};
use hyper::HeaderMap;
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use profile::Info;
use profile::formats::folded;
use profile::formats::pprof::Typed;
use std::fmt::Write;
use tonic::Status;

/// Path of the call.
pub(crate) const INGEST_PATH: &str = "/ingest";

/// The same behind the prefix of the query API.
pub(crate) const INGEST_PATH_LONG: &str = "/pyroscope/ingest";

/// Samples in a second where a client says nothing that makes sense.
const RATE_DEFAULT: u64 = 100;

/// Highest rate that makes sense: a sample each nanosecond. Unit: samples in a second.
const RATE_MAX: u64 = 1_000_000_000;

/// What a request says beside its body.
#[derive(Debug, Default)]
struct Asked {
    service: String,
    /// The last part of the name, where it says what is counted.
    suffix: Option<super::kinds::Folded>,
    labels: Vec<(String, String)>,
    from: i64,
    until: i64,
    format: String,
    rate: u64,
    spy: String,
}

/// Stores what a request has.
///
/// # Errors
/// As [`Senders::take`].
pub(crate) async fn ingested(
    senders: &Senders,
    caller: &Caller,
    pairs: Vec<(String, String)>,
    (headers, body): (&HeaderMap, Bytes),
) -> Result<(), Status> {
    let most = senders.request_bytes();
    let form = boundary(headers);
    let is_form = form.is_some();
    let body = match form {
        Some(boundary) => file_of_form(boundary, body, most).await,
        None => Ok(body),
    };
    let body = body.map_err(|refusal| senders.refuse(refusal))?;
    let plain = senders.unpacked(body, most).await?;
    let size = plain.len();
    let decode = move |now| Ok((read(pairs, is_form, &plain, now)?, ()));
    senders
        .take(caller, size, |metrics| &metrics.sent_ingest, decode)
        .await
}

/// Reads a request, for tests of hostile input; returns how many profiles it has.
///
/// # Errors
/// When it is refused.
#[doc(hidden)]
pub fn read_ingest(pairs: Vec<(String, String)>, body: &[u8]) -> Result<usize, String> {
    let found = read(pairs, false, body, 1_700_000_000_000_000_000);
    found.map(|sent| sent.len()).map_err(|refusal| refusal.text)
}

/// What separates the parts of a form, where the body is one.
fn boundary(headers: &HeaderMap) -> Option<String> {
    let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    multer::parse_boundary(kind).ok()
}

/// The file of pprof in a form.
async fn file_of_form(boundary: String, body: Bytes, most: usize) -> Result<Bytes, Refusal> {
    let limits = multer::SizeLimit::new().whole_stream(most as u64);
    let constraints = multer::Constraints::new().size_limit(limits);
    let stream = futures_util::stream::once(async move { Ok::<_, std::convert::Infallible>(body) });
    let mut form = multer::Multipart::with_constraints(stream, boundary, constraints);
    let wrong = |error| Refusal::malformed(format!("failed to read the form: {error}"));
    let mut file = None;
    while let Some(field) = form.next_field().await.map_err(wrong)? {
        match field.name() {
            Some("profile") => file = Some(field.bytes().await.map_err(wrong)?),
            Some(name @ ("prev_profile" | "jfr")) => {
                let name = name.to_owned();
                return Err(Refusal::malformed(format!(
                    "failed to read the form: this collector does not take `{name}`; send pprof \
                     of one interval in `profile`"
                )));
            }
            // How clients name and aggregate their types says nothing that the file does not.
            _ => {}
        }
    }
    file.ok_or_else(|| Refusal::malformed("failed to read the form: it has no field `profile`"))
}

fn read(
    pairs: Vec<(String, String)>,
    is_form: bool,
    body: &[u8],
    now_unix_ns: i64,
) -> Result<Vec<Sent>, Refusal> {
    let asked = parse(pairs, now_unix_ns)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&asked.from.to_le_bytes());
    hasher.update(&asked.until.to_le_bytes());
    hasher.update(body);
    let mut budget = Budget::new();
    let types = match asked.format.as_str() {
        "pprof" => pprof_types(body, &mut budget)?,
        "" if is_form => pprof_types(body, &mut budget)?,
        "" | "folded" | "groups" => vec![of_text(&asked, body, false)?],
        "lines" => vec![of_text(&asked, body, true)?],
        other => {
            return Err(Refusal::malformed(format!(
                "failed to read the request: this collector does not take the format `{}`; send \
                 pprof, folded or lines",
                profile::text::printable(other)
            )));
        }
    };
    let names: Vec<&str> = types
        .iter()
        .map(|typed| typed.sample_type.name.as_str())
        .collect();
    let of_text = asked
        .suffix
        .as_ref()
        .filter(|_| asked.format != "pprof" && !is_form);
    let name = of_text.map_or_else(|| name_of(&names), |suffix| suffix.name);
    let mut labels = asked.labels;
    if !labels.iter().any(|(own, _)| own == SERVICE_NAME) {
        labels.push((SERVICE_NAME.to_owned(), asked.service));
    }
    if !asked.spy.is_empty() {
        labels.push(("pyroscope_spy".to_owned(), asked.spy));
    }
    let labels: Labels = labels.into();
    let sent = types.into_iter().enumerate().map(|(at, typed)| Sent {
        name: name.to_owned(),
        labels: labels.clone(),
        start_unix_ns: asked.from,
        end_unix_ns: asked.until,
        identity: identity_of(hasher.clone(), at),
        typed,
    });
    Ok(sent.collect())
}

fn parse(pairs: Vec<(String, String)>, now_unix_ns: i64) -> Result<Asked, Refusal> {
    let mut asked = Asked {
        from: now_unix_ns,
        rate: RATE_DEFAULT,
        ..Asked::default()
    };
    let mut name = None;
    for (key, value) in pairs {
        let time = || {
            time_of(&value, now_unix_ns).ok_or_else(|| {
                Refusal::malformed(format!(
                    "failed to read `{key}`: expected seconds since the Unix epoch"
                ))
            })
        };
        match key.as_str() {
            "from" => asked.from = time()?,
            "until" => asked.until = time()?,
            "name" => name = Some(value),
            "format" => asked.format = value,
            "sampleRate" => {
                let rate = value.parse::<u64>().ok();
                asked.rate = rate
                    .filter(|rate| (1..=RATE_MAX).contains(rate))
                    .unwrap_or(RATE_DEFAULT);
            }
            "spyName" => asked.spy = value,
            // `units`, `aggregationType` and others say nothing that is needed.
            _ => {}
        }
    }
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        return Err(Refusal::malformed(
            "failed to read the request: `name` is missing, such as name=app{region=eu}",
        ));
    };
    let (app, rest) = name.split_once('{').unwrap_or((&name, ""));
    let suffix = app.rsplit_once('.');
    let suffix = suffix.and_then(|(app, suffix)| Some((app, by_suffix(suffix)?)));
    let (service, suffix) = match suffix {
        Some((app, suffix)) => (app, Some(suffix)),
        None => (app, None),
    };
    asked.service = service.trim().to_owned();
    asked.suffix = suffix;
    let rest = rest.trim().strip_suffix('}').unwrap_or(rest);
    for pair in rest.split(',').filter(|pair| !pair.trim().is_empty()) {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(Refusal::malformed(
                "failed to read `name`: expected labels such as {region=eu,zone=a}",
            ));
        };
        let (name, value) = (name.trim(), value.trim());
        if !name.starts_with("__") {
            asked.labels.push((name.to_owned(), value.to_owned()));
        }
    }
    Ok(asked)
}

/// The profile of folded stacks, or of stacks of which each line is one sample.
fn of_text(asked: &Asked, body: &[u8], is_each_one: bool) -> Result<Typed, Refusal> {
    let text = std::str::from_utf8(body).map_err(|error| {
        Refusal::malformed(format!(
            "failed to read folded stacks: the text is not UTF-8: {error}"
        ))
    })?;
    let mut counted = String::new();
    if is_each_one {
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            // Writing to a string does not fail.
            let _ = writeln!(counted, "{} 1", line.trim_end());
        }
    }
    let kind = match &asked.suffix {
        Some(kind) => kind.clone(),
        None => by_suffix("cpu").ok_or_else(|| Refusal::malformed("`cpu` has no type"))?,
    };
    let info = Info {
        event: kind.of.name.clone(),
        unit: kind.of.unit.clone(),
        period: match kind.is_time {
            true => RATE_MAX / asked.rate,
            false => 1,
        },
        ..Info::default()
    };
    let text = match is_each_one {
        true => counted.as_str(),
        false => text,
    };
    let mut profile = folded::read(text, info).map_err(Refusal::malformed)?;
    if !kind.is_time {
        profile.info.period = 0;
    }
    Ok(Typed {
        sample_type: kind.of,
        period_type: kind.period,
        profile,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000_000_000_000;

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        list.iter().map(owned).collect()
    }

    #[test]
    fn a_name_has_the_service_its_suffix_and_labels_without_quotes() {
        let asked = parse(
            pairs(&[(
                "name",
                "shop.api.alloc_space{k8s.pod=a/b, zone = x,__y__=1}",
            )]),
            NOW,
        );
        let asked = asked.expect("valid");
        assert_eq!(asked.service, "shop.api");
        assert_eq!(asked.suffix.expect("one").of.name, "alloc_space");
        assert_eq!(asked.labels, pairs(&[("k8s.pod", "a/b"), ("zone", "x")]));
        let asked = parse(pairs(&[("name", "shop.api")]), NOW).expect("valid");
        assert_eq!(asked.service, "shop.api", "`api` is no suffix");
    }

    #[test]
    fn folded_counts_are_time_by_the_rate_and_other_counts_are_not() {
        let read = |name: &str| {
            let asked = pairs(&[("name", name), ("sampleRate", "50")]);
            let sent = read(asked, false, b"main;a 2\nmain;b 3\n", NOW);
            let sent = sent.expect("valid");
            (sent[0].name.clone(), sent[0].typed.profile.total().weight)
        };
        assert_eq!(read("app"), ("process_cpu".to_owned(), 100_000_000));
        assert_eq!(read("app.wall"), ("wall".to_owned(), 100_000_000));
        assert_eq!(read("app.goroutines"), ("goroutines".to_owned(), 5));
    }

    #[test]
    fn lines_are_one_sample_each() {
        let asked = pairs(&[("name", "app"), ("format", "lines")]);
        let sent = read(asked, false, b"main;a\nmain;a\n\nmain;b 7\n", NOW).expect("valid");
        let total = sent[0].typed.profile.total();
        assert_eq!((total.count, total.weight), (3, 30_000_000));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_a_sentence() {
        let check = |list: &[(&str, &str)], body: &[u8], expected: &str| {
            let refused = read(pairs(list), false, body, NOW).err().expect(expected);
            assert!(refused.text.contains(expected), "{}", refused.text);
        };
        check(&[], b"a 1", "`name` is missing");
        check(&[("name", "a{b}")], b"a 1", "expected labels");
        check(&[("name", "a"), ("from", "x")], b"a 1", "`from`");
        check(&[("name", "a"), ("format", "jfr")], b"", "format `jfr`");
        check(&[("name", "a")], b"a\xff 1", "not UTF-8");
        check(&[("name", "a")], b"a", "line 1");
        check(&[("name", "a"), ("format", "pprof")], b"a 1", "pprof");
    }
}
