//! Checks all targets of all triggers: which cgroups exist, their numbers, and which conditions
//! hold.

use super::find::{self, MatchedCgroup};
use super::read::{Missing, Sources};
use super::state::{Daily, RateMeter, TriggerValue, Verdict, Watch};
use agent_config::triggers::condition::Quantity;
use agent_config::triggers::rule::Rule;
use agent_config::triggers::target::{Part, Target};
use host::facts;
use host::time::MonotonicTime;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How often cgroups are looked for where a target is a pattern. Where it is a plain path, each
/// time.
const FIND_INTERVAL: Duration = Duration::from_secs(10);

/// Most removed cgroups per trigger with a remembered cooldown; beyond it the oldest are forgotten.
const COOLING_MAX: usize = 256;

/// A result of a trigger for a target.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The trigger's place in the list.
    pub rule: usize,
    /// Path of the cgroup; empty for the host.
    pub cgroup: String,
    /// The result.
    pub verdict: Verdict,
}

/// Why a trigger does not see what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Issue {
    /// A number is missing.
    Missing(Missing),
    /// No cgroup is like its target.
    Nothing,
    /// More cgroups than are looked at.
    TooMany,
}

/// An issue of a trigger, with the first cgroup that has it.
pub type Issues = BTreeMap<(String, Issue), String>;

/// Knowledge of firings before this watcher, from existing pins.
pub trait Past {
    /// Firings of a trigger on this day.
    fn today(&self, trigger: &str, day: i64) -> u32;

    /// When a trigger last fired for a target.
    fn last_fired(&self, trigger: &str, cgroup: &str) -> Option<MonotonicTime>;
}

struct Looked {
    place: Option<MatchedCgroup>,
    meter: RateMeter,
    watch: Watch,
}

struct Trigger {
    rule: Rule,
    looked: Vec<Looked>,
    found: Option<MonotonicTime>,
    cut: bool,
    daily: Daily,
    cooling: VecDeque<(String, MonotonicTime)>,
}

/// See the module.
pub struct Watcher {
    sources: Sources,
    triggers: Vec<Trigger>,
    cpus: f64,
    counted: Option<MonotonicTime>,
}

impl Watcher {
    /// Creates a watcher without targets.
    pub fn new(sources: Sources) -> Watcher {
        Watcher {
            sources,
            triggers: Vec::new(),
            cpus: 1.0,
            counted: None,
        }
    }

    /// Looks at these from now on. Those that have not changed go on where they are.
    pub fn set_rules(&mut self, rules: &[Rule], day: i64, past: &dyn Past) {
        let mut before = std::mem::take(&mut self.triggers);
        for rule in rules {
            let same = before.iter().position(|known| known.rule == *rule);
            let named = before.iter().position(|known| known.rule.name == rule.name);
            self.triggers.push(match (same, named) {
                (Some(at), _) => before.swap_remove(at),
                (None, known) => Trigger {
                    daily: match known {
                        Some(at) => before[at].daily,
                        None => Daily::with(day, past.today(&rule.name, day)),
                    },
                    rule: rule.clone(),
                    looked: Vec::new(),
                    found: None,
                    cut: false,
                    cooling: VecDeque::new(),
                },
            });
        }
    }

    /// Looks at all targets.
    pub fn tick(&mut self, now: MonotonicTime, day: i64, past: &dyn Past) -> (Vec<Event>, Issues) {
        let due =
            |last: Option<MonotonicTime>| last.is_none_or(|last| now.since(last) >= FIND_INTERVAL);
        if due(self.counted) {
            self.counted = Some(now);
            let online = facts::cpus_online();
            self.cpus = online.map_or(1.0, |cpus| cpus.len().max(1) as f64);
        }
        let (mut events, mut issues) = (Vec::new(), Issues::new());
        for (at, trigger) in self.triggers.iter_mut().enumerate() {
            let plain = match &trigger.rule.target {
                Target::Host => false,
                Target::Cgroups(parts) => parts.iter().all(|part| matches!(part, Part::Name(_))),
            };
            if plain || due(trigger.found) {
                trigger.find(now, &self.sources, past);
            }
            let name = || trigger.rule.name.clone();
            if trigger.looked.is_empty() {
                issues.insert((name(), Issue::Nothing), String::new());
            }
            if trigger.cut {
                issues.insert((name(), Issue::TooMany), String::new());
            }
            for looked in &mut trigger.looked {
                let quantity = trigger.rule.condition.quantity;
                let value = match self.sources.read(looked.place.as_ref(), quantity) {
                    Ok(number) => looked.meter.value(MonotonicTime::now().max(now), number),
                    Err(missing) => {
                        let path = looked.path().to_owned();
                        if missing != Missing::Gone {
                            let key = (trigger.rule.name.clone(), Issue::Missing(missing));
                            issues.entry(key).or_insert(path);
                        }
                        None
                    }
                };
                let value = value.map(|value| match quantity {
                    Quantity::CpuShare | Quantity::RunQueue => value / self.cpus,
                    _ => value,
                });
                let daily = &mut trigger.daily;
                match looked.watch.step(&trigger.rule, now, value, daily, day) {
                    Verdict::Quiet => {}
                    verdict => events.push(Event {
                        rule: at,
                        cgroup: looked.path().to_owned(),
                        verdict,
                    }),
                }
            }
        }
        (events, issues)
    }

