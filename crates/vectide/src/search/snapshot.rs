//! The set of sources and the publication number that one read sees.
//!
//! `table` keeps the current [`View`] and the [`Cut`]; a `Snapshot` pairs the two and reads the same rows for as long
//! as it is held, whatever is written, sealed or flushed meanwhile: a source changes the tier that its rows stand in, not
//! its rows, offsets or end marks. Invariant: the view was loaded after the cut, so it holds every row below the cut.

use crate::base::Base;
use crate::ends::Ends;
use crate::ids::{PubNo, RowId, Seq};
use crate::memtable::Memtable;
use crate::rows::{RowSource, Visible};
use crate::segment::Segment;
use parking_lot::RwLock;
use std::fmt;
use std::sync::Arc;

/// Where a row file's rows stand now.
#[derive(Clone)]
pub(crate) enum Tier {
    /// In memory, active or sealed.
    Memtable(Arc<Memtable>),
    /// On disk.
    Segment(Arc<Segment>),
}

/// A row file: rows with dense ids, their end marks, and the tier that holds them now.
pub(crate) struct Source {
    /// The id of the row at offset 0.
    pub(crate) first_row: RowId,
    /// The rows' end marks, shared by every tier they pass through.
    pub(crate) ends: Arc<Ends>,
    tier: RwLock<Tier>,
}

impl Source {
    /// A source whose rows stand in `tier`.
    pub(crate) fn new(first_row: RowId, ends: Arc<Ends>, tier: Tier) -> Arc<Self> {
        Arc::new(Self { first_row, ends, tier: RwLock::new(tier) })
    }

    /// The tier as it is now; it stays readable for as long as it is held.
    pub(crate) fn tier(&self) -> Tier {
        self.tier.read().clone()
    }

    /// The same as rows.
    pub(crate) fn rows(&self) -> Arc<dyn RowSource> {
        match self.tier() {
            Tier::Memtable(memtable) => memtable,
            Tier::Segment(segment) => segment,
        }
    }

    /// Moves the rows to the tier that flush or merge wrote them to. Offsets and marks stay.
    pub(crate) fn replace_tier(&self, tier: Tier) {
        *self.tier.write() = tier;
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("first_row", &self.first_row).finish_non_exhaustive()
    }
}

/// All sources of a shard, oldest first, and the base over some of them.
#[derive(Debug, Default)]
pub(crate) struct View {
    /// The sources.
    pub(crate) sources: Vec<Arc<Source>>,
    /// The base.
    pub(crate) base: Option<BaseView>,
    /// Rows that ended by then may be missing: no read of this view may cut before it.
    pub(crate) horizon: PubNo,
}

/// A base and the sources whose rows are found through it.
#[derive(Debug)]
pub(crate) struct BaseView {
    /// One version.
    pub(crate) base: Arc<Base>,
    /// For each segment that it adopts, the source, if all of its rows are in.
    pub(crate) parts: Vec<Option<usize>>,
}

impl View {
    /// Puts sources and base together: each segment that is wholly in the base is found through it. `horizon`: that of the
    /// sources; a base has its own.
    pub(crate) fn new(sources: Vec<Arc<Source>>, base: Option<Arc<Base>>, horizon: PubNo) -> Self {
        let horizon = base.iter().map(|base| base.horizon()).fold(horizon, PubNo::max);
        let base = base.map(|base| {
            let is_of = |source: &Arc<Source>, segment: &Arc<Segment>| match source.tier() {
                Tier::Segment(held) => Arc::ptr_eq(&held, segment),
                Tier::Memtable(_) => false,
            };
            let adopted = base.meta.segments.iter().zip(&base.segments);
            let parts = adopted
                .map(|(adopted, segment)| {
                    let source = sources.iter().position(|source| is_of(source, segment));
                    source.filter(|_| adopted.is_complete)
                })
                .collect();
            BaseView { base, parts }
        });
        Self { sources, base, horizon }
    }

    /// The base alone.
    pub(crate) fn base(&self) -> Option<&Arc<Base>> {
        self.base.as_ref().map(|view| &view.base)
    }
}

/// Where a snapshot cuts the shard's history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cut {
    /// The last publication that is visible.
    pub(crate) at: PubNo,
    /// Rows below this id were published by then.
    pub(crate) rows: RowId,
    /// The last seq that is visible.
    pub(crate) seq: Seq,
    /// How many of them live.
    pub(crate) live: u64,
}

/// A view and a cut.
#[derive(Clone, Debug)]
pub(crate) struct Pinned {
    /// The sources.
    pub(crate) view: Arc<View>,
    /// The cut.
    pub(crate) cut: Cut,
}

impl Pinned {
    /// What of `source` this snapshot sees.
    pub(crate) fn visible<'a>(&self, source: &'a Source, rows: &dyn RowSource) -> Visible<'a> {
        let below = self.cut.rows.0.saturating_sub(source.first_row.0).min(u64::from(rows.rows()));
        Visible {
            ends: &source.ends,
            at: self.cut.at,
            below: u32::try_from(below).expect("bounded by a u32 row count"),
        }
    }
}
