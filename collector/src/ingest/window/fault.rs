//! Violations of the protocol by an agent.

/// The agent breaks the protocol; its stream ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Columns that belong together differ in length.
    #[error("columns of `{table}` differ in length")]
    Columns {
        /// Name of the table.
        table: &'static str,
    },
    /// An id or number that was never given a meaning.
    #[error("`{table}` has no row `{id}`")]
    Id {
        /// Which table.
        table: &'static str,
        /// The id.
        id: u32,
    },
    /// Names and values do not come in pairs.
    #[error("a label set has a label without a value")]
    OddLabels,
    /// The bytes of hashes are incomplete.
    #[error("`stack_hashes` has {bytes} bytes, which is not a multiple of 16")]
    TornHash {
        /// How many there are.
        bytes: usize,
    },
    /// The dictionary of the stream is full.
    #[error("the dictionary has more than `{limit}` {what}: start a new one")]
    DictionaryFull {
        /// `label sets` or `stacks`.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
    /// A part of another window before the last part of the one before.
    #[error("window `{found}` starts before the last part of window `{open}`")]
    Interleaved {
        /// The window that is not finished.
        open: u64,
        /// The one that came.
        found: u64,
    },
    /// `new_dictionary` within a window.
    #[error("window `{sequence}` starts a new dictionary after its first part")]
    LateDictionary {
        /// The window.
        sequence: u64,
    },
    /// Facts in another part than the last, or none in the last.
    #[error("window `{sequence}` must have facts in its last part, and only there")]
    Facts {
        /// The window.
        sequence: u64,
    },
}
