//! The reference of the protocol is what its files say.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::source_code_info::Location;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet, MethodDescriptorProto, ServiceDescriptorProto,
};
use std::collections::BTreeMap;
use std::fmt::Write;
use testkit::repository::check_generated;

/// Numbers by which descriptors say where in a file something stands (`descriptor.proto`).
const FILE_MESSAGES: i32 = 4;
const FILE_ENUMS: i32 = 5;
const FILE_SERVICES: i32 = 6;
const FILE_SYNTAX: i32 = 12;
const MESSAGE_FIELDS: i32 = 2;
const MESSAGE_MESSAGES: i32 = 3;
const MESSAGE_ENUMS: i32 = 4;
const MEMBERS: i32 = 2;

const OPENING: &str = "\
# Protocol: every call and message

This page is generated from the `.proto` files. All fields are optional, as always in proto3: an absent field has the
default value of its type (0, empty, false), unless stated otherwise. How to use the calls: [gRPC API](grpc-api.md),
[wire protocol](wire-protocol.md).

*Who* says who may make a call to a collector that authenticates people and hosts: hosts of the fleet, or people with
this role or a higher one ([roles](../operate/security.md#people)). Anybody who can open the agent's socket, or has its
token, may make the agent's calls.
";

/// A file with its comments.
struct Source<'a> {
    file: &'a FileDescriptorProto,
    comments: BTreeMap<Vec<i32>, &'a Location>,
}

impl<'a> Source<'a> {
    fn new(file: &'a FileDescriptorProto) -> Source<'a> {
        let info = file.source_code_info.as_ref().expect("comments");
        let comments = info
            .location
            .iter()
            .map(|location| (location.path.clone(), location))
            .collect();
        Source { file, comments }
    }

    /// The comment before what stands at this path, in one line.
    fn comment(&self, path: &[i32]) -> String {
        let comment = self.comments.get(path).map_or(String::new(), |location| {
            let (before, after) = (location.leading_comments(), location.trailing_comments());
            format!("{before} {after}")
        });
        cell(&comment)
    }

    /// What opens the file.
    fn duty(&self) -> String {
        let syntax = self.comments.get([FILE_SYNTAX].as_slice());
        let syntax = syntax.expect("a file says its syntax");
        let detached = syntax.leading_detached_comments.join(" ");
        cell(&format!("{detached} {}", syntax.leading_comments()))
    }

    /// The last part of a type's name, with the part before it where another message holds it.
    fn short(&self, name: &str) -> String {
        let name = name.trim_start_matches('.');
        let own = format!("{}.", self.file.package());
        name.strip_prefix(&own)
            .unwrap_or_else(|| name.trim_start_matches("fleetprof."))
            .to_owned()
    }

    fn type_of(&self, field: &FieldDescriptorProto, maps: &BTreeMap<String, String>) -> String {
        if let Some(map) = maps.get(field.type_name()) {
            return format!("`{map}`");
        }
        let name = match field.r#type() {
            Type::Message | Type::Enum => self.short(field.type_name()),
            scalar => format!("{scalar:?}").to_lowercase(),
        };
        match field.label() {
            Label::Repeated => format!("list of `{name}`"),
            _ => format!("`{name}`"),
        }
    }
}

/// A comment as a cell of a table.
fn cell(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    words.join(" ").replace('|', "\\|").replace('<', "&lt;")
}

fn service(page: &mut String, source: &Source<'_>, at: &[i32], service: &ServiceDescriptorProto) {
    let duty = source.comment(at);
    let name = format!("{}.{}", source.file.package(), service.name());
    write!(page, "\n### `{name}`\n\n{duty}\n\n").unwrap();
    let fleet = name.starts_with("fleetprof.collector.");
    let (who, line) = if fleet { (" Who |", "---|") } else { ("", "") };
    writeln!(
        page,
        "| Call |{who} Request | Answer | |\n|---|{line}---|---|---|"
    )
    .unwrap();
    for (index, method) in service.method.iter().enumerate() {
        let comment = source.comment(&[at, &[MEMBERS, index.try_into().unwrap()]].concat());
        let path = format!("/{name}/{}", method.name());
        let who = match collector::access::who_may(&path) {
            Some(who) if fleet => format!(" {who} |"),
            None if !fleet => String::new(),
            row => panic!("{path} is of {row:?}"),
        };
        let (request, answer) = messages_of(source, method);
        let name = method.name();
        writeln!(page, "| `{name}` |{who} {request} | {answer} | {comment} |").unwrap();
    }
}

fn messages_of(source: &Source<'_>, method: &MethodDescriptorProto) -> (String, String) {
    let message = |name: &str, many: bool| {
        let name = source.short(name);
        if many {
            format!("stream of `{name}`")
        } else {
            format!("`{name}`")
        }
    };
    (
        message(method.input_type(), method.client_streaming()),
        message(method.output_type(), method.server_streaming()),
    )
}

fn message(
    page: &mut String,
    source: &Source<'_>,
    at: &[i32],
    outer: &str,
    message: &DescriptorProto,
) {
    let name = format!("{outer}{}", message.name());
    let is_map = |inner: &&DescriptorProto| inner.options.as_ref().is_some_and(|o| o.map_entry());
    let maps: BTreeMap<_, _> = message
        .nested_type
        .iter()
        .filter(is_map)
        .map(|entry| {
            let full = format!(".{}.{name}.{}", source.file.package(), entry.name());
            let of = |index: usize| {
                let kind = source.type_of(&entry.field[index], &BTreeMap::new());
                kind.trim_matches('`').to_owned()
            };
            (full, format!("map of {} to {}", of(0), of(1)))
        })
        .collect();
    let about = source.comment(at);
    write!(page, "\n#### `{name}`\n\n").unwrap();
    if !about.is_empty() {
        write!(page, "{about}\n\n").unwrap();
    }
    if message.field.is_empty() {
        page.push_str("Has no fields.\n");
    } else {
        page.push_str("| No. | Field | Type | |\n|---:|---|---|---|\n");
    }
    for (index, field) in message.field.iter().enumerate() {
        let mut comment =
            source.comment(&[at, &[MESSAGE_FIELDS, index.try_into().unwrap()]].concat());
        if let (Some(choice), false) = (field.oneof_index, field.proto3_optional()) {
            let choice = message.oneof_decl[usize::try_from(choice).unwrap()].name();
            comment = format!("One of `{choice}`. {comment}");
        }
        if field.proto3_optional() {
            comment = format!("May be absent. {comment}");
        }
        let (number, kind) = (field.number(), source.type_of(field, &maps));
        writeln!(
            page,
            "| {number} | `{}` | {kind} | {} |",
            field.name(),
            comment.trim()
        )
        .unwrap();
    }
    let inner = format!("{name}.");
    for (index, nested) in message.nested_type.iter().enumerate() {
        if !is_map(&nested) {
            let at = [at, &[MESSAGE_MESSAGES, index.try_into().unwrap()]].concat();
            self::message(page, source, &at, &inner, nested);
        }
    }
    for (index, nested) in message.enum_type.iter().enumerate() {
        let at = [at, &[MESSAGE_ENUMS, index.try_into().unwrap()]].concat();
        enumeration(page, source, &at, &inner, nested);
    }
}

fn enumeration(
    page: &mut String,
    source: &Source<'_>,
    at: &[i32],
    outer: &str,
    choices: &EnumDescriptorProto,
) {
    let about = source.comment(at);
    write!(page, "\n#### `{outer}{}`\n\n", choices.name()).unwrap();
    if !about.is_empty() {
        write!(page, "{about}\n\n").unwrap();
    }
    page.push_str("| No. | Value | |\n|---:|---|---|\n");
    for (index, value) in choices.value.iter().enumerate() {
        let comment = source.comment(&[at, &[MEMBERS, index.try_into().unwrap()]].concat());
        writeln!(
            page,
            "| {} | `{}` | {comment} |",
            value.number(),
            value.name()
        )
        .unwrap();
    }
}

fn page() -> String {
    let set = FileDescriptorSet::decode(proto::DESCRIPTORS).unwrap();
    let mut page = OPENING.to_owned();
    for file in set
        .file
        .iter()
        .filter(|file| file.package().starts_with("fleetprof."))
    {
        let source = Source::new(file);
        let name = file.name().rsplit('/').next().unwrap();
        let link = format!("[{name}](../../proto/{})", file.name());
        write!(page, "\n## {link}\n\n{}\n", source.duty()).unwrap();
        for (index, declared) in file.service.iter().enumerate() {
            service(
                &mut page,
                &source,
                &[FILE_SERVICES, index.try_into().unwrap()],
                declared,
            );
        }
        for (index, declared) in file.message_type.iter().enumerate() {
            let at = [FILE_MESSAGES, index.try_into().unwrap()];
            message(&mut page, &source, &at, "", declared);
        }
        for (index, declared) in file.enum_type.iter().enumerate() {
            let at = [FILE_ENUMS, index.try_into().unwrap()];
            enumeration(&mut page, &source, &at, "", declared);
        }
    }
    page
}

/// `FLEETPROF_BLESS=1 tests/run protocol` writes the page again.
#[test]
fn the_reference_has_every_call_and_message() {
    check_generated("docs/reference/protocol.md", &page());
}
