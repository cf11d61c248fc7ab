//! Metadata of windows besides their samples: time, quality and the kernel's accounting, per window
//! and summed by host and chunk of time.

use super::block::{Sum, decode_sum, encode_sum};
use super::codec::{Corrupt, Reader, encode_bytes, encode_signed, encode_u64};
use crate::store::query::ABSENT_NS_MIN;
use crate::store::{Gap, HostRange, PressureSum, TimeRange};
use profile::{Pressure, Quality, Throttling};
use std::collections::{BTreeMap, BTreeSet};

/// CPU time of a cgroup with all below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Account {
    /// Unit: nanoseconds.
    pub ns: i128,
    /// The part that was not measured. Unit: nanoseconds.
    pub estimated_ns: i128,
    /// What the nearest accounted cgroups below it have of `ns`.
    pub below_ns: i128,
    /// What they have of `estimated_ns`.
    pub below_estimated_ns: i128,
    /// How its own CPU limit held it back; nothing in files of earlier versions, which do not say.
    pub throttling: Throttling,
}

impl Account {
    /// Time of samples of a window without accounts: the cgroup alone is expected to have it
    /// because it was taken, so it neither lowers nor raises the share that is covered. What is
    /// below is negative, which it never is for an account of the kernel.
    pub fn unmeasured(taken_ns: u64) -> Account {
        Account {
            below_ns: -i128::from(taken_ns),
            below_estimated_ns: -i128::from(taken_ns),
            ..Account::default()
        }
    }

    /// True when the kernel's accounting is not known.
    pub fn is_unmeasured(&self) -> bool {
        self.ns == 0 && self.below_ns < 0
    }
}

impl std::ops::AddAssign for Account {
    fn add_assign(&mut self, other: Account) {
        self.ns += other.ns;
        self.estimated_ns += other.estimated_ns;
        self.below_ns += other.below_ns;
        self.below_estimated_ns += other.below_estimated_ns;
        self.throttling += other.throttling;
    }
}

/// One window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowMeta {
    /// Index in the dictionary's hosts.
    pub host: u32,
    /// Its number.
    pub sequence: u64,
    /// The range of time.
    pub range: TimeRange,
    /// Labels of the complete host.
    pub host_labels: u32,
    /// What was missed.
    pub quality: Quality,
    /// For how long tasks of the host waited; `None` if that is not known.
    pub pressure: Option<Pressure>,
    /// Samples.
    pub sum: Sum,
    /// Accounts by label set; of a window without, those of [`Account::unmeasured`]. Windows stored
    /// by earlier versions have none instead.
    pub accounts: Vec<(u32, Account)>,
    /// Every label set, ascending.
    pub label_sets: Vec<u32>,
    /// Windows before it that are gone.
    pub dropped: Option<Gap>,
}

/// What a host did in a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HostSum {
    /// Windows.
    pub windows: u64,
    /// Windows without accounts.
    pub unmeasured: u64,
    /// What was missed.
    pub quality: Quality,
    /// Samples.
    pub sum: Sum,
    /// The kernel's accounting of the host, and the time taken in windows without any. Unit:
    /// nanoseconds.
    pub expected_ns: u64,
    /// The part that was not measured: all of it in windows without any. Unit: nanoseconds.
    pub estimated_ns: u64,
    /// For how long tasks waited.
    pub pressure: PressureSum,
}

impl HostSum {
    fn add(&mut self, window: &WindowMeta) {
        let unmeasured = window.is_unmeasured();
        let (mut ns, mut estimated) = (0, 0);
        if unmeasured {
            ns = window.sum.taken.weight.into();
            estimated = ns;
        } else {
            for (_, account) in &window.accounts {
                ns += account.ns - account.below_ns;
                estimated += account.estimated_ns - account.below_estimated_ns;
            }
        }
        *self += HostSum {
            windows: 1,
            unmeasured: u64::from(unmeasured),
            quality: window.quality,
            sum: window.sum,
            expected_ns: u64::try_from(ns).unwrap_or(0),
            estimated_ns: u64::try_from(estimated).unwrap_or(0),
            pressure: window.pressure_sum(),
        };
    }

