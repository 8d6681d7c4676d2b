//! What can go wrong in a graph: bad settings, bad vectors, a full id space, a
//! damaged file. Concurrency and recall are never errors.

/// Why a call was refused. Nothing was changed when one of these is returned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// A setting is outside its range.
    #[error("{name} must be {expected}, got {got}")]
    Setting {
        /// The field of [`Params`](crate::Params).
        name: &'static str,
        /// The range that it may have.
        expected: &'static str,
        /// The value that came.
        got: u64,
    },
    /// A vector or a buffer of vectors has the wrong number of elements.
    #[error("expected {expected} elements ({what}), got {got}")]
    Length {
        /// Which buffer.
        what: &'static str,
        /// Elements expected.
        expected: u64,
        /// Elements that came.
        got: u64,
    },
    /// Two parts that belong together disagree in dimension or metric.
    #[error("{what} has {got}, but the graph has {expected}")]
    Mismatch {
        /// Which part.
        what: &'static str,
        /// What the graph has.
        expected: String,
        /// What the part has.
        got: String,
    },
    /// A vector holds NaN or an infinity.
    #[error("element {index} is {value}, not a finite number")]
    NotFinite {
        /// Position in the vector.
        index: usize,
        /// The value as text (`NaN`, `inf`, `-inf`).
        value: String,
    },
    /// A zero vector has no direction, so cosine cannot compare it.
    #[error("a zero vector has no cosine distance")]
    ZeroVector,
    /// The vectors hold no row with this id.
    #[error("row {id} is not among the {rows} rows of the vectors")]
    MissingRow {
        /// The id that was asked for.
        id: u32,
        /// Rows that there are.
        rows: u32,
    },
    /// All `u32::MAX` ids are taken.
    #[error("the table holds u32::MAX rows and takes no more")]
    Full,
    /// A graph can be frozen only once every row is in it.
    #[error("only the first {settled} of {rows} rows are in the graph")]
    NotSettled {
        /// Ids below this one are done.
        settled: u32,
        /// Rows that were to be frozen.
        rows: u32,
    },
    /// A stored graph is damaged.
    #[error("graph section {section}: {detail}")]
    Corrupt {
        /// Which part of the stored graph.
        section: &'static str,
        /// What is wrong, with its position.
        detail: String,
    },
}
