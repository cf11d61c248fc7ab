//! Checks whether an annotation can be stored, and who may see it.

use super::limits::{
    AHEAD_NS_MAX, LABEL_NAME_BYTES_MAX, LABEL_VALUE_BYTES_MAX, LABELS_MAX, LENGTH_NS_MAX,
    TEXT_BYTES_MAX, URL_BYTES_MAX,
};
use super::{DEPLOY, NOTE};
use crate::access::{Caller, Scope};
use hyper::Uri;
use profile::text::is_hostile;
use proto::collector::Annotation;
use std::collections::BTreeMap;
use tonic::Status;

/// The annotation as it is to be kept, by `caller` at `now`.
///
/// # Errors
/// INVALID_ARGUMENT with the field and its bound; PERMISSION_DENIED when it is out of scope.
pub(super) fn checked(
    asked: Annotation,
    caller: &Caller,
    (now, age_ns): (i64, i64),
) -> Result<Annotation, Status> {
    let text = asked.text.trim().to_owned();
    if text.is_empty() || text.len() > TEXT_BYTES_MAX {
        let bytes = text.len();
        return Err(invalid(
            "text",
            format!("it must have 1 to {TEXT_BYTES_MAX} bytes, not {bytes}"),
        ));
    }
    let start = match asked.start_unix_ns {
        0 => now,
        start => start,
    };
    let end = match asked.end_unix_ns {
        0 => 0,
        end if end < start => {
            return Err(invalid("end", "it is earlier than `time`".to_owned()));
        }
        end if end.saturating_sub(start) > LENGTH_NS_MAX => {
            return Err(invalid(
                "end",
                "it is more than 31 days after `time`".to_owned(),
            ));
        }
        end => end,
    };
    if start > now.saturating_add(AHEAD_NS_MAX) {
        return Err(invalid(
            "time",
            "it is more than 7 days in the future".to_owned(),
        ));
    }
    if start.max(end) < now.saturating_sub(age_ns) {
        return Err(invalid(
            "time",
            "it is older than the retention of annotations \
             (`annotations.retention_days`)"
                .to_owned(),
        ));
    }
    let kind = match asked.kind.as_str() {
        "" | NOTE => NOTE,
        DEPLOY => DEPLOY,
        _ => {
            let text = format!("expected `{DEPLOY}` or `{NOTE}`");
            return Err(invalid("kind", text));
        }
    };
    check_labels(&asked)?;
    check_url(&asked.url)?;
    if !is_seen(caller.scope.as_ref(), &asked) {
        let scope = caller.scope.as_ref().map_or("", |scope| &scope.text);
        return Err(Status::permission_denied(format!(
            "failed to add the annotation: its labels are outside `{scope}`, the scope of your \
             login\ngive it labels inside the scope"
        )));
    }
    Ok(Annotation {
        id: 0,
        start_unix_ns: start,
        end_unix_ns: end,
        text,
        labels: asked.labels,
        url: asked.url,
        kind: kind.to_owned(),
        by: caller.name.clone(),
        hosts: 0,
        added_unix_ns: now,
        host_names: Vec::new(),
    })
}

fn check_labels(asked: &Annotation) -> Result<(), Status> {
    if asked.labels.len() > LABELS_MAX {
        let count = asked.labels.len();
        let text = format!("at most {LABELS_MAX} are allowed, not {count}");
        return Err(invalid("labels", text));
    }
    for (name, value) in &asked.labels {
        if name.is_empty()
            || name.len() > LABEL_NAME_BYTES_MAX
            || name.chars().any(|c| c.is_whitespace() || is_hostile(c))
        {
            let text = format!(
                "a name must have 1 to {LABEL_NAME_BYTES_MAX} bytes and no white \
                space"
            );
            return Err(invalid("labels", text));
        }
        if value.is_empty() || value.len() > LABEL_VALUE_BYTES_MAX {
            let text = format!("a value must have 1 to {LABEL_VALUE_BYTES_MAX} bytes");
            return Err(invalid("labels", text));
        }
    }
    Ok(())
}

/// It stands behind a link on the page, so that it must lead to a page and nowhere else.
fn check_url(url: &str) -> Result<(), Status> {
    if url.is_empty() {
        return Ok(());
    }
    let odd = |c: char| c.is_whitespace() || is_hostile(c) || "\"<>\\^`{|}".contains(c);
    let parsed = url.parse::<Uri>().ok();
    let is_web = parsed.is_some_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.host().is_some_and(|host| !host.is_empty())
            && !uri
                .authority()
                .is_some_and(|all| all.as_str().contains('@'))
    });
    if url.len() > URL_BYTES_MAX || url.chars().any(odd) || !is_web {
        return Err(invalid(
            "url",
            format!(
                "expected http:// or https:// with a host, no user, and at most {URL_BYTES_MAX} bytes"
            ),
        ));
    }
    Ok(())
}

/// Whether who has this scope may see an annotation: it has to have labels that are in it.
pub(super) fn is_seen(scope: Option<&Scope>, annotation: &Annotation) -> bool {
    is_seen_on(scope, annotation, &BTreeMap::new())
}

