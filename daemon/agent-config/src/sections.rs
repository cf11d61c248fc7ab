//! The sections of the configuration as types, with their defaults.
//!
//! Meaning, unit and range of each field stand in [`KEYS`](super::KEYS).

use config::{CpuShare, Listen, SocketMode};
use profile::key;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Event that makes the kernel take a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SamplingEvent {
    /// A timer on each CPU: works everywhere, counts time.
    CpuClock,
    /// The hardware's cycle counter: reaches code that runs with interrupts off; often missing in
    /// virtual machines.
    Cycles,
}

/// Section `sampling`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sampling {
    /// Event asked for.
    pub event: SamplingEvent,
    /// Samples a second on each busy CPU.
    pub rate_hz: u32,
    /// Ring buffer of each CPU, KiB; 0: chosen by copy size, rate and number of CPUs.
    pub ring_kib: u32,
    /// Most frames kept of a stack.
    pub max_stack_depth: u16,
}

/// How user stacks are walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnwindMode {
    /// Copies of the stack where memory, CPUs and rights allow, else frame pointers.
    Auto,
    /// The kernel follows frame pointers.
    FramePointer,
    /// The kernel copies the top of the stack, and the daemon unwinds it by the files' own tables.
    StackCopy,
}

/// Section `unwind`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unwind {
    /// The method.
    pub mode: UnwindMode,
    /// Copy of the user stack, KiB.
    pub stack_kib: u32,
    /// The most that is copied where stacks are deeper, KiB.
    pub stack_kib_max: u32,
    /// Whether stacks deeper than the copy are completed by a look at the thread's memory.
    pub look: bool,
    /// Whether unwind rows are derived from instructions where there are none.
    pub derive: bool,
    /// Whether to scan the stack for callers of generated code with an unknown frame.
    pub scan: bool,
    /// Whether stacks cut at a function are completed with the callers it has elsewhere.
    pub known_callers: bool,
    /// Unwind tables kept, MiB.
    pub cache_mib: u32,
}

/// Section `symbols`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Symbols {
    /// Source file and line of native frames.
    pub lines: bool,
    /// Frames for inlined functions.
    pub inlined_frames: bool,
    /// Lines, inlined functions and first lines of functions of programs in Go.
    pub go_lines: bool,
    /// Where separate debug files are looked for.
    pub debug_dirs: Vec<PathBuf>,
    /// Servers that are asked for debug files.
    pub debuginfod: Vec<String>,
    /// Directory for files downloaded from them.
    pub debuginfod_dir: PathBuf,
    /// All of that, MiB.
    pub debuginfod_mib: u32,
    /// Names kept, MiB.
    pub cache_mib: u32,
}

/// Section `jit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Jit {
    /// Read `/tmp/perf-PID.map` of processes with samples in generated code.
    pub perf_maps: bool,
    /// Read the jitdumps that processes map.
    pub jitdumps: bool,
    /// Read the structures of HotSpot.
    pub hotspot: bool,
    /// Largest map read, MiB.
    pub perf_map_max_mib: u32,
    /// Have HotSpot write its map.
    pub hotspot_attach: bool,
    /// Shortest time between two maps of one JVM, seconds.
    pub hotspot_refresh_s: u32,
    /// Have .NET write its map while it is wanted.
    pub dotnet_enable: bool,
}

/// Section `containers`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Containers {
    /// Whether runtimes are asked.
    pub metadata: bool,
    /// Labels taken of containers, images and pods.
    pub labels: Vec<String>,
    /// Sources of metadata: `auto` or `Source`s of `cgroup::containers`.
    pub sources: Vec<String>,
}

/// Section `windows`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Windows {
    /// Length of a window, seconds.
    pub length_s: u32,
}

/// Section `recorder`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Recorder {
    /// How far back it reaches, seconds.
    pub retention_s: u32,
    /// Memory it may hold, MiB.
    pub budget_mib: u32,
    /// Disk that pins may take, MiB.
    pub pins_mib: u32,
    /// Where pins are kept.
    pub pins_dir: PathBuf,
    /// Memory for the times of samples, MiB; 0: none are kept.
    pub times_mib: u32,
}