    /// As answers have it.
    pub fn in_range(&self) -> HostRange {
        HostRange {
            windows: self.windows,
            windows_unmeasured: self.unmeasured,
            taken: self.sum.taken,
            lost: self.sum.lost,
            sampling: self.quality,
            expected_ns: self.expected_ns,
            estimated_ns: self.estimated_ns,
            gap_ns: 0,
        }
    }
}

impl std::ops::AddAssign<HostSum> for HostSum {
    fn add_assign(&mut self, other: HostSum) {
        let add = |sum: &mut u64, more| *sum = sum.saturating_add(more);
        add(&mut self.windows, other.windows);
        add(&mut self.unmeasured, other.unmeasured);
        self.quality += other.quality;
        self.sum += other.sum;
        add(&mut self.expected_ns, other.expected_ns);
        add(&mut self.estimated_ns, other.estimated_ns);
        self.pressure += other.pressure;
    }
}

/// Time a host covered, with what it says is gone.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Presence {
    /// Time of windows; ordered and joined by [`Presence::settle`].
    pub spans: Vec<(i64, i64)>,
    /// Dropped windows, with the start of the window that reports them.
    pub dropped: Vec<(i64, Gap)>,
}

impl Presence {
    /// Adds a window's time: to the span before it, where nothing is missing between them.
    fn add(&mut self, start: i64, end: i64) {
        match self.spans.last_mut() {
            Some(last) if start >= last.0 && start.saturating_sub(last.1) < ABSENT_NS_MIN => {
                last.1 = last.1.max(end);
            }
            _ => self.spans.push((start, end)),
        }
    }

    /// Orders the spans and joins those that follow without a gap.
    pub fn settle(&mut self) {
        self.spans.sort_unstable();
        self.spans.dedup_by(|later, first| {
            let joined = later.0.saturating_sub(first.1) < ABSENT_NS_MIN;
            if joined {
                first.1 = first.1.max(later.1);
            }
            joined
        });
    }
}

/// Summed metadata of the windows of one chunk.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Summary {
    /// By (host, labels of the host).
    pub hosts: BTreeMap<(u32, u32), (HostSum, Presence)>,
    /// By label set.
    pub accounts: BTreeMap<u32, Account>,
    /// Every label set that occurs.
    pub label_sets: BTreeSet<u32>,
}

impl Summary {
    /// Adds a window.
    pub fn add(&mut self, window: &WindowMeta) {
        let key = (window.host, window.host_labels);
        let (sum, presence) = self.hosts.entry(key).or_default();
        sum.add(window);
        presence.add(window.range.start_unix_ns, window.range.end_unix_ns);
        if let Some(gap) = &window.dropped {
            let said = (window.range.start_unix_ns, gap.clone());
            presence.dropped.push(said);
        }
        for &(labels, account) in &window.accounts {
            *self.accounts.entry(labels).or_default() += account;
        }
        self.label_sets.extend(&window.label_sets);
    }

    /// Adds another summary; [`Summary::settle`] is to be called when all are in.
    pub fn merge(&mut self, other: Summary) {
        for (key, (sum, presence)) in other.hosts {
            let own = self.hosts.entry(key).or_default();
            own.0 += sum;
            own.1.spans.extend(presence.spans);
            own.1.dropped.extend(presence.dropped);
        }
        for (labels, account) in other.accounts {
            *self.accounts.entry(labels).or_default() += account;
        }
        self.label_sets.extend(other.label_sets);
    }

    /// True when every window lies in `[from, to)`, both since the Unix epoch.
    pub fn is_within(&self, (from, to): (i64, i64)) -> bool {
        let mut spans = self
            .hosts
            .values()
            .flat_map(|(_, presence)| &presence.spans);
        spans.all(|&(start, end)| from <= start && end <= to)
    }

