//! Selectors of Pyroscope's clients, as selectors of the store.
//!
//! They are those of Prometheus, and may stand after the id of a profile type:
//! `process_cpu:cpu:nanoseconds:cpu:nanoseconds{service_name="x",}`. Labels that start with `__`
//! say something of the type. `service_name` is the first of the configured service labels that a
//! sample has. A selector of the store knows no such alternative, so a question by service is one
//! question for each label: of the samples that have none of the labels before it. No sample is in
//! two of them.

use super::types::{PROFILE_TYPE, ProfileType, is_of_type};
use crate::query::invalid;
use profile::{LabelMatcher, MatchOp, Selector};
use tonic::Status;

/// Label that every series has.
pub const SERVICE_NAME: &str = "service_name";

/// Service of samples without any of the service labels.
const UNKNOWN_SERVICE: &str = "unknown_service";

/// Parts of an id of a profile type, at least: what has them is no plain metric name.
const TYPE_PARTS: usize = 5;

/// A selector in its parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    of_labels: Vec<LabelMatcher>,
    of_service: Vec<LabelMatcher>,
    of_type: Vec<LabelMatcher>,
}

/// A part of a selection in which one label names the service.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Part {
    /// Its samples.
    pub selector: Selector,
    /// The label with their service.
    pub service: Service,
}

/// Where the service of samples is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Service {
    /// Nobody asked.
    Unasked,
    /// The value of this label.
    Label(String),
    /// They have none.
    Unknown,
}

impl Service {
    /// The service of samples with these labels.
    pub fn name<'l>(&self, value: impl FnOnce(&str) -> &'l str) -> &'l str {
        match self {
            Service::Label(label) => value(label),
            Service::Unasked | Service::Unknown => UNKNOWN_SERVICE,
        }
    }

    /// The label to group by, if there is one.
    pub fn label(&self) -> Option<&String> {
        match self {
            Service::Label(label) => Some(label),
            Service::Unasked | Service::Unknown => None,
        }
    }
}

impl Selection {
    /// Reads a selector; the empty text takes everything.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when it is none.
    pub fn parse(text: &str) -> Result<Selection, Status> {
        let (name, matchers) = split_name(text);
        let mut selection = Selection::default();
        if !name.is_empty() {
            let named = LabelMatcher::new("__name__", MatchOp::Equal, name);
            selection.add(named.map_err(invalid)?)?;
        }
        let selector: Selector = matchers.parse().map_err(invalid)?;
        for matcher in selector.matchers() {
            selection.add(matcher.clone())?;
        }
        Ok(selection)
    }

    fn add(&mut self, matcher: LabelMatcher) -> Result<(), Status> {
        let is_id = matcher.label() == "__name__"
            && matcher.op() == MatchOp::Equal
            && matcher.value().split(':').count() >= TYPE_PARTS;
        if is_id {
            let id = ProfileType::parse(matcher.value())?.id();
            let matcher = LabelMatcher::new(PROFILE_TYPE, MatchOp::Equal, id);
            self.of_type.push(matcher.map_err(invalid)?);
        } else if is_of_type(matcher.label()) {
            self.of_type.push(matcher);
        } else if matcher.label() == SERVICE_NAME {
            self.of_service.push(matcher);
        } else {
            self.of_labels.push(matcher);
        }
        Ok(())
    }

    /// True when it takes samples of this type.
    pub fn takes(&self, of: &ProfileType) -> bool {
        let value = |label| of.label(label).unwrap_or_default();
        let mut matchers = self.of_type.iter();
        matchers.all(|matcher| matcher.matches(&value(matcher.label())))
    }

    /// The type that it names, where it names exactly one.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when it does not.
    pub fn profile_type(&self) -> Result<ProfileType, Status> {
        let mut named = self
            .of_type
            .iter()
            .filter(|matcher| matcher.label() == PROFILE_TYPE && matcher.op() == MatchOp::Equal);
        match (named.next(), named.next()) {
            (Some(matcher), None) => ProfileType::parse(matcher.value()),
            _ => Err(invalid(
                "failed to use the query: expected the id of one profile type and a selector, \
                 such as process_cpu:cpu:nanoseconds:cpu:nanoseconds{}",
            )),
        }
    }

