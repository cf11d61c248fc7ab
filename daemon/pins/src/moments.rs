//! When the samples of a window were taken, as they stand behind the window in its chunk.
//!
//! Numbers are LEB128 varints: how many found no room, how many there are, and for each the
//! nanoseconds since the one before (first: since the window began), `row << 1 | explicit weight`,
//! and the weight where it is not the window's period. Nothing at all stands there where no times
//! are known. Read as a stranger's.

use aggregate::batch::RawMoment;
use host::time::MonotonicTime;

/// Appends the moments, oldest first, of a window that began at `start`.
pub(super) fn encode(
    out: &mut Vec<u8>,
    (start, period): (MonotonicTime, u64),
    refused: u64,
    moments: &[RawMoment],
) {
    put(out, refused);
    put(out, moments.len() as u64);
    let mut last = start.0;
    for moment in moments {
        put(out, moment.time.0.saturating_sub(last));
        last = last.max(moment.time.0);
        let explicit = moment.weight != period;
        put(out, u64::from(moment.row) << 1 | u64::from(explicit));
        if explicit {
            put(out, moment.weight);
        }
    }
}

/// The moments of a window of so many rows, and how many found no room; `None` when the bytes make
/// no sense.
pub(super) fn decode(
    mut rest: &[u8],
    (start, period): (MonotonicTime, u64),
    rows: usize,
) -> Option<(Vec<RawMoment>, u64)> {
    if rest.is_empty() {
        return Some((Vec::new(), 0));
    }
    let refused = get(&mut rest)?;
    let mut moments = Vec::new();
    let mut time = start.0;
    for _ in 0..get(&mut rest)? {
        time = time.saturating_add(get(&mut rest)?);
        let head = get(&mut rest)?;
        let row = u32::try_from(head >> 1).ok()?;
        if row as usize >= rows {
            return None;
        }
        let weight = match head & 1 {
            0 => period,
            _ => get(&mut rest)?,
        };
        moments.push(RawMoment {
            row,
            time: MonotonicTime(time),
            weight,
        });
    }
    rest.is_empty().then_some((moments, refused))
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn get(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn moments_come_back(
            mut times in prop::collection::vec((0u64..1 << 40, 0u32..50, 0u64..20), 0..60),
            refused in any::<u64>(),
        ) {
            times.sort_unstable();
            let start = MonotonicTime(77);
            let moment = |&(after, row, weight): &(u64, u32, u64)| RawMoment {
                row,
                time: MonotonicTime(start.0 + after),
                weight,
            };
            let moments: Vec<RawMoment> = times.iter().map(moment).collect();
            let mut bytes = Vec::new();
            encode(&mut bytes, (start, 10), refused, &moments);
            prop_assert_eq!(decode(&bytes, (start, 10), 50), Some((moments, refused)));
        }

        #[test]
        fn rubbish_is_refused_or_within_bounds(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some((moments, _)) = decode(&bytes, (MonotonicTime(5), 1), 3) {
                prop_assert!(moments.iter().all(|moment| moment.row < 3 && moment.time.0 >= 5));
            }
        }
    }

    #[test]
    fn where_no_times_are_known_there_is_nothing() {
        assert_eq!(decode(&[], (MonotonicTime(1), 1), 9), Some((Vec::new(), 0)));
    }
}