    /// Joins spans; to be called when all windows are in.
    pub fn settle(&mut self) {
        for (_, presence) in self.hosts.values_mut() {
            presence.settle();
        }
    }

    /// Appends the summary.
    pub fn encode(&self, out: &mut Vec<u8>) {
        encode_u64(out, VERSIONED + FORMAT);
        encode_u64(out, self.hosts.len() as u64);
        for (&(host, labels), (sum, presence)) in &self.hosts {
            encode_u64(out, host.into());
            encode_u64(out, labels.into());
            for number in [
                sum.windows,
                sum.unmeasured,
                sum.expected_ns,
                sum.estimated_ns,
            ] {
                encode_u64(out, number);
            }
            encode_quality(out, sum.quality);
            encode_sum(out, sum.sum, 0);
            let PressureSum {
                covered_ns,
                cpu_ns,
                memory_ns,
                io_ns,
            } = sum.pressure;
            for ns in [covered_ns, cpu_ns, memory_ns, io_ns] {
                encode_u64(out, ns);
            }
            encode_u64(out, presence.spans.len() as u64);
            for &(start, end) in &presence.spans {
                encode_signed(out, start);
                encode_signed(out, end.wrapping_sub(start));
            }
            encode_u64(out, presence.dropped.len() as u64);
            for (said, gap) in &presence.dropped {
                encode_signed(out, *said);
                encode_gap(out, gap);
            }
        }
        encode_u64(out, self.accounts.len() as u64);
        for (&labels, account) in &self.accounts {
            encode_u64(out, labels.into());
            encode_account(out, account);
        }
        encode_ids(out, self.label_sets.iter().copied());
    }

    /// Reads what [`Summary::encode`] wrote.
    pub fn decode(input: &mut Reader<'_>) -> Result<Summary, Corrupt> {
        let mut summary = Summary::default();
        let mut hosts = StoredSummary::open(input)?;
        summary.add_stored_hosts(&mut hosts)?;
        let mut accounts = hosts.accounts()?;
        while let Some((labels, account)) = accounts.next_account()? {
            summary.accounts.insert(labels, account);
        }
        summary.label_sets = decode_ids(input)?.into_iter().collect();
        Ok(summary)
    }

    /// As [`Summary::decode`], of hosts alone: what follows them, nearly all of a summary, is not
    /// read.
    pub fn decode_hosts(input: &mut Reader<'_>) -> Result<Summary, Corrupt> {
        let mut summary = Summary::default();
        summary.add_stored_hosts(&mut StoredSummary::open(input)?)?;
        Ok(summary)
    }

    fn add_stored_hosts(&mut self, stored: &mut StoredSummary<'_, '_>) -> Result<(), Corrupt> {
        while let Some((key, sum, presence)) = stored.next_host()? {
            self.hosts.insert(key, (sum, presence));
        }
        Ok(())
    }
}

/// What [`Summary::encode`] wrote, read one by one: hosts, then accounts.
pub struct StoredSummary<'r, 'b> {
    input: &'r mut Reader<'b>,
    format: u64,
    hosts_left: u32,
}

/// A host of a [`StoredSummary`]: its index in the dictionary and its labels, and what it did.
pub type StoredHost = ((u32, u32), HostSum, Presence);

/// The accounts of a [`StoredSummary`].
pub struct StoredAccounts<'r, 'b> {
    input: &'r mut Reader<'b>,
    format: u64,
    left: usize,
}

impl<'r, 'b> StoredSummary<'r, 'b> {
    /// Starts to read.
    pub fn open(input: &'r mut Reader<'b>) -> Result<StoredSummary<'r, 'b>, Corrupt> {
        let (format, hosts_left) = decode_head(input)?;
        Ok(StoredSummary {
            input,
            format,
            hosts_left,
        })
    }

