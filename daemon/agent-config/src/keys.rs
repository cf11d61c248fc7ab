//! The table of configuration keys: the only place that states what a key means, its unit and
//! range, and whether a reload applies it. `config/agent.yaml` is generated from it. Defaults are
//! in the section types.

use super::fleet::{
    self, address_key, ca_key, cert_key, dir_key, host_id_key, host_name_key, join_key, key_key,
    name_key,
};
use super::metrics;
use super::protection::{sandbox_key, withhold_key};
use super::tables::{go_lines_key, hotspot_key};
use super::triggers::{ITEMS, Trigger};
use super::{Config, RemoteCaptures, SamplingEvent, Tls, UnwindMode};
use config::{
    CpuShare, Key, Kind, Listen, Reload, SocketMode, Value, as_text, log, peer_address, put_bool,
    put_int, put_word, word,
};
use profile::fleet::COLLECTOR_PORT;
use profile::key;
use std::path::{Path, PathBuf};

/// Sections with a sentence each, in the order of the file.
pub(super) const SECTIONS: &[(&str, &str)] = &[
    ("sampling", "What is sampled and how often."),
    ("unwind", "How user stacks are walked."),
    ("symbols", "How native and kernel addresses get names."),
    ("jit", "How generated code gets names."),
    (
        "containers",
        "Names and labels of containers, from their runtimes.",
    ),
    ("windows", "How samples are folded over time."),
    (
        "recorder",
        "The flight recorder: closed windows kept in memory.",
    ),
    (
        "captures",
        "Captures on demand: new recordings next to the continuous profile.",
    ),
    ("budget", "Limits on the CPU time and memory of the daemon."),
    ("server", "The gRPC server that agent-ctl talks to."),
    ("server.tls", "Certificates for TCP. All null: no TLS."),
    ("metrics", "Prometheus metrics of the daemon itself."),
    (
        "collector",
        "The collector that gets closed windows and answers queries about the fleet.",
    ),
    fleet::SECTION,
    (
        "collector.spool",
        "Windows that wait for the collector, on disk. They survive a restart and a reboot.",
    ),
    ("log", "The daemon's own log, on standard error."),
    ("shutdown", "How the daemon stops."),
];

/// Most labels that can be chosen. Together with as many labels of a pod and all others that
/// samples have, they fit what a collector accepts in one label set: 32.
const LABELS_MAX: usize = 8;

/// Most sources that can be named.
const SOURCES_MAX: usize = 16;

