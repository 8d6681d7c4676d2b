//! The traversal: a query walks a graph's links towards its nearest nodes. The
//! same code searches live graphs and mapped ones, and finds a new node's
//! candidates.

use crate::beam::Beam;
use crate::codes::{Code, Coded, Codes, Encoder, Int4, Int8};
use crate::distance::{Kernel, Task};
use crate::hit::{Hit, Key};
use crate::params::Params;
use crate::query::Query;
use crate::scratch::{Scratch, Work};
use crate::space::{Exact, Space};
use crate::spread::Spread;
use crate::vectors::Vectors;

pub(crate) mod sealed {
    use crate::codes::Encoder;

    /// Only this crate's graphs can be traversed.
    pub trait View: Send + Sync {
        /// The node to start from.
        fn entry_point(&self) -> Option<u32>;
        /// The level of a node; 0 for an id that is not one.
        fn level(&self, id: u32) -> u8;
        /// Appends a node's links on a level, each at least once.
        fn read_links(&self, level: u8, id: u32, out: &mut Vec<u32>);
        /// Asks for the cache lines of a node's level-0 links.
        fn prefetch_links(&self, id: u32);
        /// Ids that may be nodes are below this one.
        fn end(&self) -> u32;
        /// Whether the id is a node.
        fn is_node(&self, id: u32) -> bool;
        /// What encodes its rows, if it has codes.
        fn encoder(&self) -> Option<&Encoder>;
        /// The code of a node, as long as the encoder says.
        fn code(&self, id: u32) -> Option<&[u8]>;
    }
}

/// A graph that can be searched: [`Graph`](crate::Graph) or
/// [`MappedGraph`](crate::MappedGraph).
pub trait GraphView: sealed::View {
    /// What it was built with.
    fn params(&self) -> &Params;
}

/// Whether a row may be a hit.
pub(crate) type Accept<'a> = &'a dyn Fn(u32) -> bool;

/// Finds the `k` accepted rows nearest to `query`, ascending.
///
/// `ef` is how many accepted candidates are followed up (at least `k`): more find
/// more of the true neighbours and cost more. Rows that `accept` refuses are
/// walked through but take no place, so `k` hits come back whenever `k` accepted
/// nodes are in the graph, at worst after a walk through all of it. `accept` is
/// asked at most once per node.
///
/// Runs beside any number of inserts, takes no lock, and sees every node whose
/// insert had returned.
///
/// # Panics
/// If graph, vectors and query differ in dimension or metric.
pub fn search<G: GraphView, V: Vectors>(
    graph: &G,
    vectors: &V,
    query: &Query,
    k: usize,
    ef: usize,
    accept: &impl Fn(u32) -> bool,
    scratch: &mut Scratch,
) -> Vec<Hit> {
    let params = graph.params();
    assert_eq!(query.metric(), params.metric, "the query was prepared for another metric");
    assert_eq!(query.dim(), params.dim, "the query is of another dimension than the graph");
    assert_eq!(vectors.dim(), params.dim as usize, "the vectors are of another dimension");
    if k == 0 {
        return Vec::new();
    }
    let isa = scratch.isa;
    let work = &mut scratch.work;
    let ef = ef.max(k);
    if graph.encoder().is_some() {
        isa.run(CodedSearch { graph, query, ef, accept, work });
        if !isa.run(Rerank { vectors, query, k, ef, work }) {
            isa.run(Search { graph, vectors, query, ef, accept, work });
        }
    } else {
        isa.run(Search { graph, vectors, query, ef, accept, work });
    }
    let hits = work.beam.keys().iter().take(k).map(|key| key.hit()).collect();
    work.settle();
    hits
}

/// How many of the nearest by code are measured again at least, and how many more
/// at a time. Thirty were enough on every set that was measured (decision 0006).
fn survivors(k: usize) -> usize {
    (2 * k).max(30)
}
const MORE_SURVIVORS: usize = 32;

/// Deviations of the codes' error by which what is left must be too far, and by
/// which what lies beyond the beam must be: there it costs another walk to be more
/// certain.
const CERTAIN: f32 = 3.0;
const CERTAIN_BEYOND: f32 = 2.0;

/// A search by exact distances.
struct Search<'a, G, V> {
    graph: &'a G,
    vectors: &'a V,
    query: &'a Query,
    ef: usize,
    accept: Accept<'a>,
    work: &'a mut Work,
}