    /// The rule of an event.
    pub fn rule(&self, event: &Event) -> Option<&Rule> {
        self.triggers.get(event.rule).map(|trigger| &trigger.rule)
    }
}

impl Looked {
    fn path(&self) -> &str {
        self.place.as_ref().map_or("", |place| &place.path)
    }
}

impl Trigger {
    /// Adds new cgroups, and drops those that are gone.
    fn find(&mut self, now: MonotonicTime, sources: &Sources, past: &dyn Past) {
        let first = self.found.is_none();
        self.found = Some(now);
        let places = match &self.rule.target {
            Target::Host => vec![None],
            Target::Cgroups(parts) => {
                let found = find::find(sources.hierarchy(), parts);
                self.cut = found.cut;
                found.places.into_iter().map(Some).collect()
            }
        };
        let mut before = std::mem::take(&mut self.looked);
        for place in places {
            if let Some(at) = before.iter().position(|known| known.place == place) {
                self.looked.push(before.swap_remove(at));
                continue;
            }
            let path = place.as_ref().map_or("", |place| place.path.as_str());
            // A path made again is another cgroup, but the cooldown is the path's.
            let known = before.iter().find(|known| known.path() == path);
            let known = known.and_then(|known| known.watch.last_fired);
            let cooled = self.cooling.iter().rev().find(|(known, _)| known == path);
            let last = known
                .or(cooled.map(|(_, fired)| *fired))
                .or_else(|| first.then(|| past.last_fired(&self.rule.name, path))?);
            self.looked.push(Looked {
                place,
                meter: RateMeter::default(),
                watch: Watch::new(last),
            });
        }
        for gone in before {
            if let Some(fired) = gone.watch.last_fired {
                if self.cooling.len() == COOLING_MAX {
                    self.cooling.pop_front();
                }
                self.cooling.push_back((gone.path().to_owned(), fired));
            }
        }
    }
}

/// Describes what a trigger saw: `nr_throttled > 5/s for 10s: it was 9.8`.
pub fn cause(rule: &Rule, seen: TriggerValue) -> String {
    let hold = match rule.hold.as_secs() {
        0 => String::new(),
        seconds => format!(" for {}", config::show_seconds(seconds)),
    };
    let mean = match seen.mean {
        None => String::new(),
        Some(mean) => format!(", before {}", short(mean)),
    };
    format!(
        "{}{hold}: it was {}{mean}",
        rule.condition,
        short(seen.value)
    )
}

