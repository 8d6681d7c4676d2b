//! The settings of a graph, fixed for its life, and what follows from them:
//! a node's level is a hash of (seed, id), so that a build replays.

use crate::codes::{Codes, MAX_DIM};
use crate::error::GraphError;

/// How far apart two vectors are. Smaller is nearer, for all three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Metric {
    /// Squared Euclidean distance.
    L2,
    /// `1 - cos`, in `0..=2`.
    Cosine,
    /// `1 - dot`, which may be negative.
    Dot,
}

impl Metric {
    /// Whether distances can be below zero.
    pub(crate) fn is_signed(self) -> bool {
        self == Metric::Dot
    }

    /// The byte that stands for the metric in a stored graph.
    pub(crate) fn code(self) -> u8 {
        match self {
            Metric::L2 => 0,
            Metric::Cosine => 1,
            Metric::Dot => 2,
        }
    }

    /// The metric that a stored byte stands for.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Metric::L2),
            1 => Some(Metric::Cosine),
            2 => Some(Metric::Dot),
            _ => None,
        }
    }
}

/// The highest level a node can have: 16^15 nodes would be needed to miss it.
pub(crate) const MAX_LEVEL: u8 = 15;

/// The settings of one graph (names as in Malkov & Yashunin, 2018).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Params {
    /// Elements per vector, 1 to 1,048,576.
    pub dim: u32,
    /// What the graph is built for; searches use the same.
    pub metric: Metric,
    /// Links per node on the levels above 0, and chosen per insert on every
    /// level: 2 to 128. Level 0 holds twice as many.
    pub m: u16,
    /// Candidates that an insert looks at, 1 to 65,536.
    pub ef_construction: u32,
    /// Draws the nodes' levels: the same seed and ids give the same levels.
    pub seed: u64,
    /// What distances are measured with while walking.
    pub codes: Codes,
}

impl Params {
    /// Settings that serve most tables: `m` 16, `ef_construction` 100, seed 0, no codes.
    pub fn new(dim: u32, metric: Metric) -> Self {
        Self { dim, metric, m: 16, ef_construction: 100, seed: 0, codes: Codes::None }
    }

    /// Links per node on level 0: twice `m`.
    pub fn m0(&self) -> usize {
        2 * usize::from(self.m)
    }

    /// Refuses what is out of range; repairs nothing.
    ///
    /// # Errors
    /// [`GraphError::Setting`] names the field, its range and what came.
    pub fn validate(&self) -> Result<(), GraphError> {
        let within = |name, expected, got: u64, low, high| {
            if (low..=high).contains(&got) { Ok(()) } else { Err(GraphError::Setting { name, expected, got }) }
        };
        within("dim", "1 to 1048576", self.dim.into(), 1, 1 << 20)?;
        within("m", "2 to 128", self.m.into(), 2, 128)?;
        if self.codes != Codes::None {
            within("dim", "1 to 65536 with codes", self.dim.into(), 1, MAX_DIM.into())?;
        }
        within("ef_construction", "1 to 65536", self.ef_construction.into(), 1, 1 << 16)
    }

    /// The level of node `id`: at least `l` with probability `m^-l`.
    pub(crate) fn level(&self, id: u32) -> u8 {
        let draw = mix(self.seed ^ mix(u64::from(id)));
        let mut threshold = u64::MAX / u64::from(self.m);
        let mut level = 0;
        while level < MAX_LEVEL && draw < threshold {
            level += 1;
            threshold /= u64::from(self.m);
        }
        level
    }
}

/// A bijective scramble of 64 bits (the finalizer of splitmix64).
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_level_holds_about_one_in_m_of_the_level_below() {
        let params = Params { seed: 7, ..Params::new(8, Metric::L2) };
        let mut histogram = [0u32; 16];
        for id in 0..100_000 {
            histogram[usize::from(params.level(id))] += 1;
        }
        let above: u32 = histogram[1..].iter().sum();
        assert!((5_800..6_700).contains(&above), "1/16 of 100,000, got {above}");
        let second: u32 = histogram[2..].iter().sum();
        assert!((300..480).contains(&second), "1/256 of 100,000, got {second}");
    }

    #[test]
    fn levels_replay_with_the_seed_and_differ_without() {
        let one = Params { seed: 1, ..Params::new(8, Metric::L2) };
        let two = Params { seed: 2, ..one };
        let levels = |p: Params| (0..4_096).map(|id| p.level(id)).collect::<Vec<_>>();
        assert_eq!(levels(one), levels(one));
        assert_ne!(levels(one), levels(two));
    }

    #[test]
    fn settings_out_of_range_are_refused_by_name() {
        let good = Params::new(8, Metric::Dot);
        assert_eq!(good.validate(), Ok(()));
        for (bad, name) in [
            (Params { dim: 0, ..good }, "dim must be 1 to 1048576, got 0"),
            (Params { m: 1, ..good }, "m must be 2 to 128, got 1"),
            (Params { m: 129, ..good }, "m must be 2 to 128, got 129"),
            (Params { ef_construction: 0, ..good }, "ef_construction must be 1 to 65536, got 0"),
        ] {
            assert_eq!(bad.validate().expect_err("out of range").to_string(), name);
        }
    }
}
