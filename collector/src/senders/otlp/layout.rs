//! Tells the layouts of samples apart, and reads samples in either.
//!
//! 1.8 and 1.9 have values in field 2, attributes in 3 and a link in 4; from 1.10 on attributes are
//! in 2, the link in 3 and values in 4, under the same names. A list of numbers and a number on its
//! own differ on the wire where writers pack lists, but not all do. So each sample is read both
//! ways: a reading is possible where its values belong to its timestamps and its indices are in
//! the tables. A request has one layout: the one in which all its samples are possible.

use super::super::Refusal;
use super::super::fields::{Damaged, taken, taken_bytes};
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// A layout of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// 1.8 and 1.9.
    Old,
    /// 1.10 and later.
    New,
    /// Samples that are the same in both, or possible in both: they are read as 1.10.
    Either,
}

/// How many entries the tables have to which samples refer.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub attributes: usize,
    pub links: usize,
}

/// A sample as it is meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    pub stack: u64,
    pub attributes: Vec<u64>,
    /// What it counts; samples with timestamps alone count one for each.
    pub value: i64,
}

/// Numbers of a field, and whether they came as a packed list.
#[derive(Default)]
struct Numbers {
    all: Vec<u64>,
    is_packed: bool,
}

impl Numbers {
    fn clear(&mut self) {
        self.all.clear();
        self.is_packed = false;
    }

    /// True where it can be a number on its own, an index of a table of this size.
    fn is_index(&self, of: usize) -> bool {
        !self.is_packed && self.all.len() <= 1 && self.are_indices(of)
    }

    fn are_indices(&self, of: usize) -> bool {
        self.all.iter().all(|&index| index < of as u64)
    }

    fn are_distinct(&self) -> bool {
        // Samples have a handful.
        let others = |at: usize| &self.all[at + 1..];
        self.all.len() <= ATTRIBUTES_MAX
            && (0..self.all.len()).all(|at| !others(at).contains(&self.all[at]))
    }
}

/// Most attributes of a sample.
const ATTRIBUTES_MAX: usize = 256;

/// The fields of a sample, whatever they mean.
#[derive(Default)]
pub struct Fields {
    stack: u64,
    second: Numbers,
    third: Numbers,
    fourth: Numbers,
    timestamps: usize,
}

impl Fields {
    /// Reads the next sample into the same memory.
    ///
    /// # Errors
    /// When the bytes are no message with such fields.
    pub fn read(&mut self, mut bytes: &[u8]) -> Result<(), Damaged> {
        (self.stack, self.timestamps) = (0, 0);
        for numbers in [&mut self.second, &mut self.third, &mut self.fourth] {
            numbers.clear();
        }
        while !bytes.is_empty() {
            let (tag, kind) = decode_key(&mut bytes)?;
            match (tag, kind) {
                (1, WireType::Varint) => self.stack = decode_varint(&mut bytes)?,
                (2..=4, WireType::Varint) => {
                    let number = decode_varint(&mut bytes)?;
                    self.numbers(tag).all.push(number);
                }
                (2..=4, WireType::LengthDelimited) => {
                    let mut list = taken(&mut bytes)?;
                    let numbers = self.numbers(tag);
                    numbers.is_packed = true;
                    while !list.is_empty() {
                        numbers.all.push(decode_varint(&mut list)?);
                    }
                }
                (5, WireType::SixtyFourBit) => {
                    taken_bytes(&mut bytes, 8)?;
                    self.timestamps += 1;
                }
                (5, WireType::LengthDelimited) => self.timestamps += taken(&mut bytes)?.len() / 8,
                _ => skip_field(kind, tag, &mut bytes, DecodeContext::default())?,
            }
        }
        Ok(())
    }

    fn numbers(&mut self, tag: u32) -> &mut Numbers {
        match tag {
            2 => &mut self.second,
            3 => &mut self.third,
            _ => &mut self.fourth,
        }
    }

    fn parts(&self, layout: Layout) -> (&Numbers, &Numbers, &Numbers) {
        match layout {
            Layout::Old => (&self.second, &self.third, &self.fourth),
            Layout::New | Layout::Either => (&self.fourth, &self.second, &self.third),
        }
    }

