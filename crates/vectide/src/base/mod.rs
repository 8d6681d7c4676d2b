//! The base: one graph per vector column over the rows of many segments, as of one version.
//!
//! In: the manifest's entry, the segments that it adopts, its files of links. Out: the nearest rows as (part, offset), and
//! for a merge, what a step changes and the version after it. `search` walks it, `merge` and `table/merging` carry it on,
//! `table/open` and `table/reader` open it. Here is no decision about what is merged when. Invariant: a version is
//! immutable; what it names stays mapped for as long as it is held (decision 0009).

mod format;
mod links;
pub(crate) mod node_cache;
#[cfg(test)]
mod tests;

use crate::error::{Error, Result};
use crate::ids::PubNo;
use crate::manifest::{AdoptedMeta, BaseMeta, LinksMeta};
use crate::rows::VectorQuery;
use crate::schema::TableSchema;
use crate::segment::{ArrowFile, Lumps, SectionEncoder, Segment, StoredColumn, write_object};
use crate::store::Store;
use crate::store::paths::ShardPaths;
use crate::vectors::{StoredElement, params, prepare, with_scratch};
use format::{BASE_PART, DELTA_PART, LinksFile, Whole, write_changes, write_whole};
use half::f16;
use links::{Files, Links};
use node_cache::NodeCache;
use std::sync::Arc;
use vectide_graph::{
    BaseChanges, BaseGraph, BaseLinks, BaseRows, BaseSeed, BaseWriter, GraphError, GraphView, Hit, Params, Scratch,
    row_words, walk_order,
};

/// What a base stands on.
#[derive(Clone, Debug)]
pub(crate) struct BaseGround {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) paths: ShardPaths,
    pub(crate) schema: TableSchema,
    pub(crate) cache: Arc<NodeCache>,
}

/// One version of a base.
#[derive(Clone)]
pub(crate) struct Base {
    /// What the manifest says of it.
    pub(crate) meta: BaseMeta,
    /// The adopted segments, as in `meta`.
    pub(crate) segments: Vec<Arc<Segment>>,
    columns: Vec<Column>,
    files: Files,
}

/// One vector column.
#[derive(Clone)]
enum Column {
    F32(Arc<BaseRows<f32>>, Arc<Links>),
    F16(Arc<BaseRows<f16>>, Arc<Links>),
}

/// Does the same to either type.
macro_rules! either {
    ($column:expr, ($rows:ident, $links:ident) => $body:expr) => {
        match $column {
            Column::F32($rows, $links) => $body,
            Column::F16($rows, $links) => $body,
        }
    };
}

/// A row that a search of the base found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BaseHit {
    /// The segment, by its place in [`Base::segments`].
    pub(crate) part: usize,
    /// Its row.
    pub(crate) offset: u32,
    /// How far it is.
    pub(crate) distance: f32,
}

impl std::fmt::Debug for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (id, version) = (&self.meta.id, self.meta.version);
        f.debug_struct("Base").field("id", id).field("version", &version).finish_non_exhaustive()
    }
}

/// The settings of a table's graphs, by vector column.
fn all_params(schema: &TableSchema) -> Vec<Params> {
    schema.vectors().iter().enumerate().map(|(ordinal, column)| params(column, ordinal)).collect()
}

/// Whether a base of this table can adopt the segment: its graphs are made with the table's settings (those of an older
/// Vectide may have no codes).
pub(crate) fn can_adopt(schema: &TableSchema, segment: &Segment) -> bool {
    all_params(schema).iter().enumerate().all(|(column, wanted)| {
        segment.stored_column(column).is_some_and(|stored| {
            let has = stored.graph().params();
            (has.dim, has.metric, has.m, has.codes) == (wanted.dim, wanted.metric, wanted.m, wanted.codes)
        })
    })
}

impl Base {
    /// A base of no segments.
    pub(crate) fn empty(ground: &BaseGround, id: String) -> Result<Self> {
        let meta = BaseMeta { id, version: 0, folded: 0, file: None, deltas: Vec::new(), segments: Vec::new() };
        let columns: Result<Vec<Column>> = (ground.schema.vectors().iter().enumerate())
            .map(|(ordinal, column)| {
                let params = params(column, ordinal);
                let links = Arc::new(Links::empty(ordinal, &params, Arc::new(ground.cache.space())));
                let refused = |e: GraphError| Error::internal(format!("a base: {e}")).with_source(e);
                Ok(match column.element {
                    crate::schema::VectorElement::F32 => {
                        Column::F32(Arc::new(BaseRows::new(params).map_err(refused)?), links)
                    }
                    crate::schema::VectorElement::F16 => {
                        Column::F16(Arc::new(BaseRows::new(params).map_err(refused)?), links)
                    }
                })
            })
            .collect();
        let files = Files { file: None, folded: 0, deltas: Vec::new() };
        Ok(Self { meta, segments: Vec::new(), columns: columns?, files })
    }

