//! CPU time by unit or container since the start, from the kernel's accounts of closed windows: for
//! scrapers that want no profile.

use profile::{Account, Dictionary, key};
use std::collections::BTreeMap;

/// Most units or containers with a time of their own. That of more is counted together: names come
/// from whoever starts containers.
const NAMES_MAX: usize = 1000;

/// Longest name. Unit: bytes.
const NAME_BYTES_MAX: usize = 256;

/// By what CPU time is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuBy {
    /// systemd unit.
    Unit,
    /// systemd unit and container.
    Container,
}

/// CPU time by name.
#[derive(Clone, Debug, Default)]
pub struct CpuTimes {
    /// By unit and container, empty where there is none. Unit: nanoseconds.
    sums: BTreeMap<(Box<str>, Box<str>), u64>,
    /// Of names beyond the bound. Unit: nanoseconds.
    rest_ns: u64,
}

impl CpuTimes {
    /// Adds the accounts of a window.
    pub(super) fn add(&mut self, by: CpuBy, accounts: &[Account], dict: &Dictionary) {
        for account in accounts {
            let (mut unit, mut container, mut id) = ("", "", "");
            for (label, value) in dict.labels(account.labels) {
                match label {
                    key::UNIT => unit = value,
                    key::CONTAINER_NAME => container = value,
                    key::CONTAINER => id = value,
                    _ => {}
                }
            }
            let container = match by {
                CpuBy::Unit => "",
                CpuBy::Container if container.is_empty() => id,
                CpuBy::Container => container,
            };
            let name = (cut(unit).into(), cut(container).into());
            let full = self.sums.len() >= NAMES_MAX;
            let sum = match self.sums.get_mut(&name) {
                Some(sum) => sum,
                None if full => &mut self.rest_ns,
                None => self.sums.entry(name).or_default(),
            };
            *sum = sum.saturating_add(account.ns);
        }
    }

    /// Unit, container, and nanoseconds.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        let sums = self.sums.iter();
        sums.map(|((unit, container), &ns)| (&**unit, &**container, ns))
    }

    /// Of names beyond the bound. Unit: nanoseconds.
    pub fn rest_ns(&self) -> u64 {
        self.rest_ns
    }
}

fn cut(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(dict: &mut Dictionary, labels: &[(&str, &str)], ns: u64) -> Account {
        Account {
            labels: dict.intern_labels(labels.iter().copied()),
            ns,
            estimated_ns: 0,
            throttled_ns: None,
            limit_millicores: 0,
        }
    }

    fn shown(times: &CpuTimes) -> Vec<(&str, &str, u64)> {
        times.iter().collect()
    }

    #[test]
    fn windows_add_up_by_unit_or_by_container() {
        let mut dict = Dictionary::default();
        let web = [
            (key::UNIT, "docker-1.scope"),
            (key::CONTAINER, "1f"),
            (key::CONTAINER_NAME, "web"),
        ];
        let nameless = [(key::UNIT, "docker-1.scope"), (key::CONTAINER, "2e")];
        let accounts = [
            account(&mut dict, &web, 5),
            account(&mut dict, &nameless, 3),
            account(&mut dict, &[(key::CGROUP, "/")], 2),
        ];
        let mut units = CpuTimes::default();
        let mut containers = CpuTimes::default();
        for _ in 0..2 {
            units.add(CpuBy::Unit, &accounts, &dict);
            containers.add(CpuBy::Container, &accounts, &dict);
        }
        assert_eq!(shown(&units), [("", "", 4), ("docker-1.scope", "", 16)]);
        let expected = [
            ("", "", 4),
            ("docker-1.scope", "2e", 6),
            ("docker-1.scope", "web", 10),
        ];
        assert_eq!(shown(&containers), expected);
    }

    #[test]
    fn names_beyond_the_bound_are_counted_together_and_long_ones_are_cut() {
        let mut dict = Dictionary::default();
        let mut times = CpuTimes::default();
        let long = "ä".repeat(NAME_BYTES_MAX);
        let first = [account(&mut dict, &[(key::UNIT, &long)], 1)];
        times.add(CpuBy::Unit, &first, &dict);
        for number in 0..NAMES_MAX + 4 {
            let unit = format!("u{number}");
            let one = [account(&mut dict, &[(key::UNIT, &unit)], 1)];
            times.add(CpuBy::Unit, &one, &dict);
        }
        assert_eq!((times.iter().count(), times.rest_ns()), (NAMES_MAX, 5));
        assert!(
            times
                .iter()
                .all(|(unit, _, _)| unit.len() <= NAME_BYTES_MAX)
        );
        // Those that are known go on.
        times.add(CpuBy::Unit, &first, &dict);
        assert_eq!(times.rest_ns(), 5);
    }
}