/// The same of a deployment on a host with these labels. What says which service it was goes before
/// what the host says of itself.
pub(super) fn is_seen_on(
    scope: Option<&Scope>,
    annotation: &Annotation,
    host: &BTreeMap<String, String>,
) -> bool {
    let value = |label: &str| {
        let own = annotation.labels.get(label);
        own.or_else(|| host.get(label)).map_or("", String::as_str)
    };
    scope.is_none_or(|scope| {
        let mut matchers = scope.selector.matchers().iter();
        matchers.all(|matcher| matcher.matches(value(matcher.label())))
    })
}

fn invalid(field: &str, why: String) -> Status {
    Status::invalid_argument(format!(
        "failed to add the annotation: `{field}` is invalid: {why}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;

    const NOW: i64 = 1_800_000_000_000_000_000;
    const AGE: i64 = 86_400_000_000_000;

    fn caller(scope: Option<&str>) -> Caller {
        Caller {
            name: "ci".to_owned(),
            role: Role::Operator,
            scope: scope.map(|text| Scope::parse(text).expect("a scope")),
        }
    }

    fn annotation(change: impl FnOnce(&mut Annotation)) -> Annotation {
        let mut made = Annotation {
            text: "api v42".to_owned(),
            ..Annotation::default()
        };
        change(&mut made);
        made
    }

    fn check(asked: Annotation) -> Result<Annotation, Status> {
        checked(asked, &caller(None), (NOW, AGE))
    }

    #[test]
    fn what_is_left_out_is_now_a_note_and_of_whoever_adds_it() {
        let kept = check(annotation(|of| {
            of.by = "somebody else".to_owned();
            of.hosts = 7;
            of.id = 9;
            of.text = "  api v42\n".to_owned();
        }));
        let kept = kept.expect("kept");
        assert_eq!((kept.start_unix_ns, kept.end_unix_ns), (NOW, 0));
        assert_eq!((kept.kind.as_str(), kept.by.as_str()), ("note", "ci"));
        assert_eq!((kept.id, kept.hosts, kept.text.as_str()), (0, 0, "api v42"));
    }

    #[test]
    fn what_has_no_place_or_no_end_is_refused_with_its_field() {
        let cases: Vec<(&str, Annotation)> = vec![
            ("text", annotation(|of| of.text = " ".to_owned())),
            ("text", annotation(|of| of.text = "x".repeat(1001))),
            (
                "end",
                annotation(|of| (of.start_unix_ns, of.end_unix_ns) = (NOW, NOW - 1)),
            ),
            (
                "end",
                annotation(|of| (of.start_unix_ns, of.end_unix_ns) = (1, i64::MAX)),
            ),
            ("time", annotation(|of| of.start_unix_ns = i64::MAX)),
            ("time", annotation(|of| of.start_unix_ns = -5)),
            ("time", annotation(|of| of.start_unix_ns = NOW - AGE - 1)),
            ("kind", annotation(|of| of.kind = "alert".to_owned())),
            (
                "labels",
                annotation(|of| _ = of.labels.insert("a b".into(), "c".into())),
            ),
            (
                "labels",
                annotation(|of| _ = of.labels.insert("a".into(), String::new())),
            ),
            (
                "labels",
                annotation(|of| _ = of.labels.insert("a".into(), "x".repeat(513))),
            ),
            (
                "labels",
                annotation(|of| {
                    of.labels = (0..17).map(|at| (format!("l{at}"), "v".into())).collect()
                }),
            ),
        ];
        for (field, asked) in cases {
            let status = check(asked.clone()).expect_err(field);
            assert_eq!(status.code(), tonic::Code::InvalidArgument);
            let named = status.message().contains(&format!("`{field}`"));
            assert!(named, "{field}: {status} {asked:?}");
        }
    }

    #[test]
    fn links_lead_to_pages_and_nowhere_else() {
        let check_url = |url: &str| check(annotation(|of| of.url = url.to_owned()));
        for url in [
            "https://ci.example.net/run/7?x=1&y=%20#z",
            "http://10.0.0.1:8080/",
            "",
        ] {
            assert!(check_url(url).is_ok(), "{url}");
        }
        for url in [
            "javascript:alert(1)",
            "JavaScript://x/%0aalert(1)",
            "data:text/html,x",
            "//example.net/x",
            "/relative",
            "https://",
            "https://user@example.net/",
            "https://example.net/\"onclick=x",
            "https://example.net/ x",
            "ftp://example.net/",
            "https://example.net/\u{202e}x",
        ] {
            assert!(check_url(url).is_err(), "{url}");
        }
        assert!(check_url(&format!("https://e/{}", "x".repeat(2000))).is_err());
    }

    #[test]
    fn a_scope_sees_and_adds_what_has_its_labels_alone() {
        let labelled = |pairs: &[(&str, &str)]| {
            annotation(|of| {
                let own = |text: &str| text.to_owned();
                of.labels = pairs.iter().map(|(n, v)| (own(n), own(v))).collect();
            })
        };
        let payments = caller(Some("namespace=payments"));
        for (pairs, seen) in [
            (&[("namespace", "payments"), ("image", "a:1")][..], true),
            (&[("namespace", "search")][..], false),
            (&[("image", "a:1")][..], false),
            (&[][..], false),
        ] {
            let asked = labelled(pairs);
            assert_eq!(is_seen(payments.scope.as_ref(), &asked), seen, "{pairs:?}");
            assert!(is_seen(None, &asked));
            let added = checked(asked, &payments, (NOW, AGE));
            assert_eq!(added.is_ok(), seen, "{pairs:?}");
        }
    }
}