/// Prefixes allowed before the path.
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
        doc: "How often to sample. 99 stays out of step with timers that run at 100 Hz. In a \
            virtual machine each sample costs its CPU about 15 µs: 0.15 % at 99.",
        get: |c| Value::Int(c.sampling.rate_hz.into()),
        put: |c, v| put_int(&mut c.sampling.rate_hz, &v),
    },
    Key {
        path: "sampling.ring_kib",
        kind: Kind::PowerOfTwoOrAuto(64, 65536),
        unit: "KiB for each CPU",
        reload: Reload::Live,
        doc: "Size of the ring buffer between kernel and daemon. 0: large enough for more than a \
            second of samples, smaller on hosts with many CPUs. If the ring is too small, samples \
            are lost and counted. More than perf_event_mlock_kb (516 by default) needs \
            CAP_IPC_LOCK.",
        get: |c| Value::Int(c.sampling.ring_kib.into()),
        put: |c, v| put_int(&mut c.sampling.ring_kib, &v),
    },
    Key {
        path: "sampling.max_stack_depth",
        kind: Kind::Int(16, 1024),
        unit: "frames",
        reload: Reload::Live,
        doc: "Maximum number of frames in a stack; deeper stacks are cut at the root and marked. \
            With frame pointers, the sysctl kernel.perf_event_max_stack (127 by default) cuts \
            stacks earlier.",
        get: |c| Value::Int(c.sampling.max_stack_depth.into()),
        put: |c, v| put_int(&mut c.sampling.max_stack_depth, &v),
    },
    Key {
        path: "unwind.mode",
        kind: Kind::Word(&["auto", "frame-pointer", "stack-copy"]),
        unit: "",
        reload: Reload::Live,
        doc: "stack-copy: the kernel copies the top of each user stack and the daemon unwinds it, \
            so stacks are complete whatever the compiler did. frame-pointer: the kernel follows \
            frame pointers; code compiled without them shows one to three frames. auto: \
            stack-copy, with a smaller copy or none if memory, CPUs or rights do not allow it.",
        get: |c| word(&c.unwind.mode, MODES),
        put: |c, v| put_word(&mut c.unwind.mode, &v, MODES),
    },
    Key {
        path: "unwind.stack_kib",
        kind: Kind::Int(1, 56),
        unit: "KiB",
        reload: Reload::Live,
        doc: "How much of the user stack to copy with each sample. 16 reaches the start of nearly \
            every program. The daemon unwinds the copy at once, or within a second of the first \
            sample of a new program, and never keeps it.",
        get: |c| Value::Int(c.unwind.stack_kib.into()),
        put: |c, v| put_int(&mut c.unwind.stack_kib, &v),
    },
    Key {
        path: "unwind.stack_kib_max",
        kind: Kind::Int(1, 56),
        unit: "KiB",
        reload: Reload::Live,
        doc: "How much to copy instead while more than 2 % of the stacks are deeper than \
            `stack_kib`, and for five minutes after that. The copy stays smaller if the rings or \
            the CPU budget have no room for it. A value up to `stack_kib` never enlarges the copy.",
        get: |c| Value::Int(c.unwind.stack_kib_max.into()),
        put: |c, v| put_int(&mut c.unwind.stack_kib_max, &v),
    },
    Key {
        path: "unwind.look",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "If the copy cuts the stacks of a thread at the same call again and again, read the \
            thread's memory once to complete them while that call runs; one of the thread's four \
            debug registers tells when it returns. The daemon keeps only addresses of code and of \
            the stack. It also reads untouched stack pages, which end copies. false: such stacks \
            end where the copy ends.",
        get: |c| Value::Bool(c.unwind.look),
        put: |c, v| put_bool(&mut c.unwind.look, &v),
    },
    Key {
        path: "unwind.derive",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Derive unwind rows from the instructions of code that has none: static musl \
            programs, hand-written assembly, compilers that write no unwind information. Code \
            whose derived rows contradict each other stays without. false: such code is unwound \
            only with frame pointers.",
        get: |c| Value::Bool(c.unwind.derive),
        put: |c, v| put_bool(&mut c.unwind.derive, &v),
    },
    Key {
        path: "unwind.scan",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Search the stack for the caller of generated code whose frame is unknown (LuaJIT, \
              Guile): the nearest address from which unwind tables lead to a start function. Such \
              stacks end with `scanned`. false: they end with `generated_code`.",
        get: |c| Value::Bool(c.unwind.scan),
        put: |c, v| put_bool(&mut c.unwind.scan, &v),
    },
    Key {
        path: "unwind.known_callers",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "If a copy ends within the frame of a function, complete the stack with the callers \
              that the function had in two other processes of the cgroup. This needs `look`. Such \
              stacks end with `known_callers`. false: they end where the copy ends.",
        get: |c| Value::Bool(c.unwind.known_callers),
        put: |c, v| put_bool(&mut c.unwind.known_callers, &v),
    },
    Key {
        path: "unwind.cache_mib",
        kind: Kind::Int(4, 4096),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Memory for unwind tables of executables; the least used are dropped first. If the \
            cache is too small, the daemon reads files again and again, and stacks are cut \
            meanwhile.",
        get: |c| Value::Int(c.unwind.cache_mib.into()),
        put: |c, v| put_int(&mut c.unwind.cache_mib, &v),
    },
    Key {
        path: "symbols.lines",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Record source file and line of native frames. This needs debug information and \
            several times the time. A file whose debug information takes more than `cache_mib` \
            gets no lines.",
        get: |c| Value::Bool(c.symbols.lines),
        put: |c, v| put_bool(&mut c.symbols.lines, &v),
    },
    Key {
        path: "symbols.inlined_frames",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Record frames for inlined functions, at the same cost as lines.",
        get: |c| Value::Bool(c.symbols.inlined_frames),
        put: |c, v| put_bool(&mut c.symbols.inlined_frames, &v),
    },
    go_lines_key(),
    Key {
        path: "symbols.debug_dirs",
        kind: Kind::Paths(16),
        unit: "",
        reload: Reload::Restart,
        doc: "Directories to search for separate debug files; the first match wins.",
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
        doc: "debuginfod servers to ask, in this order, for debug files of programs without \
            symbols. The servers learn which builds run here. Nothing waits for them: later \
            samples get the names. A collector can ask instead for the complete fleet, and then \
            stored windows get names too.",
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
        doc: "Directory for files from these servers; it must have nothing else in it.",
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
        doc: "Maximum size of these files; the least recently used are deleted first.",
        get: |c| Value::Int(c.symbols.debuginfod_mib.into()),
        put: |c, v| put_int(&mut c.symbols.debuginfod_mib, &v),
    },
    Key {
        path: "symbols.cache_mib",
        kind: Kind::Int(1, 4096),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Memory for symbol tables and names; the least used are dropped first. If the cache \
            is too small, the daemon reads files again and again.",
        get: |c| Value::Int(c.symbols.cache_mib.into()),
        put: |c, v| put_int(&mut c.symbols.cache_mib, &v),
    },
    Key {
        path: "jit.perf_maps",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Read /tmp/perf-PID.map of processes with samples in generated code (node \
            --perf-basic-prof and others). The map must be a regular file of the process's own \
            user.",
        get: |c| Value::Bool(c.jit.perf_maps),
        put: |c, v| put_bool(&mut c.jit.perf_maps, &v),
    },
    Key {
        path: "jit.jitdumps",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Read the jitdumps (jit-PID.dump) that processes map, as node --perf-prof and others \
              do: names with exact times. A jitdump must be a regular file of the process's own \
              user.",
        get: |c| Value::Bool(c.jit.jitdumps),
        put: |c, v| put_bool(&mut c.jit.jitdumps, &v),
    },
    hotspot_key(),
    Key {
        path: "jit.perf_map_max_mib",
        kind: Kind::Int(1, 1024),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "How much of a perf map to read, and the maximum memory for its names. The names of \
            all generated code together take at most twice this. Code beyond the limit has no \
            names, and is counted.",
        get: |c| Value::Int(c.jit.perf_map_max_mib.into()),
        put: |c, v| put_int(&mut c.jit.perf_map_max_mib, &v),
    },
    Key {
        path: "jit.hotspot_attach",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Attach to Java processes (HotSpot, JDK 17 and later) whose code has no names, and \
              make them write /tmp/perf-PID.map, which the daemon removes when it is no longer \
              needed. This uses the JVM's own attach mechanism as the JVM's user, so the daemon \
              needs root, or CAP_SETUID and CAP_SETGID (deploy/systemd/fleetprofd-attach.conf). \
              -XX:+DisableAttachMechanism is respected.",
        get: |c| Value::Bool(c.jit.hotspot_attach),
        put: |c, v| put_bool(&mut c.jit.hotspot_attach, &v),
    },
    Key {
        path: "jit.hotspot_refresh_s",
        kind: Kind::Int(1, 86_400),
        unit: "seconds",
        reload: Reload::Restart,
        doc: "Minimum time between two maps of one JVM. The daemon asks only while code without a \
            name has samples. The JVM stops while it writes the map: for 1 to 14 ms with 500 \
            methods. After failures the time doubles, up to an hour.",
        get: |c| Value::Int(c.jit.hotspot_refresh_s.into()),
        put: |c, v| put_int(&mut c.jit.hotspot_refresh_s, &v),
    },
    Key {
        path: "jit.dotnet_enable",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Make .NET processes (8 and later) write a perf map while their code has samples, \
            through their diagnostics port, and stop minutes after the last sample. Writing a map \
            takes up to a fifth of a process's CPU time while it compiles. This needs the same \
            rights as jit.hotspot_attach.",
        get: |c| Value::Bool(c.jit.dotnet_enable),
        put: |c, v| put_bool(&mut c.jit.dotnet_enable, &v),
    },
    Key {
        path: "containers.metadata",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Ask the runtime of each container once for its name, image and pod: labels \
            container_name, image, pod and namespace. The daemon only reads. Its user needs access \
            to the runtime's socket; without it the daemon reads files instead.",
        get: |c| Value::Bool(c.containers.metadata),
        put: |c, v| put_bool(&mut c.containers.metadata, &v),
    },
    Key {
        path: "containers.labels",
        kind: Kind::ForeignNames(LABELS_MAX),
        unit: "",
        reload: Reload::Restart,
        doc: "Labels of containers and images to add to samples as container.label/NAME, and of \
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
        doc: "Runtimes to ask, in this order. auto: the usual sockets and files of docker, podman, \
            containerd and cri-o, if root owns them. A socket is docker:/PATH, podman:/PATH or \
            cri:/PATH; a directory is docker-files:/PATH, bundles:/PATH or storage:/PATH. Any user \
            may own a socket that is named here: podman:/run/user/1000/podman/podman.sock.",
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
        doc: "How far back the recorder reaches.",
        get: |c| Value::Int(c.recorder.retention_s.into()),
        put: |c, v| put_int(&mut c.recorder.retention_s, &v),
    },
    Key {
        path: "recorder.budget_mib",
        kind: Kind::Int(4, 16384),
        unit: "MiB",
        reload: Reload::Live,
        doc: "Memory for the recorder. If it is full, the oldest windows are downsampled (to 1 \
            minute, then to 10) before they are dropped.",
        get: |c| Value::Int(c.recorder.budget_mib.into()),
        put: |c, v| put_int(&mut c.recorder.budget_mib, &v),
    },
    Key {
        path: "recorder.pins_mib",
        kind: Kind::Int(1, 16_384),
        unit: "MiB on disk",
        reload: Reload::Live,
        doc: "Disk space for minutes that triggers pinned, in addition to the recorder. Beyond it, \
            the trigger whose pins take most loses its oldest pin. A pin is cut at a quarter of \
            this size. A minute of a busy host takes 100 to 600 KiB.",
        get: |c| Value::Int(c.recorder.pins_mib.into()),
        put: |c, v| put_int(&mut c.recorder.pins_mib, &v),
    },
    Key {
        path: "recorder.pins_dir",
        kind: Kind::Path,
        unit: "",
        reload: Reload::Restart,
        doc: "Directory for pins, which only the daemon may use. The daemon creates it with mode \
            0700 when the first trigger is configured. Pins survive restarts and reboots.",
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
        doc: "Memory for the times of single samples, in addition to budget_mib: about 4 bytes \
            each, so the default holds the last hour of two busy CPUs, or three minutes of 64. \
            Heat maps need these times to show bursts within a second. The oldest are dropped \
            first. 0: keep none.",
        get: |c| Value::Int(c.recorder.times_mib.into()),
        put: |c, v| put_int(&mut c.recorder.times_mib, &v),
    },
    Key {
        path: "captures.max",
        kind: Kind::Int(0, 32),
        unit: "captures",
        reload: Reload::Live,
        doc: "How many captures may run at a time. 0: allow none.",
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
        doc: "Highest rate of a capture. budget.cpu does not cover captures: only this key and the \
            duration limit their cost. If an event with a period causes more samples than this \
            over all CPUs, the capture continues at this rate after a second, and its result says \
            so.",
        get: |c| Value::Int(c.captures.rate_max_hz.into()),
        put: |c, v| put_int(&mut c.captures.rate_max_hz, &v),
    },
    Key {
        path: "captures.switches_max",
        kind: Kind::Int(0, 10_000_000),
        unit: "context switches and wake-ups a second on each CPU, the mean of all CPUs",
        reload: Reload::Live,
        doc: "Above this limit a capture of `off-cpu` ends after a second or two, and keeps the \
            samples so far. Each switch costs its thread about 3 microseconds, so the default \
            limits the cost to a quarter of the host. 0: no limit.",
        get: |c| Value::Int(c.captures.switches_max.into()),
        put: |c, v| put_int(&mut c.captures.switches_max, &v),
    },
    Key {
        path: "captures.memory_mib",
        kind: Kind::Int(1, 4096),
        unit: "MiB",
        reload: Reload::Live,
        doc: "Memory for the samples of all captures, in addition to budget.memory_mib. A new \
            capture may use a quarter of what the others left. Samples without room are counted as \
            [other]; after that the oldest windows are dropped. The result says so.",
        get: |c| Value::Int(c.captures.memory_mib.into()),
        put: |c, v| put_int(&mut c.captures.memory_mib, &v),
    },
    Key {
        path: "captures.lines_mib",
        kind: Kind::Int(1, 4096),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Memory to read source lines, in addition to budget.memory_mib, while a capture with \
            lines runs. Debug information needs twice its size without types, line programs eight \
            times their size. A file above the limit has no lines, and the result says so.",
        get: |c| Value::Int(c.captures.lines_mib.into()),
        put: |c, v| put_int(&mut c.captures.lines_mib, &v),
    },
    Key {
        path: "captures.history",
        kind: Kind::Int(0, 10_000),
        unit: "captures",
        reload: Reload::Live,
        doc: "How many ended captures to list. The log has all of them.",
        get: |c| Value::Int(c.captures.history.into()),
        put: |c, v| put_int(&mut c.captures.history, &v),
    },
    Key {
        path: "captures.remote",
        kind: Kind::Word(&["off", "stacks", "all"]),
        unit: "",
        reload: Reload::Live,
        doc: "Captures that a collector may start on this host. A collector cannot change this \
              key. stacks: CPU time, hardware counters, waits, faults and switches, without \
              filters. all: probes, tracepoints and filters too, which can slow every process down \
              and read memory. off: nothing.",
        get: |c| word(&c.captures.remote, REMOTE),
        put: |c, v| put_word(&mut c.captures.remote, &v, REMOTE),
    },
    Key {
        path: "captures.remote_events",
        kind: Kind::Events(64),
        unit: "",
        reload: Reload::Live,
        doc: "Events that a collector may use in addition to those of `stacks`: [block-io, \
            tracepoint:sched:*]. Filters still need `all`.",
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
        doc: "Highest rate on each CPU that a collector may use.",
        get: |c| Value::Int(c.captures.remote_rate_max_hz.into()),
        put: |c, v| put_int(&mut c.captures.remote_rate_max_hz, &v),
    },
    Key {
        path: "captures.remote_duration_max_s",
        kind: Kind::Int(1, 3600),
        unit: "s",
        reload: Reload::Live,
        doc: "Longest capture that a collector may start.",
        get: |c| Value::Int(c.captures.remote_duration_max_s.into()),
        put: |c, v| put_int(&mut c.captures.remote_duration_max_s, &v),
    },
    Key {
        path: "captures.remote_minutes_per_hour",
        kind: Kind::Int(1, 480),
        unit: "minutes",
        reload: Reload::Live,
        doc: "Total duration of the captures that a collector may start in an hour. A capture counts \
            by its requested duration; when it ends early, by the time it ran, 10 s at least. Further \
            captures are refused until an hour has passed.",
        get: |c| Value::Int(c.captures.remote_minutes_per_hour.into()),
        put: |c, v| put_int(&mut c.captures.remote_minutes_per_hour, &v),
    },
    withhold_key(),
    Key {
        path: "triggers",
        kind: Kind::Items(&ITEMS),
        unit: "",
        reload: Reload::Live,
        doc: "Conditions on a cgroup or the host, checked once a second. When a condition is met, \
            the daemon pins the recorder's minutes around that moment: they outlive the retention, \
            and `agent-ctl pins` shows them.",
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
        doc: "CPU time the daemon may use, not counting answers to clients and reading files of \
            users and containers, which have limits for each owner. If the daemon exceeds this for \
            a minute, it copies less of each stack (8 KiB, 4 KiB, nothing), then samples less \
            often (49, 19, 9 Hz), one step at a time, and goes back when there is room. The first \
            2 minutes after a start do not count, because the daemon reads everything for the \
            first time, so the first step comes nearly 3 minutes after a start at the earliest. \
            Shares stay right, stacks get shorter; `agent-ctl status` shows the step. auto: 1% for \
            every 16 CPUs, rounded up.",
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
        doc: "Memory the daemon may use, not counting ring buffers. Above this the daemon first \
              returns free memory, then uses smaller caches, then a smaller flight recorder, and \
              goes back when there is room. 0: the sum of recorder.budget_mib and times_mib, \
              symbols.cache_mib, unwind.cache_mib and 56 more (180 by default), but at most a \
              sixteenth of the machine's memory.",
        get: |c| Value::Int(c.budget.memory_mib.into()),
        put: |c, v| put_int(&mut c.budget.memory_mib, &v),
    },
    Key {
        path: "server.listen",
        kind: Kind::Listen,
        unit: "",
        reload: Reload::Restart,
        doc: "Address to listen on. TCP always needs token_file, and beyond loopback also tls.",
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
        doc: "Permissions of the unix socket: users who may write to it may use every call.",
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
        doc: "File with the token that TCP clients must send. Only the daemon may read it.",
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
        doc: "Private key of the certificate, PEM. Only the daemon may read it.",
        get: |c| path(c.server.tls.as_ref().map(|tls| &tls.key_file)),
        put: |c, v| tls(c).key_file = as_text(&v).map(PathBuf::from).unwrap_or_default(),
    },
    Key {
        path: "server.tls.client_ca_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "Authorities that must have signed the certificates of clients, PEM; null: clients \
            need no certificate.",
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
    metrics::listen_key(),
    metrics::cpu_by_key(),
    Key {
        path: "collector.address",
        kind: Kind::PeerOrNull(COLLECTOR_PORT),
        unit: "",
        reload: Reload::Restart,
        doc: "Collector that gets every closed window, without TLS and only on loopback; \
            `collector: 127.0.0.1` is the short form. null: the collector of the fleet that the \
            host has joined with `agent-ctl join`. Without a fleet there is no collector, no spool \
            and no thread for them.",
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
    host_id_key(),
    host_name_key(),
    dir_key(),
    join_key(),
    Key {
        path: "collector.labels",
        kind: Kind::Labels(16, OWN_LABELS),
        unit: "",
        reload: Reload::Live,
        doc: "Labels to add to all samples of this host at the collector: {region: eu, cluster: \
            a}.",
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
        doc: "Labels to remove before a window is sent. Process ids and thread names multiply the \
            data that a fleet stores; queries to the agent still have them. Pins that are uploaded \
            to the collector keep all labels.",
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
        doc: "Directory for the spool, which only one daemon may use. The daemon creates it with \
            mode 0700, and refuses it if other users own it or may write to it.",
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
        doc: "Maximum disk space for waiting windows. Beyond it, the oldest are dropped, a \
            sixteenth of this size at a time, and the daemon tells the collector. A window of a \
            busy host takes 20 to 100 KiB.",
        get: |c| Value::Int(c.collector.spool.max_mib),
        put: |c, v| put_int(&mut c.collector.spool.max_mib, &v),
    },
    Key {
        path: "collector.spool.max_age_s",
        kind: Kind::Int(600, 31_536_000),
        unit: "seconds",
        reload: Reload::Live,
        doc: "How long a window may wait. Older windows are dropped, and the daemon tells the \
            collector.",
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
        doc: "Time after SIGTERM to close the last window and finish answers. After that the \
            daemon stops in any case.",
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
