//! How tables are laid out: on one server, or replicated and sharded over a cluster. Statements are
//! written for one server; those for a cluster are made from them, so that the two cannot differ in
//! anything else.

/// Where the tables are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout<'a> {
    /// On one server.
    Single,
    /// On every server of the cluster of this name; each shard has the windows of its hosts.
    Cluster(&'a str),
}

/// What a statement does something to, up to its name.
const HEADS: &[&str] = &[
    "CREATE DATABASE IF NOT EXISTS ",
    "CREATE TABLE IF NOT EXISTS ",
    "CREATE MATERIALIZED VIEW IF NOT EXISTS ",
    "ALTER TABLE ",
];

/// Keeper has a table's parts here. The server knows the values; all replicas of a shard have one
/// `shard`, and each has its own `replica`.
const REPLICA: &str = "'/clickhouse/tables/{shard}/{database}/{table}', '{replica}'";

impl Layout<'_> {
    /// A statement in this layout. One that changes rows stays as it is: it is done on each shard.
    pub fn statement(self, single: &str) -> String {
        let Layout::Cluster(cluster) = self else {
            return single.to_owned();
        };
        let of_head = |head: &&'static str| Some((*head, single.strip_prefix(*head)?));
        let Some((head, rest)) = HEADS.iter().find_map(of_head) else {
            return single.to_owned();
        };
        let end = rest.find([' ', '\n', '(']).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        // Each kind of table has a setting of its own for the same.
        let rest = rest.replace("non_replicated_deduplication", "replicated_deduplication");
        format!("{head}{name} ON CLUSTER '{cluster}'{}", replicated(&rest))
    }

    /// True when a statement is done once for all servers; otherwise it is done on each shard.
    pub fn is_done_once(self, single: &str) -> bool {
        self == Layout::Single || HEADS.iter().any(|head| single.starts_with(head))
    }
}

/// A definition with the replicated engine in place of its own.
fn replicated(definition: &str) -> String {
    const ENGINE: &str = "ENGINE = ";
    const FAMILY: &str = "MergeTree";
    let Some((before, engine)) = definition.split_once(ENGINE) else {
        return definition.to_owned();
    };
    let name_len = engine
        .find(|c: char| !c.is_ascii_alphabetic())
        .unwrap_or(engine.len());
    let (name, rest) = engine.split_at(name_len);
    if !name.ends_with(FAMILY) {
        return definition.to_owned();
    }
    let rest = match rest.strip_prefix('(') {
        Some(arguments) => format!("({REPLICA}, {arguments}"),
        None => format!("({REPLICA}){rest}"),
    };
    format!("{before}{ENGINE}Replicated{name}{rest}")
}

#[cfg(test)]
mod tests {
    use super::Layout;

    fn check(single: &str, clustered: &str) {
        assert_eq!(Layout::Single.statement(single), single);
        assert_eq!(Layout::Cluster("fleet").statement(single), clustered);
    }

    #[test]
    fn tables_are_made_on_every_server_and_replicated() {
        check(
            "CREATE TABLE IF NOT EXISTS t (a UInt8) ENGINE = ReplacingMergeTree ORDER BY a",
            "CREATE TABLE IF NOT EXISTS t ON CLUSTER 'fleet' (a UInt8) ENGINE = \
             ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/{database}/{table}', \
             '{replica}') ORDER BY a",
        );
        check(
            "CREATE TABLE IF NOT EXISTS t (a UInt8) ENGINE = ReplacingMergeTree(a) ORDER BY a",
            "CREATE TABLE IF NOT EXISTS t ON CLUSTER 'fleet' (a UInt8) ENGINE = \
             ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/{database}/{table}', \
             '{replica}', a) ORDER BY a",
        );
        check(
            "CREATE TABLE IF NOT EXISTS feed (a UInt8) ENGINE = Null",
            "CREATE TABLE IF NOT EXISTS feed ON CLUSTER 'fleet' (a UInt8) ENGINE = Null",
        );
    }

    #[test]
    fn views_and_changes_are_for_every_server_and_rows_for_each_shard() {
        check(
            "CREATE MATERIALIZED VIEW IF NOT EXISTS v TO t AS SELECT 1",
            "CREATE MATERIALIZED VIEW IF NOT EXISTS v ON CLUSTER 'fleet' TO t AS SELECT 1",
        );
        check(
            "ALTER TABLE t MODIFY SETTING non_replicated_deduplication_window = 9",
            "ALTER TABLE t ON CLUSTER 'fleet' MODIFY SETTING replicated_deduplication_window = 9",
        );
        let insert = "INSERT INTO t (a) SELECT 1";
        check(insert, insert);
        assert!(!Layout::Cluster("fleet").is_done_once(insert));
        assert!(Layout::Cluster("fleet").is_done_once("ALTER TABLE t ADD COLUMN b UInt8"));
    }
}
