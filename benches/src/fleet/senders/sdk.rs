//! Requests of SDKs and scrapers: a file of pprof for each process and ten seconds.
//!
//! Source: what `pyroscope-io` 1.4.0 and `@pyroscope/nodejs` 0.6.4 send, as seen on the wire, and
//! Go's `runtime/pprof`. Python's has CPU time, a label with the thread's name, and neither
//! mappings nor addresses; Node's has samples, wall time and CPU time; Go's has samples and CPU
//! time, mappings and addresses.

use super::super::generate::{Fleet, PERIOD_NS, Random, WINDOW_S};
use super::otlp::address;
use flate2::Compression;
use flate2::write::GzEncoder;
use profile::formats::pprof::messages::{
    Function, Label, Line, Location, Mapping, Profile, Sample, ValueType,
};
use profile::{FrameId, StackId};
use prost::Message;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;

/// A container's rows of a window.
pub type Rows<'d> = &'d [(u32, StackId, u32)];

/// A process, and the window that is sent of it.
#[derive(Clone, Copy)]
pub struct Process<'f> {
    /// The fleet.
    pub fleet: &'f Fleet,
    /// Which host.
    pub host: usize,
    /// Which container of it.
    pub container: usize,
    /// When the window starts. Unit: nanoseconds since the Unix epoch.
    pub start_unix_ns: i64,
}

impl Process<'_> {
    fn service(&self) -> &str {
        let of = &self.fleet.hosts[self.host].containers[self.container];
        &self.fleet.services[of.service].name
    }

    /// The labels that people give: the same in all requests of a process.
    fn tags(&self) -> [(&'static str, String); 3] {
        let host = &self.fleet.hosts[self.host];
        let of = &host.containers[self.container];
        [
            ("host", host.name.clone()),
            ("zone", host.zone.to_owned()),
            ("container", of.id.clone()),
        ]
    }
}

/// What a file has.
struct Shape {
    types: &'static [(&'static str, &'static str)],
    has_mappings: bool,
    has_threads: bool,
    /// It says when it was written, not when it was started.
    ends: bool,
}

const PYTHON: Shape = Shape {
    types: &[("cpu", "nanoseconds")],
    has_mappings: false,
    has_threads: true,
    ends: false,
};

const NODE: Shape = Shape {
    types: &[
        ("samples", "count"),
        ("wall", "nanoseconds"),
        ("cpu", "nanoseconds"),
    ],
    has_mappings: false,
    has_threads: false,
    ends: true,
};

const GO: Shape = Shape {
    types: &[("samples", "count"), ("cpu", "nanoseconds")],
    has_mappings: true,
    has_threads: false,
    ends: false,
};

