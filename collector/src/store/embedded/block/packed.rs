//! The rows of one window as bytes, for the log and for memory.
//!
//! If every weight is count × period, as nearly always, the rows of a series are two columns of
//! numbers of a fixed size, so reading millions of rows needs no branch per row. Numbers that do
//! not fit their column follow it. Other rows are numbers one after the other.

use super::{Corrupt, Entry, Reader, Value, beyond, encode_signed, encode_u64, step, weight};

/// All weights are count × period, rows are numbers one after the other; of earlier versions.
const PLAIN: u8 = 0;

/// A row is leaf, count and what its weight has beyond.
const WITH_BEYOND: u8 = 1;

/// All weights are count × period, rows are columns.
const COLUMNS: u8 = 2;

/// Rows of one series in one window, as columns.
pub struct Run<'c> {
    /// Which series.
    pub series: u32,
    /// Stacks and how they ended, ascending.
    pub leaves: &'c [u32],
    /// How many samples each has.
    pub counts: &'c [u64],
    /// What they weigh, where that is not count × period.
    pub weights: Option<&'c [u64]>,
    period: u64,
}

impl Run<'_> {
    /// The rows one by one.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let rows = self.leaves.iter().zip(self.counts).enumerate();
        rows.map(|(at, (&leaf, &count))| {
            let weight = match self.weights {
                Some(weights) => weights[at],
                None => count.wrapping_mul(self.period),
            };
            Entry {
                series: self.series,
                leaf,
                value: Value { count, weight },
            }
        })
    }
}

/// Room for columns, used again for each run.
#[derive(Default)]
pub struct Columns {
    leaves: Vec<u32>,
    counts: Vec<u64>,
    weights: Vec<u64>,
}

impl Columns {
    fn clear(&mut self) {
        self.leaves.clear();
        self.counts.clear();
        self.weights.clear();
    }
}

/// Packs the rows of one window, ordered by (series, leaf), each once.
pub fn encode_rows(out: &mut Vec<u8>, rows: &[Entry], period: u64) {
    let plain = rows.iter().all(|row| beyond(row.value, period) == 0);
    out.push(if plain { COLUMNS } else { WITH_BEYOND });
    let mut before = 0;
    for run in rows.chunk_by(|left, right| left.series == right.series) {
        encode_u64(out, (run[0].series - before).into());
        before = run[0].series;
        encode_u64(out, run.len() as u64);
        if plain {
            encode_columns(out, run);
            continue;
        }
        let mut leaf = 0;
        for row in run {
            encode_u64(out, (row.leaf - leaf).into());
            leaf = row.leaf;
            encode_u64(out, row.value.count);
            encode_signed(out, beyond(row.value, period));
        }
    }
}

/// The rows of one series: the first leaf, how much each is more than the one before it, and
/// counts.
fn encode_columns(out: &mut Vec<u8>, run: &[Entry]) {
    encode_u64(out, run[0].leaf.into());
    let steps = || run.windows(2).map(|pair| pair[1].leaf - pair[0].leaf);
    let is_wide = steps().any(|step| step >= u8::MAX.into());
    out.push(u8::from(is_wide));
    if is_wide {
        out.extend(steps().flat_map(|step| (step.min(u16::MAX.into()) as u16).to_le_bytes()));
        for step in steps().filter(|&step| step >= u16::MAX.into()) {
            encode_u64(out, step.into());
        }
    } else {
        out.extend(steps().map(|step| step as u8));
    }
    let counts = || run.iter().map(|row| row.value.count);
    out.extend(counts().map(|count| count.min(u8::MAX.into()) as u8));
    for count in counts().filter(|&count| count >= u8::MAX.into()) {
        encode_u64(out, count);
    }
}

