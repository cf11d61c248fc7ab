//! The table of keys: the one place that says what a key means, its unit, range, and whether a
//! reload takes it. `config/agent.yaml` is written from it; defaults stand in the section types.

use super::fleet::{
    self, address_key, ca_key, cert_key, dir_key, host_name_key, join_key, key_key, name_key,
};
use super::protection::{sandbox_key, withhold_key};
use super::triggers::{ITEMS, Trigger};
use super::{Config, RemoteCaptures, SamplingEvent, Tls, UnwindMode};
use config::{
    CpuShare, Key, Kind, Listen, Reload, SocketMode, Value, as_text, log, peer_address, put_bool,
    put_int, put_word, socket_address, word,
};
use profile::key;
use proto::COLLECTOR_PORT;
use std::path::{Path, PathBuf};

/// Sections with a sentence each, in the order of the file.
pub(super) const SECTIONS: &[(&str, &str)] = &[
    ("sampling", "What is sampled and how often."),
    ("unwind", "How user stacks are walked."),
    ("symbols", "How native and kernel addresses get names."),
    ("jit", "How generated code gets names."),
    ("containers", "Who containers are, as their runtimes tell."),
    ("windows", "How samples are folded over time."),
    (
        "recorder",
        "The flight recorder: closed windows kept in memory.",
    ),
    (
        "captures",
        "Captures on demand: new recordings next to the continuous profile.",
    ),
    ("budget", "What the daemon may cost, and keeps to."),
    ("server", "The gRPC server that agent-ctl talks to."),
    ("server.tls", "Certificates for TCP. All null: no TLS."),
    ("metrics", "Prometheus metrics of the daemon itself."),
    (
        "collector",
        "Where closed windows are pushed, so that the fleet can be asked.",
    ),
    fleet::SECTION,
    (
        "collector.spool",
        "What waits for the collector, on disk: it survives a restart and a reboot.",
    ),
    ("log", "The daemon's own log, on standard error."),
    ("shutdown", "The end of the daemon."),
];

/// Most labels that can be chosen. With those of a pod of the same names they fit, beside all
/// others that samples have, into what a collector takes of one label set: 32.
const LABELS_MAX: usize = 8;

/// Most sources that can be named.
const SOURCES_MAX: usize = 16;

/// What may stand before the path.
pub const SOURCE_KINDS: &[&str] = &[
    "docker",
    "podman",
    "cri",
    "docker-files",
    "bundles",
    "storage",
];

/// Names of labels that samples have themselves.
const OWN_LABELS: &[&str] = &[
    key::CGROUP,
    key::SLICE,
    key::UNIT,
    key::CONTAINER,
    key::RUNTIME,
    key::POD_UID,
    key::CONTAINER_NAME,
    key::IMAGE,
    key::POD,
    key::NAMESPACE,
    key::COMM,
    key::THREAD,
    key::PID,
    key::CONTEXT,
    key::HOST,
];

