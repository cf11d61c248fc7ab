//! Structs of counters that list their fields once; sums, codecs and readers follow that list.

/// Declares a struct of `u64` counters with its list of fields. Codecs write
/// [`numbers`](crate::Quality::numbers) and read [`of_numbers`](crate::Quality::of_numbers), or go
/// by [`FIELDS`](crate::Quality::FIELDS): a field that is added reaches all of them. Those that
/// keep numbers by place say how many they know, and do not compile until their version is raised.
macro_rules! counters {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[$field_meta:meta])* pub $field:ident: u64,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize,
        )]
        #[serde(default)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: u64,)*
        }

        impl $name {
            /// Names of all fields, in order.
            pub const FIELDS: &'static [&'static str] = &[$(stringify!($field)),*];

            /// All fields, in the order of the names.
            pub fn numbers(&self) -> [u64; Self::FIELDS.len()] {
                [$(self.$field),*]
            }

            /// From all fields, in the order of the names.
            pub fn of_numbers(numbers: [u64; Self::FIELDS.len()]) -> $name {
                let [$($field),*] = numbers;
                $name { $($field),* }
            }

            /// The field of this name; none when there is none.
            pub fn field_mut(&mut self, name: &str) -> Option<&mut u64> {
                match name {
                    $(stringify!($field) => Some(&mut self.$field),)*
                    _ => None,
                }
            }
        }

        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: $name) {
                $(self.$field = self.$field.saturating_add(other.$field);)*
            }
        }
    };
}

pub(crate) use counters;

#[cfg(test)]
mod tests {
    use crate::{Coverage, Quality};

    #[test]
    fn every_field_has_a_name_a_place_and_a_sum() {
        let numbers: [u64; Quality::FIELDS.len()] = std::array::from_fn(|at| at as u64 + 1);
        let mut quality = Quality::of_numbers(numbers);
        assert_eq!(quality.numbers(), numbers);
        for (name, number) in Quality::FIELDS.iter().zip(numbers) {
            assert_eq!(quality.field_mut(name).copied(), Some(number));
        }
        assert_eq!(quality.field_mut("else"), None);
        quality += quality;
        assert_eq!(quality.numbers(), numbers.map(|number| number * 2));
        quality += Quality::of_numbers([u64::MAX; Quality::FIELDS.len()]);
        assert_eq!(quality.numbers(), [u64::MAX; Quality::FIELDS.len()]);
    }

    #[test]
    fn json_has_every_field_by_its_name() {
        let numbers = std::array::from_fn(|at| at as u64 + 1);
        let coverage = Coverage::of_numbers(numbers);
        let text = serde_json::to_string(&coverage).unwrap();
        for (name, number) in Coverage::FIELDS.iter().zip(numbers) {
            assert!(text.contains(&format!("\"{name}\":{number}")), "{text}");
        }
        assert_eq!(serde_json::from_str::<Coverage>(&text).unwrap(), coverage);
    }
}
