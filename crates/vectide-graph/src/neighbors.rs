//! Which neighbours a node is linked to: the selection heuristic of Malkov &
//! Yashunin (Algorithm 4), for a new node's own links and for the row of a node
//! that it links back from.
//!
//! A candidate is *dominated* when a chosen neighbour is nearer to it than the
//! node itself is: it can be reached through that one. Equal distances do not
//! dominate, so that copies of one vector stay linked to each other.

use crate::codes::CodeQuery;
use crate::hit::Key;
use crate::links::{Link, RowWriter};
use crate::search::measure_one;
use crate::space::Space;
use crate::visited::Visited;

/// Chooses at most `most` neighbours from `candidates`, which come nearest
/// first. Costs about three distances per candidate.
#[inline(always)]
pub(crate) fn select<S: Space>(
    space: &S,
    candidates: &[Key],
    most: usize,
    held: &mut CodeQuery,
    chosen: &mut Vec<Key>,
) {
    chosen.clear();
    let mut rows: Vec<S::Row> = Vec::with_capacity(most);
    for &candidate in candidates {
        if chosen.len() == most {
            break;
        }
        let Some(row) = space.row(candidate.id()) else {
            continue;
        };
        if rows.is_empty() || !space.any_nearer(row, candidate.distance(), &rows, held) {
            chosen.push(candidate);
            rows.push(row);
        }
    }
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
pub(crate) fn link_back<S: Space>(
    space: &S,
    row: &RowWriter<'_>,
    new: Link,
    pruning: &mut Pruning,
    held: &mut CodeQuery,
) -> bool {
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
        } else if rows.is_empty() || !space.any_nearer(place, link.distance, &rows, held) {
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

/// [`link_back`] on level 0, right after the traversal for the new node: decides
/// from distances that are known already, and evaluates almost none.
///
/// The traversal expanded every neighbour that was selected from its beam, so it
/// has measured how far the new node is from all nodes in the row. Each link keeps
/// how far it is from the row's node, and whether a nearer one dominates it. With
/// those three, the new link's part in the row is decided exactly; what two older
/// links are to each other was decided when the later one came.
#[inline(always)]
pub(crate) fn link_back_known<S: Space>(
    space: &S,
    query: &S::Query,
    row: &RowWriter<'_>,
    mut new: Link,
    visited: &Visited,
    pruning: &mut Pruning,
) -> bool {
    let len = row.len();
    let keep = &mut pruning.keep;
    keep.clear();
    let mut leaving = 0;
    let mut farthest: Option<(f32, usize)> = None;
    for slot in 0..len {
        let link = row.get(slot);
        let apart = match visited.distance(link.id) {
            Some(distance) => distance,
            // A link that another thread added meanwhile.
            None => measure_one(space, query, link.id),
        };
        let mut dominated = link.dominated;
        if link.distance <= new.distance {
            new.dominated |= apart < new.distance;
        } else if apart < link.distance && !dominated {
            dominated = true;
            row.set_dominated(slot, true);
        }
        let leaves = dominated && !link.pinned;
        leaving += usize::from(leaves);
        keep.push(!leaves);
        if !link.pinned && farthest.is_none_or(|(distance, _)| link.distance > distance) {
            farthest = Some((link.distance, slot));
        }
    }
    if len < row.capacity() {
        row.push(new);
        return true;
    }
    if leaving > 0 {
        row.retain(keep);
    }
    match farthest {
        _ if new.dominated => false,
        _ if leaving > 0 => {
            row.push(new);
            true
        }
        Some((distance, slot)) if new.distance < distance => {
            row.set(slot, new);
            true
        }
        _ => false,
    }
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
