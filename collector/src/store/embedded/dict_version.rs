//! The size of a dictionary at a moment. What lies between two versions is a delta.

use super::codec::{Corrupt, Reader, encode_u64};

/// How much there is of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DictVersion {
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

impl DictVersion {
    /// Version of an empty dictionary: its first string, stack and label set are in none.
    pub const EMPTY: DictVersion = DictVersion {
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
        let DictVersion {
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

    fn from_all(all: [u32; 8]) -> DictVersion {
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
        DictVersion {
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
    pub fn common(self, other: DictVersion) -> DictVersion {
        let (own, other) = (self.all(), other.all());
        DictVersion::from_all(std::array::from_fn(|at| own[at].min(other[at])))
    }

    /// True when everything up to `other` is there.
    pub fn includes(self, other: DictVersion) -> bool {
        self.common(other) == other
    }

    /// Appends the version.
    pub fn encode(self, out: &mut Vec<u8>) {
        self.all()
            .into_iter()
            .for_each(|mark| encode_u64(out, mark.into()));
    }

    /// Reads what [`DictVersion::encode`] wrote.
    pub fn decode(input: &mut Reader<'_>) -> Result<DictVersion, Corrupt> {
        let mut all = [0; 8];
        for mark in &mut all {
            *mark = input.decode_u32()?;
        }
        Ok(DictVersion::from_all(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_both_have_is_covered_by_either() {
        let more = DictVersion {
            stacks: 7,
            ..DictVersion::EMPTY
        };
        let other = DictVersion {
            hosts: 2,
            ..DictVersion::EMPTY
        };
        assert_eq!(more.common(other), DictVersion::EMPTY);
        assert!(more.includes(DictVersion::EMPTY) && !more.includes(other));
        let mut bytes = Vec::new();
        more.encode(&mut bytes);
        assert_eq!(DictVersion::decode(&mut Reader::new(&bytes)), Ok(more));
    }
}