/// Section `captures`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Captures {
    /// Captures at a time; 0: none are taken.
    pub max: u32,
    /// Longest capture, seconds.
    pub duration_max_s: u32,
    /// Highest rate, samples a second on each CPU.
    pub rate_max_hz: u32,
    /// Switches and wake-ups a second on each CPU that waits are captured of; 0: any number.
    pub switches_max: u32,
    /// Memory of all captures together, MiB.
    pub memory_mib: u32,
    /// Memory of what source lines are read from, MiB.
    pub lines_mib: u32,
    /// Captures remembered after their end.
    pub history: u32,
    /// Captures that the collector may request.
    pub remote: RemoteCaptures,
    /// Events that it may ask for besides those that only look at stacks.
    pub remote_events: Vec<String>,
    /// Highest rate that it may ask for, samples a second on each CPU.
    pub remote_rate_max_hz: u32,
    /// Longest capture that it may ask for, seconds.
    pub remote_duration_max_s: u32,
    /// Sum of its captures in an hour, minutes.
    pub remote_minutes_per_hour: u32,
}

/// Captures that a collector may request on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RemoteCaptures {
    /// Nothing is allowed.
    Off,
    /// Events that look at stacks alone, and those that are listed.
    Stacks,
    /// Everything that the host's own users may capture.
    All,
}

/// Section `budget`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Budget {
    /// CPU time the daemon may take.
    pub cpu: CpuShare,
    /// Memory the daemon may take, MiB; 0: chosen by what the other keys admit and the machine has.
    pub memory_mib: u32,
}

/// Section `server`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Server {
    /// Where it listens.
    pub listen: Listen,
    /// Permissions of the unix socket.
    pub socket_mode: SocketMode,
    /// Group of the unix socket: name or number.
    pub socket_group: Option<String>,
    /// File with the bearer token that clients over TCP must show.
    pub token_file: Option<PathBuf>,
    /// Certificates; none: no TLS.
    pub tls: Option<Tls>,
}

/// Section `server.tls`.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Tls {
    /// Certificate chain, PEM.
    pub cert_file: PathBuf,
    /// Private key, PEM.
    pub key_file: PathBuf,
    /// Certificates that clients must be signed by, PEM; none: clients need no certificate.
    pub client_ca_file: Option<PathBuf>,
}

/// Section `collector`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Collector {
    /// The collector; none: windows stay on the host.
    pub address: Option<std::net::SocketAddr>,
    /// Id of the host; `None`: derived from the machine id.
    pub host_id: Option<String>,
    /// Name of the host; `None`: its host name.
    pub host_name: Option<String>,
    /// Where the host's key and certificate are.
    pub identity_dir: PathBuf,
    /// The invitation by which the host joins a fleet by itself.
    pub join_file: Option<PathBuf>,
    /// Labels of all samples of the host.
    pub labels: BTreeMap<String, String>,
    /// Labels merged away before sending.
    pub drop_labels: Vec<String>,
    /// Section `collector.tls`.
    pub tls: super::CollectorTls,
    /// Section `collector.spool`.
    pub spool: Spool,
}

/// Section `collector.spool`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Spool {
    /// Its directory.
    pub dir: PathBuf,
    /// Most bytes on disk, in MiB.
    pub max_mib: u64,
    /// Longest wait of a window, in seconds.
    pub max_age_s: u64,
}

/// Section `shutdown`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shutdown {
    /// Time to drain after SIGTERM, seconds.
    pub grace_s: u32,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            event: SamplingEvent::CpuClock,
            rate_hz: 99,
            ring_kib: 0,
            max_stack_depth: 512,
        }
    }
}

impl Default for Unwind {
    fn default() -> Self {
        Unwind {
            mode: UnwindMode::Auto,
            stack_kib: 16,
            stack_kib_max: 56,
            look: true,
            derive: true,
            scan: true,
            known_callers: true,
            cache_mib: 32,
        }
    }
}

impl Default for Symbols {
    fn default() -> Self {
        Symbols {
            lines: false,
            inlined_frames: false,
            go_lines: false,
            debug_dirs: vec![PathBuf::from("/usr/lib/debug")],
            debuginfod: Vec::new(),
            debuginfod_dir: PathBuf::from("/var/lib/fleetprof/debuginfod"),
            debuginfod_mib: 1024,
            cache_mib: 24,
        }
    }
}

impl Default for Jit {
    fn default() -> Self {
        Jit {
            perf_maps: true,
            jitdumps: true,
            hotspot: true,
            perf_map_max_mib: 64,
            hotspot_attach: false,
            hotspot_refresh_s: 60,
            dotnet_enable: false,
        }
    }
}

impl Default for Containers {
    fn default() -> Self {
        Containers {
            metadata: true,
            labels: Vec::new(),
            sources: vec!["auto".to_owned()],
        }
    }
}

