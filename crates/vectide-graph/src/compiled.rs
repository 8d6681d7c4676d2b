//! The generic entry points for the vectors that the engine keeps, compiled here.
//!
//! A generic function is compiled where it is called, with the caller's optimization: the engine's unoptimized test
//! builds would crawl, and every one of them would compile all kernels again. Calls through [`Compiled`] reach code
//! that was compiled with this crate.

use crate::base::{BaseGraph, BaseLinks, BaseRows, BaseWriter};
use crate::distance::Element;
use crate::error::GraphError;
use crate::exact::exact;
use crate::graph::Graph;
use crate::hit::Hit;
use crate::mapped::MappedGraph;
use crate::query::Query;
use crate::repair::RepairReport;
use crate::scratch::Scratch;
use crate::search::search;
use crate::vectors::{ChunkedVectors, VectorTable};
use half::f16;
use std::ops::Range;

/// An element type with compiled entry points: `f32` and [`struct@f16`].
pub trait Compiled: Element {
    /// [`Graph::insert`].
    ///
    /// # Errors
    /// Those of [`Graph::insert`].
    fn insert(graph: &Graph, vectors: &VectorTable<Self>, id: u32, scratch: &mut Scratch) -> Result<bool, GraphError>;

    /// [`Graph::repair`].
    fn repair(graph: &Graph, vectors: &VectorTable<Self>, scratch: &mut Scratch) -> RepairReport;

    /// [`search`](crate::search()) of a live graph.
    fn search_live(
        of: (&Graph, &VectorTable<Self>),
        query: &Query,
        k: usize,
        ef: usize,
        accept: &dyn Fn(u32) -> bool,
        scratch: &mut Scratch,
    ) -> Vec<Hit>;

    /// [`search`](crate::search()) of a stored graph.
    fn search_stored(
        of: (&MappedGraph, &ChunkedVectors<Self>),
        query: &Query,
        k: usize,
        ef: usize,
        accept: &dyn Fn(u32) -> bool,
        scratch: &mut Scratch,
    ) -> Vec<Hit>;

    /// [`search`](crate::search()) of a base.
    fn search_base(
        of: (&BaseRows<Self>, &dyn BaseLinks),
        query: &Query,
        k: usize,
        ef: usize,
        accept: &dyn Fn(u32) -> bool,
        scratch: &mut Scratch,
    ) -> Vec<Hit>;

    /// [`BaseWriter::insert`].
    ///
    /// # Errors
    /// Those of [`BaseWriter::insert`].
    fn merge(writer: &mut BaseWriter<'_, Self>, node: u32, scratch: &mut Scratch) -> Result<bool, GraphError>;

    /// [`exact`](crate::exact()) over a table.
    fn scan_live(
        vectors: &VectorTable<Self>,
        query: &Query,
        ids: Range<u32>,
        accept: &dyn Fn(u32) -> bool,
        k: usize,
        scratch: &mut Scratch,
    ) -> Vec<Hit>;

    /// [`exact`](crate::exact()) over stored chunks.
    fn scan_stored(
        vectors: &ChunkedVectors<Self>,
        query: &Query,
        ids: Range<u32>,
        accept: &dyn Fn(u32) -> bool,
        k: usize,
        scratch: &mut Scratch,
    ) -> Vec<Hit>;
}

macro_rules! compiled {
    ($($element:ty),*) => {$(
        impl Compiled for $element {
            fn insert(
                graph: &Graph,
                vectors: &VectorTable<Self>,
                id: u32,
                scratch: &mut Scratch,
            ) -> Result<bool, GraphError> {
                graph.insert(vectors, id, scratch)
            }

            fn repair(graph: &Graph, vectors: &VectorTable<Self>, scratch: &mut Scratch) -> RepairReport {
                graph.repair(vectors, scratch)
            }

            fn search_live(
                of: (&Graph, &VectorTable<Self>),
                query: &Query,
                k: usize,
                ef: usize,
                accept: &dyn Fn(u32) -> bool,
                scratch: &mut Scratch,
            ) -> Vec<Hit> {
                search(of.0, of.1, query, k, ef, &accept, scratch)
            }

            fn search_stored(
                of: (&MappedGraph, &ChunkedVectors<Self>),
                query: &Query,
                k: usize,
                ef: usize,
                accept: &dyn Fn(u32) -> bool,
                scratch: &mut Scratch,
            ) -> Vec<Hit> {
                search(of.0, of.1, query, k, ef, &accept, scratch)
            }

            fn search_base(
                of: (&BaseRows<Self>, &dyn BaseLinks),
                query: &Query,
                k: usize,
                ef: usize,
                accept: &dyn Fn(u32) -> bool,
                scratch: &mut Scratch,
            ) -> Vec<Hit> {
                search(&BaseGraph::new(of.0, of.1), of.0, query, k, ef, &accept, scratch)
            }

            fn merge(
                writer: &mut BaseWriter<'_, Self>,
                node: u32,
                scratch: &mut Scratch,
            ) -> Result<bool, GraphError> {
                writer.insert(node, scratch)
            }

            fn scan_live(
                vectors: &VectorTable<Self>,
                query: &Query,
                ids: Range<u32>,
                accept: &dyn Fn(u32) -> bool,
                k: usize,
                scratch: &mut Scratch,
            ) -> Vec<Hit> {
                exact(vectors, query, ids, &accept, k, scratch)
            }

            fn scan_stored(
                vectors: &ChunkedVectors<Self>,
                query: &Query,
                ids: Range<u32>,
                accept: &dyn Fn(u32) -> bool,
                k: usize,
                scratch: &mut Scratch,
            ) -> Vec<Hit> {
                exact(vectors, query, ids, &accept, k, scratch)
            }
        }
    )*};
}

compiled!(f32, f16);