    /// True when it is a sample in this layout.
    pub fn is_possible(&self, layout: Layout, sizes: Sizes) -> bool {
        let (values, attributes, link) = self.parts(layout);
        let (count, times) = (values.all.len(), self.timestamps);
        let is_counted = match (count, times) {
            (0, 0) => false,
            (0, _) | (_, 0) => true,
            // Profilers of 2025 sent one value with all timestamps.
            (1, _) if layout == Layout::Old => true,
            _ => count == times,
        };
        is_counted
            && attributes.are_indices(sizes.attributes)
            && attributes.are_distinct()
            && link.is_index(sizes.links.max(1))
    }

    /// The sample; `None` where it does not count anything, or something negative.
    pub fn sample(&self, layout: Layout) -> Option<Read> {
        let (values, attributes, _) = self.parts(layout);
        let mut sum = 0i64;
        for &value in &values.all {
            // Negative numbers are the largest of the others on the wire.
            sum = sum.checked_add(i64::try_from(value).ok()?)?;
        }
        let value = match values.all.is_empty() {
            true => i64::try_from(self.timestamps).ok()?,
            false => sum,
        };
        Some(Read {
            stack: self.stack,
            attributes: attributes.all.clone(),
            value,
        })
    }
}

/// The layout in which all samples are possible.
///
/// # Errors
/// The number of the first sample that is possible in neither, or not in the one that the others
/// have.
pub fn of_all<'a>(
    samples: impl Iterator<Item = &'a [u8]>,
    sizes: Sizes,
) -> Result<Layout, Refusal> {
    let (mut old, mut new) = (true, true);
    let mut fields = Fields::default();
    for (number, sample) in samples.enumerate() {
        let read = fields.read(sample);
        read.map_err(|error| {
            Refusal::malformed(format!("failed to read sample {number}: {error}"))
        })?;
        old &= fields.is_possible(Layout::Old, sizes);
        new &= fields.is_possible(Layout::New, sizes);
        if !old && !new {
            return Err(Refusal::malformed(format!(
                "failed to read sample {number}: its values, timestamps, attributes and link are \
                 those of no layout from 1.8 to 1.11, or of another than the samples before it"
            )));
        }
    }
    Ok(match (old, new) {
        (true, true) => Layout::Either,
        (true, false) => Layout::Old,
        (false, _) => Layout::New,
    })
}

/// What the fields of a profile say of its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// 1.7 or earlier: samples refer to lists of locations in the profile.
    Before,
    /// 1.8, whose ids are where later ones count attributes.
    V8,
    /// 1.9 or later.
    Later,
}

