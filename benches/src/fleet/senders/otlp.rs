//! Requests of OTLP profiles as OpenTelemetry's eBPF profiler fills them, and as a collector of
//! OpenTelemetry merges those of several hosts.
//!
//! A report has the samples of five seconds: a resource for each process, a sample for each stack,
//! thread and CPU, with the time of each and no value. Tables are of the request. Unlike those of
//! the profiler, native frames have names: the samples are those of all other senders.
//!
//! Source: github.com/open-telemetry/opentelemetry-ebpf-profiler, `reporter/internal/pdata`, and
//! `reporter/base_reporter.go` for what makes a sample of its own; opentelemetry-proto 1.10.

use super::super::generate::{Drawn, Fleet, PERIOD_NS, Random, WINDOW_S};
use profile::{FrameId, FrameKind, StackId};
use std::collections::{BTreeMap, HashMap};

/// Reports of a window: the profiler's interval is 5 s unless it is set.
pub const REPORTS: usize = 2;

/// Length of a report. Unit: nanoseconds.
const REPORT_NS: u64 = WINDOW_S * 1_000_000_000 / REPORTS as u64;

/// Threads of a process that are busy. They have one name and, for so short a time, a CPU each.
const THREADS: u64 = 8;

/// CPUs of a host, as its facts say.
const CPUS: u64 = 32;

/// One host's samples of five seconds.
pub struct Report {
    host: usize,
    start_unix_ns: u64,
    processes: Vec<Process>,
}

struct Process {
    container: usize,
    /// Times by stack and thread.
    samples: BTreeMap<(StackId, u64), Vec<u64>>,
}

/// The reports of a window that was drawn: when each sample was taken, and by which thread, is the
/// same for the same window.
pub fn reports(host: usize, window: u64, start_unix_ns: i64, drawn: &Drawn) -> [Report; REPORTS] {
    let mut random = Random::new(window ^ ((host as u64) << 32));
    let mut reports = std::array::from_fn(|at| Report {
        host,
        start_unix_ns: start_unix_ns as u64 + at as u64 * REPORT_NS,
        processes: Vec::new(),
    });
    for rows in drawn.rows.chunk_by(|left, right| left.0 == right.0) {
        let mut processes: [Process; REPORTS] = std::array::from_fn(|_| Process {
            container: rows[0].0 as usize,
            samples: BTreeMap::new(),
        });
        for &(_, stack, count) in rows {
            for _ in 0..count {
                let at = (random.unit() * (REPORT_NS * REPORTS as u64) as f64) as u64;
                let thread = (random.unit() * THREADS as f64) as u64;
                let report = ((at / REPORT_NS) as usize).min(REPORTS - 1);
                let times = processes[report].samples.entry((stack, thread));
                times.or_default().push(start_unix_ns as u64 + at);
            }
        }
        for (report, process) in reports.iter_mut().zip(processes) {
            if !process.samples.is_empty() {
                report.processes.push(process);
            }
        }
    }
    reports
}

/// A request that is filled; the first of each table is what is not set.
pub struct Batch<'f> {
    fleet: &'f Fleet,
    request: Request,
    tables: Dictionary,
    strings: HashMap<String, i32>,
    mappings: HashMap<String, i32>,
    locations: HashMap<FrameId, i32>,
    stacks: HashMap<StackId, i32>,
    attributes: HashMap<(&'static str, Value), i32>,
}

/// What an attribute has; the same as [`AnyValue`], to be looked up.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Value {
    Text(String),
    Number(i64),
}

impl Value {
    fn wire(self) -> Option<AnyValue> {
        Some(match self {
            Value::Text(text) => AnyValue {
                string_value: Some(text),
                int_value: None,
            },
            Value::Number(number) => AnyValue {
                string_value: None,
                int_value: Some(number),
            },
        })
    }
}