impl<G: GraphView, V: Vectors> Task for Search<'_, G, V> {
    type Output = ();

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) {
        let Self { graph, vectors, query, ef, accept, work } = self;
        let space = Exact::new(kernel, query.metric(), vectors);
        search_level_0(graph, &space, query.values(), ef, accept, work);
    }
}

/// A search by codes. It knows nothing of the vectors, so it is compiled once for
/// all types of them.
struct CodedSearch<'a, G> {
    graph: &'a G,
    query: &'a Query,
    ef: usize,
    accept: Accept<'a>,
    work: &'a mut Work,
}

impl<G: GraphView> Task for CodedSearch<'_, G> {
    type Output = ();

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) {
        match self.graph.encoder().map(Encoder::codes) {
            Some(Codes::Int8) => self.by::<K, Int8>(kernel),
            Some(Codes::Int4) => self.by::<K, Int4>(kernel),
            Some(Codes::None) | None => unreachable!("a graph with an encoder has codes"),
        }
    }
}

impl<G: GraphView> CodedSearch<'_, G> {
    #[inline(always)]
    fn by<K: Kernel, C: Code>(self, kernel: K) {
        let Self { graph, query, ef, accept, work } = self;
        let encoder = graph.encoder().expect("checked by the caller");
        let mut code_query = std::mem::take(&mut work.code_query);
        encoder.prepare::<C>(encoder.rotate(kernel, query.values(), &mut work.rotated), &mut code_query);
        let space = Coded::<K, C, G>::new(kernel, graph, encoder);
        search_level_0(graph, &space, &code_query, ef, accept, work);
        work.code_query = code_query;
    }
}

/// Leaves in the beam the `ef` accepted nodes nearest to `query`.
#[inline(always)]
fn search_level_0<G: GraphView, S: Space>(
    graph: &G,
    space: &S,
    query: &S::Query,
    ef: usize,
    accept: Accept<'_>,
    work: &mut Work,
) {
    let Some(entry) = graph.entry_point() else {
        work.beam.reset(ef);
        return;
    };
    let start = descend(graph, space, query, entry, 0, work);
    traverse(graph, space, query, 0, &[start], ef, Some(accept), work);
}

/// Measures the nodes of the beam again, exactly, from the nearest on, until the
/// others are too far to matter: farther by code than the `k`th by three times the
/// error that was seen. Leaves in the beam those that have a vector.
///
/// Returns false if the beam ends before that. Then the candidates differ by less
/// than codes can tell (copies, or small differences between rows that are far
/// from zero), and only exact distances find the nearest.
struct Rerank<'a, V> {
    vectors: &'a V,
    query: &'a Query,
    k: usize,
    ef: usize,
    work: &'a mut Work,
}

impl<V: Vectors> Task for Rerank<'_, V> {
    type Output = bool;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> bool {
        let Self { vectors, query, k, ef, work } = self;
        let space = Exact::new(kernel, query.metric(), vectors);
        let Work { beam, links, coded, .. } = work;
        coded.clear();
        coded.extend_from_slice(beam.keys());
        beam.reset(coded.len());
        // Near the end of the beam nothing is certain, whatever measures.
        let rank = k.min(coded.len().div_ceil(2));
        let mut errors = Spread::default();
        let (mut done, mut resolved) = (0, true);
        let mut next = survivors(k).min(coded.len());
        while done < next {
            links.clear();
            for key in &coded[done..next] {
                links.push(key.id());
            }
            let by_code = &coded[done..next];
            measure(&space, query.values(), links, |at, id, distance| {
                errors.add(by_code[at].distance() - distance);
                beam.offer(Key::new(distance, id));
            });
            done = next;
            // Only a damaged graph has so many nodes without a vector.
            let Some(wanted) = beam.keys().get(rank - 1) else { return true };
            let left = coded[done - 1].distance() - errors.mean() - wanted.distance();
            let left = left + f32::EPSILON * wanted.distance().abs();
            if left >= CERTAIN * errors.deviation() {
                return true;
            }
            resolved = left >= CERTAIN_BEYOND * errors.deviation();
            next = (done + MORE_SURVIVORS).min(coded.len());
        }
        resolved || coded.len() < ef
    }
}

