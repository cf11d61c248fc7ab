//! Profiles of the store as a request of OTLP.
//!
//! A resource is what samples have in common but for thread, context and how their stack ended:
//! a process of a container or unit of a host. Its attributes are those of the semantic
//! conventions. Samples of CPU time that weigh their count times the period are counts, as other
//! profilers send them; what weighs differently, such as an estimate of what was lost, is in a
//! second profile of nanoseconds, so that both add up to what is stored.
//!
//! The rules of OpenTelemetry's conformance checker hold (`conformance.rs`): the first entry of
//! each table is what is not set, no entry is there twice or for nothing.

use super::pending::Piece;
use crate::otlp::messages::{
    AnyValue, Attribute, Dictionary, Function, KeyValue, Line, Link, Location, Mapping, Profile,
    ProfileId, Resource, ResourceProfiles, Sample, Scope, ScopeProfiles, Stack, ValueType,
};
use crate::otlp::wire::ExportProfilesServiceRequest;
use crate::otlp::{FRAME_TYPE, word_of};
use bytes::Bytes;
use profile::{FrameKind, FrameRef, Info, LabelSetId, StackEnd, StackId, Value, key};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

/// Attribute of a file with the build ID that its linker wrote.
const BUILD_ID: &str = "process.executable.build_id.gnu";

/// Attribute of samples with how their stack ended, where that is not at its start function.
const STACK_END: &str = "fleetprof.stack_end";

/// What is known of a host's stretch of time.
pub struct Read {
    /// The stretch.
    pub piece: Piece,
    /// Its samples, with all labels.
    pub profile: profile::Profile,
}

/// A request, and how many profiles it has.
pub struct Encoded {
    /// The request.
    pub request: ExportProfilesServiceRequest,
    /// Its profiles.
    pub profiles: u64,
}

/// About how large a profile is in a request. Unit: bytes.
pub fn estimate(profile: &profile::Profile) -> usize {
    let stacks: BTreeSet<StackId> = profile.samples.keys().map(|key| key.stack).collect();
    let depths = stacks.iter();
    let depths = depths.map(|&stack| profile.dict.stacks.leaf_first(stack).count());
    // An index takes two bytes or three.
    let stacks: usize = depths.map(|depth| 4 + 3 * depth).sum();
    let texts = profile.dict.strings.text_bytes();
    texts + stacks + 24 * profile.dict.frames.len() + 16 * profile.samples.len()
}

/// The request with these. `service_labels`: the first that a sample has is its `service.name`.
pub fn request(reads: &[Read], service_labels: &[String]) -> Encoded {
    let mut tables = Tables::new();
    let mut resource_profiles = Vec::new();
    let mut profiles = 0;
    for read in reads {
        for (labels, sums) in resources(read, &mut tables) {
            let made = [
                sums.profile(Sums::COUNTED, read, &labels, &mut tables),
                sums.profile(Sums::WEIGHED, read, &labels, &mut tables),
            ];
            let made: Vec<Bytes> = made.into_iter().flatten().collect();
            profiles += made.len() as u64;
            let message = ResourceProfiles {
                resource: Some(Resource {
                    attributes: attributes(&labels, &read.piece.host_id, service_labels),
                }),
                scope_profiles: vec![ScopeProfiles {
                    scope: Some(Scope {
                        name: env!("CARGO_PKG_NAME").to_owned(),
                        version: env!("CARGO_PKG_VERSION").to_owned(),
                    }),
                    profiles: made,
                }],
            };
            resource_profiles.push(message.encode_to_vec().into());
        }
    }
    let request = ExportProfilesServiceRequest {
        resource_profiles,
        dictionary: tables.finish().encode_to_vec().into(),
    };
    Encoded { request, profiles }
}

/// Labels of a resource, ordered.
type Labels = Vec<(String, String)>;

/// Samples by stack and attributes: indices of the tables.
type Samples = BTreeMap<(i32, Vec<i32>), i64>;

/// Samples of a resource, by what their values are.
#[derive(Default)]
struct Sums([Samples; 2]);

