//! The times of a window's samples, encoded after its accounts.
//!
//! Numbers are varints: how many times were dropped for lack of room, how many there are, and for
//! each the nanoseconds since the previous one (for the first, since the start of the window), `row
//! << 1 | explicit weight`, and the weight if it is not the window's period. If no times are known,
//! nothing is written. Decoding treats the bytes as untrusted.

use super::{DecodeError, Facts, Times, get, put};
use aggregate::batch::RawTimestamp;
use host::time::MonotonicTime;

/// Appends the times of a window.
pub(super) fn encode(out: &mut Vec<u8>, facts: &Facts, times: &Times) {
    put(out, times.refused);
    put(out, times.timestamps.len() as u64);
    let mut last = facts.start().0;
    for timestamp in &times.timestamps {
        put(out, timestamp.time.0.saturating_sub(last));
        last = last.max(timestamp.time.0);
        let explicit = timestamp.weight != facts.period;
        put(out, u64::from(timestamp.row) << 1 | u64::from(explicit));
        if explicit {
            put(out, timestamp.weight);
        }
    }
}

/// The times of a window of so many rows.
///
/// # Errors
/// When the bytes make no sense.
pub(super) fn decode(mut rest: &[u8], facts: &Facts, rows: usize) -> Result<Times, DecodeError> {
    let refused = get(&mut rest)?;
    let mut timestamps = Vec::new();
    let mut time = facts.start().0;
    for _ in 0..get(&mut rest)? {
        time = time.saturating_add(get(&mut rest)?);
        let head = get(&mut rest)?;
        let row = u32::try_from(head >> 1).map_err(|_| DecodeError("a row"))?;
        if row as usize >= rows {
            return Err(DecodeError("a row"));
        }
        let weight = match head & 1 {
            0 => facts.period,
            _ => get(&mut rest)?,
        };
        timestamps.push(RawTimestamp {
            row,
            time: MonotonicTime(time),
            weight,
        });
    }
    match rest.is_empty() {
        true => Ok(Times {
            timestamps,
            refused,
        }),
        false => Err(DecodeError("bytes after the end")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn facts(start_unix_ns: i64, period: u64) -> Facts {
        Facts {
            start_unix_ns,
            period,
            ..Facts::default()
        }
    }

    proptest! {
        #[test]
        fn moments_come_back(
            mut times in prop::collection::vec((0u64..1 << 40, 0u32..50, 0u64..20), 0..60),
            refused in any::<u64>(),
        ) {
            times.sort_unstable();
            let facts = facts(77, 10);
            let timestamp = |&(after, row, weight): &(u64, u32, u64)| RawTimestamp {
                row,
                time: MonotonicTime(77 + after),
                weight,
            };
            let timestamps: Vec<RawTimestamp> = times.iter().map(timestamp).collect();
            let times = Times { timestamps, refused };
            let mut bytes = Vec::new();
            encode(&mut bytes, &facts, &times);
            prop_assert_eq!(decode(&bytes, &facts, 50), Ok(times));
        }

        #[test]
        fn rubbish_is_refused_or_within_bounds(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(times) = decode(&bytes, &facts(5, 1), 3) {
                let mut timestamps = times.timestamps.iter();
                prop_assert!(timestamps.all(|timestamp| timestamp.row < 3 && timestamp.time.0 >= 5));
            }
        }
    }
}