    /// Opens the version that the manifest names. `segment` finds an open segment by its name; `before` is an earlier
    /// version of it, if one is open: then only what came since is read, and the cache stays warm.
    ///
    /// # Errors
    /// `Corrupt` naming a file that is missing, damaged or contradicts the manifest; `Invalid` if a newer Vectide wrote it.
    pub(crate) async fn open(
        ground: &BaseGround,
        meta: &BaseMeta,
        segment: &(dyn Fn(&str) -> Option<Arc<Segment>> + Sync),
        before: Option<&Arc<Self>>,
    ) -> Result<Self> {
        if let Some(before) = before.filter(|before| before.leads_to(meta)) {
            return before.follow(ground, meta, segment).await;
        }
        let mut base = Self::empty(ground, meta.id.clone())?;
        for adopted in &meta.segments {
            base = base.with_segment(adopted, find(segment, adopted)?)?;
        }
        let file = match &meta.file {
            Some(file) => Some(open_links(ground, file, BASE_PART).await?),
            None => None,
        };
        let mut deltas = Vec::with_capacity(meta.deltas.len());
        for delta in &meta.deltas {
            deltas.push(open_links(ground, delta, DELTA_PART).await?);
        }
        base.files = Files { file, folded: meta.folded, deltas };
        for column in &mut base.columns {
            either!(column, (rows, links) => {
                let empty = Links::clone(links);
                *links = Arc::new(empty.open(base.files.clone(), &|node| rows.level(node))?);
            });
        }
        base.meta = meta.clone();
        Ok(base)
    }

    /// Whether `meta` is a later version of this very base whose deltas since are all there.
    fn leads_to(&self, meta: &BaseMeta) -> bool {
        let same = |(ours, theirs): (&AdoptedMeta, &AdoptedMeta)| ours.id == theirs.id;
        meta.id == self.meta.id
            && meta.folded <= self.meta.version
            && self.meta.version <= meta.version
            && self.meta.segments.len() <= meta.segments.len()
            && self.meta.segments.iter().zip(&meta.segments).all(same)
    }

    /// The version of `meta`, from this earlier one. New rows go into the cache.
    async fn follow(
        &self,
        ground: &BaseGround,
        meta: &BaseMeta,
        segment: &(dyn Fn(&str) -> Option<Arc<Segment>> + Sync),
    ) -> Result<Self> {
        let mut base = self.clone();
        for adopted in meta.segments.iter().skip(self.meta.segments.len()) {
            base = base.with_segment(adopted, find(segment, adopted)?)?;
        }
        let since = (self.meta.version - meta.folded) as usize;
        for delta in &meta.deltas[since..] {
            let file = open_links(ground, delta, DELTA_PART).await?;
            let changes = base.changes_in(&file)?;
            base = base.after_step(delta.clone(), file, &changes);
            base.publish(&changes);
        }
        if meta.folded != self.meta.folded {
            let folded = meta.file.as_ref().ok_or_else(|| Error::corrupt("a folded base has no base file"))?;
            let file = open_links(ground, folded, BASE_PART).await?;
            base = base.after_fold(folded.clone(), file, meta.folded);
        }
        base.meta = meta.clone();
        Ok(base)
    }

    /// What a delta of another process changed, by column.
    fn changes_in(&self, file: &LinksFile) -> Result<Vec<BaseChanges>> {
        let of = |(column, links): (&Column, &format::ColumnLinks)| {
            let mut changes =
                BaseChanges { entry: links.header.entry, root: links.header.root, ..BaseChanges::default() };
            changes.nodes = links.nodes().collect();
            changes.nodes.iter().for_each(|&node| links.row(node, &mut changes.rows));
            let upper = either!(column, (rows, _links) => links.upper(|node| rows.level(node)));
            let upper = upper.ok_or_else(|| file.file.corrupt("its upper links do not fit their nodes' levels"))?;
            for (node, links) in upper {
                changes.upper_nodes.push(node);
                changes.upper_links.extend(links);
            }
            Ok(changes)
        };
        self.columns.iter().zip(&file.columns).map(of).collect()
    }

