//! The rights that the collector's user needs.

use super::layout::Layout;

/// For what rights are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// To store windows, answer queries, and drop what is over age, where somebody else makes the
    /// tables.
    Use,
    /// To make and migrate the tables too.
    Own,
}

/// Rights on the database, and those on everything.
fn rights(role: Role, layout: Layout<'_>) -> (Vec<&'static str>, Vec<&'static str>) {
    // Dropping a partition is a right to delete.
    let mut on_database = vec!["SELECT", "INSERT", "ALTER DELETE"];
    let mut on_all = vec!["SELECT ON system.parts"];
    if matches!(layout, Layout::Cluster(_)) {
        on_all.extend(["SELECT ON system.macros", "SELECT ON system.clusters"]);
    }
    if role == Role::Own {
        on_database.extend([
            "CREATE DATABASE",
            "CREATE TABLE",
            "CREATE VIEW",
            "DROP TABLE",
            "ALTER COLUMN",
            "ALTER SETTINGS",
            "ALTER TTL",
            "ALTER VIEW MODIFY QUERY",
        ]);
        if matches!(layout, Layout::Cluster(_)) {
            on_all.extend(["CLUSTER ON *.*", "REMOTE ON *.*"]);
        }
    }
    (on_database, on_all)
}

/// Statements that give a user what it needs, for somebody who may give it.
pub fn grants(role: Role, layout: Layout<'_>, database: &str, user: &str) -> Vec<String> {
    let (on_database, on_all) = rights(role, layout);
    let to = match layout {
        Layout::Single => String::new(),
        Layout::Cluster(cluster) => format!("ON CLUSTER '{cluster}' "),
    };
    let database = format!("{} ON {database}.*", on_database.join(", "));
    let all = std::iter::once(database).chain(on_all.into_iter().map(str::to_owned));
    all.map(|right| format!("GRANT {to}{right} TO `{user}`"))
        .collect()
}

/// What to ask the server about a user's own rights, each with the right.
pub(super) fn questions(layout: Layout<'_>, database: &str) -> Vec<(String, String)> {
    let (on_database, on_all) = rights(Role::Use, layout);
    let on_database = on_database
        .into_iter()
        .map(|right| format!("{right} ON {database}.*"));
    let all = on_database.chain(on_all.into_iter().map(str::to_owned));
    all.map(|right| (format!("CHECK GRANT {right}"), right))
        .collect()
}