impl Default for Windows {
    fn default() -> Self {
        Windows { length_s: 10 }
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Recorder {
            retention_s: 3600,
            budget_mib: 64,
            pins_mib: 64,
            pins_dir: PathBuf::from("/var/lib/fleetprof/pins"),
            times_mib: 4,
        }
    }
}

impl Default for Captures {
    fn default() -> Self {
        Captures {
            max: 8,
            duration_max_s: 3600,
            rate_max_hz: 9999,
            switches_max: 75_000,
            memory_mib: 64,
            lines_mib: 96,
            history: 100,
            remote: RemoteCaptures::Stacks,
            remote_events: Vec::new(),
            remote_rate_max_hz: 999,
            remote_duration_max_s: 600,
            remote_minutes_per_hour: 30,
        }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Budget {
            cpu: CpuShare::Auto,
            memory_mib: 0,
        }
    }
}

impl Default for Server {
    fn default() -> Self {
        Server {
            listen: Listen::Unix(PathBuf::from("/run/fleetprof/agent.sock")),
            socket_mode: SocketMode(0o660),
            socket_group: None,
            token_file: None,
            tls: None,
        }
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Shutdown { grace_s: 5 }
    }
}

impl Unwind {
    /// Memory for unwind tables. Unit: bytes.
    pub fn cache_bytes(&self) -> usize {
        self.cache_mib as usize * MIB
    }
}

impl Symbols {
    /// Memory for names. Unit: bytes.
    pub fn cache_bytes(&self) -> usize {
        self.cache_mib as usize * MIB
    }
}

impl Jit {
    /// Largest perf map read. Unit: bytes.
    pub fn perf_map_max_bytes(&self) -> u64 {
        u64::from(self.perf_map_max_mib) * MIB as u64
    }
}

impl Windows {
    /// Length of a window.
    pub fn length(&self) -> Duration {
        Duration::from_secs(self.length_s.into())
    }
}

impl Recorder {
    /// How far back it reaches.
    pub fn retention(&self) -> Duration {
        Duration::from_secs(self.retention_s.into())
    }

    /// Memory it may hold. Unit: bytes.
    pub fn budget_bytes(&self) -> usize {
        self.budget_mib as usize * MIB
    }

    /// Disk that pins may take. Unit: bytes.
    pub fn pins_bytes(&self) -> u64 {
        u64::from(self.pins_mib) << 20
    }

    /// Additional memory for the times of samples. Unit: bytes.
    pub fn times_bytes(&self) -> usize {
        self.times_mib as usize * MIB
    }
}

impl Captures {
    /// Memory of all captures together. Unit: bytes.
    pub fn memory_bytes(&self) -> usize {
        self.memory_mib as usize * MIB
    }

    /// Memory of what source lines are read from. Unit: bytes.
    pub fn lines_bytes(&self) -> usize {
        self.lines_mib as usize * MIB
    }
}

impl Budget {
    /// CPU time the daemon may take on a machine with this many CPUs. Unit: millionths of one CPU.
    pub fn cpu_ppm(&self, cpus: usize) -> u64 {
        match self.cpu {
            CpuShare::Auto => 10_000 * (cpus.max(1) as u64).div_ceil(CPUS_PER_PERCENT),
            CpuShare::Hundredths(share) => u64::from(share) * 100,
        }
    }
}

impl Default for Collector {
    fn default() -> Self {
        Collector {
            address: None,
            host_id: None,
            host_name: None,
            identity_dir: PathBuf::from("/var/lib/fleetprof/identity"),
            join_file: None,
            tls: super::CollectorTls::default(),
            labels: BTreeMap::new(),
            drop_labels: vec![key::PID.to_owned(), key::THREAD.to_owned()],
            spool: Spool::default(),
        }
    }
}

impl Default for Spool {
    fn default() -> Self {
        Spool {
            dir: PathBuf::from("/var/lib/fleetprof/spool"),
            max_mib: 1024,
            max_age_s: 86_400,
        }
    }
}

impl Spool {
    /// Most bytes on disk.
    pub fn max_bytes(&self) -> u64 {
        self.max_mib << 20
    }

    /// Longest wait of a window.
    pub fn max_age(&self) -> Duration {
        Duration::from_secs(self.max_age_s)
    }
}

impl Shutdown {
    /// Time to drain after SIGTERM.
    pub fn grace(&self) -> Duration {
        Duration::from_secs(self.grace_s.into())
    }
}

/// CPUs for which `budget.cpu: auto` gives one percent of a CPU. With all of them busy at 99 Hz
/// that is 0.063 s of CPU for 10,000 samples.
const CPUS_PER_PERCENT: u64 = 16;

const MIB: usize = 1 << 20;