    /// The next host, with its labels.
    pub fn next_host(&mut self) -> Result<Option<StoredHost>, Corrupt> {
        let Some(left) = self.hosts_left.checked_sub(1) else {
            return Ok(None);
        };
        self.hosts_left = left;
        let input = &mut *self.input;
        let key = (input.decode_u32()?, input.decode_u32()?);
        let mut sum = HostSum {
            windows: input.decode_u64()?,
            unmeasured: input.decode_u64()?,
            expected_ns: input.decode_u64()?,
            estimated_ns: input.decode_u64()?,
            ..HostSum::default()
        };
        sum.quality = decode_quality(input)?;
        sum.sum = decode_sum(input, 0)?;
        if self.format >= FORMAT {
            sum.pressure = PressureSum {
                covered_ns: input.decode_u64()?,
                cpu_ns: input.decode_u64()?,
                memory_ns: input.decode_u64()?,
                io_ns: input.decode_u64()?,
            };
        }
        let mut presence = Presence::default();
        for _ in 0..input.decode_count()? {
            let start = input.decode_signed()?;
            let end = start.wrapping_add(input.decode_signed()?);
            presence.spans.push((start, end));
        }
        for _ in 0..input.decode_count()? {
            presence
                .dropped
                .push((input.decode_signed()?, decode_gap(input)?));
        }
        Ok(Some((key, sum, presence)))
    }

    /// The accounts, behind hosts that were not asked for.
    pub fn accounts(mut self) -> Result<StoredAccounts<'r, 'b>, Corrupt> {
        while self.next_host()?.is_some() {}
        let left = self.input.decode_count()?;
        Ok(StoredAccounts {
            input: self.input,
            format: self.format,
            left,
        })
    }
}

impl StoredAccounts<'_, '_> {
    /// The next account, with its label set.
    pub fn next_account(&mut self) -> Result<Option<(u32, Account)>, Corrupt> {
        let Some(left) = self.left.checked_sub(1) else {
            return Ok(None);
        };
        self.left = left;
        let labels = self.input.decode_u32()?;
        Ok(Some((labels, decode_account(self.input, self.format)?)))
    }
}

impl WindowMeta {
    /// True when the kernel's accounting of the window is not known.
    fn is_unmeasured(&self) -> bool {
        let mut accounts = self.accounts.iter();
        accounts.all(|(_, account)| account.is_unmeasured())
    }

    /// For how long tasks of the host waited in it.
    pub fn pressure_sum(&self) -> PressureSum {
        let range = self.range;
        let length = range.end_unix_ns.saturating_sub(range.start_unix_ns);
        PressureSum::of(self.pressure, length.max(0).unsigned_abs())
    }

    /// Appends the window.
    pub fn encode(&self, out: &mut Vec<u8>) {
        encode_u64(out, VERSIONED + FORMAT);
        encode_u64(out, self.host.into());
        encode_u64(out, self.sequence);
        encode_signed(out, self.range.start_unix_ns);
        encode_signed(
            out,
            self.range
                .end_unix_ns
                .wrapping_sub(self.range.start_unix_ns),
        );
        encode_u64(out, self.host_labels.into());
        encode_quality(out, self.quality);
        encode_u64(out, u64::from(self.pressure.is_some()));
        if let Some(of) = self.pressure {
            for ns in [of.cpu_ns, of.memory_ns, of.io_ns] {
                encode_u64(out, ns);
            }
        }
        encode_sum(out, self.sum, 0);
        encode_u64(out, self.accounts.len() as u64);
        let mut before = 0;
        for (labels, account) in &self.accounts {
            encode_signed(out, i64::from(*labels) - before);
            before = (*labels).into();
            encode_account(out, account);
        }
        encode_ids(out, self.label_sets.iter().copied());
        encode_u64(out, u64::from(self.dropped.is_some()));
        if let Some(gap) = &self.dropped {
            encode_gap(out, gap);
        }
    }