fn resources(read: &Read, tables: &mut Tables) -> BTreeMap<Labels, Sums> {
    let profile = &read.profile;
    let mut all: BTreeMap<Labels, Sums> = BTreeMap::new();
    let mut known: HashMap<LabelSetId, (Labels, Vec<i32>)> = HashMap::new();
    let mut stacks: HashMap<StackId, i32> = HashMap::new();
    for (at, value) in profile.sorted() {
        let (kind, value) = weighed(&profile.info, value);
        if value == 0 {
            continue;
        }
        let (labels, own) = known.entry(at.labels).or_insert_with(|| {
            let pairs = profile.dict.labels(at.labels);
            let (mut labels, mut own) = (Labels::new(), Vec::new());
            for (name, value) in pairs {
                match sample_attribute(name) {
                    Some(name) => own.push(tables.attribute(name, value)),
                    None => labels.push((name.to_owned(), value.to_owned())),
                }
            }
            labels.sort();
            own.sort_unstable();
            (labels, own)
        });
        let mut attributes = own.clone();
        if at.end != StackEnd::Complete {
            attributes.push(tables.attribute(STACK_END, at.end.word()));
            attributes.sort_unstable();
        }
        let stack = *stacks
            .entry(at.stack)
            .or_insert_with(|| tables.stack(profile, at.stack));
        if !all.contains_key(labels) {
            all.insert(labels.clone(), Sums::default());
        }
        if let Some(sums) = all.get_mut(labels) {
            let sum = sums.0[kind].entry((stack, attributes)).or_default();
            *sum = sum.saturating_add(value);
        }
    }
    all
}

/// Where a value belongs, and what it is there.
fn weighed(info: &Info, value: Value) -> (usize, i64) {
    let by_count = value.count.checked_mul(info.period);
    let is_counted = info.is_cpu_time()
        && info.unit == NANOSECONDS
        && info.period > 0
        && by_count == Some(value.weight);
    let (kind, number) = match is_counted {
        true => (Sums::COUNTED, value.count),
        false => (Sums::WEIGHED, value.weight),
    };
    (kind, i64::try_from(number).unwrap_or(i64::MAX))
}

/// The unit of CPU time.
const NANOSECONDS: &str = "nanoseconds";

impl Sums {
    /// Values are counts of samples.
    const COUNTED: usize = 0;
    /// Values are weights.
    const WEIGHED: usize = 1;

    /// The profile of one kind of values; `None` without any.
    fn profile(
        &self,
        kind: usize,
        read: &Read,
        labels: &Labels,
        tables: &mut Tables,
    ) -> Option<Bytes> {
        let samples = &self.0[kind];
        if samples.is_empty() {
            return None;
        }
        let info = &read.profile.info;
        let weight = match info.is_cpu_time() {
            true => ("cpu", info.unit.as_str()),
            false => (info.event.as_str(), info.unit.as_str()),
        };
        let own = match kind {
            Sums::COUNTED => ("samples", "count"),
            _ => weight,
        };
        let mut value_type = |(name, unit): (&str, &str)| ValueType {
            type_strindex: tables.string(name),
            unit_strindex: tables.string(unit),
        };
        let range = read.piece.range();
        let profile = Profile {
            sample_type: Some(value_type(own)),
            period_type: Some(value_type(weight)),
            // Without one some receivers refuse a profile.
            period: i64::try_from(info.period).unwrap_or(i64::MAX).max(1),
            time_unix_nano: range.start_unix_ns.max(0).unsigned_abs(),
            duration_nano: range.end_unix_ns.abs_diff(range.start_unix_ns),
            samples: samples
                .iter()
                .map(|((stack, attributes), value)| {
                    let sample = Sample {
                        stack_index: *stack,
                        attribute_indices: attributes.clone(),
                        values: vec![*value],
                        ..Sample::default()
                    };
                    sample.encode_to_vec().into()
                })
                .collect(),
        };
        let id = ProfileId {
            profile_id: identity(&read.piece, labels, kind),
        };
        let mut bytes = profile.encode_to_vec();
        bytes.extend(id.encode_to_vec());
        Some(bytes.into())
    }
}

/// What a profile is known by: the same when it is sent again.
fn identity(piece: &Piece, labels: &Labels, kind: usize) -> Bytes {
    let mut hasher = blake3::Hasher::new();
    let mut add = |text: &[u8]| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text);
    };
    add(piece.host.as_bytes());
    add(piece.host_id.as_bytes());
    add(&piece.run.0.to_le_bytes());
    add(&piece.run.1.to_le_bytes());
    add(&[kind as u8]);
    for (name, value) in labels {
        add(name.as_bytes());
        add(value.as_bytes());
    }
    Bytes::copy_from_slice(&hasher.finalize().as_bytes()[..16])
}

