//! Other senders have a database of their own on the same servers.

use super::{fresh_name, server};
use crate::store::draft::{Draft, definitions, windows};
use crate::store::{NOW_NS, ample, hour, query};
use collector::config::{Config, Engine};
use collector::store::open::{clickhouse_options, open, senders_clickhouse_options};
use collector::store::{OfType, PushOutcome, StoreQueries, clickhouse, profile_types};
use collector::time::Clock;

const HEAP: &str = "memory:inuse_space:bytes:space:bytes";

#[test]
fn what_senders_sent_is_in_a_database_that_agents_do_not_see() {
    let Some(server) = server() else { return };
    let mut config = Config {
        store: Engine::ClickHouse,
        ..Config::default()
    };
    config.clickhouse.urls = vec![server.url()];
    config.clickhouse.database = fresh_name();
    config.senders.enabled = true;
    let store = open(&config, NOW_NS).unwrap();
    let senders = store.senders.clone().unwrap();
    let labels = format!("__profile_type__={HEAP}");
    let sent = [Draft::new("a", 0, 0).row(&labels, "main;heap", 7)];
    let taken = [Draft::new("a", 0, 0).row("comm=x", "main;cpu", 5)];
    for (sink, drafts) in [(&senders.sink, &sent), (&store.sink, &taken)] {
        let outcome = sink.push(&windows(drafts), &definitions(drafts), NOW_NS);
        assert_eq!(outcome.unwrap(), [PushOutcome::Stored]);
    }
    let counted = |queries: &dyn StoreQueries| {
        let found = queries.profile(hour(), &query("", &[]), &ample()).unwrap();
        found.data.total().count
    };
    assert_eq!(counted(&*store.queries), 5);
    let heap = OfType::new(senders.queries.clone(), HEAP).unwrap();
    assert_eq!(counted(&heap), 7);
    let types = profile_types(&*senders.queries, hour(), &ample()).unwrap();
    assert_eq!(types, [HEAP]);
    for options in [
        clickhouse_options(&config),
        senders_clickhouse_options(&config),
    ] {
        let found = clickhouse::check(&options, &Clock::system()).unwrap();
        let wrong = found
            .iter()
            .find(|one| one.severity != clickhouse::Severity::Ok);
        assert!(wrong.is_none(), "{wrong:?}");
    }
}