/// Walks greedily from `entry` down to the level above `level`, and returns the
/// nearest node found there.
#[inline(always)]
pub(crate) fn descend<G: sealed::View, S: Space>(
    graph: &G,
    space: &S,
    query: &S::Query,
    entry: u32,
    level: u8,
    work: &mut Work,
) -> Key {
    // An entry point without a vector can only come from a damaged graph; its
    // links still lead on.
    let mut best = Key::new(measure_one(space, query, entry), entry);
    for level in (level + 1..=graph.level(entry)).rev() {
        loop {
            let from = best;
            work.links.clear();
            graph.read_links(level, from.id(), &mut work.links);
            measure(space, query, &work.links, |_, id, distance| {
                best = best.min(Key::new(distance, id));
            });
            if best == from {
                break;
            }
        }
    }
    best
}

/// Collects in `work.beam` the `ef` accepted nodes on `level` nearest to `query`
/// (Algorithm 2), starting from `starts`. `work.visited` holds the distances of
/// all nodes that were measured.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "the arguments of Algorithm 2, and buffers")]
pub(crate) fn traverse<G: sealed::View, S: Space>(
    graph: &G,
    space: &S,
    query: &S::Query,
    level: u8,
    starts: &[Key],
    ef: usize,
    accept: Option<Accept<'_>>,
    work: &mut Work,
) {
    let Work { beam, visited, links, slots, distances, evaluations, .. } = work;
    beam.reset(ef);
    visited.reset(16 * ef);
    visited.reserve(starts.len());
    for &start in starts {
        let Some(slot) = visited.insert(start.id()) else { continue };
        visited.set_distance(slot, start.id(), start.distance());
        if space.row(start.id()).is_some() {
            offer(beam, start, accept);
        } else {
            beam.offer_rejected(start);
        }
    }
    while let Some(id) = beam.pop() {
        links.clear();
        graph.read_links(level, id, links);
        visited.insert_all(links, slots);
        *evaluations += links.len() as u64;
        if level == 0
            && let Some(next) = beam.peek_accepted()
        {
            graph.prefetch_links(next.id());
        }
        distances.clear();
        distances.resize(links.len(), f32::NAN);
        measure(space, query, links, |at, _, distance| distances[at] = distance);
        for at in 0..links.len() {
            let (id, distance) = (links[at], distances[at]);
            // NaN without a vector, and then it is not nearer than anything.
            visited.set_distance(slots[at], id, distance);
            if distance <= beam.bound() {
                offer(beam, Key::new(distance, id), accept);
            }
        }
    }
}

#[inline(always)]
fn offer(beam: &mut Beam, key: Key, accept: Option<Accept<'_>>) {
    if accept.is_none_or(|accept| accept(key.id())) {
        beam.offer(key);
    } else {
        beam.offer_rejected(key);
    }
}

/// Nodes measured together.
const BATCH: usize = 32;

/// How far one node is; a node without a vector is as far as can be.
#[inline(always)]
pub(crate) fn measure_one<S: Space>(space: &S, query: &S::Query, id: u32) -> f32 {
    match space.row(id) {
        Some(row) => space.distance(query, row),
        None => f32::MAX,
    }
}

/// Measures how far `ids` are from `query`, four at a time, the next rows on
/// their way meanwhile. `each` gets place, id and distance. Ids without a vector
/// are passed over.
#[inline(always)]
pub(crate) fn measure<S: Space>(space: &S, query: &S::Query, ids: &[u32], mut each: impl FnMut(usize, u32, f32)) {
    let ahead = space.ahead();
    let mut before = 0;
    for batch in ids.chunks(BATCH) {
        let mut rows = [S::Row::default(); BATCH];
        let mut places = [0usize; BATCH];
        let mut count = 0;
        for (at, &id) in batch.iter().enumerate() {
            if let Some(row) = space.row(id) {
                if count < ahead {
                    space.prefetch(row);
                }
                rows[count] = row;
                places[count] = at;
                count += 1;
            }
        }
        let mut at = 0;
        while at + 4 <= count {
            for row in &rows[(at + ahead).min(count)..(at + ahead + 4).min(count)] {
                space.prefetch(*row);
            }
            let four = [rows[at], rows[at + 1], rows[at + 2], rows[at + 3]];
            let distances = space.distance_four(query, four);
            for (lane, distance) in distances.into_iter().enumerate() {
                let place = places[at + lane];
                each(before + place, batch[place], distance);
            }
            at += 4;
        }
        while at < count {
            let place = places[at];
            each(before + place, batch[place], space.distance(query, rows[at]));
            at += 1;
        }
        before += batch.len();
    }
}