/// Reads no more than the keys of a profile; tells also how many samples it has.
///
/// # Errors
/// When it is no message.
pub fn generation(mut bytes: &[u8]) -> Result<(Generation, usize), Damaged> {
    let (mut types, mut samples, mut found) = (0, 0, Generation::Later);
    while bytes.has_remaining() {
        let (tag, kind) = decode_key(&mut bytes)?;
        types += usize::from(tag == 1);
        samples += usize::from(tag == 2);
        if types > 1 || (tag == 3 && kind != WireType::SixtyFourBit) {
            return Ok((Generation::Before, samples));
        }
        if (tag == 8 && kind == WireType::LengthDelimited) || tag == 12 {
            found = Generation::V8;
        }
        skip_field(kind, tag, &mut bytes, DecodeContext::default())?;
    }
    Ok((found, samples))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes {
        attributes: 4,
        links: 2,
    };

    fn packed(tag: u8, numbers: &[u8]) -> Vec<u8> {
        [&[tag << 3 | 2, numbers.len() as u8], numbers].concat()
    }

    fn single(tag: u8, number: u8) -> Vec<u8> {
        vec![tag << 3, number]
    }

    fn times(count: u8) -> Vec<u8> {
        let bytes = vec![1; usize::from(count) * 8];
        [vec![5 << 3 | 2, count * 8], bytes].concat()
    }

    fn layout(samples: &[&[Vec<u8>]]) -> Option<Layout> {
        let samples: Vec<_> = samples.iter().map(|parts| parts.concat()).collect();
        of_all(samples.iter().map(Vec::as_slice), SIZES).ok()
    }

    #[test]
    fn each_shape_has_the_layouts_in_which_it_is_possible() {
        let stack = || single(1, 1);
        for (sample, expected) in [
            // Packed values with attributes: 1.9, and the same in 1.10.
            (
                vec![stack(), packed(2, &[70]), packed(3, &[1, 2])],
                Some(Layout::Old),
            ),
            (
                vec![stack(), packed(2, &[1, 2]), packed(4, &[70])],
                Some(Layout::New),
            ),
            // Values alone.
            (vec![stack(), packed(2, &[70])], Some(Layout::Old)),
            (vec![stack(), packed(4, &[70])], Some(Layout::New)),
            // Timestamps alone.
            (vec![stack(), times(3)], Some(Layout::Either)),
            // Values that are no index of an attribute.
            (vec![stack(), packed(2, &[70]), times(1)], Some(Layout::Old)),
            // They could be either.
            (
                vec![stack(), packed(2, &[1]), times(1)],
                Some(Layout::Either),
            ),
            // One value with all timestamps, as profilers of 2025 sent it.
            (vec![stack(), packed(2, &[9]), times(3)], Some(Layout::Old)),
            // Not packed.
            (
                vec![stack(), single(2, 70), single(3, 1), single(3, 2)],
                Some(Layout::Old),
            ),
            (
                vec![stack(), single(2, 1), single(2, 2), single(4, 70)],
                Some(Layout::New),
            ),
            // Nothing is counted, an attribute is there twice, or is in no table.
            (vec![stack()], None),
            (vec![stack(), packed(2, &[1, 1]), packed(4, &[70])], None),
            (vec![stack(), packed(2, &[9]), packed(4, &[70])], None),
            (vec![stack(), packed(4, &[70, 1]), times(3)], None),
        ] {
            assert_eq!(layout(&[&sample]), expected, "{sample:?}");
        }
    }

    #[test]
    fn all_samples_of_a_request_have_one_layout() {
        let (old, new) = ([packed(2, &[70])], [packed(4, &[70])]);
        let either = [times(1)];
        assert_eq!(layout(&[&either, &old]), Some(Layout::Old));
        assert_eq!(layout(&[&new, &either]), Some(Layout::New));
        assert_eq!(layout(&[&new, &old]), None);
        assert_eq!(layout(&[]), Some(Layout::Either));
    }

    #[test]
    fn a_sample_counts_its_values_or_its_timestamps() {
        let mut fields = Fields::default();
        let mut value = |parts: &[Vec<u8>]| {
            fields.read(&parts.concat()).expect("a sample");
            fields.sample(Layout::New).map(|sample| sample.value)
        };
        assert_eq!(value(&[packed(4, &[3, 4])]), Some(7));
        assert_eq!(value(&[times(3)]), Some(3));
        assert_eq!(value(&[packed(4, &[5, 6]), times(2)]), Some(11));
        let negative = [[4 << 3].as_slice(), &[0xff; 9], &[1]].concat();
        assert_eq!(value(&[negative]), None);
    }

    #[test]
    fn older_generations_are_told_by_their_fields() {
        let of = |parts: &[Vec<u8>]| generation(&parts.concat()).expect("a message").0;
        let fixed = [vec![3 << 3 | 1], vec![0; 8]].concat();
        assert_eq!(of(std::slice::from_ref(&fixed)), Generation::Later);
        assert_eq!(of(&[packed(3, &[1, 2])]), Generation::Before);
        let two = [packed(1, &[]), packed(1, &[])].concat();
        assert_eq!(of(&[two]), Generation::Before);
        assert_eq!(of(&[fixed, packed(8, &[7; 16])]), Generation::V8);
    }

    #[test]
    fn damaged_bytes_are_refused() {
        for bytes in [&[0x0a][..], &[0x12, 200, 1], &[0x2a, 9, 1], &[0x29, 1]] {
            assert!(Fields::default().read(bytes).is_err(), "{bytes:?}");
        }
    }
}
