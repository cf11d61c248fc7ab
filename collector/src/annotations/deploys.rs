//! Detects deployments in the data of agents: a service with an image, a version or a build of its
//! program that it never had, a host with another agent version.
//!
//! A service is identified by the label `service`, by the repository of its image with its
//! namespace, or by its unit, whichever exists, because in many fleets a container has another name
//! after each start. What a service runs in its first minutes is not a deployment. Versions are
//! remembered as hashes, in memory and in the database (`book.rs`), so that a start reports nothing
//! that was there before. Nothing here blocks: changes wait to be written.
//!
//! Builds come with the facts of a host (`HostFacts.programs`), because frames with names have
//! none. Each program is told apart by its base name: the directory of many has the version in it.

use super::limits::{
    COUNTED_MAX, COUNTING_NS, DEPLOYS_PER_HOUR_MAX, HOSTS_MAX, LABEL_VALUE_BYTES_MAX, LEARN_NS,
    SAME_NS, SERVICES_MAX, SINCE_NS_MAX, VALUES_MAX, WAITING_MAX,
};
use crate::ingest::Program;
use crate::store::{HostFacts, LabelSet, NewWindow, is_host_label};
use profile::key;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Nanoseconds of an hour.
const HOUR_NS: i64 = 3600 * 1_000_000_000;

/// Longest version in a text. Unit: bytes.
const SAID_BYTES_MAX: usize = 200;

/// The label that names a service, and that of hosts that names what they run.
const SERVICE: &str = "service";
const VERSION: &str = "version";

/// Names of what is said of programs, among the labels of a deployment.
const BUILD_ID: &str = "build_id";
const MODULE: &str = "module";

/// Digits of a build id in a text.
const BUILD_DIGITS: usize = 12;

/// A host that a deployment was seen on, as it called itself then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SeenOn {
    /// Hash of its id.
    pub host: i64,
    /// Its labels, the name among them.
    pub labels: Arc<BTreeMap<String, String>>,
}

/// Something to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// A service has this value; nothing is announced.
    Value {
        service: i64,
        value: i64,
        first: i64,
        said: String,
    },
    /// A service has this, which is new.
    Deploy {
        service: i64,
        value: i64,
        said: String,
        on: SeenOn,
        start: i64,
        text: String,
        labels: Vec<(String, String)>,
    },
    /// A host more has it.
    Also {
        service: i64,
        value: i64,
        on: SeenOn,
        start: i64,
    },
    /// The agent of a host has this version.
    Agent {
        host: i64,
        version: i64,
        said: String,
    },
    /// There was no room for it any more.
    ForgetValue { service: i64, value: i64 },
    /// There was no room for all of it any more.
    ForgetService { service: i64 },
    /// The same of the agent of a host.
    ForgetAgent { host: i64 },
}

/// What was written earlier, for a start.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub values: Vec<KnownValue>,
    /// Host, version, and the version as it is said.
    pub agents: Vec<(i64, i64, String)>,
}

/// A value of a service.
#[derive(Debug)]
pub(super) struct KnownValue {
    pub service: i64,
    pub value: i64,
    pub first: i64,
    /// When it was announced; 0: it was not.
    pub told: i64,
    pub said: String,
    /// Hosts that were counted.
    pub hosts: Vec<i64>,
}

#[derive(Debug, Default)]
struct Service {
    /// When it was seen first, and the start of the earliest time that it was seen in.
    first: i64,
    since: i64,
    /// When any value was seen last.
    last: i64,
    values: HashMap<i64, Value>,
    /// The value that came last, as it is said.
    latest: String,
}

#[derive(Debug)]
struct Value {
    last: i64,
    /// When it was announced; 0: it was not.
    told: i64,
    /// Hosts that it was seen on, while they are counted.
    hosts: HashSet<i64>,
}

/// The agent of a host.
#[derive(Debug)]
struct Agent {
    version: i64,
    /// Its version, as it is said.
    said: String,
    /// When it was seen last; 0: not since the start.
    last: i64,
}

/// Results besides what has to be written.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Untold {
    /// Deployments beyond the hourly limit, which are not announced.
    pub limited: u64,
    /// Findings that could not be remembered for lack of room.
    pub dropped: u64,
}

/// Known versions of services and agents.
#[derive(Debug, Default)]
pub(super) struct Deploys {
    services: HashMap<i64, Service>,
    agents: HashMap<i64, Agent>,
    /// Hosts counted over all values.
    counted: usize,
    /// Times of deployments announced in the last hour.
    told: VecDeque<i64>,
    /// Services announced last, by label, with the time of the deployment.
    recent: VecDeque<(i64, i64, i64)>,
    waiting: Vec<Note>,
    /// How many were taken and are being written.
    writing: usize,
    untold: Untold,
}