    /// The parts of it whose services have one label each, or all of it where nothing asks for
    /// services.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when there are too many matchers.
    pub(super) fn parts(
        &self,
        service_labels: &[String],
        by_service: bool,
    ) -> Result<Vec<Part>, Status> {
        let part = |matchers, service| {
            let selector = Selector::new(matchers).map_err(invalid)?;
            Ok::<_, Status>(Part { selector, service })
        };
        if self.of_service.is_empty() && !by_service {
            return Ok(vec![part(self.of_labels.clone(), Service::Unasked)?]);
        }
        let mut parts = Vec::new();
        let mut without = self.of_labels.clone();
        for label in service_labels {
            let mut matchers = without.clone();
            matchers.push(empty(label, false)?);
            for asked in &self.of_service {
                let own = LabelMatcher::new(label, asked.op(), asked.value());
                matchers.push(own.map_err(invalid)?);
            }
            parts.push(part(matchers, Service::Label(label.clone()))?);
            without.push(empty(label, true)?);
        }
        let mut asked = self.of_service.iter();
        if asked.all(|matcher| matcher.matches(UNKNOWN_SERVICE)) {
            parts.push(part(without, Service::Unknown)?);
        }
        Ok(parts)
    }
}

/// Takes samples that lack a label, or those that have it.
fn empty(label: &str, is: bool) -> Result<LabelMatcher, Status> {
    let op = if is {
        MatchOp::Equal
    } else {
        MatchOp::NotEqual
    };
    LabelMatcher::new(label, op, "").map_err(invalid)
}

/// The metric name in front of a selector, and the selector.
fn split_name(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find('{').unwrap_or(text.len());
    let (name, matchers) = (text[..end].trim(), &text[end..]);
    // A list of matchers needs no braces, and a value in it may have some.
    match name.contains(['=', '!', '^', '"', '\'', '`', ',']) {
        true => ("", text),
        false => (name, matchers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: &str = "process_cpu:cpu:nanoseconds:cpu:nanoseconds";

    fn labels() -> Vec<String> {
        ["service", "unit"].map(str::to_owned).to_vec()
    }

    /// The parts of a selector, as texts.
    fn parts(text: &str, by_service: bool) -> Vec<String> {
        let selection = Selection::parse(text).expect(text);
        let parts = selection.parts(&labels(), by_service).expect(text);
        parts.iter().map(|part| part.selector.to_string()).collect()
    }

    #[test]
    fn what_clients_send_is_read() {
        for text in ["", "{}", " { } ", "process_cpu{}", CPU] {
            assert_eq!(parts(text, false), [""], "{text}");
        }
        for text in [
            r#"{host="a",}"#,
            r#"{ host = "a" , }"#,
            r#"{"host"="a"}"#,
            r#"host="a""#,
            r#"process_cpu:cpu:nanoseconds:cpu:nanoseconds{host="a"}"#,
        ] {
            assert_eq!(parts(text, false), [r#"host="a""#], "{text}");
        }
        assert_eq!(parts(r#"unit="a{b}""#, false), [r#"unit="a{b}""#]);
    }

    #[test]
    fn an_id_in_front_is_a_matcher_of_the_type() {
        let cpu = ProfileType::parse(CPU).expect("a type");
        let other = ProfileType::of_unit("cycles");
        for text in [
            CPU.to_owned(),
            format!("{CPU}{{}}"),
            format!("{{__profile_type__=\"{CPU}\"}}"),
            format!("{{__name__=\"{CPU}\",}}"),
            "{__type__=~\"c.u\"}".to_owned(),
        ] {
            let selection = Selection::parse(&text).expect(&text);
            assert!(selection.takes(&cpu) && !selection.takes(&other), "{text}");
        }
        let named = Selection::parse(CPU).expect("valid").profile_type();
        assert_eq!(named.expect("one"), cpu);
        assert!(
            Selection::parse("{}")
                .expect("valid")
                .profile_type()
                .is_err()
        );
    }

    #[test]
    fn a_service_is_the_first_label_that_is_there() {
        assert_eq!(
            parts(r#"{service_name="x",host="h"}"#, false),
            [
                r#"host="h",service!="",service="x""#,
                r#"host="h",service="",unit!="",unit="x""#,
            ]
        );
    }

    #[test]
    fn what_has_no_service_is_of_an_unknown_one() {
        let unknown = r#"service="",unit="""#;
        assert_eq!(parts("{}", true)[2], unknown);
        let asked = |text| parts(text, false).contains(&unknown.to_owned());
        assert!(asked(r#"{service_name="unknown_service"}"#));
        assert!(asked(r#"{service_name!="x"}"#));
        assert!(!asked(r#"{service_name=~"x.*"}"#));
    }

    #[test]
    fn what_is_no_selector_is_refused() {
        for text in ["{", "{host}", "{host=~\"(\"}", "a:b:c:d:e:f:g{}", "{} x"] {
            let refused = Selection::parse(text).expect_err(text);
            assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{text}");
        }
    }
}