    /// The first node that a segment adopted next would get.
    pub(crate) fn next_first(&self) -> u32 {
        self.columns.first().map_or(0, |column| either!(column, (rows, _links) => rows.next_first()))
    }

    /// This base with one more segment, none of whose rows are in.
    ///
    /// # Errors
    /// `Internal` if its graphs have other settings.
    pub(crate) fn with_segment(&self, adopted: &AdoptedMeta, segment: Arc<Segment>) -> Result<Self> {
        let refused = |e: GraphError| Error::internal(format!("segment {}: {e}", adopted.id)).with_source(e);
        let mut next = self.clone();
        if adopted.first_node != self.next_first() {
            let (first, free) = (adopted.first_node, self.next_first());
            return Err(Error::corrupt(format!("segment {} begins at node {first}, {free} was due", adopted.id)));
        }
        for (ordinal, column) in next.columns.iter_mut().enumerate() {
            match (&mut *column, segment.stored_column(ordinal)) {
                (Column::F32(rows, _), Some(StoredColumn::F32(graph, vectors))) => {
                    *rows = Arc::new(rows.with_part(graph, vectors).map_err(refused)?);
                }
                (Column::F16(rows, _), Some(StoredColumn::F16(graph, vectors))) => {
                    *rows = Arc::new(rows.with_part(graph, vectors).map_err(refused)?);
                }
                _ => return Err(Error::internal(format!("segment {} has no graph {ordinal}", adopted.id))),
            }
        }
        next.segments.push(segment);
        next.meta.segments.push(adopted.clone());
        Ok(next)
    }

    /// The version after a step, whose changes lie in `file`.
    pub(crate) fn after_step(&self, meta: LinksMeta, file: Arc<LinksFile>, changes: &[BaseChanges]) -> Self {
        let mut next = self.clone();
        next.files.deltas.push(Arc::clone(&file));
        for (column, changes) in next.columns.iter_mut().zip(changes) {
            either!(column, (rows, links) => {
                *links = Arc::new(links.after(changes, Arc::clone(&file), &|node| rows.level(node)));
            });
        }
        next.meta.version += 1;
        next.meta.deltas.push(meta);
        next
    }

    /// The same version over a base file that holds everything up to `folded`.
    pub(crate) fn after_fold(&self, meta: LinksMeta, file: Arc<LinksFile>, folded: u32) -> Self {
        let mut next = self.clone();
        let gone = (folded - self.meta.folded) as usize;
        next.files = Files { file: Some(file), folded, deltas: self.files.deltas[gone..].to_vec() };
        for column in &mut next.columns {
            either!(column, (_rows, links) => *links = Arc::new(links.over(next.files.clone())));
        }
        next.meta.file = Some(meta);
        next.meta.folded = folded;
        next.meta.deltas.drain(..gone);
        next
    }

    /// Puts what this version wrote into the cache. To be called before anybody can read the version.
    pub(crate) fn publish(&self, changes: &[BaseChanges]) {
        for (column, changes) in self.columns.iter().zip(changes) {
            either!(column, (_rows, links) => links.space().publish(self.meta.version, &changes.nodes, &changes.rows));
        }
    }