/// Reads what [`encode_rows`] wrote, series by series; `columns` is room.
pub fn each_run(
    bytes: &[u8],
    period: u64,
    columns: &mut Columns,
    mut run: impl FnMut(Run<'_>),
) -> Result<(), Corrupt> {
    let mut input = Reader::new(bytes);
    let format = input.decode_exact(1)?[0];
    if ![PLAIN, WITH_BEYOND, COLUMNS].contains(&format) {
        return Err(Corrupt("rows of a format that is not known"));
    }
    let mut series = 0u32;
    while !input.is_empty() {
        series = step(series, input.decode_u32()?)?;
        let rows = input.decode_count()?;
        columns.clear();
        match format {
            COLUMNS if rows > 0 => decode_columns(&mut input, rows, columns)?,
            COLUMNS => {}
            _ => decode_numbers(&mut input, rows, (format == WITH_BEYOND, period), columns)?,
        }
        run(Run {
            series,
            leaves: &columns.leaves,
            counts: &columns.counts,
            weights: (format == WITH_BEYOND).then_some(&columns.weights),
            period,
        });
    }
    Ok(())
}

fn decode_columns(
    input: &mut Reader<'_>,
    rows: usize,
    columns: &mut Columns,
) -> Result<(), Corrupt> {
    let mut leaf = input.decode_u32()?;
    let is_wide = input.decode_exact(1)?[0] != 0;
    let leaves = &mut columns.leaves;
    leaves.reserve(rows);
    leaves.push(leaf);
    // The largest step that no other follows; ids that go beyond 32 bits are found at the end.
    let mut end = u64::from(leaf);
    if is_wide {
        let (steps, _) = input.decode_exact((rows - 1) * 2)?.as_chunks::<2>();
        let steps = steps.iter().map(|&step| u16::from_le_bytes(step));
        if steps.clone().all(|step| step != u16::MAX) {
            leaves.extend(steps.map(|step| {
                leaf = leaf.wrapping_add(step.into());
                end += u64::from(step);
                leaf
            }));
        } else {
            for short in steps {
                let by = match short {
                    u16::MAX => input.decode_u32()?,
                    short => short.into(),
                };
                leaf = leaf.wrapping_add(by);
                end += u64::from(by);
                leaves.push(leaf);
            }
        }
    } else {
        leaves.extend(input.decode_exact(rows - 1)?.iter().map(|&step| {
            leaf = leaf.wrapping_add(step.into());
            end += u64::from(step);
            leaf
        }));
    }
    if end > u32::MAX.into() {
        return Err(Corrupt("an id is too large"));
    }
    let short = input.decode_exact(rows)?;
    columns
        .counts
        .extend(short.iter().map(|&count| u64::from(count)));
    if short.contains(&u8::MAX) {
        for count in &mut columns.counts {
            if *count == u64::from(u8::MAX) {
                *count = input.decode_u64()?;
            }
        }
    }
    Ok(())
}

fn decode_numbers(
    input: &mut Reader<'_>,
    rows: usize,
    (has_beyond, period): (bool, u64),
    columns: &mut Columns,
) -> Result<(), Corrupt> {
    let mut leaf = 0u32;
    for _ in 0..rows {
        leaf = step(leaf, input.decode_u32()?)?;
        let count = input.decode_u64()?;
        columns.leaves.push(leaf);
        columns.counts.push(count);
        if has_beyond {
            let beyond = input.decode_signed()?;
            columns.weights.push(weight(count, beyond, period));
        }
    }
    Ok(())
}

/// As [`each_run`], row by row.
pub fn each_row(bytes: &[u8], period: u64, mut row: impl FnMut(Entry)) -> Result<(), Corrupt> {
    each_run(bytes, period, &mut Columns::default(), |run| {
        run.entries().for_each(&mut row);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PERIOD: u64 = 10_101_010;

    /// Rows ordered by (series, leaf): steps between leaves, and counts, at and around what fits a
    /// column.
    fn rows() -> impl Strategy<Value = Vec<Entry>> {
        let near = |edge: u32| (edge - 2)..(edge + 3);
        let by =
            prop_oneof![6 => 1u32..9, 1 => near(1 << 8), 1 => near(1 << 16), 1 => Just(1 << 24)];
        let count = prop_oneof![6 => 0u64..9, 1 => 253u64..258, 1 => Just(u64::MAX)];
        let other = prop_oneof![20 => Just(0u64), 1 => any::<u64>()];
        let row = (prop::bool::weighted(0.1), by, count, other);
        prop::collection::vec(row, 0..60).prop_map(|rows| {
            let (mut series, mut leaf) = (3, 0);
            let rows = rows.into_iter().map(|(is_next, by, count, other)| {
                if is_next {
                    (series, leaf) = (series + by, 0);
                }
                leaf += by;
                let weight = count.wrapping_mul(PERIOD).wrapping_add(other);
                Entry {
                    series,
                    leaf,
                    value: Value { count, weight },
                }
            });
            rows.collect()
        })
    }

    proptest! {
        #[test]
        fn rows_come_back(rows in rows()) {
            let (mut bytes, mut back) = (Vec::new(), Vec::new());
            encode_rows(&mut bytes, &rows, PERIOD);
            each_row(&bytes, PERIOD, |row| back.push(row)).unwrap();
            prop_assert_eq!(back, rows);
        }

        #[test]
        fn any_bytes_are_read_or_refused(rest in prop::collection::vec(prop_oneof![0u8..4, any::<u8>()], 0..80)) {
            for format in [PLAIN, WITH_BEYOND, COLUMNS, COLUMNS + 1] {
                let mut bytes = vec![format];
                bytes.extend_from_slice(&rest);
                let mut rows = 0;
                let _ = each_row(&bytes, PERIOD, |_| rows += 1);
                prop_assert!(rows <= bytes.len());
            }
        }
    }

    #[test]
    fn rows_that_earlier_versions_logged_are_read() {
        let mut bytes = vec![PLAIN];
        // Series, rows, then leaf and count of each.
        for number in [5, 2, 300, 4, 70_000, 1] {
            encode_u64(&mut bytes, number);
        }
        let mut back = Vec::new();
        each_row(&bytes, 7, |row| {
            back.push((row.series, row.leaf, row.value))
        })
        .unwrap();
        let value = |count| Value {
            count,
            weight: count * 7,
        };
        assert_eq!(back, [(5, 300, value(4)), (5, 70_300, value(1))]);
    }

    #[test]
    fn an_id_beyond_32_bits_is_damage() {
        let mut bytes = vec![COLUMNS];
        for number in [0, 2, u32::MAX.into()] {
            encode_u64(&mut bytes, number);
        }
        bytes.extend_from_slice(&[0, 1, 1, 1]);
        assert!(each_row(&bytes, 1, |_| {}).is_err());
    }
}
