//! What a thread needs to search or insert, kept between calls: buffers sized to
//! one traversal. Nothing in here grows with the graph and stays grown.

use crate::beam::Beam;
use crate::codes::CodeQuery;
use crate::distance::Isa;
use crate::hit::Key;
use crate::neighbors::Pruning;
use crate::visited::Visited;

/// Beams wider than this give their memory back after use.
const KEPT_BEAM: usize = 1 << 14;

/// Reusable buffers of one thread, for any graph and any call. About 20 KB after
/// usual searches; at most about 1 MB is kept after an unusually wide one.
pub struct Scratch {
    pub(crate) isa: Isa,
    /// A row that is being inserted, as queries are prepared.
    pub(crate) query: Vec<f32>,
    pub(crate) work: Work,
}

impl Scratch {
    /// Buffers that use the best instructions of this CPU.
    pub fn new() -> Self {
        Self::with_isa(Isa::detect())
    }

    /// Distances from a query, or from a row that was inserted, that calls with
    /// this scratch have evaluated while walking, since it was made.
    pub fn evaluations(&self) -> u64 {
        self.work.evaluations
    }

    /// Buffers that use `isa`, which tests and benches may force lower.
    pub fn with_isa(isa: Isa) -> Self {
        Self { isa, query: Vec::new(), work: Work::new() }
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

/// The buffers of a traversal and of what follows it in an insert.
pub(crate) struct Work {
    pub(crate) beam: Beam,
    pub(crate) visited: Visited,
    /// Links of the node that is being expanded.
    pub(crate) links: Vec<u32>,
    /// Beside them, how far they are.
    pub(crate) distances: Vec<f32>,
    /// Beside them, their slots in `visited`.
    pub(crate) slots: Vec<u32>,
    /// Neighbours selected for the new node, by level.
    pub(crate) chosen: Vec<Vec<Key>>,
    /// Neighbours that are linked back only once the new node is attached.
    pub(crate) deferred: Vec<Key>,
    pub(crate) pruning: Pruning,
    /// The query, or the row that is being inserted, as codes are compared with.
    pub(crate) code_query: CodeQuery,
    /// A node that others are compared with.
    pub(crate) held: CodeQuery,
    /// A vector on its way to its code.
    pub(crate) rotated: Vec<f32>,
    /// What a traversal by codes found, while it is measured again.
    pub(crate) coded: Vec<Key>,
    /// Counts nodes that traversals measured.
    pub(crate) evaluations: u64,
}

impl Work {
    fn new() -> Self {
        Self {
            beam: Beam::new(),
            visited: Visited::new(),
            links: Vec::new(),
            slots: Vec::new(),
            distances: Vec::new(),
            chosen: Vec::new(),
            deferred: Vec::new(),
            pruning: Pruning::default(),
            code_query: CodeQuery::default(),
            held: CodeQuery::default(),
            rotated: Vec::new(),
            coded: Vec::new(),
            evaluations: 0,
        }
    }

    /// Lets go of what an unusually wide traversal needed.
    pub(crate) fn settle(&mut self) {
        self.beam.shrink(KEPT_BEAM);
    }
}
