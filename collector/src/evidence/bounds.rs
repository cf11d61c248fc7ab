//! What the files of one kind of evidence may take.

/// What the files may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// All of them. Unit: bytes.
    pub bytes: u64,
    /// Those of one owner. Unit: bytes.
    pub owner_bytes: u64,
    /// Most files.
    pub count: usize,
    /// Age since they came. Unit: nanoseconds.
    pub age_ns: i64,
}