impl<'f> Batch<'f> {
    /// An empty one.
    pub fn new(fleet: &'f Fleet) -> Batch<'f> {
        Batch {
            fleet,
            request: Request::default(),
            tables: Dictionary {
                mapping_table: vec![Mapping::default()],
                location_table: vec![Location::default()],
                function_table: vec![Function::default()],
                link_table: vec![Link::default()],
                string_table: vec![String::new()],
                attribute_table: vec![Attribute::default()],
                stack_table: vec![Stack::default()],
            },
            strings: [(String::new(), 0)].into(),
            mappings: HashMap::new(),
            locations: HashMap::new(),
            stacks: HashMap::new(),
            attributes: HashMap::new(),
        }
    }

    /// Adds a report.
    pub fn add(&mut self, report: Report) {
        for process in report.processes {
            let profile = self.profile(report.host, report.start_unix_ns, &process);
            let resource = self.resource(report.host, process.container);
            self.request.resource_profiles.push(ResourceProfiles {
                resource: Some(resource),
                scope_profiles: vec![ScopeProfiles {
                    scope: Some(Scope {
                        name: "go.opentelemetry.io/ebpf-profiler".to_owned(),
                        version: "v0.0.202633".to_owned(),
                    }),
                    profiles: vec![profile],
                }],
            });
        }
    }

    /// The request.
    pub fn finish(mut self) -> Request {
        self.request.dictionary = Some(self.tables);
        self.request
    }

    fn resource(&self, host: usize, container: usize) -> Resource {
        let host_of = &self.fleet.hosts[host];
        let of = &host_of.containers[container];
        let service = &self.fleet.services[of.service].name;
        let text = |key: &str, value: &str| KeyValue {
            key: key.to_owned(),
            value: Value::Text(value.to_owned()).wire(),
        };
        Resource {
            attributes: vec![
                text("service.name", service),
                text("container.id", &of.id),
                KeyValue {
                    key: "process.pid".to_owned(),
                    value: Value::Number(pid(host, container) as i64).wire(),
                },
                text(
                    "process.executable.path",
                    &format!("/opt/{service}/{service}"),
                ),
                text("process.executable.name", service),
                // The profiler does not say it; collectors of OpenTelemetry add it.
                text("host.name", &host_of.name),
            ],
        }
    }

    fn profile(&mut self, host: usize, start_unix_ns: u64, process: &Process) -> Profile {
        let fleet = self.fleet;
        let of = &fleet.hosts[host].containers[process.container];
        let comm = &fleet.services[of.service].name;
        let mut samples = Vec::with_capacity(process.samples.len());
        for (&(stack, thread), times) in &process.samples {
            let tid = pid(host, process.container) + thread;
            let mut times = times.clone();
            times.sort_unstable();
            samples.push(Sample {
                stack_index: self.stack(stack),
                attribute_indices: vec![
                    self.attribute("thread.name", Value::Text(comm.clone())),
                    self.attribute("thread.id", Value::Number(tid as i64)),
                    self.attribute("cpu.logical_number", Value::Number((tid % CPUS) as i64)),
                ],
                values: Vec::new(),
                timestamps_unix_nano: times,
            });
        }
        Profile {
            sample_type: Some(self.value_type("samples", "count")),
            samples,
            time_unix_nano: start_unix_ns,
            duration_nano: REPORT_NS,
            period_type: Some(self.value_type("cpu", "nanoseconds")),
            period: PERIOD_NS as i64,
        }
    }

    fn string(&mut self, text: &str) -> i32 {
        if let Some(&known) = self.strings.get(text) {
            return known;
        }
        let new = self.tables.string_table.len() as i32;
        self.tables.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), new);
        new
    }

    fn value_type(&mut self, name: &str, unit: &str) -> ValueType {
        ValueType {
            type_strindex: self.string(name),
            unit_strindex: self.string(unit),
        }
    }

    fn attribute(&mut self, key: &'static str, value: Value) -> i32 {
        let of = (key, value);
        if let Some(&known) = self.attributes.get(&of) {
            return known;
        }
        let new = self.tables.attribute_table.len() as i32;
        let key_strindex = self.string(key);
        self.tables.attribute_table.push(Attribute {
            key_strindex,
            value: of.1.clone().wire(),
        });
        self.attributes.insert(of, new);
        new
    }

    fn stack(&mut self, stack: StackId) -> i32 {
        if let Some(&known) = self.stacks.get(&stack) {
            return known;
        }
        let fleet = self.fleet;
        let frames = fleet.dictionary.stacks.leaf_first(stack);
        let location_indices = frames.map(|frame| self.location(frame)).collect();
        let new = self.tables.stack_table.len() as i32;
        self.tables.stack_table.push(Stack { location_indices });
        self.stacks.insert(stack, new);
        new
    }

    fn location(&mut self, id: FrameId) -> i32 {
        if let Some(&known) = self.locations.get(&id) {
            return known;
        }
        let frame = self.fleet.dictionary.frame(id);
        let kind = match frame.kind {
            FrameKind::Kernel => "kernel",
            _ => "native",
        };
        let function_index = self.tables.function_table.len() as i32;
        let name_strindex = self.string(frame.function);
        self.tables.function_table.push(Function { name_strindex });
        let mapping_index = match self.mappings.get(frame.module) {
            Some(&known) => known,
            None => {
                let filename_strindex = self.string(frame.module);
                let new = self.tables.mapping_table.len() as i32;
                self.tables
                    .mapping_table
                    .push(Mapping { filename_strindex });
                self.mappings.insert(frame.module.to_owned(), new);
                new
            }
        };
        let kind = self.attribute("profile.frame.type", Value::Text(kind.to_owned()));
        let new = self.tables.location_table.len() as i32;
        self.tables.location_table.push(Location {
            mapping_index,
            address: address(id),
            lines: vec![Line {
                function_index,
                line: 0,
            }],
            attribute_indices: vec![kind],
        });
        self.locations.insert(id, new);
        new
    }
}

/// Where a frame is in its file.
pub fn address(frame: FrameId) -> u64 {
    0x1000 + u64::from(frame.0) * 0x40
}

fn pid(host: usize, container: usize) -> u64 {
    1000 + (host as u64 * 64 + container as u64) * 16
}

