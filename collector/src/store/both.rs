//! How two stores do: that of agents, and that of other senders, whose numbers have the label
//! `store`.

use super::StoreStatus;
use metrics::Family;
use std::collections::HashMap;
use std::sync::Arc;

/// Label of numbers that are not of the store of agents, and its value.
pub const STORE_LABEL: (&str, &str) = ("store", "senders");

/// See the module.
pub(super) struct BothStatus {
    pub agents: Arc<dyn StoreStatus>,
    pub senders: Arc<dyn StoreStatus>,
}

impl StoreStatus for BothStatus {
    fn engine(&self) -> (&'static str, String) {
        self.agents.engine()
    }

    fn metrics(&self) -> Vec<Family> {
        let mut all = self.agents.metrics();
        let names = all.iter().enumerate();
        let places: HashMap<_, _> = names.map(|(at, own)| (own.name.clone(), at)).collect();
        for mut family in self.senders.metrics() {
            let (name, value) = STORE_LABEL;
            for (labels, _) in &mut family.readings {
                labels.push((name.into(), value.into()));
            }
            match places.get(&family.name) {
                Some(&at) => all[at].readings.append(&mut family.readings),
                None => all.push(family),
            }
        }
        all
    }

    fn issues(&self) -> Vec<String> {
        let senders = self.senders.issues().into_iter();
        let senders = senders.map(|issue| format!("profiles of other senders: {issue}"));
        self.agents.issues().into_iter().chain(senders).collect()
    }
}
