//! A made-up fleet: services with heavy-tailed stacks that hosts share, containers unevenly busy.
//!
//! The same seed gives the same fleet. Sizes follow what fleets look like: 5,000 to 30,000 stacks a
//! service, 10 to 60 deep, frames of runtimes and kernel shared between services, 10 to 40
//! containers a host, sixteen busy cores at 99 Hz. Nothing here comes from a real host: shares of
//! equal stacks are assumptions.

use profile::{ContentId, Dictionary, FrameId, FrameKind, FrameRef, StackId};

/// Samples a second on each busy core.
const RATE_HZ: f64 = 99.0;
/// Busy cores of a host, in the middle.
const CORES: f64 = 16.0;
/// Length of a window. Unit: seconds.
pub const WINDOW_S: u64 = 10;
/// Weight of a sample. Unit: nanoseconds.
pub const PERIOD_NS: u64 = 10_101_010;
/// Deepest stack.
const DEPTH_MAX: usize = 60;
/// Least depth at which a stack may end.
const DEPTH_MIN: usize = 10;
/// Exponent of the weights of stacks by rank, and the ranks that are about equally frequent at its
/// head.
const TAIL: (f64, f64) = (1.55, 4.0);
/// Entries of the table of quantiles: a rank is drawn by one look-up.
const QUANTILES: usize = 1 << 16;
/// One sample in so many of a container comes from its own part of the call tree.
const OWN_PART: u64 = 16;

/// SplitMix64: small, fast, the same everywhere.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    /// Numbers that depend on nothing but `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// Between 0 and 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Normal around 0.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    /// Log-normal around 1.
    fn spread(&mut self, sigma: f64) -> f64 {
        (self.normal() * sigma).exp()
    }
}

/// A service: the stacks of its call tree, and how often which occurs.
pub struct Service {
    /// Its name.
    pub name: String,
    stacks: Vec<StackId>,
    /// Index in `stacks` by quantile.
    drawn: Vec<u32>,
}

/// A container of a host.
pub struct Container {
    /// Which service.
    pub service: usize,
    /// Its cgroup.
    pub cgroup: String,
    /// 64 hex digits.
    pub id: String,
    weight: f64,
    salt: u64,
}

/// A host.
pub struct Host {
    /// Its name.
    pub name: String,
    /// Its zone.
    pub zone: &'static str,
    cores: f64,
    /// What runs on it.
    pub containers: Vec<Container>,
}

/// The fleet.
pub struct Fleet {
    /// Every stack that any service has.
    pub dictionary: Dictionary,
    /// By stack id.
    pub hashes: Vec<ContentId>,
    /// What runs.
    pub services: Vec<Service>,
    /// The hosts.
    pub hosts: Vec<Host>,
    seed: u64,
}

/// What a window of one host has, reused between windows.
#[derive(Default)]
pub struct Drawn {
    counts: Vec<u32>,
    touched: Vec<u32>,
    /// (container, stack, count).
    pub rows: Vec<(u32, StackId, u32)>,
}

const NOUNS: [&str; 20] = [
    "http", "grpc", "sql", "cache", "index", "shard", "proto", "arena", "codec", "tls", "queue",
    "ledger", "order", "search", "vector", "stream", "policy", "token", "metric", "tree",
];
const VERBS: [&str; 12] = [
    "Encode", "Decode", "Read", "Flush", "Lookup", "Insert", "Scan", "Merge", "Dispatch", "Poll",
    "Parse", "Commit",
];
const ZONES: [&str; 3] = ["a", "b", "c"];