/// Something of a service that may be new.
struct Sight<'w> {
    /// The service: hash of what identifies it.
    identity: i64,
    /// Which label it is: hash of the label's name.
    label: i64,
    value: i64,
    on: SeenOn,
    start: i64,
    /// It changed, as is known otherwise: there is nothing to learn.
    changed: bool,
    /// As it is said.
    said: &'w str,
}

/// A service and its version, according to a label set.
struct Claim<'s> {
    set: &'s LabelSet,
    name: &'s str,
    value: &'s str,
}

/// A service in a window, to be examined.
pub(super) struct WindowSight<'w> {
    sight: Sight<'w>,
    claim: Claim<'w>,
}

/// The services in a window. Takes no lock, because there may be many label sets.
pub(super) fn sights(window: &NewWindow, now: i64) -> Vec<WindowSight<'_>> {
    // Processes of a service say the same, and replicas on a host, too.
    let (mut seen, mut said) = (HashSet::new(), HashSet::new());
    let on = SeenOn {
        host: hash(&[&window.origin.host.host_id]),
        labels: Arc::new(host_labels(window)),
    };
    let start = window.range.start_unix_ns.min(now);
    let mut sights = Vec::new();
    for set in &window.label_sets {
        for claim in claims(set) {
            let of = [SERVICE, key::NAMESPACE, key::IMAGE, key::UNIT].map(|name| set.get(name));
            if !seen.insert((claim.name, claim.value, of)) {
                continue;
            }
            let Some(identity) = identity(set, claim.name) else {
                continue;
            };
            let (label, value) = (hash(&[claim.name]), hash(&[claim.value]));
            if said.insert((identity, label, value)) {
                let sight = Sight {
                    identity,
                    label,
                    value,
                    on: on.clone(),
                    start,
                    changed: false,
                    said: short(claim.name, claim.value),
                };
                sights.push(WindowSight { sight, claim });
            }
        }
    }
    sights
}

