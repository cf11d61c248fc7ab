//! Tables of numbers: [`rows!`](crate::rows) reads numbers stored elsewhere,
//! [`counted!`](crate::counted) declares and stores its own.

use super::{Family, Kind, LabelSet, Value};
use std::borrow::Cow;

/// A row of a table: how a number is read from `S`.
#[derive(Debug)]
pub struct Row<S> {
    /// Name of the family.
    pub name: &'static str,
    /// A sentence on it.
    pub help: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Reads it; on the thread that asks.
    pub read: fn(&S) -> Vec<(LabelSet, Value)>,
}

/// Reads the rows of a table.
pub fn gather<S>(rows: &[Row<S>], of: &S) -> impl Iterator<Item = Family> {
    rows.iter().map(|row| Family {
        name: Cow::Borrowed(row.name),
        help: row.help.trim_ascii(),
        kind: row.kind,
        readings: (row.read)(of),
    })
}

/// The reading of a family without labels.
pub fn one(value: impl Into<Value>) -> Vec<(LabelSet, Value)> {
    vec![(LabelSet::new(), value.into())]
}

/// The readings of a family with one label.
pub fn each<L: Into<Cow<'static, str>>, V: Into<Value>>(
    label: &'static str,
    values: impl IntoIterator<Item = (L, V)>,
) -> Vec<(LabelSet, Value)> {
    let values = values.into_iter();
    values
        .map(|(of, value)| (vec![(label.into(), of.into())], value.into()))
        .collect()
}

/// A table of [`Row`]s: sentence, kind, name, and how the number is read. A label in braces says
/// that the reader gives pairs of its value and a number; `{..}` that it gives label sets.
///
/// ```
/// struct Spool { full: bool, dropped: [(&'static str, u64); 2] }
/// metrics::rows! { SPOOL: Spool;
///     /// 1 while the spool is full.
///     Gauge fp_spool_full = |s| u64::from(s.full);
///     /// Windows dropped, by cause.
///     Counter fp_spool_dropped_total{cause} = |s| s.dropped;
/// }
/// let spool = Spool { full: true, dropped: [("age", 3), ("size", 0)] };
/// let families = metrics::gather(SPOOL, &spool).collect();
/// let text = metrics::encode(families, metrics::Format::Text);
/// assert!(text.contains("fp_spool_dropped_total{cause=\"age\"} 3\n"));
/// ```
#[macro_export]
macro_rules! rows {
    ($table:ident: $state:ty; $(
        $(#[doc = $help:literal])+
        $kind:ident $name:ident $({$($label:tt)+})? = |$of:pat_param| $read:expr;
    )+) => {
        const $table: &[$crate::Row<$state>] = &[$($crate::Row {
            name: stringify!($name),
            help: concat!($($help),+),
            kind: $crate::Kind::$kind,
            read: |$of: &$state| $crate::__readings!({$($($label)+)?} $read),
        },)+];
    };
}

/// A struct of numbers that are counted in place, and how they are read: sentence, kind, name, and
/// the field; with a label the fields, each after its value. A histogram's field has its bounds.
///
/// ```
/// metrics::counted! {
///     /// What the spool does.
///     pub struct Spool;
///     /// Windows dropped, by cause.
///     Counter fp_spool_dropped_total{cause} = "age" dropped_by_age, "size" dropped_by_size;
///     /// Time of a write.
///     Histogram fp_spool_write_duration_seconds = write [metrics::DISK_SECONDS];
/// }
/// let spool = Spool::default();
/// spool.dropped_by_age.inc();
/// spool.write.observe(0.002);
/// assert_eq!(spool.families().len(), 2);
/// ```
#[macro_export]
macro_rules! counted {
    ($(#[$doc:meta])* $vis:vis struct $struct:ident; $(
        $(#[doc = $help:literal])+
        $kind:ident $name:ident $({$label:ident})? =
        $($($value:literal)? $field:ident $([$bounds:expr])?),+;
    )+) => {
        $(#[$doc])*
        #[derive(Debug)]
        $vis struct $struct {$($(
            #[doc = concat!("`", stringify!($name), "`" $(, " of ", $value)?, ".")]
            pub $field: $crate::__number!($kind),
        )+)+}

        impl Default for $struct {
            fn default() -> $struct {
                $struct {$($($field: $crate::__initial!($($bounds)?),)+)+}
            }
        }

        impl $struct {
            /// Reads every number.
            $vis fn families(&self) -> Vec<$crate::Family> {
                vec![$($crate::Family {
                    name: stringify!($name).into(),
                    help: concat!($($help),+).trim_ascii(),
                    kind: $crate::Kind::$kind,
                    readings: $crate::__fields!(self, {$($label)?} $($($value)? $field),+),
                },)+]
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __readings {
    ({} $read:expr) => {
        $crate::one($read)
    };
    ({..} $read:expr) => {
        $read
    };
    ({$label:ident} $read:expr) => {
        $crate::each(stringify!($label), $read)
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __fields {
    ($of:ident, {} $field:ident) => {
        $crate::one(&$of.$field)
    };
    ($of:ident, {$label:ident} $($value:literal $field:ident),+) => {
        $crate::each(stringify!($label), [$(($value, &$of.$field)),+])
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __number {
    (Gauge) => {
        $crate::Gauge
    };
    (Histogram) => {
        $crate::Histogram
    };
    ($counter:ident) => {
        $crate::Counter
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __initial {
    () => {
        Default::default()
    };
    ($bounds:expr) => {
        $crate::histogram($bounds)
    };
}