impl Fleet {
    /// A fleet of `hosts` hosts that run `services` services.
    pub fn new(seed: u64, hosts: usize, services: usize) -> Fleet {
        let mut random = Random::new(seed);
        let mut dictionary = Dictionary::default();
        let shared: Vec<FrameId> = (0..2400)
            .map(|at| {
                let kernel = at % 6 == 0;
                let name = function(&mut random, "runtime", at);
                intern(&mut dictionary, &name, kernel, "libruntime.so.1")
            })
            .collect();
        let services: Vec<Service> = (0..services)
            .map(|at| service(&mut random, &mut dictionary, &shared, at))
            .collect();
        let hosts = (0..hosts)
            .map(|at| host(&mut random, services.len(), at))
            .collect();
        Fleet {
            hashes: dictionary.content_ids(),
            dictionary,
            services,
            hosts,
            seed,
        }
    }

    /// Draws what `host` does in window number `window`.
    pub fn draw(&self, host: usize, window: u64, drawn: &mut Drawn) {
        let host = &self.hosts[host];
        drawn.rows.clear();
        for (at, container) in host.containers.iter().enumerate() {
            let service = &self.services[container.service];
            let mut random =
                Random::new(self.seed ^ container.salt ^ window.wrapping_mul(0x5851_f42d));
            let samples = RATE_HZ * WINDOW_S as f64 * host.cores * container.weight;
            let samples = (samples * random.spread(0.3)).round() as u64;
            let len = service.stacks.len();
            if drawn.counts.len() < len {
                drawn.counts.resize(len, 0);
            }
            let own = (container.salt % len as u64) as usize;
            for _ in 0..samples {
                let bits = random.next();
                let stack = if bits.is_multiple_of(OWN_PART) {
                    (own + (bits >> 32) as usize % (len / 8)) % len
                } else {
                    service.drawn[(bits >> 48) as usize] as usize
                };
                if drawn.counts[stack] == 0 {
                    drawn.touched.push(stack as u32);
                }
                drawn.counts[stack] += 1;
            }
            for stack in drawn.touched.drain(..) {
                let count = std::mem::take(&mut drawn.counts[stack as usize]);
                let id = service.stacks[stack as usize];
                drawn.rows.push((at as u32, id, count));
            }
        }
    }
}

fn function(random: &mut Random, of: &str, at: usize) -> String {
    let noun = |random: &mut Random| NOUNS[random.below(NOUNS.len())];
    let verb = |random: &mut Random| VERBS[random.below(VERBS.len())];
    let (outer, inner) = (noun(random), noun(random));
    let (what, how) = (verb(random), verb(random));
    match random.below(3) {
        0 => format!("example.com/fleet/{of}/internal/{outer}.(*{inner}{what}).{how}{at}"),
        1 => format!("com.example.{of}.{outer}.{what}{inner}Service.{how}{at}"),
        _ => format!("fleet::{of}::{outer}::{what}<{inner}::Request>::{how}{at}(unsigned long)"),
    }
}

fn intern(dictionary: &mut Dictionary, name: &str, kernel: bool, module: &str) -> FrameId {
    dictionary.intern_frame(FrameRef {
        kind: if kernel {
            FrameKind::Kernel
        } else {
            FrameKind::Native
        },
        function: name,
        module: if kernel { "[kernel]" } else { module },
        ..FrameRef::default()
    })
}