/// A number with as many digits as anybody reads.
fn short(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 1.0 => format!("{value:.1}"),
        value => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_config::{Seconds, Trigger as Settings};
    use cgroup::{Hierarchy, Mode};

    struct Nothing;

    impl Past for Nothing {
        fn today(&self, _: &str, _: i64) -> u32 {
            0
        }

        fn last_fired(&self, _: &str, _: &str) -> Option<MonotonicTime> {
            None
        }
    }

    struct Machine {
        dir: tempfile::TempDir,
        watcher: Watcher,
        now: MonotonicTime,
    }

    impl Machine {
        /// One trigger on pressure of cgroups below `/s`, without hold or cooldown.
        fn new(change: impl FnOnce(&mut Settings)) -> Machine {
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(dir.path().join("s")).unwrap();
            let hierarchy = Hierarchy {
                mode: Mode::Cgroup2,
                mount: Some(dir.path().to_path_buf()),
                prefix: Vec::new(),
                whole: true,
                v1: false,
            };
            let mut settings = Settings {
                name: "t".to_owned(),
                target: "/s/*".to_owned(),
                when: "psi.cpu.some.avg10 > 40".to_owned(),
                cooldown: Seconds(0),
                ..Settings::default()
            };
            change(&mut settings);
            let mut watcher = Watcher::new(Sources::new(hierarchy, &dir.path().join("proc")));
            watcher.set_rules(&Rule::all(&[settings]).unwrap(), 1, &Nothing);
            Machine {
                dir,
                watcher,
                now: MonotonicTime::now(),
            }
        }

        fn pressure(&self, cgroup: &str, value: u32) {
            let directory = self.dir.path().join(cgroup);
            std::fs::create_dir_all(&directory).unwrap();
            let text = format!("some avg10={value}.00 avg60=0.00 avg300=0.00 total=0\n");
            std::fs::write(directory.join("cpu.pressure"), text).unwrap();
        }

        /// Cgroups for which it fires, `-` in front where it is kept from it; then issues.
        fn tick(&mut self, seconds: u64) -> Vec<String> {
            self.now = self.now.plus(Duration::from_secs(seconds));
            let (events, issues) = self.watcher.tick(self.now, 1, &Nothing);
            let events = events.iter().map(|event| match event.verdict {
                Verdict::Fire(_) => event.cgroup.clone(),
                _ => format!("-{}", event.cgroup),
            });
            let issues = issues.iter();
            let issues = issues.map(|((_, issue), path)| format!("{issue:?} {path}"));
            events.chain(issues).collect()
        }
    }

    #[test]
    fn each_cgroup_fires_by_itself() {
        let mut machine = Machine::new(|_| {});
        machine.pressure("s/a", 50);
        machine.pressure("s/b", 10);
        assert_eq!(machine.tick(1), ["/s/a"]);
        machine.pressure("s/b", 41);
        assert_eq!(machine.tick(1), ["/s/b"]);
        assert_eq!(machine.tick(1), [""; 0]);
    }

    #[test]
    fn a_cgroup_that_comes_later_is_found() {
        let mut machine = Machine::new(|_| {});
        assert_eq!(machine.tick(1), ["Nothing "]);
        machine.pressure("s/a", 50);
        assert_eq!(machine.tick(10), ["/s/a"]);
    }

    #[test]
    fn a_cgroup_made_again_keeps_the_cooldown_of_its_path() {
        let mut machine = Machine::new(|t| {
            t.target = "/s/a".to_owned();
            t.cooldown = Seconds(60);
        });
        machine.pressure("s/a", 50);
        assert_eq!(machine.tick(1), ["/s/a"]);
        std::fs::remove_dir_all(machine.dir.path().join("s/a")).unwrap();
        assert_eq!(machine.tick(1), ["Nothing "]);
        machine.pressure("s/a", 50);
        assert_eq!(machine.tick(1), ["-/s/a"]);
        machine.now = machine.now.plus(Duration::from_secs(60));
        assert_eq!(machine.tick(0), ["/s/a"]);
    }

    #[test]
    fn a_number_that_is_missing_is_told_with_its_cgroup() {
        let mut machine = Machine::new(|_| {});
        std::fs::create_dir_all(machine.dir.path().join("s/a")).unwrap();
        assert_eq!(machine.tick(1), ["Missing(Pressure) /s/a"]);
    }

    #[test]
    fn a_trigger_that_did_not_change_goes_on_after_a_reload() {
        let mut machine = Machine::new(|_| {});
        machine.pressure("s/a", 50);
        assert_eq!(machine.tick(1), ["/s/a"]);
        let mut rules = vec![machine.watcher.triggers[0].rule.clone()];
        machine.watcher.set_rules(&rules, 1, &Nothing);
        assert_eq!(machine.tick(1), [""; 0]);
        rules[0].condition.above = 45.0;
        machine.watcher.set_rules(&rules, 1, &Nothing);
        assert_eq!(machine.tick(1), ["/s/a"]);
    }

    #[test]
    fn a_cause_says_what_was_seen() {
        let rule = |when: &str| {
            let settings = Settings {
                name: "t".to_owned(),
                target: "host".to_owned(),
                when: when.to_owned(),
                hold: Seconds(10),
                ..Settings::default()
            };
            Rule::all(&[settings]).unwrap().remove(0)
        };
        let (value, mean) = (1.25, None);
        assert_eq!(
            cause(&rule("cpus > 1"), TriggerValue { value, mean }),
            "cpus > 1 for 10s: it was 1.2"
        );
        let mean = Some(0.25);
        assert_eq!(
            cause(
                &rule("cpus rises > 3x in 60s"),
                TriggerValue { value, mean }
            ),
            "cpus rises > 3x in 1m for 10s: it was 1.2, before 0.250"
        );
    }
}
