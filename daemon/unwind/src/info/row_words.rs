//! The rows of one description as words, which is how a table keeps them.

/// Most rows of one function. Behind them nothing of it is described. The largest functions of
/// generated code have some thousand.
pub const ROWS_MAX: usize = (1 << 15) - 1;

/// The bit of the first word that says offsets take two words each.
pub const WIDE: u16 = 1 << 15;

/// The rows of one description: how many, then offset from the start of the function and number of
/// the kind, each. The first is of offset 0.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    words: &'a [u16],
    wide: bool,
}

impl<'a> Rows<'a> {
    pub(super) fn at(rows: &'a [u16], at: usize) -> Option<Rows<'a>> {
        let (&first, rest) = rows.get(at..)?.split_first()?;
        let wide = first & WIDE != 0;
        let words = usize::from(first & !WIDE) * if wide { 3 } else { 2 };
        Some(Rows {
            words: rest.get(..words)?,
            wide,
        })
    }

    pub(super) fn len(self) -> usize {
        self.words.len() / if self.wide { 3 } else { 2 }
    }

    pub(super) fn offset(self, number: usize) -> u32 {
        match self.wide {
            true => {
                let at = number * 3;
                u32::from(self.words[at]) | u32::from(self.words[at + 1]) << 16
            }
            false => u32::from(self.words[number * 2]),
        }
    }

    pub(super) fn kind(self, number: usize) -> u16 {
        match self.wide {
            true => self.words[number * 3 + 2],
            false => self.words[number * 2 + 1],
        }
    }

    /// The kind that holds at an offset.
    pub(super) fn find(self, offset: u32) -> Option<u16> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.offset(middle) <= offset {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        Some(self.kind(low.checked_sub(1)?))
    }
}