    /// Takes nodes out of the cache: those of column `n` that `nodes(n)` names, or all.
    pub(crate) fn forget<'a>(&self, nodes: impl Fn(usize) -> Option<&'a [u32]>) -> u64 {
        let each = |(n, column): (usize, &Column)| {
            either!(column, (_rows, links) => match nodes(n) {
                Some(nodes) => links.space().forget(nodes.iter().copied()),
                None => links.space().forget_all(),
            })
        };
        self.columns.iter().enumerate().map(each).sum()
    }

    /// The rows of a segment in the order in which they are merged, by column: those that ended by `horizon` are left out.
    pub(crate) fn order(segment: &Segment, columns: usize, is_dead: &dyn Fn(u32) -> bool) -> Vec<Vec<u32>> {
        let order = |column| segment.stored_column(column).map(|stored| walk_order(stored.graph(), is_dead));
        (0..columns).map(|column| order(column).unwrap_or_default()).collect()
    }

    /// Inserts rows of the segment adopted last, by column, and says what that changes. `pause` is called after each row.
    ///
    /// # Errors
    /// What `pause` gives, with nothing changed; `Internal` for rows that the segment does not have.
    pub(crate) fn step(&self, rows: &[&[u32]], pause: &mut dyn FnMut() -> Result<()>) -> Result<Vec<BaseChanges>> {
        let first = self.meta.segments.last().map_or(0, |adopted| adopted.first_node);
        let mut scratch = Scratch::new();
        let columns = self.columns.iter().zip(rows);
        columns
            .map(|(column, offsets)| {
                either!(column, (rows, links) => insert(rows, &**links, first, offsets, &mut scratch, pause))
            })
            .collect()
    }

    /// The rows nearest to the query that `accept` takes (part and offset), ascending, at most `k`.
    ///
    /// # Errors
    /// `Invalid` for a query that cannot be compared.
    pub(crate) fn search(&self, query: &VectorQuery<'_>, accept: &dyn Fn(usize, u32) -> bool) -> Result<Vec<BaseHit>> {
        let column = self.columns.get(query.column);
        let column = column.ok_or_else(|| Error::internal(format!("there is no vector column {}", query.column)))?;
        either!(column, (rows, links) => search(rows, &**links, query, accept))
    }

    /// Nodes of all columns' graphs.
    pub(crate) fn nodes(&self) -> u64 {
        self.columns.iter().map(|column| either!(column, (_rows, links) => links.nodes())).max().unwrap_or(0)
    }

    /// Bytes of its files.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.meta.files().map(|file| file.len).sum()
    }

    /// Heap bytes of its tables of versions and of its upper levels.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.columns.iter().map(|column| either!(column, (_rows, links) => links.memory_bytes())).sum()
    }

    /// Links that searches met and passed over because they lead nowhere.
    pub(crate) fn bad_links(&self) -> u64 {
        self.columns.iter().map(|column| either!(column, (rows, _links) => rows.bad_links())).sum()
    }

    /// The last horizon of its segments: no reader of this base may cut before it.
    pub(crate) fn horizon(&self) -> PubNo {
        self.meta.segments.iter().map(|adopted| adopted.horizon).max().unwrap_or_default()
    }

    /// Reads every file back and checks checksums, every row, every link, and that all nodes can be reached. Returns files,
    /// bytes and nodes of all columns.
    ///
    /// # Errors
    /// `Corrupt` naming the damaged file.
    pub(crate) fn verify(&self) -> Result<(u64, u64, u64)> {
        let (mut parts, mut bytes, mut nodes) = (0, 0, 0);
        let files = self.files.file.iter().chain(&self.files.deltas);
        for (meta, links) in self.meta.files().zip(files) {
            let actual = crc32c::crc32c(links.file.bytes());
            if actual != meta.crc32c {
                let (len, expected) = (meta.len, meta.crc32c);
                return Err(links
                    .file
                    .corrupt(format!("the checksum of its {len} bytes is {actual:08x}, not {expected:08x}")));
            }
            parts += 1;
            bytes += meta.len;
        }
        for (n, column) in self.columns.iter().enumerate() {
            let checked = either!(column, (rows, links) => BaseGraph::new(rows, &**links).verify());
            let damaged = |e: GraphError| {
                Error::corrupt(format!("base {} at version {}, column {n}: {e}", self.meta.id, self.meta.version))
                    .with_source(e)
            };
            nodes += u64::from(checked.map_err(damaged)?);
        }
        Ok((parts, bytes, nodes))
    }
}

fn find(segment: &(dyn Fn(&str) -> Option<Arc<Segment>> + Sync), adopted: &AdoptedMeta) -> Result<Arc<Segment>> {
    segment(&adopted.id)
        .ok_or_else(|| Error::corrupt(format!("the base adopts segment {}, which is not there", adopted.id)))
}

fn insert<E: StoredElement>(
    rows: &BaseRows<E>,
    links: &dyn BaseLinks,
    first: u32,
    offsets: &[u32],
    scratch: &mut Scratch,
    pause: &mut dyn FnMut() -> Result<()>,
) -> Result<BaseChanges> {
    let mut writer = BaseWriter::new(rows, links);
    for &offset in offsets {
        E::merge(&mut writer, first + offset, scratch)
            .map_err(|e| Error::internal(format!("merging: {e}")).with_source(e))?;
        pause()?;
    }
    Ok(writer.finish())
}

