//! Which neighbours a node is linked to: the selection heuristic of Malkov &
//! Yashunin (Algorithm 4), for a new node's own links and for the row of a node
//! that it links back from.
//!
//! A candidate is *dominated* when a chosen neighbour is nearer to it than the
//! node itself is: it can be reached through that one. Equal distances do not
//! dominate, so that copies of one vector stay linked to each other.

use crate::hit::Key;
use crate::links::{Link, RowWriter};
use crate::space::Space;

/// Chooses at most `most` neighbours from `candidates`, which come nearest
/// first. Costs about three distances per candidate.
#[inline(always)]
pub(crate) fn select<S: Space>(space: &S, candidates: &[Key], most: usize, chosen: &mut Vec<Key>) {
    chosen.clear();
    let mut rows: Vec<S::Row> = Vec::with_capacity(most);
    for &candidate in candidates {
        if chosen.len() == most {
            break;
        }
        let Some(row) = space.row(candidate.id()) else {
            continue;
        };
        if !dominated(space, row, candidate.distance(), &rows) {
            chosen.push(candidate);
            rows.push(row);
        }
    }
}

/// Whether one of `chosen` is nearer to `row` than `distance`.
#[inline(always)]
fn dominated<S: Space>(space: &S, row: S::Row, distance: f32, chosen: &[S::Row]) -> bool {
    let (fours, rest) = chosen.as_chunks::<4>();
    for four in fours {
        let [a, b, c, d] = space.between_four(row, *four);
        if a.min(b).min(c.min(d)) < distance {
            return true;
        }
    }
    for other in rest {
        if space.between(row, *other) < distance {
            return true;
        }
    }
    false
}

/// Buffers of [`link_back`].
#[derive(Default)]
pub(crate) struct Pruning {
    order: Vec<(Link, usize)>,
    keep: Vec<bool>,
}

/// Adds `new` to a node's row. A full row is selected anew among its links and
/// the new one; pinned links stay in any case. Returns whether the new link
/// stayed.
#[inline(always)]
pub(crate) fn link_back<S: Space>(space: &S, row: &RowWriter<'_>, new: Link, pruning: &mut Pruning) -> bool {
    let len = row.len();
    if len < row.capacity() {
        row.push(new);
        return true;
    }
    let Pruning { order, keep } = pruning;
    order.clear();
    order.extend(row.links().zip(0..));
    let new_slot = len;
    order.push((Link { pinned: false, ..new }, new_slot));
    order.sort_unstable_by_key(|(link, _)| Key::new(link.distance, link.id));
    keep.clear();
    keep.resize(len + 1, false);
    let mut room = row.capacity() - order.iter().filter(|(link, _)| link.pinned).count();
    let mut rows: Vec<S::Row> = Vec::with_capacity(row.capacity());
    for &(link, slot) in &*order {
        if !link.pinned && room == 0 {
            continue;
        }
        let Some(place) = space.row(link.id) else {
            continue;
        };
        if link.pinned {
            keep[slot] = true;
            rows.push(place);
        } else if !dominated(space, place, link.distance, &rows) {
            keep[slot] = true;
            rows.push(place);
            room -= 1;
        }
    }
    // Nothing dominates anything and all fits: cannot be, the row was full; so
    // something is dropped, if only the farthest.
    row.retain(&keep[..len]);
    if keep[new_slot] {
        row.push(new);
    }
    keep[new_slot]
}

/// Puts a pinned link into a row whatever it displaces: the farthest link that
/// is not pinned. The row must have room for one more pin.
pub(crate) fn link_pinned(row: &RowWriter<'_>, link: Link) {
    debug_assert!(link.pinned);
    if let Some(slot) = row.position(link.id) {
        row.set_pinned(slot, true);
        return;
    }
    if row.len() < row.capacity() {
        row.push(link);
        return;
    }
    let farthest =
        row.links().zip(0..).filter(|(old, _)| !old.pinned).max_by(|(a, _), (b, _)| a.distance.total_cmp(&b.distance));
    let (_, slot) = farthest.expect("at most half of a row, and one, is pinned");
    row.set(slot, link);
}