/// Labels of the host that a window is of.
fn host_labels(window: &NewWindow) -> BTreeMap<String, String> {
    let set = window.label_sets.first();
    let pairs = set.into_iter().flat_map(LabelSet::iter);
    pairs
        .filter(|(name, _)| is_host_label(name))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

impl Deploys {
    /// Creates it with earlier knowledge.
    pub fn new(known: Known) -> Deploys {
        let mut deploys = Deploys::default();
        for one in known.values {
            let service = deploys.services.entry(one.service).or_insert(Service {
                first: one.first,
                since: one.first,
                ..Service::default()
            });
            service.last = service.last.max(one.first);
            // They come by their age.
            service.latest = one.said;
            deploys.counted += one.hosts.len();
            let value = Value {
                last: one.first,
                told: one.told,
                hosts: one.hosts.into_iter().collect(),
            };
            service.values.insert(one.value, value);
        }
        let agents = known.agents.into_iter();
        let agent = |(host, version, said)| {
            let last = 0;
            let agent = Agent {
                version,
                said,
                last,
            };
            (host, agent)
        };
        deploys.agents = agents.map(agent).collect();
        deploys
    }

    /// Looks at what a window says.
    pub fn look(&mut self, sights: &[WindowSight<'_>], now: i64) {
        for WindowSight { sight, claim } in sights {
            self.see(sight, now, |before, said| told(claim, before, said));
        }
    }

    /// Looks at the version of a host's agent.
    pub fn agent(&mut self, host_id: &str, facts: &HostFacts, now: i64) {
        let version = facts.agent_version.as_str();
        if version.is_empty() {
            return;
        }
        let on = SeenOn::of(host_id, facts);
        let (host, value) = (on.host, hash(&[version]));
        if let Some(agent) = self.agents.get_mut(&host) {
            agent.last = now;
            if agent.version == value {
                return;
            }
        }
        // One may be needed to make room.
        if self.pending() + 2 > WAITING_MAX {
            self.untold.dropped += 1;
            return;
        }
        if !self.agents.contains_key(&host) && self.agents.len() >= HOSTS_MAX {
            self.forget_agent();
        }
        let said = cut(version, SAID_BYTES_MAX).to_owned();
        let agent = Agent {
            version: value,
            said: said.clone(),
            last: now,
        };
        let before = self.agents.insert(host, agent);
        self.waiting.push(Note::Agent {
            host,
            version: value,
            said: said.clone(),
        });
        // A new host has no earlier version, so it is not known whether anything changed.
        let Some(Agent { said: was, .. }) = before else {
            return;
        };
        let sight = Sight {
            identity: hash(&["agent"]),
            label: hash(&["agent_version"]),
            value,
            on,
            start: now,
            changed: true,
            said: &said,
        };
        self.see(&sight, now, |_, said| {
            let labels = vec![("agent_version".to_owned(), said.to_owned())];
            (format!("fleetprofd {said} (was {was})"), labels)
        });
    }

    /// Looks at the builds of programs that a host reports.
    pub fn programs(&mut self, host_id: &str, facts: &HostFacts, programs: &[Program], now: i64) {
        if programs.is_empty() {
            return;
        }
        let on = SeenOn::of(host_id, facts);
        for program in programs {
            let of_host = facts.labels.iter();
            let of_host = of_host.map(|(name, value)| (name.clone(), value.clone()));
            let set = LabelSet::new(program.labels.iter().cloned().chain(of_host));
            let Some(identity) = identity(&set, BUILD_ID) else {
                continue;
            };
            let module = unversioned(&program.module);
            let said = cut(&program.build_id, BUILD_DIGITS);
            let sight = Sight {
                identity,
                label: hash(&[BUILD_ID, module]),
                value: hash(&[&program.build_id]),
                on: on.clone(),
                start: (program.since_unix_ns.min(now)).max(now.saturating_sub(SINCE_NS_MAX)),
                changed: false,
                said,
            };
            self.see(&sight, now, |before, said| {
                told_of_build(&set, (module, &program.build_id), before, said)
            });
        }
    }

    /// What has to be written, and what was not announced. It counts as being written until
    /// [`Deploys::written`] or [`Deploys::put_back`] is called.
    pub fn take(&mut self) -> (Vec<Note>, Untold) {
        self.writing = self.waiting.len();
        (
            std::mem::take(&mut self.waiting),
            std::mem::take(&mut self.untold),
        )
    }

    /// Records that the taken findings were written.
    pub fn written(&mut self) {
        self.writing = 0;
    }

    /// It was not written: it waits before all that came since.
    pub fn put_back(&mut self, mut notes: Vec<Note>) {
        self.writing = 0;
        notes.append(&mut self.waiting);
        self.waiting = notes;
    }

    /// Forgets the hosts of deployments that are no longer counted.
    pub fn expire(&mut self, now: i64) {
        let values = self.services.values_mut();
        for value in values.flat_map(|service| service.values.values_mut()) {
            if value.told <= now.saturating_sub(COUNTING_NS) {
                self.counted -= value.hosts.len();
                value.hosts = HashSet::new();
            }
        }
    }

    /// How much is to be written, or is being written.
    fn pending(&self) -> usize {
        self.waiting.len() + self.writing
    }

    fn forget_agent(&mut self) {
        let oldest = self.agents.iter().min_by_key(|(_, agent)| agent.last);
        if let Some(host) = oldest.map(|(host, _)| *host) {
            self.agents.remove(&host);
            self.waiting.push(Note::ForgetAgent { host });
        }
    }

    fn see(
        &mut self,
        sight: &Sight<'_>,
        now: i64,
        text: impl FnOnce(&str, &str) -> (String, Vec<(String, String)>),
    ) {
        let service = combined(sight.identity, sight.label);
        if let Some(known) = self.services.get_mut(&service) {
            known.last = now;
            known.since = known.since.min(sight.start);
            if let Some(value) = known.values.get_mut(&sight.value) {
                value.last = now;
                let counts = value.told > now.saturating_sub(COUNTING_NS);
                let again = sight.changed && !counts;
                if counts && !value.hosts.contains(&sight.on.host) {
                    if self.waiting.len() + self.writing >= WAITING_MAX
                        || self.counted >= COUNTED_MAX
                    {
                        self.untold.dropped += 1;
                        return;
                    }
                    value.hosts.insert(sight.on.host);
                    self.counted += 1;
                    self.waiting.push(Note::Also {
                        service,
                        value: sight.value,
                        on: sight.on.clone(),
                        start: sight.start,
                    });
                }
                if !again {
                    return;
                }
            }
        }
        // Two may be needed to make room, and one for itself.
        if self.pending() + 3 > WAITING_MAX {
            self.untold.dropped += 1;
            return;
        }
        self.make_room(service);
        let is_new = !self.services.contains_key(&service);
        let known = self.services.entry(service).or_insert(Service {
            first: now,
            since: sight.start,
            ..Service::default()
        });
        known.last = now;
        // Windows that waited bring the past of a service in a moment: their own time counts too.
        let learning = now.saturating_sub(known.first) < LEARN_NS
            && sight.start.saturating_sub(known.since) < LEARN_NS;
        let learning = !sight.changed && (is_new || learning);
        let before = std::mem::replace(&mut known.latest, sight.said.to_owned());
        let is_told = !learning && self.may_tell(sight, now);
        let mut value = Value {
            last: now,
            told: 0,
            hosts: HashSet::new(),
        };
        if is_told {
            value.told = now;
            value.hosts.insert(sight.on.host);
            self.counted += 1;
            let (text, labels) = text(&before, sight.said);
            self.waiting.push(Note::Deploy {
                service,
                value: sight.value,
                said: sight.said.to_owned(),
                on: sight.on.clone(),
                start: sight.start,
                text,
                labels,
            });
        } else {
            self.waiting.push(Note::Value {
                service,
                value: sight.value,
                first: now,
                said: sight.said.to_owned(),
            });
        }
        if let Some(known) = self.services.get_mut(&service) {
            known.values.insert(sight.value, value);
        }
    }

    /// Whether a deployment is announced: not if it was just announced under another label, nor if
    /// there were too many.
    fn may_tell(&mut self, sight: &Sight<'_>, now: i64) -> bool {
        let is_same = |&(identity, label, start): &(i64, i64, i64)| {
            identity == sight.identity
                && label != sight.label
                && sight.start.abs_diff(start) < SAME_NS.unsigned_abs()
        };
        if self.recent.iter().any(is_same) {
            return false;
        }
        while (self.told.front()).is_some_and(|&at| at < now.saturating_sub(HOUR_NS)) {
            self.told.pop_front();
        }
        if self.told.len() >= DEPLOYS_PER_HOUR_MAX {
            self.untold.limited += 1;
            return false;
        }
        self.told.push_back(now);
        self.recent
            .push_back((sight.identity, sight.label, sight.start));
        if self.recent.len() > DEPLOYS_PER_HOUR_MAX {
            self.recent.pop_front();
        }
        true
    }

    /// Forgets what was not seen for longest, where there is no room for one more.
    fn make_room(&mut self, service: i64) {
        let is_full = self.services.len() >= SERVICES_MAX;
        match self.services.get_mut(&service) {
            Some(known) if known.values.len() >= VALUES_MAX => {
                let oldest = known.values.iter().min_by_key(|(_, value)| value.last);
                let Some(value) = oldest.map(|(value, _)| *value) else {
                    return;
                };
                if let Some(gone) = known.values.remove(&value) {
                    self.counted -= gone.hosts.len();
                }
                self.waiting.push(Note::ForgetValue { service, value });
            }
            None if is_full => {
                let oldest = self.services.iter().min_by_key(|(_, known)| known.last);
                let Some(service) = oldest.map(|(service, _)| *service) else {
                    return;
                };
                if let Some(gone) = self.services.remove(&service) {
                    let hosts = gone.values.values().map(|value| value.hosts.len());
                    self.counted -= hosts.sum::<usize>();
                }
                self.waiting.push(Note::ForgetService { service });
            }
            _ => {}
        }
    }
}

/// The services in a label set.
fn claims(set: &LabelSet) -> impl Iterator<Item = Claim<'_>> {
    let wanted = |(name, value): &(&str, &str)| {
        !value.is_empty() && (*name == key::IMAGE || is_version(name))
    };
    let pairs = set.iter().filter(wanted);
    pairs.map(move |(name, value)| Claim { set, name, value })
}

/// Labels in which versions stand: the fleet's own, and those of containers and pods.
fn is_version(name: &str) -> bool {
    let inner = name
        .strip_prefix("container.label/")
        .or_else(|| name.strip_prefix("pod.label/"));
    match inner {
        Some(inner) => {
            let ends = inner.strip_suffix("version");
            ends.is_some_and(|rest| rest.is_empty() || rest.ends_with(['/', '.']))
        }
        None => name == VERSION,
    }
}

/// What identifies a service; `None`: nothing does.
fn identity(set: &LabelSet, name: &str) -> Option<i64> {
    let (service, repository) = (set.get(SERVICE), repository(set.get(key::IMAGE)));
    if name == VERSION {
        // A label of the host: all that runs there has it.
        return Some(hash(&[SERVICE, service]));
    }
    let place = [service, set.get(key::NAMESPACE), repository];
    if !service.is_empty() || !repository.is_empty() {
        return Some(hash(&place));
    }
    let unit = set.get(key::UNIT);
    (!unit.is_empty()).then(|| hash(&[key::UNIT, unit]))
}

/// An image without its tag and digest; empty for one that has an id alone.
fn repository(image: &str) -> &str {
    let named = image.split('@').next().unwrap_or_default();
    let name_at = named.rfind('/').map_or(0, |slash| slash + 1);
    let repository = match named[name_at..].find(':') {
        Some(tag) => &named[..name_at + tag],
        None => named,
    };
    if repository == "sha256" {
        return "";
    }
    repository
}

/// A value as it is said: of an image what is behind its repository.
fn short<'v>(name: &str, value: &'v str) -> &'v str {
    let said = match name == key::IMAGE {
        true => {
            let rest = value.strip_prefix(repository(value)).unwrap_or(value);
            rest.trim_start_matches([':', '@'])
        }
        false => value,
    };
    cut(if said.is_empty() { value } else { said }, SAID_BYTES_MAX)
}

