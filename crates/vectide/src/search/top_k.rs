//! The k nearest of several sources' nearest.
//!
//! In: each source's hits, ascending. Out: the k nearest of all, each with its source. Called by `exec`. Invariant:
//! ascending by distance; equal distances in source order, so that an answer does not depend on timing.

use crate::rows::Hit;

/// A hit and the source that it stands in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SourcedHit {
    /// Position of the source in the snapshot's view.
    pub(crate) source: usize,
    /// Row offset in that source.
    pub(crate) offset: u32,
    /// Distance.
    pub(crate) distance: f32,
}

/// Merges ascending lists into the `k` nearest.
pub(crate) fn merge(lists: &[Vec<Hit>], k: usize) -> Vec<SourcedHit> {
    let mut all: Vec<SourcedHit> = (lists.iter().enumerate())
        .flat_map(|(source, hits)| {
            hits.iter().take(k).map(move |hit| SourcedHit { source, offset: hit.id, distance: hit.distance })
        })
        .collect();
    all.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.source.cmp(&b.source)).then(a.offset.cmp(&b.offset)));
    all.truncate(k);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_of_all_sources_come_first() {
        let hit = |distance, id| Hit { distance, id };
        let lists = [vec![hit(0.1, 4), hit(0.5, 2)], vec![], vec![hit(0.1, 1), hit(0.3, 9), hit(0.9, 0)]];
        let merged: Vec<_> = merge(&lists, 3).iter().map(|h| (h.source, h.offset)).collect();
        assert_eq!(merged, [(0, 4), (2, 1), (2, 9)]);
        assert_eq!(merge(&lists, 100).len(), 5);
    }
}
