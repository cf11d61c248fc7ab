//! Sorts many rows by a number, digit by digit. For rows with ids close to each other that takes a
//! few passes, while comparing takes one for each doubling of their number.

/// Fewer items are compared: the tables of the digits cost more than they save.
const DIGITS_MIN: usize = 64;

/// More items are compared as well: what is in place takes no second memory. Unit: items.
const DIGITS_MAX: usize = 1 << 20;

/// Values of a digit of few items: their table is made again for each pass.
const SMALL: usize = 1 << 8;

/// Values of a digit of many, for which a larger table saves passes.
const LARGE: usize = 1 << 11;

/// From so many items on their digits are large. Unit: items.
const MANY: usize = 1 << 12;

/// Orders `items` by `key`; equal ones stand in any order. They are in the order of the `ordered`
/// lowest bits of it already. `spare` is used for room, as many items at most, and holds nothing of
/// use afterwards.
pub fn order_by<T: Copy>(
    items: &mut [T],
    spare: &mut Vec<T>,
    ordered: u32,
    key: impl Fn(&T) -> u64,
) {
    if !(DIGITS_MIN..=DIGITS_MAX).contains(&items.len()) {
        items.sort_unstable_by_key(&key);
        return;
    }
    let (mut differs, mut is_ordered, mut before) = (0, true, 0);
    let first = key(&items[0]);
    for item in items.iter() {
        let own = key(item);
        differs |= own ^ first;
        is_ordered &= before <= own;
        before = own;
    }
    if is_ordered {
        return;
    }
    spare.clear();
    spare.extend_from_slice(items);
    match items.len() >= MANY {
        true => passes::<T, LARGE>(items, spare, (differs, ordered), key),
        false => passes::<T, SMALL>(items, spare, (differs, ordered), key),
    }
}

/// Orders `items`, of which `spare` is a copy, by digits of `VALUES` values in which they differ.
fn passes<T: Copy, const VALUES: usize>(
    items: &mut [T],
    spare: &mut [T],
    (differs, ordered): (u64, u32),
    key: impl Fn(&T) -> u64,
) {
    let mask = VALUES as u64 - 1;
    let mut is_in_spare = false;
    for shift in (ordered..u64::BITS).step_by(VALUES.ilog2() as usize) {
        if (differs >> shift) & mask == 0 {
            continue;
        }
        let digit = |item: &T| ((key(item) >> shift) & mask) as usize;
        match is_in_spare {
            true => pass::<T, VALUES>(spare, items, digit),
            false => pass::<T, VALUES>(items, spare, digit),
        }
        is_in_spare = !is_in_spare;
    }
    if is_in_spare {
        items.copy_from_slice(spare);
    }
}

/// Copies items, ordered by one digit.
fn pass<T: Copy, const VALUES: usize>(from: &[T], to: &mut [T], digit: impl Fn(&T) -> usize) {
    let mut places = [0u32; VALUES];
    for item in from {
        places[digit(item)] += 1;
    }
    let mut end = 0;
    for place in &mut places {
        end += std::mem::replace(place, end);
    }
    for item in from {
        let place = &mut places[digit(item)];
        to[*place as usize] = *item;
        *place += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn items_are_ordered(
            keys in prop::collection::vec(prop_oneof![0u64..300, any::<u64>()], 0..400),
            times in 1usize..20,
            ordered in 0u32..20,
        ) {
            let keys = std::iter::repeat_n(keys, times).flatten();
            let mut items: Vec<(u64, usize)> = keys.zip(0..).collect();
            items.sort_by_key(|item| item.0 & ((1 << ordered) - 1));
            let mut expected = items.clone();
            expected.sort();
            order_by(&mut items, &mut Vec::new(), ordered, |item| item.0);
            prop_assert!(items.is_sorted_by_key(|item| item.0));
            items.sort();
            prop_assert_eq!(items, expected);
        }
    }
}
