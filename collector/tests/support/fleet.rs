//! A small fleet made up from a seed: hosts, containers, services and stacks with heavy tails.
//!
//! Any window can be made again from its host and number, so a test knows what must be stored
//! without keeping it.

use collector::store::{HostKey, LabelSet, NewWindow, Origin, Row, TimeRange, WindowAccount};
use profile::{
    ContentId, Dictionary, FrameId, FrameKind, FrameRef, Quality, Remap, StackEnd, StackId, Value,
};
use testkit::numbering;

/// Weight of a sample at 99 Hz. Unit: nanoseconds.
pub const PERIOD: u64 = 10_101_010;

/// Length of windows. Unit: nanoseconds.
pub const WINDOW_NS: i64 = 10_000_000_000;

/// A seeded generator of numbers: splitmix, good enough for made-up load.
pub struct Random(u64);

impl Random {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// A number in 0…1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// How large a fleet is.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Hosts.
    pub hosts: u64,
    /// Containers a host.
    pub containers: u64,
    /// Services in all.
    pub services: u64,
    /// Stacks a service can have.
    pub stacks: u64,
    /// Samples a host takes in a window, about.
    pub samples: u64,
}

/// The fleet.
pub struct Fleet {
    shape: Shape,
    seed: u64,
    /// Every frame and stack.
    pub dict: Dictionary,
    /// Contents of stacks by id.
    ids: Vec<ContentId>,
    /// Stacks by service, the most frequent first.
    services: Vec<Vec<StackId>>,
}

impl Fleet {
    /// Makes a fleet up.
    pub fn new(seed: u64, shape: Shape) -> Fleet {
        let mut random = Random::new(seed);
        let mut dict = Dictionary::default();
        let shared = frames(&mut dict, "runtime", FrameKind::Native, 2000);
        let kernel = frames(&mut dict, "kernel", FrameKind::Kernel, 500);
        let mut services = Vec::new();
        for service in 0..shape.services {
            let own = frames(
                &mut dict,
                &format!("service{service}"),
                FrameKind::Native,
                3000,
            );
            let mut stacks: Vec<StackId> = vec![StackId::EMPTY];
            let mut paths: Vec<Vec<FrameId>> = vec![Vec::new()];
            let mut of_service = Vec::new();
            while (of_service.len() as u64) < shape.stacks {
                // Grow from somewhere on an earlier path, as calls branch off from common callers.
                let from = random.below(paths.len() as u64) as usize;
                let keep = random.below(paths[from].len() as u64 + 1) as usize;
                let mut path = paths[from][..keep].to_vec();
                let depth = 10 + random.below(24) as usize + random.below(24) as usize;
                while path.len() < depth {
                    let table = match path.len() {
                        0..3 => &shared,
                        len if len + 4 > depth && depth.is_multiple_of(3) => &kernel,
                        _ => &own,
                    };
                    path.push(table[random.below(table.len() as u64) as usize]);
                }
                let stack = dict.stacks.intern(path.iter().copied());
                of_service.push(stack);
                if paths.len() < 4000 {
                    stacks.push(stack);
                    paths.push(path);
                }
            }
            services.push(of_service);
        }
        Fleet {
            shape,
            seed,
            ids: dict.content_ids(),
            dict,
            services,
        }
    }

    /// A host.
    pub fn host(host: u64) -> HostKey {
        HostKey {
            host_id: format!("host-{host:04}"),
            boot_id: [host as u8; 16],
        }
    }

    /// Labels of a container.
    pub fn labels(&self, host: u64, container: u64) -> LabelSet {
        let service = self.service(host, container);
        let id = format!("{:016x}{:016x}", host * 7919 + 1, container * 104_729 + 3);
        LabelSet::new([
            ("host".to_owned(), format!("host-{host:04}")),
            ("cgroup".to_owned(), format!("/pods/{id}")),
            ("container".to_owned(), id),
            ("service".to_owned(), format!("service-{service}")),
        ])
    }

    /// The service a container belongs to.
    pub fn service(&self, host: u64, container: u64) -> u64 {
        Random::new(self.seed ^ host << 20 ^ container).below(self.shape.services)
    }

    /// A window of a host, by how many there were before: the same whenever it is asked for.
    pub fn window(&self, host: u64, window: u64, begin_unix_ns: i64) -> NewWindow {
        debug_assert!(host < self.shape.hosts);
        let mut random = Random::new(self.seed ^ (host << 40) ^ window.wrapping_mul(0x1_0001));
        let start = begin_unix_ns + window as i64 * WINDOW_NS;
        let mut rows = Vec::new();
        let mut label_sets = Vec::new();
        let mut accounts = Vec::new();
        let mut quality = Quality::default();
        for container in 0..self.shape.containers {
            label_sets.push(self.labels(host, container));
            let stacks = &self.services[self.service(host, container) as usize];
            // Uneven shares: the first containers have most of the work.
            let share =
                2.0 / (container as f64 + 2.0) / (self.shape.containers as f64 / 2.0).ln().max(1.0);
            let mean = self.shape.samples as f64 * share / 2.0;
            let samples = (mean * (0.5 + random.unit())) as u64;
            let mut picked: Vec<u64> = (0..samples)
                .map(|_| (random.unit().powi(9) * stacks.len() as f64) as u64)
                .collect();
            picked.sort_unstable();
            for run in picked.chunk_by(|left, right| left == right) {
                let (count, stack) = (run.len() as u64, stacks[run[0] as usize]);
                let end = if random.below(50) == 0 {
                    StackEnd::DepthLimit
                } else {
                    StackEnd::Complete
                };
                rows.push(Row {
                    labels: container as u32,
                    stack: self.ids[stack.0 as usize],
                    end,
                    value: Value {
                        count,
                        weight: count * PERIOD,
                    },
                });
            }
            quality.taken += samples;
            accounts.push(WindowAccount {
                labels: container as u32,
                ns: samples * PERIOD,
                estimated_ns: 0,
                throttled_ns: None,
                limit_millicores: 0,
            });
        }
        NewWindow {
            origin: Origin {
                host: Fleet::host(host),
                sequence: numbering::sequence(host, window as i64 * WINDOW_NS),
            },
            range: TimeRange {
                start_unix_ns: start,
                end_unix_ns: start + WINDOW_NS,
            },
            event: "cpu-clock".into(),
            unit: "nanoseconds".into(),
            period: PERIOD,
            quality,
            label_sets,
            rows,
            accounts,
            pressure: None,
            dropped_before: None,
            stream: None,
        }
    }

    /// The frames of these stacks, as an agent sends them when it is asked.
    pub fn define(&self, missing: &[ContentId]) -> Dictionary {
        let wanted: std::collections::HashSet<&ContentId> = missing.iter().collect();
        let (mut dict, mut remap) = (Dictionary::default(), Remap::default());
        for (at, id) in self.ids.iter().enumerate() {
            if wanted.contains(id) {
                remap.stack(&self.dict, &mut dict, StackId(at as u32));
            }
        }
        dict
    }

    /// Samples of a window.
    pub fn samples(window: &NewWindow) -> u64 {
        window.rows.iter().map(|row| row.value.count).sum()
    }
}

fn frames(dict: &mut Dictionary, of: &str, kind: FrameKind, count: usize) -> Vec<FrameId> {
    (0..count)
        .map(|at| {
            let function = format!(
                "{of}::component{}::handler_{at:05}_with_a_long_name",
                at % 37
            );
            dict.intern_frame(FrameRef {
                kind,
                function: &function,
                module: of,
                ..FrameRef::default()
            })
        })
        .collect()
}
