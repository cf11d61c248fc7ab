//! Parses numbers on the command line, with errors that say what is expected.

use crate::units;

/// Parses an integer from `least` to `most`.
pub fn within<T>(
    least: u64,
    most: u64,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: TryFrom<u64> + 'static,
{
    move |text: &str| {
        let range = match most {
            u64::MAX => format!("{} or more", units::count(least)),
            most => format!("from {} to {}", units::count(least), units::count(most)),
        };
        let expected = || format!("expected a whole number, {range}");
        let number: u64 = text.trim().parse().map_err(|_| expected())?;
        if !(least..=most).contains(&number) {
            return Err(expected());
        }
        T::try_from(number).map_err(|_| format!("the number is too large: {}", expected()))
    }
}

/// Any number that is not negative.
pub fn any<T>() -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: TryFrom<u64> + 'static,
{
    within(0, u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_or_out_of_range_is_said_in_words() {
        let rate = within::<u32>(1, 9_999);
        assert_eq!(rate("997"), Ok(997));
        for text in ["0", "x", "", "-1", "1.5", "10000", "99999999999999999999"] {
            assert_eq!(
                rate(text),
                Err("expected a whole number, from 1 to 9,999".to_owned()),
                "{text}"
            );
        }
        assert_eq!(
            any::<u32>()("4294967296"),
            Err("the number is too large: expected a whole number, 0 or more".to_owned())
        );
    }
}