fn service(
    random: &mut Random,
    dictionary: &mut Dictionary,
    shared: &[FrameId],
    at: usize,
) -> Service {
    let name = format!(
        "{}-{}-{at}",
        NOUNS[random.below(NOUNS.len())],
        NOUNS[random.below(NOUNS.len())]
    );
    let wanted = (5000.0 * 6f64.powf(random.unit())) as usize;
    let own: Vec<FrameId> = (0..1500 + wanted / 6)
        .map(|at| {
            let text = function(random, &name, at);
            intern(dictionary, &text, false, &name)
        })
        .collect();
    // Nodes of the call tree: (stack, depth).
    let mut nodes: Vec<(StackId, usize)> = Vec::new();
    for _ in 0..4 + random.below(8) {
        let mut parent = StackId::EMPTY;
        for depth in 1..6 + random.below(12) {
            let frame = shared[random.below(400)];
            parent = dictionary.stacks.child(parent, frame);
            nodes.push((parent, depth));
        }
    }
    let mut stacks = Vec::with_capacity(wanted);
    while stacks.len() < wanted {
        // New code hangs on recent code more often than on old.
        let recent = nodes.len().min(400);
        let from = match random.below(3) {
            0 => random.below(nodes.len()),
            _ => nodes.len() - 1 - random.below(recent),
        };
        let (mut parent, mut depth) = nodes[from];
        for _ in 0..1 + random.below(6) {
            if depth == DEPTH_MAX {
                break;
            }
            let frame = match random.unit() {
                x if x < 0.27 => {
                    shared[(random.unit() * random.unit() * shared.len() as f64) as usize]
                }
                _ => own[(random.unit() * random.unit() * own.len() as f64) as usize],
            };
            parent = dictionary.stacks.child(parent, frame);
            depth += 1;
            nodes.push((parent, depth));
            if depth >= DEPTH_MIN && random.below(3) > 0 {
                stacks.push(parent);
            }
        }
    }
    for at in (1..stacks.len()).rev() {
        stacks.swap(at, random.below(at + 1));
    }
    let drawn = quantiles(stacks.len());
    Service {
        name,
        stacks,
        drawn,
    }
}

/// Ranks by quantile of a power law.
fn quantiles(ranks: usize) -> Vec<u32> {
    let (exponent, head) = TAIL;
    let power = exponent - 1.0;
    let all = 1.0 - (1.0 + ranks as f64 / head).powf(-power);
    (0..QUANTILES)
        .map(|at| {
            let share = (at as f64 + 0.5) / QUANTILES as f64 * all;
            let rank = head * ((1.0 - share).powf(-1.0 / power) - 1.0);
            (rank as u32).min(ranks as u32 - 1)
        })
        .collect()
}

fn host(random: &mut Random, services: usize, at: usize) -> Host {
    let zone = ZONES[random.below(ZONES.len())];
    let mut containers: Vec<Container> = (0..10 + random.below(31))
        .map(|at| {
            // Four run on every host, the others by how popular their service is.
            let everywhere = at < 4;
            let service = match everywhere {
                true => at % services,
                false => (random.unit() * random.unit() * services as f64) as usize,
            };
            let id = format!(
                "{:016x}{:016x}{:016x}{:016x}",
                random.next(),
                random.next(),
                random.next(),
                random.next()
            );
            Container {
                service,
                cgroup: format!(
                    "/kubepods.slice/kubepods-pod{:016x}.slice/cri-containerd-{id}.scope",
                    random.next()
                ),
                id,
                weight: if everywhere { 0.02 } else { random.spread(1.6) },
                salt: random.next(),
            }
        })
        .collect();
    let total: f64 = containers.iter().map(|container| container.weight).sum();
    for container in &mut containers {
        container.weight /= total;
    }
    Host {
        name: format!("node-{at:04}.{zone}.example.net"),
        zone,
        cores: CORES * random.spread(0.35).min(2.5),
        containers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_rows() {
        let (one, two) = (Fleet::new(7, 2, 3), Fleet::new(7, 2, 3));
        let (mut left, mut right) = (Drawn::default(), Drawn::default());
        one.draw(1, 5, &mut left);
        two.draw(1, 5, &mut right);
        assert!(!left.rows.is_empty());
        assert_eq!(left.rows, right.rows);
    }

    #[test]
    fn stacks_are_as_deep_as_said_and_heavy_tailed() {
        let fleet = Fleet::new(1, 1, 2);
        let mut drawn = Drawn::default();
        fleet.draw(0, 0, &mut drawn);
        for &(_, stack, _) in &drawn.rows {
            let depth = fleet.dictionary.stacks.leaf_first(stack).count();
            assert!((DEPTH_MIN..=DEPTH_MAX).contains(&depth), "{depth}");
        }
        let most = drawn.rows.iter().map(|row| row.2).max();
        assert!(most > Some(20), "{most:?}");
    }
}