/// The attribute of samples that a label is; `None`: it is one of their resource.
fn sample_attribute(label: &str) -> Option<&'static str> {
    match label {
        key::THREAD => Some("thread.name"),
        key::CONTEXT => Some("fleetprof.context"),
        _ => None,
    }
}

/// Name of the attribute of a resource that a label is.
fn resource_attribute(label: &str) -> String {
    let known = match label {
        key::HOST => "host.name",
        key::CGROUP => "process.linux.cgroup",
        key::SLICE => "systemd.slice",
        key::UNIT => "systemd.unit",
        key::CONTAINER => "container.id",
        key::RUNTIME => "container.runtime.name",
        key::CONTAINER_NAME => "container.name",
        key::IMAGE => "container.image.name",
        key::POD_UID => "k8s.pod.uid",
        key::POD => "k8s.pod.name",
        key::NAMESPACE => "k8s.namespace.name",
        key::COMM => "process.executable.name",
        key::PID => "process.pid",
        _ => "",
    };
    let after = |prefix| label.strip_prefix(prefix);
    match (known, after(key::CONTAINER_LABEL), after(key::POD_LABEL)) {
        ("", Some(name), _) => format!("container.label.{name}"),
        ("", _, Some(name)) => format!("k8s.pod.label.{name}"),
        ("", None, None) => label.to_owned(),
        (known, ..) => known.to_owned(),
    }
}

/// Attributes of a resource. Its service is the first of the service labels that it has, unless it
/// has one by OpenTelemetry's own name.
fn attributes(labels: &Labels, host_id: &str, service_labels: &[String]) -> Vec<KeyValue> {
    const SERVICE: &str = "service.name";
    let get = |name: &str| {
        let found = labels.iter().find(|(own, _)| own == name);
        found.map(|(_, value)| value.as_str())
    };
    let service = get(SERVICE).or_else(|| service_labels.iter().find_map(|label| get(label)));
    let service = match (service, get(key::COMM)) {
        (Some(service), _) => service.to_owned(),
        (None, Some(program)) => format!("unknown_service:{program}"),
        (None, None) => "unknown_service".to_owned(),
    };
    let mut taken = BTreeSet::new();
    let mut all = Vec::new();
    let mut add = |name: &str, value: AnyValue| {
        if taken.insert(name.to_owned()) {
            all.push(KeyValue {
                key: name.to_owned(),
                value: Some(value),
                key_strindex: 0,
            });
        }
    };
    add(SERVICE, text(&service));
    if !host_id.is_empty() {
        add("host.id", text(host_id));
    }
    // What OpenTelemetry has a name for goes before a label that somebody called the same.
    let (known, others): (Vec<_>, Vec<_>) = labels
        .iter()
        .partition(|(name, _)| resource_attribute(name) != *name);
    for (name, value) in known.into_iter().chain(others) {
        let number = value.parse().ok().filter(|_| name == key::PID);
        let value = match number {
            Some(number) => AnyValue {
                int_value: Some(number),
                ..AnyValue::default()
            },
            None => text(value),
        };
        add(&resource_attribute(name), value);
    }
    all
}

fn text(text: &str) -> AnyValue {
    AnyValue {
        string_value: Some(text.to_owned()),
        ..AnyValue::default()
    }
}

/// Entries of a table, each once. The first is what is not set.
struct Table<K> {
    index: HashMap<K, i32>,
}

impl<K: Hash + Eq> Table<K> {
    fn new() -> Table<K> {
        Table {
            index: HashMap::new(),
        }
    }

    /// The index of an entry, which `push` adds where it is new.
    fn index(&mut self, key: K, push: impl FnOnce(&K)) -> i32 {
        // A request has some MiB.
        let next = self.index.len() as i32 + 1;
        *self.index.entry(key).or_insert_with_key(|key| {
            push(key);
            next
        })
    }
}

/// A location: mapping, address, functions with lines, and kind of frame.
type Code = (i32, u64, Vec<(i32, i64)>, i32);

/// The tables that the profiles of a request refer to.
struct Tables {
    dictionary: Dictionary,
    strings: Table<String>,
    /// By key and value.
    attributes: Table<(i32, String)>,
    /// By file name and attribute with the build ID; 0: none.
    mappings: Table<(i32, i32)>,
    /// By name, system name and file.
    functions: Table<(i32, i32, i32, u32)>,
    locations: Table<Code>,
    stacks: Table<Vec<i32>>,
}