/// The text and the labels of a deployment.
fn told(claim: &Claim<'_>, before: &str, said: &str) -> (String, Vec<(String, String)>) {
    let what = if claim.name == key::IMAGE {
        "image"
    } else {
        "version"
    };
    let (name, places) = service(claim.set, claim.name);
    let all = places.into_iter().chain([(claim.name, claim.value)]);
    (
        format!("{name}: {what} {said}{}", was(before)),
        bounded(all),
    )
}

/// The same of the build of a program.
fn told_of_build(
    set: &LabelSet,
    (module, build_id): (&str, &str),
    before: &str,
    said: &str,
) -> (String, Vec<(String, String)>) {
    let (name, places) = service(set, BUILD_ID);
    let module = cut(module, SAID_BYTES_MAX);
    let all = places.into_iter();
    let all = all.chain([(MODULE, module), (BUILD_ID, build_id)]);
    (
        format!("{name}: build {said} of {module}{}", was(before)),
        bounded(all),
    )
}

/// How the service of a label set is called, and the labels that say which it is. `label`: the one
/// whose value changed.
fn service<'s>(set: &'s LabelSet, label: &str) -> (&'s str, Vec<(&'s str, &'s str)>) {
    let repository = repository(set.get(key::IMAGE));
    let mut names = vec![set.get(SERVICE)];
    let mut places = vec![SERVICE];
    if label != VERSION {
        names.extend([repository, set.get(key::UNIT)]);
        places.push(key::NAMESPACE);
        // The unit of a container is its own.
        places.extend(repository.is_empty().then_some(key::UNIT));
    }
    let name = names.into_iter().find(|name| !name.is_empty());
    let places = places.into_iter().map(|place| (place, set.get(place)));
    (
        cut(name.unwrap_or("hosts"), SAID_BYTES_MAX),
        places.collect(),
    )
}

