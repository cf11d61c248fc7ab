//! Finds hosts that run more or less of a service than the others.

use super::lines::{Side, mean};
use std::collections::BTreeMap;

/// Fewer hosts have no peers to speak of.
const HOSTS_MIN: usize = 5;

/// An outlier is so many robust standard deviations from the median.
const DEVIATIONS_MIN: f64 = 4.0;

/// Smaller distances do not count, however similar the others are. Share of the median, and cores.
const DISTANCE_MIN: (f64, f64) = (0.3, 0.1);

/// The standard deviation of normal numbers, of the median of their distances from their median.
const OF_MEDIAN_DISTANCE: f64 = 1.4826;

/// A host that differs from its peers.
#[derive(Clone, Debug, PartialEq)]
pub struct Outlier {
    /// The service.
    pub service: String,
    /// The host.
    pub host: String,
    /// Cores of the service on it.
    pub cores: f64,
    /// Median of all hosts.
    pub median: f64,
    /// How far it is off, in robust standard deviations.
    pub deviations: f64,
    /// How many hosts were compared.
    pub hosts: usize,
}

/// Outliers of all services, those that are farthest off first.
pub fn outliers(side: &Side) -> Vec<Outlier> {
    let mut services: BTreeMap<&str, Vec<(&str, f64)>> = BTreeMap::new();
    for ((service, host), line) in &side.cells {
        services
            .entry(service)
            .or_default()
            .push((host, mean(line)));
    }
    let mut found = Vec::new();
    for (service, hosts) in services {
        if hosts.len() < HOSTS_MIN {
            continue;
        }
        let middle = median(hosts.iter().map(|(_, cores)| *cores).collect());
        let distances = hosts.iter().map(|(_, cores)| (cores - middle).abs());
        let spread = OF_MEDIAN_DISTANCE * median(distances.collect());
        let (share, least) = DISTANCE_MIN;
        let least = (share * middle).max(least);
        // If most hosts are equal, the spread is the smallest difference that counts.
        let spread = spread.max(least / DEVIATIONS_MIN);
        for (host, cores) in &hosts {
            let deviations = (cores - middle) / spread;
            if deviations.abs() >= DEVIATIONS_MIN && (cores - middle).abs() >= least {
                found.push(Outlier {
                    service: service.to_owned(),
                    host: (*host).to_owned(),
                    cores: *cores,
                    median: middle,
                    deviations,
                    hosts: hosts.len(),
                });
            }
        }
    }
    found.sort_by(|a, b| b.deviations.abs().total_cmp(&a.deviations.abs()));
    found
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        even if even.is_multiple_of(2) => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}
