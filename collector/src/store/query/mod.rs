//! The query engine: what an answer is made of, the same for every engine below it.

mod activity;
mod budget;

pub use activity::{ABSENT_NS_MIN, Beside, FleetActivity, HostActivity};
pub use budget::{QueryBudget, memory_exceeded};