/// Body of the Python SDK's `push.v1`, packed: one series with one file, which is not.
///
/// # Errors
/// When nothing can be packed.
pub fn python(of: Process<'_>, rows: Rows<'_>) -> anyhow::Result<Vec<u8>> {
    let pair = |name: &str, value: &str| Pair {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    let mut labels = vec![
        pair("__name__", "process_cpu"),
        pair("service_name", of.service()),
        pair("otel.scope.name", "com.grafana.pyroscope/python"),
        pair("otel.scope.version", "1.4.0"),
        pair("process.runtime.name", "cpython"),
        pair("process.runtime.version", "3.11.2"),
    ];
    labels.extend(of.tags().map(|(name, value)| pair(name, &value)));
    let seed = of.start_unix_ns as u64 ^ ((of.host as u64) << 16) ^ of.container as u64;
    let mut random = Random::new(seed);
    let mut part = || (random.unit() * f64::from(u32::MAX)) as u64;
    let id = format!(
        "{:08x}-{:04x}-4000-8000-{:012x}",
        part(),
        part() >> 16,
        part()
    );
    let message = PushRequest {
        series: vec![PushSeries {
            labels,
            samples: vec![RawSample {
                raw_profile: file(of, rows, &PYTHON).encode_to_vec(),
                id,
            }],
        }],
    };
    gzip(&message.encode_to_vec())
}

/// Path and body of the Node SDK's `/ingest`.
///
/// # Errors
/// When nothing can be packed.
pub fn node(of: Process<'_>, rows: Rows<'_>) -> anyhow::Result<(String, Vec<u8>)> {
    let tags = of.tags().map(|(name, value)| format!("{name}={value}"));
    let name = format!("{}{{{}}}", of.service(), tags.join(","));
    let from = of.start_unix_ns / 1_000_000_000;
    let until = from + WINDOW_S as i64;
    let path = format!(
        "/ingest?format=pprof&from={from}&name={}&spyName=nodespy&until={until}&sampleRate=334",
        encoded(&name)
    );
    Ok((path, gzip(&file(of, rows, &NODE).encode_to_vec())?))
}

/// Parca's `WriteRaw` of a host: a series for each process, with the file that Go makes.
///
/// # Errors
/// When nothing can be packed.
pub fn written<'f>(
    processes: impl Iterator<Item = (Process<'f>, Rows<'f>)>,
) -> anyhow::Result<WriteRawRequest> {
    let pair = |name: &str, value: &str| Pair {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    let series = processes.map(|(of, rows)| {
        let mut labels = vec![
            pair("__name__", "process_cpu"),
            pair("job", of.service()),
            pair("service_name", of.service()),
        ];
        labels.extend(of.tags().map(|(name, value)| pair(name, &value)));
        let raw_profile = gzip(&file(of, rows, &GO).encode_to_vec())?;
        anyhow::Ok(WrittenSeries {
            labels: Some(LabelSet { labels }),
            samples: vec![WrittenSample { raw_profile }],
        })
    });
    Ok(WriteRawRequest {
        series: series.collect::<Result<_, _>>()?,
    })
}

/// What packs the bodies of SDKs.
///
/// # Errors
/// When memory cannot be written.
pub fn gzip(bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::default());
    packer.write_all(bytes)?;
    Ok(packer.finish()?)
}

/// A part of a query with what is not plain in per cent.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => out.push(byte.into()),
            // Writing to a string does not fail.
            _ => drop(write!(out, "%{byte:02X}")),
        }
    }
    out
}

#[derive(Default)]
struct Builder {
    file: Profile,
    strings: HashMap<String, i64>,
    mappings: HashMap<String, u64>,
    locations: HashMap<FrameId, u64>,
}

impl Builder {
    fn string(&mut self, text: &str) -> i64 {
        if let Some(&known) = self.strings.get(text) {
            return known;
        }
        let new = self.file.string_table.len() as i64;
        self.file.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), new);
        new
    }

    fn mapping(&mut self, module: &str) -> u64 {
        if let Some(&known) = self.mappings.get(module) {
            return known;
        }
        let filename = self.string(module);
        let id = self.file.mapping.len() as u64 + 1;
        self.file.mapping.push(Mapping {
            id,
            filename,
            has_functions: true,
            ..Mapping::default()
        });
        self.mappings.insert(module.to_owned(), id);
        id
    }

    fn location(&mut self, fleet: &Fleet, frame_id: FrameId, has_mappings: bool) -> u64 {
        if let Some(&known) = self.locations.get(&frame_id) {
            return known;
        }
        let frame = fleet.dictionary.frame(frame_id);
        let function = Function {
            id: self.file.function.len() as u64 + 1,
            name: self.string(frame.function),
            // Interpreters have no module: what is here is the file of the source.
            filename: match has_mappings {
                true => 0,
                false => self.string(frame.module),
            },
            ..Function::default()
        };
        self.file.function.push(function);
        let (mapping_id, address) = match has_mappings {
            true => (self.mapping(frame.module), address(frame_id)),
            false => (0, 0),
        };
        let id = self.file.location.len() as u64 + 1;
        self.file.location.push(Location {
            id,
            mapping_id,
            address,
            line: vec![Line {
                function_id: function.id,
                line: 0,
            }],
        });
        self.locations.insert(frame_id, id);
        id
    }
}

