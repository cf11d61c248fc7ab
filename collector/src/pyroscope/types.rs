//! Profile types: what is profiled, as a name, a sample type, a period type and their units.
//!
//! The store of agents has one quantity of each host, in the unit that its agent samples.
//! Nanoseconds are CPU time, whose id Grafana knows; any other unit is a type of its own. The name
//! `process_cpu` is theirs, and `captured` that of captures; every other name is that of a type of
//! other senders, which have a store of their own.

use super::wire::types::v1 as messages;
use crate::query::invalid;
use crate::store::CAPTURED;
use profile::unit;
use tonic::Status;

/// First part of the ids of all types of agents, and of no other.
pub(crate) const NAME: &str = "process_cpu";

/// A profile type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProfileType {
    name: String,
    sample_type: String,
    sample_unit: String,
    period_type: String,
    period_unit: String,
}

impl ProfileType {
    /// The type of what is weighed in `unit`, the finer one of [`profile::unit`].
    pub fn of_unit(unit: &str) -> ProfileType {
        let (sample_type, sample_unit) = match unit {
            unit::TIME => ("cpu", unit),
            other => (other, "count"),
        };
        let owned = |text: &str| text.to_owned();
        ProfileType {
            name: owned(NAME),
            sample_type: owned(sample_type),
            sample_unit: owned(sample_unit),
            period_type: owned(sample_type),
            period_unit: owned(sample_unit),
        }
    }

    /// Reads an id: five parts, and one more that says nothing here.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when it is none.
    pub fn parse(id: &str) -> Result<ProfileType, Status> {
        let parts: Vec<&str> = id.split(':').collect();
        let [
            name,
            sample_type,
            sample_unit,
            period_type,
            period_unit,
            ref more @ ..,
        ] = parts[..]
        else {
            return Err(not_a_type(id));
        };
        if more.len() > 1 || name.is_empty() || sample_type.is_empty() {
            return Err(not_a_type(id));
        }
        let owned = |text: &str| text.to_owned();
        Ok(ProfileType {
            name: owned(name),
            sample_type: owned(sample_type),
            sample_unit: owned(sample_unit),
            period_type: owned(period_type),
            period_unit: owned(period_unit),
        })
    }

    /// The id.
    pub fn id(&self) -> String {
        let parts = [
            &self.name,
            &self.sample_type,
            &self.sample_unit,
            &self.period_type,
            &self.period_unit,
        ];
        parts.map(String::as_str).join(":")
    }

    /// What it counts: `cpu`.
    pub fn sample_type(&self) -> &str {
        &self.sample_type
    }

    /// The unit of that.
    pub fn sample_unit(&self) -> &str {
        &self.sample_unit
    }

    /// True for a type of the store of agents.
    pub fn is_of_agents(&self) -> bool {
        self.name == NAME
    }

    /// True for a type of captures.
    pub fn is_captured(&self) -> bool {
        self.name == CAPTURED
    }

    /// The unit of weights in its store: of captures, the sample unit is `count` for all that is
    /// not time, because that is what Grafana knows.
    pub fn weighed_in(&self) -> &str {
        match self.is_captured() {
            true => &self.period_unit,
            false => &self.sample_unit,
        }
    }

    /// True when weights of agents in `unit` are of this type. Weights without a unit are nothing
    /// at all.
    pub fn is_of(&self, unit: &str) -> bool {
        *self == ProfileType::of_unit(unit::base(unit).0)
    }

    /// The value of a label that says something of the type; `None`: the label does not.
    pub fn label(&self, name: &str) -> Option<String> {
        Some(match name {
            PROFILE_TYPE => self.id(),
            "__name__" => self.name.clone(),
            "__type__" => self.sample_type.clone(),
            "__unit__" => self.sample_unit.clone(),
            "__period_type__" => self.period_type.clone(),
            "__period_unit__" => self.period_unit.clone(),
            _ => return None,
        })
    }
}

/// Label with the id of the type.
pub const PROFILE_TYPE: &str = "__profile_type__";

/// True for labels that say something of the type.
pub fn is_of_type(label: &str) -> bool {
    ProfileType::of_unit("").label(label).is_some()
}

impl From<ProfileType> for messages::ProfileType {
    fn from(of: ProfileType) -> messages::ProfileType {
        messages::ProfileType {
            id: of.id(),
            name: of.name,
            sample_type: of.sample_type,
            sample_unit: of.sample_unit,
            period_type: of.period_type,
            period_unit: of.period_unit,
        }
    }
}

fn not_a_type(id: &str) -> Status {
    invalid(format!(
        "failed to use the profile type `{}`: expected \
         `name:sample type:sample unit:period type:period unit`, such as `{}`",
        profile::text::printable(id),
        ProfileType::of_unit(unit::TIME).id()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: &str = "process_cpu:cpu:nanoseconds:cpu:nanoseconds";

    #[test]
    fn cpu_time_has_the_id_that_grafana_knows() {
        assert_eq!(ProfileType::of_unit("nanoseconds").id(), CPU);
        assert_eq!(
            ProfileType::of_unit("cycles").id(),
            "process_cpu:cycles:count:cycles:count"
        );
    }

    #[test]
    fn an_id_is_read_back_and_a_sixth_part_says_nothing() {
        let found = ProfileType::parse(CPU).expect("a type");
        assert_eq!(found.id(), CPU);
        assert_eq!(
            ProfileType::parse(&format!("{CPU}:delta")).expect("a type"),
            found
        );
        let bare = "off_cpu:off_cpu:nanoseconds::";
        assert_eq!(ProfileType::parse(bare).expect("a type").id(), bare);
    }

    #[test]
    fn what_was_captured_is_weighed_in_the_last_part_of_its_id() {
        let faults = "captured:page-faults:count:page-faults:faults";
        let faults = ProfileType::parse(faults).expect("a type");
        assert!(faults.is_captured() && !faults.is_of_agents());
        assert_eq!(
            (faults.sample_unit(), faults.weighed_in()),
            ("count", "faults")
        );
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for id in [
            "",
            "cpu",
            "a:b:c:d",
            "a:b:c:d:e:f:g",
            ":b:c:d:e",
            "a::c:d:e",
        ] {
            let refused = ProfileType::parse(id).expect_err(id);
            assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{id}");
        }
    }

    #[test]
    fn the_coarser_unit_of_a_large_sum_is_the_same_type() {
        let cpu = ProfileType::parse(CPU).expect("a type");
        assert!(cpu.is_of("nanoseconds") && cpu.is_of("microseconds"));
        assert!(!cpu.is_of("cycles") && !cpu.is_of(""));
    }
}
