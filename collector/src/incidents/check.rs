//! Checks what people send, and who may see an incident.

use super::limits::{
    ADDRESS_BYTES_MAX, LABEL_BYTES_MAX, LABELS_MAX, TEXT_BYTES_MAX, TITLE_BYTES_MAX,
};
use crate::access::{Caller, Scope};
use profile::text::is_hostile;
use std::collections::HashMap;
use tonic::Status;

/// The title as it is kept.
pub(super) fn title(text: &str) -> Result<String, Status> {
    let text = text.trim();
    if text.is_empty() || text.len() > TITLE_BYTES_MAX || text.chars().any(is_hostile) {
        return Err(invalid(
            "title",
            &format!("it must be one line of 1 to {TITLE_BYTES_MAX} bytes"),
        ));
    }
    Ok(text.to_owned())
}

/// The name of a view as it is kept.
pub(super) fn name(text: &str) -> Result<String, Status> {
    title(text).map_err(|_| {
        Status::invalid_argument(format!(
            "failed to save the view: `name` must be one line of 1 to {TITLE_BYTES_MAX} bytes"
        ))
    })
}

/// The text of an entry as it is kept.
pub(super) fn text(text: &str, is_needed: bool) -> Result<String, Status> {
    let text = text.trim();
    let odd = |c: char| is_hostile(c) && c != '\n' && c != '\t';
    if text.len() > TEXT_BYTES_MAX || text.chars().any(odd) || (is_needed && text.is_empty()) {
        return Err(invalid(
            "text",
            &format!("it must have 1 to {TEXT_BYTES_MAX} bytes and no control characters"),
        ));
    }
    Ok(text.to_owned())
}

/// An address of the page: what stands behind its `#`, so that it leads nowhere else.
pub(super) fn address(text: &str) -> Result<String, Status> {
    let odd = |c: char| c.is_whitespace() || is_hostile(c) || "\"<>\\^`{|}".contains(c);
    let is_sound = text.starts_with('#') && !text.chars().any(odd);
    if text.len() > ADDRESS_BYTES_MAX || (!text.is_empty() && !is_sound) {
        return Err(invalid(
            "address",
            &format!(
                "it must be the part of the page's address from `#` on, at most {ADDRESS_BYTES_MAX} bytes"
            ),
        ));
    }
    Ok(text.to_owned())
}

/// Labels of an incident that somebody opens.
pub(super) fn labels(of: &HashMap<String, String>, caller: &Caller) -> Result<(), Status> {
    if of.len() > LABELS_MAX {
        return Err(invalid(
            "labels",
            &format!("at most {LABELS_MAX} are allowed"),
        ));
    }
    let is_plain = |text: &String| {
        !text.is_empty() && text.len() <= LABEL_BYTES_MAX && !text.chars().any(is_hostile)
    };
    if !of
        .iter()
        .all(|(name, value)| is_plain(name) && is_plain(value))
    {
        return Err(invalid(
            "labels",
            &format!("names and values must have 1 to {LABEL_BYTES_MAX} bytes"),
        ));
    }
    if !is_seen(caller.scope.as_ref(), of) {
        let scope = caller.scope.as_ref().map_or("", |scope| &scope.text);
        return Err(Status::permission_denied(format!(
            "failed to open the incident: its labels are outside `{scope}`, the scope of your \
             login\ngive it labels inside the scope"
        )));
    }
    Ok(())
}

/// Whether who has this scope may see an incident: it has to have labels that are in it.
pub(super) fn is_seen(scope: Option<&Scope>, labels: &HashMap<String, String>) -> bool {
    let value = |label: &str| labels.get(label).map_or("", String::as_str);
    scope.is_none_or(|scope| {
        let mut matchers = scope.selector.matchers().iter();
        matchers.all(|matcher| matcher.matches(value(matcher.label())))
    })
}

fn invalid(field: &str, why: &str) -> Status {
    Status::invalid_argument(format!(
        "failed to use the incident: `{field}` is invalid: {why}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lead_to_the_page_and_nowhere_else() {
        for sound in ["", "#view=profile&query=unit%3D%22a%22", "#"] {
            assert!(address(sound).is_ok(), "{sound}");
        }
        for wrong in [
            "https://evil.example",
            "javascript:alert(1)",
            "//evil.example",
            "view=profile",
            "#a\"onclick=x",
            "#a b",
            "#\u{202e}",
        ] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
        assert!(address(&format!("#{}", "x".repeat(ADDRESS_BYTES_MAX))).is_err());
    }

    #[test]
    fn titles_are_a_line_and_notes_are_text() {
        assert_eq!(title(" api slow ").expect("sound"), "api slow");
        assert!(title("").is_err() && title("a\nb").is_err() && title("\u{1b}[2J").is_err());
        assert!(title(&"x".repeat(TITLE_BYTES_MAX + 1)).is_err());
        assert_eq!(text("a\nb\tc", true).expect("sound"), "a\nb\tc");
        assert!(text(" ", true).is_err() && text("", false).is_ok());
        assert!(text("\u{202e}", true).is_err());
    }
}