fn file(of: Process<'_>, rows: Rows<'_>, shape: &Shape) -> Profile {
    let mut builder = Builder::default();
    builder.string("");
    for (name, unit) in shape.types {
        let named = ValueType {
            r#type: builder.string(name),
            unit: builder.string(unit),
        };
        builder.file.sample_type.push(named);
    }
    // In files of three types, the second is what is sampled.
    let period = shape.types.get(1).unwrap_or(&shape.types[0]);
    builder.file.period_type = Some(ValueType {
        r#type: builder.string(period.0),
        unit: builder.string(period.1),
    });
    builder.file.period = PERIOD_NS as i64;
    let duration = WINDOW_S as i64 * 1_000_000_000;
    let end = if shape.ends { duration } else { 0 };
    builder.file.time_nanos = of.start_unix_ns + end;
    builder.file.duration_nanos = duration;
    let mut label = Vec::new();
    if shape.has_threads {
        label.push(Label {
            key: builder.string("thread_name"),
            str: builder.string(of.service()),
            num: 0,
        });
    }
    for &(_, stack, count) in rows {
        let frames = of.fleet.dictionary.stacks.leaf_first(stack);
        let locations = frames.map(|id| builder.location(of.fleet, id, shape.has_mappings));
        let location_id = locations.collect();
        let values = shape.types.iter().map(|(_, unit)| match *unit {
            "count" => i64::from(count),
            _ => i64::from(count) * PERIOD_NS as i64,
        });
        builder.file.sample.push(Sample {
            location_id,
            value: values.collect(),
            label: label.clone(),
        });
    }
    builder.file
}

#[derive(Clone, PartialEq, prost::Message)]
struct PushRequest {
    #[prost(message, repeated, tag = "1")]
    series: Vec<PushSeries>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PushSeries {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Pair>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<RawSample>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Pair {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RawSample {
    #[prost(bytes = "vec", tag = "1")]
    raw_profile: Vec<u8>,
    #[prost(string, tag = "2")]
    id: String,
}

/// Parca's.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WriteRawRequest {
    #[prost(message, repeated, tag = "2")]
    series: Vec<WrittenSeries>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct WrittenSeries {
    #[prost(message, optional, tag = "1")]
    labels: Option<LabelSet>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<WrittenSample>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LabelSet {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Pair>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct WrittenSample {
    #[prost(bytes = "vec", tag = "1")]
    raw_profile: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::super::super::generate::Drawn;
    use super::*;

    #[test]
    fn files_have_each_sample_of_the_window_once_in_each_type() {
        let fleet = Fleet::new(3, 1, 3);
        let mut drawn = Drawn::default();
        fleet.draw(0, 1, &mut drawn);
        let rows = drawn.rows.chunk_by(|left, right| left.0 == right.0).next();
        let rows = rows.expect("a container");
        let of = Process {
            fleet: &fleet,
            host: 0,
            container: rows[0].0 as usize,
            start_unix_ns: 1_700_000_000_000_000_000,
        };
        let samples: u64 = rows.iter().map(|row| u64::from(row.2)).sum();
        for (shape, types) in [(&PYTHON, 1), (&NODE, 3), (&GO, 2)] {
            let file = file(of, rows, shape).encode_to_vec();
            let read = profile::formats::pprof::Types::decode(&file, 1 << 24).expect("a file");
            assert_eq!(read.count(), types);
            let last = read.read(types - 1).expect("a type");
            assert_eq!(last.profile.total().weight, samples * PERIOD_NS);
        }
    }

    #[test]
    fn names_of_applications_are_written_as_parts_of_a_query() {
        assert_eq!(encoded("a-1{k=v,b=/}"), "a-1%7Bk%3Dv%2Cb%3D%2F%7D");
    }
}