    /// Reads what [`WindowMeta::encode`] wrote.
    pub fn decode(input: &mut Reader<'_>) -> Result<WindowMeta, Corrupt> {
        let (format, host) = decode_head(input)?;
        let sequence = input.decode_u64()?;
        let start_unix_ns = input.decode_signed()?;
        let end_unix_ns = start_unix_ns.wrapping_add(input.decode_signed()?);
        let host_labels = input.decode_u32()?;
        let quality = decode_quality(input)?;
        let pressure = match format >= FORMAT && input.decode_u64()? != 0 {
            true => Some(Pressure {
                cpu_ns: input.decode_u64()?,
                memory_ns: input.decode_u64()?,
                io_ns: input.decode_u64()?,
            }),
            false => None,
        };
        let sum = decode_sum(input, 0)?;
        let (mut accounts, mut before) = (Vec::new(), 0i64);
        for _ in 0..input.decode_count()? {
            before = before.wrapping_add(input.decode_signed()?);
            let labels = u32::try_from(before).map_err(|_| Corrupt("an id is too large"))?;
            accounts.push((labels, decode_account(input, format)?));
        }
        let label_sets = decode_ids(input)?;
        let dropped = match input.decode_u64()? {
            0 => None,
            _ => Some(decode_gap(input)?),
        };
        Ok(WindowMeta {
            host,
            sequence,
            range: TimeRange {
                start_unix_ns,
                end_unix_ns,
            },
            host_labels,
            quality,
            pressure,
            sum,
            accounts,
            label_sets,
            dropped,
        })
    }
}

/// Added to the format of a record at its start. Records of before formats start with a 32-bit
/// number instead, so they are told apart; they are of format 0.
const VERSIONED: u64 = 1 << 32;

/// Format of the records that are written: 1 has pressure and throttling. What earlier formats lack
/// is not known.
const FORMAT: u64 = 1;

/// The format of a record, and the number that it starts with.
fn decode_head(input: &mut Reader<'_>) -> Result<(u64, u32), Corrupt> {
    let first = input.decode_u64()?;
    match first.checked_sub(VERSIONED) {
        None => Ok((0, first as u32)),
        Some(format @ 1..=FORMAT) => Ok((format, input.decode_u32()?)),
        Some(_) => Err(Corrupt("a later version of the collector wrote it")),
    }
}

fn encode_ids(out: &mut Vec<u8>, ids: impl ExactSizeIterator<Item = u32>) {
    encode_u64(out, ids.len() as u64);
    let mut before = 0;
    for id in ids {
        encode_u64(out, (id - before).into());
        before = id;
    }
}

fn decode_ids(input: &mut Reader<'_>) -> Result<Vec<u32>, Corrupt> {
    let mut id = 0u32;
    (0..input.decode_count()?)
        .map(|_| {
            id = id
                .checked_add(input.decode_u32()?)
                .ok_or(Corrupt("an id is too large"))?;
            Ok(id)
        })
        .collect()
}

/// A number as it is taken from agents, of which chunks hold sums: 128 bits are enough for all of
/// them, and 64 for nearly all.
fn encode_wide(out: &mut Vec<u8>, value: i128) {
    match i64::try_from(value) {
        Ok(value) if value != i64::MIN => encode_signed(out, value),
        _ => {
            encode_signed(out, i64::MIN);
            out.extend_from_slice(&value.to_le_bytes());
        }
    }
}

fn decode_wide(input: &mut Reader<'_>) -> Result<i128, Corrupt> {
    Ok(match input.decode_signed()? {
        i64::MIN => i128::from_le_bytes(input.decode_16()?),
        value => value.into(),
    })
}

fn encode_account(out: &mut Vec<u8>, account: &Account) {
    encode_wide(out, account.ns);
    encode_wide(out, account.estimated_ns);
    encode_wide(out, account.below_ns);
    encode_wide(out, account.below_estimated_ns);
    encode_throttling(out, account);
}

/// What follows an account: nothing is known of its throttling, it was not throttled in all of its
/// time, or numbers.
const UNKNOWN: u64 = 0;
const UNTHROTTLED: u64 = 1;
const NUMBERS: u64 = 2;

