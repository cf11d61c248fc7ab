//! Every row of a block with its time, for rewriting it.

use super::{Block, Corrupt, Entry, Reader, SectionReader, Value, decode_starts, weight};

impl Block {
    /// Reads a block and passes each row with the start of its window after the chunk's.
    pub fn each_moment(
        &mut self,
        opener: &mut SectionReader,
        body: &[u8],
        period: u64,
        mut moment: impl FnMut(u64, Entry),
    ) -> Result<(), Corrupt> {
        let mut body = Reader::new(body);
        let mut raw = Vec::new();
        opener.open(&mut body, &mut raw)?;
        let flags = self.read_totals(&raw, period)?;
        opener.open(&mut body, &mut raw)?;
        let mut input = Reader::new(&raw);
        decode_starts(&mut input, &mut self.starts)?;
        let all = self.read_slots(&mut input)?;
        let (plain, saturated) = (flags & 1 == 0, flags & 2 != 0);
        let mut weights = input.clone();
        if !plain {
            let written = if saturated {
                all
            } else {
                all - self.lens.len()
            };
            for _ in 0..written {
                weights.decode_u64()?;
            }
        }
        let mut series_of = self.series.iter().copied().peekable();
        let mut at = 0;
        for (stack, (&len, &total)) in self.lens.iter().zip(&self.values).enumerate() {
            while series_of.next_if(|&(_, end)| end <= stack).is_some() {}
            let series = series_of.peek().map_or(0, |&(series, _)| series);
            let mut left = total;
            for nth in 0..len {
                let value = if nth + 1 == len && !saturated {
                    left
                } else {
                    let count = input.decode_u64()?;
                    let beyond = if plain { 0 } else { weights.decode_signed()? };
                    let weight = weight(count, beyond, period);
                    Value { count, weight }
                };
                left.count = left.count.wrapping_sub(value.count);
                left.weight = left.weight.wrapping_sub(value.weight);
                let start = self.starts[usize::from(self.slots[at])];
                at += 1;
                moment(
                    start,
                    Entry {
                        series,
                        leaf: self.leaves[stack],
                        value,
                    },
                );
            }
        }
        Ok(())
    }
}