impl Tables {
    fn new() -> Tables {
        Tables {
            dictionary: Dictionary {
                mapping_table: vec![Mapping::default()],
                location_table: vec![Location::default()],
                function_table: vec![Function::default()],
                link_table: vec![Link::default()],
                string_table: vec![String::new()],
                attribute_table: vec![Attribute::default()],
                stack_table: vec![Stack::default()],
            },
            strings: Table::new(),
            attributes: Table::new(),
            mappings: Table::new(),
            functions: Table::new(),
            locations: Table::new(),
            stacks: Table::new(),
        }
    }

    fn finish(self) -> Dictionary {
        self.dictionary
    }

    fn string(&mut self, text: &str) -> i32 {
        if text.is_empty() {
            return 0;
        }
        if let Some(&known) = self.strings.index.get(text) {
            return known;
        }
        let table = &mut self.dictionary.string_table;
        self.strings
            .index(text.to_owned(), |text| table.push(text.clone()))
    }

    fn attribute(&mut self, name: &str, value: &str) -> i32 {
        let name = self.string(name);
        let table = &mut self.dictionary.attribute_table;
        self.attributes
            .index((name, value.to_owned()), |(name, value)| {
                table.push(Attribute {
                    key_strindex: *name,
                    value: Some(text(value)),
                });
            })
    }

    fn mapping(&mut self, file: &str, build_id: &str) -> i32 {
        if file.is_empty() && build_id.is_empty() {
            return 0;
        }
        let file = self.string(file);
        let build_id = match build_id {
            "" => 0,
            build_id => self.attribute(BUILD_ID, build_id),
        };
        let table = &mut self.dictionary.mapping_table;
        self.mappings.index((file, build_id), |_| {
            table.push(Mapping {
                filename_strindex: file,
                attribute_indices: Some(build_id).filter(|&at| at > 0).into_iter().collect(),
            });
        })
    }

    fn function(&mut self, frame: &FrameRef<'_>) -> i32 {
        // A place is no name.
        let system = match frame.instruction().or_else(|| frame.place()) {
            Some(_) => "",
            None => frame.system_name,
        };
        let of = (
            self.string(frame.function),
            self.string(system),
            self.string(frame.file),
            frame.start_line,
        );
        let table = &mut self.dictionary.function_table;
        self.functions.index(of, |of| {
            table.push(Function {
                name_strindex: of.0,
                system_name_strindex: of.1,
                filename_strindex: of.2,
                start_line: of.3.into(),
            });
        })
    }

    /// The location of frames, leaf first, of which all but the last are inlined into the last.
    fn location(&mut self, group: &[FrameRef<'_>]) -> i32 {
        let Some(caller) = group.last() else { return 0 };
        let kind = self.attribute(FRAME_TYPE, word_of(caller));
        let place = caller.place().filter(|_| group.len() == 1);
        let (mapping, address, lines) = match place {
            // Whoever has the file finds the name.
            Some(place) => {
                let mapping = self.mapping(caller.module, place.build_id);
                (mapping, place.address, Vec::new())
            }
            None => {
                let lines = group.iter();
                let lines = lines.map(|frame| (self.function(frame), i64::from(frame.line)));
                let lines: Vec<(i32, i64)> = lines.collect();
                (self.mapping(caller.module, ""), 0, lines)
            }
        };
        let table = &mut self.dictionary.location_table;
        self.locations
            .index((mapping, address, lines, kind), |(.., lines, _)| {
                let lines = lines.iter();
                let lines = lines.map(|&(function_index, line)| Line {
                    function_index,
                    line,
                });
                table.push(Location {
                    mapping_index: mapping,
                    address,
                    lines: lines.collect(),
                    attribute_indices: vec![kind],
                });
            })
    }

    fn stack(&mut self, profile: &profile::Profile, stack: StackId) -> i32 {
        let frames = profile.dict.stacks.leaf_first(stack);
        let frames: Vec<FrameRef<'_>> = frames.map(|id| profile.dict.frame(id)).collect();
        let one_location = |callee: &FrameRef<'_>, caller: &FrameRef<'_>| {
            callee.kind == FrameKind::Inlined && callee.module == caller.module
        };
        let groups = frames.chunk_by(one_location);
        let locations: Vec<i32> = groups.map(|group| self.location(group)).collect();
        if locations.is_empty() {
            return 0;
        }
        let table = &mut self.dictionary.stack_table;
        self.stacks.index(locations, |locations| {
            table.push(Stack {
                location_indices: locations.clone(),
            });
        })
    }
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