fn encode_throttling(out: &mut Vec<u8>, account: &Account) {
    let of = account.throttling;
    if of == Throttling::default() {
        encode_u64(out, UNKNOWN);
    } else if of.ns == 0 && of.limit_millicores == 0 && i128::from(of.used_ns) == account.ns {
        encode_u64(out, UNTHROTTLED);
    } else {
        for number in [NUMBERS, of.ns, of.used_ns, of.limit_millicores] {
            encode_u64(out, number);
        }
    }
}

fn decode_account(input: &mut Reader<'_>, format: u64) -> Result<Account, Corrupt> {
    let mut account = Account {
        ns: decode_wide(input)?,
        estimated_ns: decode_wide(input)?,
        below_ns: decode_wide(input)?,
        below_estimated_ns: decode_wide(input)?,
        throttling: Throttling::default(),
    };
    if format >= FORMAT {
        account.throttling = match input.decode_u64()? {
            UNKNOWN => Throttling::default(),
            UNTHROTTLED => Throttling {
                used_ns: u64::try_from(account.ns).map_err(|_| Corrupt("a time is below zero"))?,
                ..Throttling::default()
            },
            NUMBERS => Throttling {
                ns: input.decode_u64()?,
                used_ns: input.decode_u64()?,
                limit_millicores: input.decode_u64()?,
            },
            _ => return Err(Corrupt("throttling is of no known kind")),
        };
    }
    Ok(account)
}

/// Numbers of a [`Quality`] in a record, by place. Another field changes what files of earlier
/// versions mean: the version of the files has to be raised with this number.
const QUALITY_NUMBERS: usize = 12;
const _: () = assert!(Quality::FIELDS.len() == QUALITY_NUMBERS);

fn encode_quality(out: &mut Vec<u8>, quality: Quality) {
    quality
        .numbers()
        .into_iter()
        .for_each(|number| encode_u64(out, number));
}

fn decode_quality(input: &mut Reader<'_>) -> Result<Quality, Corrupt> {
    let mut numbers = [0; QUALITY_NUMBERS];
    for number in &mut numbers {
        *number = input.decode_u64()?;
    }
    Ok(Quality::of_numbers(numbers))
}

fn encode_gap(out: &mut Vec<u8>, gap: &Gap) {
    encode_signed(out, gap.range.start_unix_ns);
    encode_signed(out, gap.range.end_unix_ns);
    encode_u64(out, gap.windows);
    encode_u64(out, gap.samples);
    encode_bytes(out, gap.cause.as_bytes());
}