fn search<E: StoredElement>(
    rows: &BaseRows<E>,
    links: &dyn BaseLinks,
    query: &VectorQuery<'_>,
    accept: &dyn Fn(usize, u32) -> bool,
) -> Result<Vec<BaseHit>> {
    let prepared = prepare(rows.params(), query)?;
    let accept = |node: u32| rows.locate(node).is_some_and(|(part, offset)| accept(part, offset));
    let hits: Vec<Hit> =
        with_scratch(|scratch| E::search_base((rows, links), &prepared, query.k, query.ef, &accept, scratch));
    let place = |hit: Hit| {
        let (part, offset) = rows.locate(hit.id)?;
        Some(BaseHit { part, offset, distance: hit.distance })
    };
    Ok(hits.into_iter().filter_map(place).collect())
}

/// Maps and opens a file of links.
async fn open_links(ground: &BaseGround, meta: &LinksMeta, part: &str) -> Result<Arc<LinksFile>> {
    let path = format!("{}{}", ground.paths.base_dir(), ShardPaths::links_name(&meta.id));
    let bytes = ground.store.map(&path, meta.len).await.map_err(|e| match e.kind() {
        crate::ErrorKind::NotFound => Error::not_found(format!("{path} is missing")).with_source(e),
        _ => e,
    })?;
    let file = ArrowFile::open(path, bytes, part)?;
    Ok(Arc::new(LinksFile::open(file, &all_params(&ground.schema))?))
}

/// A new file of links: durable and open on return, named by nothing yet.
#[derive(Clone)]
pub(crate) struct NewLinks {
    pub(crate) meta: LinksMeta,
    pub(crate) file: Arc<LinksFile>,
}

async fn write_links(
    ground: &BaseGround,
    id: &str,
    part: &'static str,
    points: (&'static str, &'static str),
    write: impl FnOnce(&mut SectionEncoder) -> Result<()> + Send + 'static,
) -> Result<NewLinks> {
    let encode = move |lumps: Lumps| {
        let mut out = SectionEncoder::start(part, lumps)?;
        write(&mut out)?;
        out.finish()
    };
    let name = ShardPaths::links_name(id);
    let written = write_object(&ground.store, &ground.paths.base_dir(), name, points, encode).await?;
    let meta = LinksMeta { id: id.to_owned(), len: written.len, crc32c: written.crc32c };
    let file = open_links(ground, &meta, part).await?;
    Ok(NewLinks { meta, file })
}

/// Writes what a step changed, by column, as the delta `id`.
///
/// # Errors
/// The store's: at most an object that nothing names is left.
pub(crate) async fn write_delta(ground: &BaseGround, id: &str, changes: Arc<Vec<BaseChanges>>) -> Result<NewLinks> {
    let ms: Vec<u16> = all_params(&ground.schema).iter().map(|params| params.m).collect();
    let points = ("merge.delta.before", "merge.delta.after");
    write_links(ground, id, DELTA_PART, points, move |out| {
        let each = |(column, changes)| write_changes(out, column, ms[column], changes);
        changes.iter().enumerate().try_for_each(each)
    })
    .await
}

/// Writes a segment's graphs as the base file `id` of a base that begins with it.
///
/// # Errors
/// The store's; `Corrupt` if a graph is damaged.
pub(crate) async fn write_seed(ground: &BaseGround, id: &str, segment: Arc<Segment>) -> Result<NewLinks> {
    let all = all_params(&ground.schema);
    let points = ("merge.base.before", "merge.base.after");
    write_links(ground, id, BASE_PART, points, move |out| {
        for (column, params) in all.iter().enumerate() {
            let stored = segment.stored_column(column).ok_or_else(|| Error::internal("a segment without graphs"))?;
            let graph = stored.graph();
            let damaged = |e: GraphError| Error::corrupt(format!("segment {}: {e}", segment.id())).with_source(e);
            let seed = BaseSeed::new(graph).map_err(damaged)?;
            let whole = Whole::of_seed(&seed, params.m, graph.header().rows, |row| stored.has_vector(row));
            write_whole(out, column, row_words(params), whole)?;
        }
        Ok(())
    })
    .await
}

/// Writes all of a version's rows as the base file `id`. Reads past the cache.
///
/// # Errors
/// The store's.
pub(crate) async fn write_fold(ground: &BaseGround, id: &str, base: Arc<Base>) -> Result<NewLinks> {
    let points = ("merge.fold.before", "merge.fold.after");
    write_links(ground, id, BASE_PART, points, move |out| {
        for (n, column) in base.columns.iter().enumerate() {
            either!(column, (rows, links) => {
                let params = rows.params();
                write_whole(out, n, row_words(params), links.whole(rows.end(), params.m))?;
            });
        }
        Ok(())
    })
    .await
}
