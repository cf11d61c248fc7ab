//! How much a dictionary holds: what lies between two marks is a delta.

use super::codec::{Damage, Reader, put};

/// How much there is of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Texts.
    pub strings: u32,
    /// Frames.
    pub frames: u32,
    /// Stacks.
    pub stacks: u32,
    /// Label sets.
    pub label_sets: u32,
    /// Kinds of samples.
    pub kinds: u32,
    /// Series.
    pub series: u32,
    /// Hosts.
    pub hosts: u32,
    /// What rows name.
    pub leaves: u32,
}

impl Marks {
    /// Marks of an empty dictionary: its first string, stack and label set are in none.
    pub const EMPTY: Marks = Marks {
        strings: 1,
        frames: 0,
        stacks: 1,
        label_sets: 1,
        kinds: 0,
        series: 0,
        hosts: 0,
        leaves: 0,
    };

    fn all(self) -> [u32; 8] {
        let Marks {
            strings,
            frames,
            stacks,
            label_sets,
            kinds,
            series,
            hosts,
            leaves,
        } = self;
        [
            strings, frames, stacks, label_sets, kinds, series, hosts, leaves,
        ]
    }

    fn from_all(all: [u32; 8]) -> Marks {
        let [
            strings,
            frames,
            stacks,
            label_sets,
            kinds,
            series,
            hosts,
            leaves,
        ] = all;
        Marks {
            strings,
            frames,
            stacks,
            label_sets,
            kinds,
            series,
            hosts,
            leaves,
        }
    }

    /// What both have.
    pub fn common(self, other: Marks) -> Marks {
        let (own, other) = (self.all(), other.all());
        Marks::from_all(std::array::from_fn(|at| own[at].min(other[at])))
    }

    /// True when everything up to `other` is there.
    pub fn cover(self, other: Marks) -> bool {
        self.common(other) == other
    }

    /// Appends the marks.
    pub fn put(self, out: &mut Vec<u8>) {
        self.all()
            .into_iter()
            .for_each(|mark| put(out, mark.into()));
    }

    /// Reads what [`Marks::put`] wrote.
    pub fn take(input: &mut Reader<'_>) -> Result<Marks, Damage> {
        let mut all = [0; 8];
        for mark in &mut all {
            *mark = input.take_u32()?;
        }
        Ok(Marks::from_all(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_both_have_is_covered_by_either() {
        let more = Marks {
            stacks: 7,
            ..Marks::EMPTY
        };
        let other = Marks {
            hosts: 2,
            ..Marks::EMPTY
        };
        assert_eq!(more.common(other), Marks::EMPTY);
        assert!(more.cover(Marks::EMPTY) && !more.cover(other));
        let mut bytes = Vec::new();
        more.put(&mut bytes);
        assert_eq!(Marks::take(&mut Reader::new(&bytes)), Ok(more));
    }
}