fn decode_gap(input: &mut Reader<'_>) -> Result<Gap, Corrupt> {
    Ok(Gap {
        range: TimeRange {
            start_unix_ns: input.decode_signed()?,
            end_unix_ns: input.decode_signed()?,
        },
        windows: input.decode_u64()?,
        samples: input.decode_u64()?,
        cause: input.decode_str()?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::Value;

    #[test]
    fn a_window_and_its_summary_come_back() {
        let gap = Gap {
            range: TimeRange {
                start_unix_ns: i64::MIN,
                end_unix_ns: 5,
            },
            windows: 3,
            samples: u64::MAX,
            cause: "disk_full".into(),
        };
        let window = WindowMeta {
            host: 3,
            sequence: u64::MAX,
            range: TimeRange {
                start_unix_ns: 7,
                end_unix_ns: 17,
            },
            host_labels: 2,
            // Each field another number.
            quality: Quality::of_numbers(std::array::from_fn(|at| u64::MAX - at as u64)),
            sum: Sum {
                taken: Value {
                    count: 4,
                    weight: u64::MAX,
                },
                lost: Value {
                    count: 1,
                    weight: 0,
                },
            },
            accounts: vec![
                (
                    9,
                    Account {
                        ns: u64::MAX.into(),
                        estimated_ns: 2,
                        below_ns: -1,
                        below_estimated_ns: i64::MIN.into(),
                        throttling: Throttling {
                            ns: u64::MAX,
                            used_ns: 5,
                            limit_millicores: 200,
                        },
                    },
                ),
                (1, Account::default()),
                (
                    2,
                    Account {
                        ns: 70,
                        throttling: Throttling {
                            used_ns: 70,
                            ..Throttling::default()
                        },
                        ..Account::default()
                    },
                ),
            ],
            pressure: Some(Pressure {
                cpu_ns: 3,
                memory_ns: u64::MAX,
                io_ns: 0,
            }),
            label_sets: vec![0, 1, 2, 9],
            dropped: Some(gap),
        };
        let mut bytes = Vec::new();
        window.encode(&mut bytes);
        assert_eq!(
            WindowMeta::decode(&mut Reader::new(&bytes)).unwrap(),
            window
        );
        let mut summary = Summary::default();
        summary.add(&window);
        summary.settle();
        bytes.clear();
        summary.encode(&mut bytes);
        assert_eq!(Summary::decode(&mut Reader::new(&bytes)).unwrap(), summary);
    }

    /// The first bytes of a window as version 1 of the collector wrote it: host 3, window 5 of the
    /// time 7 to 17, labels 2, no quality, no samples, an account of label set 1 with 40 ns, one
    /// label set, nothing dropped.
    fn window_of_before() -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in [3, 5] {
            encode_u64(&mut bytes, number);
        }
        encode_signed(&mut bytes, 7);
        encode_signed(&mut bytes, 10);
        encode_u64(&mut bytes, 2);
        encode_quality(&mut bytes, Quality::default());
        encode_sum(&mut bytes, Sum::default(), 0);
        encode_u64(&mut bytes, 1);
        for number in [1, 40, 0, 0, 0] {
            encode_signed(&mut bytes, number);
        }
        encode_ids(&mut bytes, [1].into_iter());
        encode_u64(&mut bytes, 0);
        bytes
    }

    #[test]
    fn a_window_of_before_says_nothing_of_throttling_and_pressure() {
        let bytes = window_of_before();
        let mut input = Reader::new(&bytes);
        let window = WindowMeta::decode(&mut input).unwrap();
        assert!(input.is_empty());
        assert_eq!(
            (window.host, window.sequence, window.pressure),
            (3, 5, None)
        );
        let (labels, account) = window.accounts[0];
        assert_eq!((labels, account.ns), (1, 40));
        assert_eq!(account.throttling, Throttling::default());
    }

    #[test]
    fn a_summary_of_before_says_nothing_of_throttling_and_pressure() {
        let mut bytes = Vec::new();
        // A host with its numbers, a quality, no samples, no spans, nothing dropped.
        for number in [1, 3, 2, 1, 0, 40, 0] {
            encode_u64(&mut bytes, number);
        }
        encode_quality(&mut bytes, Quality::default());
        encode_sum(&mut bytes, Sum::default(), 0);
        for number in [0, 0, 1, 9] {
            encode_u64(&mut bytes, number);
        }
        for number in [40, 0, 0, 0] {
            encode_signed(&mut bytes, number);
        }
        encode_ids(&mut bytes, [9].into_iter());
        let mut input = Reader::new(&bytes);
        let summary = Summary::decode(&mut input).unwrap();
        assert!(input.is_empty());
        let (host, _) = &summary.hosts[&(3, 2)];
        assert_eq!((host.expected_ns, host.pressure.covered_ns), (40, 0));
        assert_eq!(summary.accounts[&9].throttling, Throttling::default());
    }

    #[test]
    fn a_record_of_a_later_format_is_not_read_as_another() {
        let mut bytes = Vec::new();
        encode_u64(&mut bytes, VERSIONED + FORMAT + 1);
        bytes.extend([0; 99]);
        assert!(WindowMeta::decode(&mut Reader::new(&bytes)).is_err());
        assert!(Summary::decode(&mut Reader::new(&bytes)).is_err());
    }
}