/// Every key, in the order of the file.
pub const KEYS: &[Key<Config>] = &[
    Key {
        path: "sampling.event",
        kind: Kind::Word(&["cpu-clock", "cycles"]),
        unit: "",
        reload: Reload::Restart,
        doc: "Event that makes the kernel take a sample. cpu-clock is a timer and works \
              everywhere; cycles needs the hardware's counter, which virtual machines often lack, \
              and falls back to cpu-clock where there is none.",
        get: |c| word(&c.sampling.event, EVENTS),
        put: |c, v| put_word(&mut c.sampling.event, &v, EVENTS),
    },
    Key {
        path: "sampling.rate_hz",
        kind: Kind::Int(1, 9999),
        unit: "samples a second on each busy CPU",
        reload: Reload::Live,
        doc: "How often. 99 keeps out of step with timers that run at 100 Hz. Each sample costs \
              the CPU it is taken on about 15 µs in a virtual machine: 0.15 % at 99.",
        get: |c| Value::Int(c.sampling.rate_hz.into()),
        put: |c, v| put_int(&mut c.sampling.rate_hz, &v),
    },
    Key {
        path: "sampling.ring_kib",
        kind: Kind::PowerOfTwoOrAuto(64, 65536),
        unit: "KiB for each CPU",
        reload: Reload::Live,
        doc: "Ring buffer between kernel and daemon. 0: large enough for more than a second of \
              samples, smaller on hosts with many CPUs. Too small a ring loses samples, which are \
              counted. More than perf_event_mlock_kb (516 by default) needs CAP_IPC_LOCK.",
        get: |c| Value::Int(c.sampling.ring_kib.into()),
        put: |c, v| put_int(&mut c.sampling.ring_kib, &v),
    },
    Key {
        path: "sampling.max_stack_depth",
        kind: Kind::Int(16, 1024),
        unit: "frames",
        reload: Reload::Live,
        doc: "Most frames kept of a stack; deeper ones are cut at the root and marked. Where stacks \
              are walked by frame pointers, the kernel's sysctl kernel.perf_event_max_stack (127 \
              by default) cuts them sooner.",
        get: |c| Value::Int(c.sampling.max_stack_depth.into()),
        put: |c, v| put_int(&mut c.sampling.max_stack_depth, &v),
    },
    Key {
        path: "unwind.mode",
        kind: Kind::Word(&["auto", "frame-pointer", "stack-copy"]),
        unit: "",
        reload: Reload::Live,
        doc: "stack-copy: the kernel copies the top of each user stack and the daemon unwinds it, \
              complete stacks whatever the compiler did. frame-pointer: the kernel follows frame \
              pointers; code compiled without them shows one to three frames. auto: stack-copy, \
              with a smaller copy or none where memory, CPUs or rights do not allow it.",
        get: |c| word(&c.unwind.mode, MODES),
        put: |c, v| put_word(&mut c.unwind.mode, &v, MODES),
    },
    Key {
        path: "unwind.stack_kib",
        kind: Kind::Int(1, 56),
        unit: "KiB",
        reload: Reload::Live,
        doc: "How much of the user stack is copied with each sample. 16 reaches the start of nearly \
              every program. The copy is unwound at once, or within a second of the first sample of \
              a new program, and never kept.",
        get: |c| Value::Int(c.unwind.stack_kib.into()),
        put: |c, v| put_int(&mut c.unwind.stack_kib, &v),
    },
    Key {
        path: "unwind.stack_kib_max",
        kind: Kind::Int(1, 56),
        unit: "KiB",
        reload: Reload::Live,
        doc: "How much is copied instead while more than 2 % of the stacks are deeper than \
              `stack_kib`, until that has been enough again for five minutes. Not where the rings \
              or the CPU budget have no room for it. No more than `stack_kib`: the copy is never \
              enlarged.",
        get: |c| Value::Int(c.unwind.stack_kib_max.into()),
        put: |c, v| put_int(&mut c.unwind.stack_kib_max, &v),
    },
    Key {
        path: "unwind.look",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Look once at the memory of a thread whose stacks the copy cuts at one and the same call, \
              to complete them for as long as that call runs, which one of the thread's four debug \
              registers tells. Only addresses of code and of the stack are kept of what is read. And read \
              pages of stacks that nobody has touched, which end copies. false: such stacks end \
              where the copy ends.",
        get: |c| Value::Bool(c.unwind.look),
        put: |c, v| put_bool(&mut c.unwind.look, &v),
    },
    Key {
        path: "unwind.derive",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Derive unwind rows from the instructions of code that has none: static programs of \
              musl, hand-written assembly, compilers that write none. Where that contradicts itself \
              the code stays without. false: such code is passed by frame pointers alone.",
        get: |c| Value::Bool(c.unwind.derive),
        put: |c, v| put_bool(&mut c.unwind.derive, &v),
    },
    Key {
        path: "unwind.scan",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Look for the caller of generated code of whose frame nothing is known (LuaJIT, Guile) \
              on its stack: the nearest word from which unwind tables lead to a start function. Such \
              stacks end with `scanned`. false: they end with `generated_code`.",
        get: |c| Value::Bool(c.unwind.scan),
        put: |c, v| put_bool(&mut c.unwind.scan, &v),
    },
    Key {
        path: "unwind.known_callers",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Complete stacks whose copy ends within the frame of a function with the callers that \
              it had in two other processes of the cgroup, where they were seen; needs `look`. Such \
              stacks end with `known_callers`. false: they end where the copy ends.",
        get: |c| Value::Bool(c.unwind.known_callers),
        put: |c, v| put_bool(&mut c.unwind.known_callers, &v),
    },
    Key {
        path: "unwind.cache_mib",
        kind: Kind::Int(4, 4096),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Unwind tables of executables kept in memory; the least used go first. Too small a \
              cache reads files again and again, and cuts stacks meanwhile.",
        get: |c| Value::Int(c.unwind.cache_mib.into()),
        put: |c, v| put_int(&mut c.unwind.cache_mib, &v),
    },
    Key {
        path: "symbols.lines",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Source file and line of native frames. Needs debug information, and several times \
              the time. A file whose debug information takes more than `cache_mib` has none.",
        get: |c| Value::Bool(c.symbols.lines),
        put: |c, v| put_bool(&mut c.symbols.lines, &v),
    },
    Key {
        path: "symbols.inlined_frames",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Frames for inlined functions. Costs what lines cost.",
        get: |c| Value::Bool(c.symbols.inlined_frames),
        put: |c, v| put_bool(&mut c.symbols.inlined_frames, &v),
    },
    Key {
        path: "symbols.debug_dirs",
        kind: Kind::Paths(16),
        unit: "",
        reload: Reload::Restart,
        doc: "Where separate debug files are looked for, first match wins.",
        get: |c| Value::List(c.symbols.debug_dirs.iter().map(|dir| text(dir)).collect()),
        put: |c, v| {
            if let Value::List(list) = v {
                c.symbols.debug_dirs = list.into_iter().map(PathBuf::from).collect();
            }
        },
    },
    Key {
        path: "symbols.debuginfod",
        kind: Kind::Urls(8),
        unit: "",
        reload: Reload::Restart,
        doc: "Servers that are asked, in this order, for the debug files of programs without symbols: they \
              learn which builds run here. Nothing waits for them; what they have names the samples that \
              come afterwards. A collector can ask instead, for the whole fleet, and names what is stored.",
        get: |c| Value::List(c.symbols.debuginfod.clone()),
        put: |c, v| {
            if let Value::List(list) = v {
                c.symbols.debuginfod = list;
            }
        },
    },
    Key {
        path: "symbols.debuginfod_dir",
        kind: Kind::Path,
        unit: "",
        reload: Reload::Restart,
        doc: "Where files from these servers are kept; nothing else may be in it.",
        get: |c| Value::Text(text(&c.symbols.debuginfod_dir)),
        put: |c, v| {
            if let Some(text) = as_text(&v) {
                c.symbols.debuginfod_dir = PathBuf::from(text);
            }
        },
    },
    Key {
        path: "symbols.debuginfod_mib",
        kind: Kind::Int(1, 1 << 20),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Most that these files may take; those not used for longest go first.",
        get: |c| Value::Int(c.symbols.debuginfod_mib.into()),
        put: |c, v| put_int(&mut c.symbols.debuginfod_mib, &v),
    },
    Key {
        path: "symbols.cache_mib",
        kind: Kind::Int(1, 4096),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Symbol tables and names kept; the least used go first. Too small a cache reads files \
              again and again.",
        get: |c| Value::Int(c.symbols.cache_mib.into()),
        put: |c, v| put_int(&mut c.symbols.cache_mib, &v),
    },
    Key {
        path: "jit.perf_maps",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Read /tmp/perf-PID.map of processes with samples in generated code (node \
              --perf-basic-prof and others). Only regular files of the process's own user count.",
        get: |c| Value::Bool(c.jit.perf_maps),
        put: |c, v| put_bool(&mut c.jit.perf_maps, &v),
    },
    Key {
        path: "jit.jitdumps",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Read the jitdumps (jit-PID.dump) that processes map, as node --perf-prof and others do: \
              names with exact times. Only regular files of the process's own user count.",
        get: |c| Value::Bool(c.jit.jitdumps),
        put: |c, v| put_bool(&mut c.jit.jitdumps, &v),
    },
    Key {
        path: "jit.perf_map_max_mib",
        kind: Kind::Int(1, 1024),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "How much of a perf map is read, and most memory for its names; the names of all generated \
              code together take at most twice that. What lies beyond has no names, and is counted.",
        get: |c| Value::Int(c.jit.perf_map_max_mib.into()),
        put: |c, v| put_int(&mut c.jit.perf_map_max_mib, &v),
    },
    Key {
        path: "jit.hotspot_attach",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Attach to Java processes (HotSpot, JDK 17 and later) whose code has no names, and have them \
              write /tmp/perf-PID.map, which is removed when nobody needs it any more. Uses the JVM's own \
              attach mechanism as the JVM's user: the daemon needs root, or CAP_SETUID and CAP_SETGID \
              (deploy/systemd/fleetprofd-attach.conf). -XX:+DisableAttachMechanism is respected.",
        get: |c| Value::Bool(c.jit.hotspot_attach),
        put: |c, v| put_bool(&mut c.jit.hotspot_attach, &v),
    },
    Key {
        path: "jit.hotspot_refresh_s",
        kind: Kind::Int(1, 86_400),
        unit: "seconds",
        reload: Reload::Restart,
        doc: "Shortest time between two maps of one JVM, which are asked for only while code without a name \
              has samples. The JVM halts for its map: for 1 to 14 ms with 500 methods. After failures the \
              time doubles, up to an hour.",
        get: |c| Value::Int(c.jit.hotspot_refresh_s.into()),
        put: |c, v| put_int(&mut c.jit.hotspot_refresh_s, &v),
    },
    Key {
        path: "jit.dotnet_enable",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Have .NET processes (8 and later) write a perf map while their code has samples, through their \
              diagnostics port, and stop minutes after the last. A process that writes one pays up to a \
              fifth of its CPU time while it compiles. Needs the rights that jit.hotspot_attach does.",
        get: |c| Value::Bool(c.jit.dotnet_enable),
        put: |c, v| put_bool(&mut c.jit.dotnet_enable, &v),
    },
    Key {
        path: "containers.metadata",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Ask the runtime of each container once for its name, image and pod: labels \
              container_name, image, pod and namespace. Nothing is asked but to read. The daemon's \
              user must be let into the runtime's socket; files are read where it is not.",
        get: |c| Value::Bool(c.containers.metadata),
        put: |c, v| put_bool(&mut c.containers.metadata, &v),
    },
    Key {
        path: "containers.labels",
        kind: Kind::ForeignNames(LABELS_MAX),
        unit: "",
        reload: Reload::Restart,
        doc: "Labels of containers and their images that samples get as container.label/NAME, and of \
              pods as pod.label/NAME: [com.docker.compose.service, app.kubernetes.io/name].",
        get: |c| Value::List(c.containers.labels.clone()),
        put: |c, v| {
            if let Value::List(names) = v {
                c.containers.labels = names;
            }
        },
    },
    Key {
        path: "containers.sources",
        kind: Kind::Sources(SOURCES_MAX, SOURCE_KINDS),
        unit: "",
        reload: Reload::Restart,
        doc: "Who is asked, in this order. auto: the usual sockets and files of docker, podman, \
              containerd and cri-o, if they are root's. A socket is docker:/PATH, podman:/PATH or \
              cri:/PATH; a directory docker-files:/PATH, bundles:/PATH or storage:/PATH. A socket that \
              is named here may be anybody's: podman:/run/user/1000/podman/podman.sock.",
        get: |c| Value::List(c.containers.sources.clone()),
        put: |c, v| {
            if let Value::List(sources) = v {
                c.containers.sources = sources;
            }
        },
    },
    Key {
        path: "windows.length_s",
        kind: Kind::DivisorOf(60),
        unit: "seconds",
        reload: Reload::Live,
        doc: "Length of a window: the finest step of every answer. Shorter windows fold less and \
              hold more memory.",
        get: |c| Value::Int(c.windows.length_s.into()),
        put: |c, v| put_int(&mut c.windows.length_s, &v),
    },
    Key {
        path: "recorder.retention_s",
        kind: Kind::Int(60, 604_800),
        unit: "seconds",
        reload: Reload::Live,
        doc: "How far back it reaches.",
        get: |c| Value::Int(c.recorder.retention_s.into()),
        put: |c, v| put_int(&mut c.recorder.retention_s, &v),
    },
    Key {
        path: "recorder.budget_mib",
        kind: Kind::Int(4, 16384),
        unit: "MiB",
        reload: Reload::Live,
        doc: "Memory it may hold. Under pressure the oldest windows are downsampled (to 1 minute, \
              then to 10) before they are dropped.",
        get: |c| Value::Int(c.recorder.budget_mib.into()),
        put: |c, v| put_int(&mut c.recorder.budget_mib, &v),
    },
    Key {
        path: "recorder.pins_mib",
        kind: Kind::Int(1, 16_384),
        unit: "MiB on disk",
        reload: Reload::Live,
        doc: "What the minutes that triggers pinned may take apart from the recorder; beyond it the trigger whose \
              pins take most loses its oldest. A pin is cut at a quarter of it. A minute of a busy host takes some 100 to 600 KiB.",
        get: |c| Value::Int(c.recorder.pins_mib.into()),
        put: |c, v| put_int(&mut c.recorder.pins_mib, &v),
    },
    Key {
        path: "recorder.pins_dir",
        kind: Kind::Path,
        unit: "",
        reload: Reload::Restart,
        doc: "Where pins are kept: a directory of the daemon alone, made with mode 0700 when the first \
              trigger is configured. They survive restarts and reboots.",
        get: |c| Value::Text(text(&c.recorder.pins_dir)),
        put: |c, v| {
            if let Some(dir) = as_text(&v) {
                c.recorder.pins_dir = PathBuf::from(dir);
            }
        },
    },
    Key {
        path: "recorder.times_mib",
        kind: Kind::Int(0, 1024),
        unit: "MiB",
        reload: Reload::Live,
        doc: "Memory for the times of single samples, apart from budget_mib: about 4 bytes each, so the \
              default holds the last hour of two busy CPUs and three minutes of 64. They show in a heat \
              map what happened within a second. The oldest are forgotten first. 0: none are kept.",
        get: |c| Value::Int(c.recorder.times_mib.into()),
        put: |c, v| put_int(&mut c.recorder.times_mib, &v),
    },
    Key {
        path: "captures.max",
        kind: Kind::Int(0, 32),
        unit: "captures",
        reload: Reload::Live,
        doc: "How many may run at a time. 0: none, whoever asks.",
        get: |c| Value::Int(c.captures.max.into()),
        put: |c, v| put_int(&mut c.captures.max, &v),
    },
    Key {
        path: "captures.duration_max_s",
        kind: Kind::Int(1, 3600),
        unit: "seconds",
        reload: Reload::Live,
        doc: "Longest capture.",
        get: |c| Value::Int(c.captures.duration_max_s.into()),
        put: |c, v| put_int(&mut c.captures.duration_max_s, &v),
    },
    Key {
        path: "captures.rate_max_hz",
        kind: Kind::Int(1, 9999),
        unit: "samples a second on each CPU",
        reload: Reload::Live,
        doc: "Highest rate of a capture. Its cost is not held against budget.cpu, for it was asked for: \
              this and the length bound it. An event with a period that brings more than this of all CPUs \
              together goes on by this rate after a second, which its result says.",
        get: |c| Value::Int(c.captures.rate_max_hz.into()),
        put: |c, v| put_int(&mut c.captures.rate_max_hz, &v),
    },
    Key {
        path: "captures.switches_max",
        kind: Kind::Int(0, 10_000_000),
        unit: "context switches and wake-ups a second on each CPU, the mean of all CPUs",
        reload: Reload::Live,
        doc: "Above this a capture of `off-cpu` ends with what it has, after a second or two. Each costs the \
              thread it befalls about 3 microseconds, so the default bounds that to a quarter of the host. \
              0: no bound.",
        get: |c| Value::Int(c.captures.switches_max.into()),
        put: |c, v| put_int(&mut c.captures.switches_max, &v),
    },
    Key {
        path: "captures.memory_mib",
        kind: Kind::Int(1, 4096),
        unit: "MiB",
        reload: Reload::Live,
        doc: "Memory of the samples of all captures together, apart from budget.memory_mib. Each that starts \
              may use a quarter of what the others left; what has no room goes under [other], and then the \
              oldest is given up, which its result says.",
        get: |c| Value::Int(c.captures.memory_mib.into()),
        put: |c, v| put_int(&mut c.captures.memory_mib, &v),
    },
    Key {
        path: "captures.lines_mib",
        kind: Kind::Int(1, 4096),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Memory of what source lines of captures are read from, apart from budget.memory_mib, while a capture \
              with lines runs. Debug information counts for twice its size without types, its line programs \
              for eight times theirs; a file over it has no lines, which the result says.",
        get: |c| Value::Int(c.captures.lines_mib.into()),
        put: |c, v| put_int(&mut c.captures.lines_mib, &v),
    },
    Key {
        path: "captures.history",
        kind: Kind::Int(0, 10_000),
        unit: "captures",
        reload: Reload::Live,
        doc: "How many are listed after they ended. The log has them all.",
        get: |c| Value::Int(c.captures.history.into()),
        put: |c, v| put_int(&mut c.captures.history, &v),
    },
    Key {
        path: "captures.remote",
        kind: Kind::Word(&["off", "stacks", "all"]),
        unit: "",
        reload: Reload::Live,
        doc: "What a collector may have this host capture. The host has the last word: a collector cannot \
              change it. stacks: CPU time, hardware counters, waits, faults and switches, without filters. all: \
              probes, tracepoints and filters too, which can slow every process down and read memory. off: \
              nothing.",
        get: |c| word(&c.captures.remote, REMOTE),
        put: |c, v| put_word(&mut c.captures.remote, &v, REMOTE),
    },
    Key {
        path: "captures.remote_events",
        kind: Kind::Events(64),
        unit: "",
        reload: Reload::Live,
        doc: "Events that a collector may ask for beside those of `stacks`: [block-io, tracepoint:sched:*]. \
              Filters still take `all`.",
        get: |c| Value::List(c.captures.remote_events.clone()),
        put: |c, v| {
            if let Value::List(events) = v {
                c.captures.remote_events = events;
            }
        },
    },
    Key {
        path: "captures.remote_rate_max_hz",
        kind: Kind::Int(1, 9999),
        unit: "Hz",
        reload: Reload::Live,
        doc: "Highest rate that a collector may ask for, on each CPU.",
        get: |c| Value::Int(c.captures.remote_rate_max_hz.into()),
        put: |c, v| put_int(&mut c.captures.remote_rate_max_hz, &v),
    },
    Key {
        path: "captures.remote_duration_max_s",
        kind: Kind::Int(1, 3600),
        unit: "s",
        reload: Reload::Live,
        doc: "Longest capture that a collector may ask for.",
        get: |c| Value::Int(c.captures.remote_duration_max_s.into()),
        put: |c, v| put_int(&mut c.captures.remote_duration_max_s, &v),
    },
    Key {
        path: "captures.remote_minutes_per_hour",
        kind: Kind::Int(1, 480),
        unit: "minutes",
        reload: Reload::Live,
        doc: "Sum of the captures that a collector may ask for in an hour, each counted with the duration asked \
              for. More are refused until an hour has passed.",
        get: |c| Value::Int(c.captures.remote_minutes_per_hour.into()),
        put: |c, v| put_int(&mut c.captures.remote_minutes_per_hour, &v),
    },
    withhold_key(),
    Key {
        path: "triggers",
        kind: Kind::Items(&ITEMS),
        unit: "",
        reload: Reload::Live,
        doc: "Conditions on a cgroup or the host, looked at once a second. When one is met, the recorder's \
              minutes around that moment are pinned: they outlive the retention, and `agent-ctl pins` has them.",
        get: |c| Value::Items(c.triggers.iter().map(Trigger::item).collect()),
        put: |c, v| {
            if let Value::Items(list) = v {
                c.triggers = list.into_iter().map(Trigger::of).collect();
            }
        },
    },
    Key {
        path: "budget.cpu",
        kind: Kind::CpuShare,
        unit: "percent of one CPU",
        reload: Reload::Live,
        doc: "CPU time the daemon may take, answering clients and reading files of users and containers \
              aside; those are bounded for each owner. Over it for a minute, it copies less of each stack (8 KiB, 4 KiB, nothing), then samples less often (49, 19, 9 Hz), one \
              step at a time, and goes back when there is room. The first 2 minutes after a start, \
              when everything is read for the first time, are not judged, so the first step \
              comes nearly 3 minutes after it at the earliest. Shares stay right, stacks get shorter; `agent-ctl status` says so. auto: 1% for every 16 CPUs or part of 16.",
        get: |c| Value::Text(c.budget.cpu.to_string()),
        put: |c, v| {
            if let Some(share) = as_text(&v).and_then(CpuShare::parse) {
                c.budget.cpu = share;
            }
        },
    },
    Key {
        path: "budget.memory_mib",
        kind: Kind::IntOrAuto(48, 65536),
        unit: "MiB",
        reload: Reload::Live,
        doc: "Memory the daemon may take, ring buffers aside. Over it, it gives free memory back, \
              then keeps smaller caches, then a smaller flight recorder, and goes back when there is \
              room. 0: the sum of recorder.budget_mib and times_mib, symbols.cache_mib, unwind.cache_mib and \
              56 more (180 by default), but at most a sixteenth of the machine's memory.",
        get: |c| Value::Int(c.budget.memory_mib.into()),
        put: |c, v| put_int(&mut c.budget.memory_mib, &v),
    },
    Key {
        path: "server.listen",
        kind: Kind::Listen,
        unit: "",
        reload: Reload::Restart,
        doc: "Where it listens. TCP always takes token_file, and beyond loopback tls too.",
        get: |c| Value::Text(c.server.listen.to_string()),
        put: |c, v| {
            if let Some(listen) = as_text(&v).and_then(Listen::parse) {
                c.server.listen = listen;
            }
        },
    },
    Key {
        path: "server.socket_mode",
        kind: Kind::Mode,
        unit: "octal permissions",
        reload: Reload::Restart,
        doc: "Permissions of the unix socket: who may write to it may ask everything.",
        get: |c| Value::Text(c.server.socket_mode.to_string()),
        put: |c, v| {
            if let Some(mode) = as_text(&v).and_then(SocketMode::parse) {
                c.server.socket_mode = mode;
            }
        },
    },
    Key {
        path: "server.socket_group",
        kind: Kind::GroupOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "Group of the unix socket, by name or number; null: the daemon's own.",
        get: |c| {
            c.server
                .socket_group
                .clone()
                .map_or(Value::Null, Value::Text)
        },
        put: |c, v| c.server.socket_group = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "server.token_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "File with the token that clients over TCP must show; readable by the daemon only.",
        get: |c| path(c.server.token_file.as_ref()),
        put: |c, v| c.server.token_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "server.tls.cert_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "Certificate chain, PEM.",
        get: |c| path(c.server.tls.as_ref().map(|tls| &tls.cert_file)),
        put: |c, v| tls(c).cert_file = as_text(&v).map(PathBuf::from).unwrap_or_default(),
    },
    Key {
        path: "server.tls.key_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "Private key of the certificate, PEM; readable by the daemon only.",
        get: |c| path(c.server.tls.as_ref().map(|tls| &tls.key_file)),
        put: |c, v| tls(c).key_file = as_text(&v).map(PathBuf::from).unwrap_or_default(),
    },
    Key {
        path: "server.tls.client_ca_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "Certificates that clients must be signed by, PEM; null: clients need none.",
        get: |c| {
            path(
                c.server
                    .tls
                    .as_ref()
                    .and_then(|tls| tls.client_ca_file.as_ref()),
            )
        },
        put: |c, v| tls(c).client_ca_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "metrics.listen",
        kind: Kind::LoopbackOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "Where /metrics and /healthz are served over HTTP; null: nowhere. Loopback only: \
              there is no authentication.",
        get: |c| {
            c.metrics
                .listen
                .map_or(Value::Null, |at| Value::Text(at.to_string()))
        },
        put: |c, v| c.metrics.listen = as_text(&v).and_then(socket_address),
    },
    Key {
        path: "collector.address",
        kind: Kind::PeerOrNull(COLLECTOR_PORT),
        unit: "",
        reload: Reload::Restart,
        doc: "Collector that gets every closed window, in clear and on loopback only; \
              `collector: 127.0.0.1` says the same in one line. null: the collector of the fleet that the \
              host has joined with `agent-ctl join`, or none, and then no spool and no thread for it.",
        get: |c| {
            c.collector
                .address
                .map_or(Value::Null, |at| Value::Text(at.to_string()))
        },
        put: |c, v| {
            let address = as_text(&v).and_then(|text| peer_address(text, COLLECTOR_PORT));
            c.collector.address = address;
        },
    },
    Key {
        path: "collector.host_id",
        kind: Kind::IdOrNull(proto::HOST_ID_BYTES_MAX),
        unit: "",
        reload: Reload::Restart,
        doc: "Who this host is to the collector: the same after a reboot, another on every other \
              machine. null: a hash of /etc/machine-id, or the host name where there is none.",
        get: |c| {
            let id = c.collector.host_id.clone();
            id.map_or(Value::Null, Value::Text)
        },
        put: |c, v| c.collector.host_id = as_text(&v).map(str::to_owned),
    },
    host_name_key(),
    dir_key(),
    join_key(),
    Key {
        path: "collector.labels",
        kind: Kind::Labels(16, OWN_LABELS),
        unit: "",
        reload: Reload::Live,
        doc: "Labels that all samples of this host get at the collector: {region: eu, cluster: a}.",
        get: |c| {
            let labels = c.collector.labels.iter();
            Value::Map(labels.map(|(k, v)| (k.clone(), v.clone())).collect())
        },
        put: |c, v| {
            if let Value::Map(labels) = v {
                c.collector.labels = labels.into_iter().collect();
            }
        },
    },
    Key {
        path: "collector.drop_labels",
        kind: Kind::Words(&[key::PID, key::THREAD, key::COMM, key::CONTEXT]),
        unit: "",
        reload: Reload::Live,
        doc: "Labels that are merged away before a window is sent. Process ids and names of threads \
              multiply what a fleet stores; on the host itself they can still be asked for. Pins that are uploaded to \
              the collector keep all labels.",
        get: |c| Value::List(c.collector.drop_labels.clone()),
        put: |c, v| {
            if let Value::List(names) = v {
                c.collector.drop_labels = names;
            }
        },
    },
    address_key(),
    cert_key(),
    key_key(),
    ca_key(),
    name_key(),
    Key {
        path: "collector.spool.dir",
        kind: Kind::Path,
        unit: "",
        reload: Reload::Restart,
        doc: "Directory of the daemon alone: made with mode 0700, refused when others own it or may \
              write to it. One daemon each.",
        get: |c| Value::Text(text(&c.collector.spool.dir)),
        put: |c, v| {
            if let Some(dir) = as_text(&v) {
                c.collector.spool.dir = PathBuf::from(dir);
            }
        },
    },
    Key {
        path: "collector.spool.max_mib",
        kind: Kind::Int(16, 1 << 20),
        unit: "MiB",
        reload: Reload::Live,
        doc: "Most disk the windows that wait may take; beyond it the oldest are given up, a \
              sixteenth of this at a time, and the collector is told. A window of a busy host takes \
              some 20 to 100 KiB.",
        get: |c| Value::Int(c.collector.spool.max_mib),
        put: |c, v| put_int(&mut c.collector.spool.max_mib, &v),
    },
    Key {
        path: "collector.spool.max_age_s",
        kind: Kind::Int(600, 31_536_000),
        unit: "seconds",
        reload: Reload::Live,
        doc: "How long a window may wait; older ones are given up, and the collector is told.",
        get: |c| Value::Int(c.collector.spool.max_age_s),
        put: |c, v| put_int(&mut c.collector.spool.max_age_s, &v),
    },
    sandbox_key(),
    log::level_key(),
    log::format_key(),
    Key {
        path: "shutdown.grace_s",
        kind: Kind::Int(1, 300),
        unit: "seconds",
        reload: Reload::Live,
        doc: "Time to close the last window and finish answers after SIGTERM; then the daemon ends \
              all the same.",
        get: |c| Value::Int(c.shutdown.grace_s.into()),
        put: |c, v| put_int(&mut c.shutdown.grace_s, &v),
    },
];

const EVENTS: &[(SamplingEvent, &str)] = &[
    (SamplingEvent::CpuClock, "cpu-clock"),
    (SamplingEvent::Cycles, "cycles"),
];

const REMOTE: &[(RemoteCaptures, &str)] = &[
    (RemoteCaptures::Off, "off"),
    (RemoteCaptures::Stacks, "stacks"),
    (RemoteCaptures::All, "all"),
];

const MODES: &[(UnwindMode, &str)] = &[
    (UnwindMode::Auto, "auto"),
    (UnwindMode::FramePointer, "frame-pointer"),
    (UnwindMode::StackCopy, "stack-copy"),
];

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn path(path: Option<&PathBuf>) -> Value {
    path.filter(|path| !path.as_os_str().is_empty())
        .map_or(Value::Null, |path| Value::Text(text(path)))
}

fn tls(config: &mut Config) -> &mut Tls {
    config.server.tls.get_or_insert_default()
}
