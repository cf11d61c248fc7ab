//! Converts structs of [`profile`] to messages with the same fields and back, with one list of
//! fields each.

use crate::{agent, wire};
use profile::{Coverage, Expected, Quality, Tally, Waits};

/// Both are taken apart by name, so a field that only one of them has does not compile.
macro_rules! same_fields {
    ($ours:ident = $package:ident::$message:ident { $($field:ident),* $(,)? }) => {
        impl From<$ours> for $package::$message {
            fn from(ours: $ours) -> Self {
                let $ours { $($field),* } = ours;
                $package::$message { $($field),* }
            }
        }

        impl From<$package::$message> for $ours {
            fn from(message: $package::$message) -> Self {
                let $package::$message { $($field),* } = message;
                $ours { $($field),* }
            }
        }
    };
}

same_fields!(
    Quality = wire::Quality {
        taken,
        idle,
        lost,
        throttled,
        folded,
        truncated,
        depth_limit,
        unnamed,
        malformed,
        lost_samples,
        reduced,
        lost_late,
    }
);

same_fields!(
    Waits = wire::Waits {
        complete,
        complete_ns,
        estimated,
        estimated_ns,
        ongoing,
        ongoing_ns,
        dropped,
        dropped_ns,
        alike,
        alike_ns,
        cut,
        cut_ns,
        alike_checked,
        alike_wrong,
    }
);

same_fields!(
    Coverage = wire::Coverage {
        expected_ns,
        estimated_ns,
        expected_samples,
        taken_ns,
        windows,
        windows_unmeasured,
    }
);

same_fields!(
    Tally = agent::Tally {
        taken,
        taken_weight,
        lost,
        lost_weight,
        truncated,
        depth_limit,
        unnamed,
        folded,
    }
);

same_fields!(
    Expected = agent::Expected {
        ns,
        estimated_ns,
        samples,
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_comes_back_from_the_wire() {
        let quality = Quality::of_numbers(std::array::from_fn(|at| at as u64 + 1));
        assert_eq!(Quality::from(wire::Quality::from(quality)), quality);
        let coverage = Coverage::of_numbers(std::array::from_fn(|at| at as u64 + 1));
        assert_eq!(Coverage::from(wire::Coverage::from(coverage)), coverage);
    }
}