fn was(before: &str) -> String {
    match before {
        "" => String::new(),
        before => format!(" (was {before})"),
    }
}

fn bounded<'a>(labels: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<(String, String)> {
    let there = labels.filter(|(_, value)| !value.is_empty());
    let own = |(name, value): (&str, &str)| {
        let value = cut(value, LABEL_VALUE_BYTES_MAX);
        (name.to_owned(), value.to_owned())
    };
    there.map(own).collect()
}

/// The base name of a library without its version: `libapi.so` of `libapi.so.1.2`.
fn unversioned(module: &str) -> &str {
    match module.find(".so.") {
        Some(at) => &module[..at + ".so".len()],
        None => module,
    }
}

impl SeenOn {
    fn of(host_id: &str, facts: &HostFacts) -> SeenOn {
        let mut labels = facts.labels.clone();
        labels.insert(key::HOST.to_owned(), facts.hostname.clone());
        SeenOn {
            host: hash(&[host_id]),
            labels: Arc::new(labels),
        }
    }

    /// Which host it is, with these labels.
    pub fn origin(&self) -> i64 {
        let labels = self.labels.iter();
        let texts: Vec<&str> = labels
            .flat_map(|(name, value)| [&**name, &**value])
            .collect();
        combined(self.host, hash(&texts))
    }
}

fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

/// Hashes texts, each with its length, so that the boundaries between them count.
fn hash(texts: &[&str]) -> i64 {
    let mut hasher = blake3::Hasher::new();
    for text in texts {
        hasher.update(&text.len().to_le_bytes());
        hasher.update(text.as_bytes());
    }
    first(&hasher)
}

fn combined(one: i64, other: i64) -> i64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&one.to_le_bytes());
    hasher.update(&other.to_le_bytes());
    first(&hasher)
}

fn first(hasher: &blake3::Hasher) -> i64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    i64::from_le_bytes(bytes)
}

#[cfg(test)]
#[path = "deploys_tests.rs"]
mod tests;