/// `ExportProfilesServiceRequest`, and what is in it, with the fields that are filled here.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    #[prost(message, repeated, tag = "1")]
    resource_profiles: Vec<ResourceProfiles>,
    #[prost(message, optional, tag = "2")]
    dictionary: Option<Dictionary>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ResourceProfiles {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_profiles: Vec<ScopeProfiles>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AnyValue {
    #[prost(string, optional, tag = "1")]
    string_value: Option<String>,
    #[prost(int64, optional, tag = "3")]
    int_value: Option<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ScopeProfiles {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    profiles: Vec<Profile>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Profile {
    #[prost(message, optional, tag = "1")]
    sample_type: Option<ValueType>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
    #[prost(fixed64, tag = "3")]
    time_unix_nano: u64,
    #[prost(uint64, tag = "4")]
    duration_nano: u64,
    #[prost(message, optional, tag = "5")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "6")]
    period: i64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct ValueType {
    #[prost(int32, tag = "1")]
    type_strindex: i32,
    #[prost(int32, tag = "2")]
    unit_strindex: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Sample {
    #[prost(int32, tag = "1")]
    stack_index: i32,
    #[prost(int32, repeated, tag = "2")]
    attribute_indices: Vec<i32>,
    #[prost(int64, repeated, tag = "4")]
    values: Vec<i64>,
    #[prost(fixed64, repeated, tag = "5")]
    timestamps_unix_nano: Vec<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Dictionary {
    #[prost(message, repeated, tag = "1")]
    mapping_table: Vec<Mapping>,
    #[prost(message, repeated, tag = "2")]
    location_table: Vec<Location>,
    #[prost(message, repeated, tag = "3")]
    function_table: Vec<Function>,
    #[prost(message, repeated, tag = "4")]
    link_table: Vec<Link>,
    #[prost(string, repeated, tag = "5")]
    string_table: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    attribute_table: Vec<Attribute>,
    #[prost(message, repeated, tag = "7")]
    stack_table: Vec<Stack>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Mapping {
    #[prost(int32, tag = "4")]
    filename_strindex: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Location {
    #[prost(int32, tag = "1")]
    mapping_index: i32,
    #[prost(uint64, tag = "2")]
    address: u64,
    #[prost(message, repeated, tag = "3")]
    lines: Vec<Line>,
    #[prost(int32, repeated, tag = "4")]
    attribute_indices: Vec<i32>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Line {
    #[prost(int32, tag = "1")]
    function_index: i32,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Function {
    #[prost(int32, tag = "1")]
    name_strindex: i32,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Link {}

#[derive(Clone, PartialEq, prost::Message)]
struct Attribute {
    #[prost(int32, tag = "1")]
    key_strindex: i32,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Stack {
    #[prost(int32, repeated, tag = "1")]
    location_indices: Vec<i32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn requests_have_the_fields_of_opentelemetrys_own_classes() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../collector/tests/server/otlp/1.10.pb"
        );
        let bytes = std::fs::read(path).expect("the request that the collector's tests send");
        let request = Request::decode(&bytes[..]).expect("a request");
        let profiles = &request.resource_profiles[0].scope_profiles[0].profiles;
        assert_eq!(profiles[0].period, 10_000_000);
        assert_eq!(profiles[0].samples[0].timestamps_unix_nano.len(), 3);
        // Files of functions are not filled here, so the tables differ.
        let mut again = request.clone();
        again.dictionary = None;
        let mut theirs = bytes;
        let dictionary = request.dictionary.as_ref().expect("tables");
        assert_eq!(dictionary.stack_table[1].location_indices.len(), 4);
        theirs.truncate(again.encoded_len());
        assert_eq!(again.encode_to_vec(), theirs);
    }

    #[test]
    fn reports_have_each_sample_of_the_window_once() {
        let fleet = Fleet::new(3, 2, 3);
        let mut drawn = Drawn::default();
        fleet.draw(1, 4, &mut drawn);
        let start = 1_700_000_000_000_000_000;
        let all = reports(1, 4, start, &drawn);
        let mut counts: BTreeMap<(usize, StackId), u32> = BTreeMap::new();
        let mut batch = Batch::new(&fleet);
        for report in all {
            for process in &report.processes {
                for (&(stack, _), times) in &process.samples {
                    let from = report.start_unix_ns;
                    assert!(
                        times
                            .iter()
                            .all(|&at| (from..from + REPORT_NS).contains(&at))
                    );
                    *counts.entry((process.container, stack)).or_default() += times.len() as u32;
                }
            }
            batch.add(report);
        }
        let rows = drawn.rows.iter();
        let expected = rows.map(|&(container, stack, count)| ((container as usize, stack), count));
        assert_eq!(counts, expected.collect());
        let request = batch.finish();
        let tables = request.dictionary.expect("tables");
        let stacks = drawn.rows.iter().map(|row| row.1);
        let stacks: std::collections::BTreeSet<StackId> = stacks.collect();
        assert_eq!(tables.stack_table.len(), stacks.len() + 1);
    }
}
