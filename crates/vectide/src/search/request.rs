//! The builders that callers await: `search`, `search_batch`, `scan`.
//!
//! `table` makes them over a way to get a [`Reader`]; awaiting one checks what was asked, pins the snapshot if none is
//! given, and runs. Invariant: a request that is refused has read nothing.

use super::exec::NearestQuery;
use super::{Reader, output};
use crate::batch::check_query;
use crate::error::{Error, Result};
use arrow::array::{Array, AsArray, FixedSizeListArray, RecordBatch};
use arrow::datatypes::{DataType, Float16Type, Float32Type, SchemaRef};
use futures::Stream;
use futures::future::BoxFuture;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Largest `k` and beam width.
pub const MAX_K: usize = 100_000;

/// Distances that are computed on the caller's task; more go to a blocking thread.
const INLINE_DISTANCES: u64 = 50_000;

/// Gets the reader when a request is awaited.
pub(crate) type Pin_ = Arc<dyn Fn() -> BoxFuture<'static, Result<Reader>> + Send + Sync>;

#[derive(Clone)]
struct Asked {
    pin: Pin_,
    k: usize,
    ef: Option<usize>,
    column: Option<String>,
    columns: Option<Vec<String>>,
    exact: bool,
}

impl Asked {
    fn new(pin: Pin_) -> Self {
        Self { pin, k: 10, ef: None, column: None, columns: None, exact: false }
    }

    /// Checks everything that does not need the rows.
    fn plan(&self, reader: &Reader, queries: &[Vec<f32>], numbered: bool) -> Result<(Vec<NearestQuery>, Vec<usize>)> {
        for (name, value) in [("k", self.k), ("ef_search", self.ef.unwrap_or(1))] {
            if value == 0 || value > MAX_K {
                return Err(Error::invalid(format!("{name} is {value}; it must be 1 to {MAX_K}")));
            }
        }
        let ordinal = reader.schema.vector(self.column.as_deref())?;
        let column = &reader.schema.vectors()[ordinal];
        let projection = output::projection(&reader.schema, self.columns.as_deref(), false)?;
        let ef = self.ef.unwrap_or(reader.ef_search);
        let planned = queries
            .iter()
            .enumerate()
            .map(|(row, query)| {
                check_query(column, numbered.then_some(row), query)?;
                Ok(NearestQuery { column: ordinal, vector: query.clone(), k: self.k, ef, exact: self.exact })
            })
            .collect::<Result<_>>()?;
        Ok((planned, projection))
    }
}

macro_rules! setters {
    () => {
        /// Rows wanted; fewer come back only if there are no more. Default 10, at most [`MAX_K`].
        #[must_use]
        pub fn k(mut self, k: usize) -> Self {
            self.asked.k = k;
            self
        }

        /// Beam width: more finds more and takes longer; at least `k` is used. Default [`Options::ef_search`](crate::Options).
        #[must_use]
        pub fn ef_search(mut self, ef: usize) -> Self {
            self.asked.ef = Some(ef);
            self
        }

        /// The vector column to search; needed only if there are several.
        #[must_use]
        pub fn column(mut self, name: impl Into<String>) -> Self {
            self.asked.column = Some(name.into());
            self
        }

        /// The columns wanted beside `_distance`. Default: all but the vector columns.
        #[must_use]
        pub fn columns<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
            self.asked.columns = Some(names.into_iter().map(Into::into).collect());
            self
        }

        /// Scan every row instead of using the graphs: the truth that recall is measured against.
        #[must_use]
        pub fn exact(mut self, exact: bool) -> Self {
            self.asked.exact = exact;
            self
        }
    };
}

/// A vector search. Await it for a batch: the wanted columns and `_distance` (f32, ascending; squared Euclidean under
/// `l2`, `1 - cos` under `cosine`, `1 - dot` under `dot`).
///
/// # Errors
/// `Invalid` for a wrong dimension, NaN, infinity, a zero vector under cosine, `k = 0` or an unknown column.
#[must_use = "a search does nothing until it is awaited"]
pub struct Search {
    asked: Asked,
    query: Vec<f32>,
}

/// Many vector searches on one snapshot. Await it for one batch per query, in order.
#[must_use = "a search does nothing until it is awaited"]
pub struct SearchBatch {
    asked: Asked,
    queries: Result<Vec<Vec<f32>>>,
}

impl Search {
    pub(crate) fn new(pin: Pin_, query: &[f32]) -> Self {
        Self { asked: Asked::new(pin), query: query.to_vec() }
    }

    setters!();
}

impl SearchBatch {
    pub(crate) fn new(pin: Pin_, queries: Result<Vec<Vec<f32>>>) -> Self {
        Self { asked: Asked::new(pin), queries }
    }

    setters!();
}

impl IntoFuture for Search {
    type Output = Result<RecordBatch>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let reader = (self.asked.pin)().await?;
            let (mut queries, projection) = self.asked.plan(&reader, std::slice::from_ref(&self.query), false)?;
            let query = queries.pop().ok_or_else(|| Error::internal("a search without a query"))?;
            let rows = reader.pinned.cut.rows.0;
            run(query.exact && rows > INLINE_DISTANCES, move || {
                let hits = reader.nearest(&query)?;
                reader.fetch(&hits, &projection)
            })
            .await
        })
    }
}

impl IntoFuture for SearchBatch {
    type Output = Result<Vec<RecordBatch>>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let reader = (self.asked.pin)().await?;
            let (queries, projection) = self.asked.plan(&reader, &self.queries?, true)?;
            let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            let share = queries.len().div_ceil(threads).max(1);
            let mut running = Vec::new();
            for chunk in queries.chunks(share).map(<[_]>::to_vec) {
                let (reader, projection) = (reader.clone(), projection.clone());
                running.push(run(queries.len() > 1, move || {
                    chunk
                        .iter()
                        .map(|query| reader.fetch(&reader.nearest(query)?, &projection))
                        .collect::<Result<Vec<_>>>()
                }));
            }
            let parts = futures::future::try_join_all(running).await?;
            Ok(parts.into_iter().flatten().collect())
        })
    }
}

/// Runs `work` here, or on a blocking thread if it would keep this one for long.
async fn run<T: Send + 'static>(long: bool, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    if !long {
        return work();
    }
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| Error::internal("a search panicked").with_source(e))?
}

/// What many queries can be given as.
pub trait Queries {
    /// One vector per query.
    ///
    /// # Errors
    /// `Invalid` for another element type or a null query.
    fn queries(&self) -> Result<Vec<Vec<f32>>>;
}

impl Queries for [Vec<f32>] {
    fn queries(&self) -> Result<Vec<Vec<f32>>> {
        Ok(self.to_vec())
    }
}

impl Queries for Vec<Vec<f32>> {
    fn queries(&self) -> Result<Vec<Vec<f32>>> {
        Ok(self.clone())
    }
}

impl Queries for FixedSizeListArray {
    fn queries(&self) -> Result<Vec<Vec<f32>>> {
        let values = match self.value_type() {
            DataType::Float32 => self.values().as_primitive::<Float32Type>().values().to_vec(),
            DataType::Float16 => {
                self.values().as_primitive::<Float16Type>().values().iter().map(|v| v.to_f32()).collect()
            }
            other => return Err(Error::invalid(format!("query vectors are of {other}; expected Float32 or Float16"))),
        };
        let dim = self.value_length() as usize;
        (0..self.len())
            .map(|row| {
                if self.is_null(row) {
                    return Err(Error::invalid(format!("query vector {row} is null")));
                }
                let first = self.value_offset(row) as usize;
                Ok(values[first..first + dim].to_vec())
            })
            .collect()
    }
}

/// A scan of all rows. Await it for a [`RowStream`].
#[must_use = "a scan does nothing until it is awaited"]
pub struct Scan {
    pin: Pin_,
    columns: Option<Vec<String>>,
    limit: Option<u64>,
}

impl Scan {
    pub(crate) fn new(pin: Pin_) -> Self {
        Self { pin, columns: None, limit: None }
    }

    /// The columns wanted. Default: all.
    pub fn columns<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.columns = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Rows wanted at most. Default: all.
    pub fn limit(mut self, rows: u64) -> Self {
        self.limit = Some(rows);
        self
    }
}

impl IntoFuture for Scan {
    type Output = Result<RowStream>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let reader = (self.pin)().await?;
            let projection = output::projection(&reader.schema, self.columns.as_deref(), true)?;
            let left = self.limit.unwrap_or(u64::MAX);
            Ok(RowStream {
                schema: output::user_schema(&reader.schema, &projection),
                reader,
                projection,
                source: 0,
                from: 0,
                left,
            })
        })
    }
}

/// The rows of a scan, batch by batch, in the order in which they were written: the snapshot of the moment when the scan
/// was awaited, however long reading takes. Holds that snapshot.
#[derive(Debug)]
pub struct RowStream {
    schema: SchemaRef,
    reader: Reader,
    projection: Vec<usize>,
    source: usize,
    from: u32,
    left: u64,
}

impl RowStream {
    /// The schema of the batches.
    #[must_use]
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// All rows that are left, as one batch.
    ///
    /// # Errors
    /// As reading does.
    pub fn collect_all(mut self) -> Result<RecordBatch> {
        let mut batches = Vec::new();
        while let Some(batch) = self.next_batch() {
            batches.push(batch?);
        }
        Ok(arrow::compute::concat_batches(&self.schema, &batches)?)
    }

    fn next_batch(&mut self) -> Option<Result<RecordBatch>> {
        while self.left > 0 && self.source < self.reader.pinned.view.sources.len() {
            match self.reader.scan_chunk(self.source, self.from, &self.projection) {
                Err(error) => {
                    self.left = 0;
                    return Some(Err(error));
                }
                Ok(None) => {
                    self.source += 1;
                    self.from = 0;
                }
                Ok(Some((batch, next))) => {
                    self.from = next;
                    let rows = batch.num_rows().min(usize::try_from(self.left).unwrap_or(usize::MAX));
                    self.left -= rows as u64;
                    if rows > 0 {
                        return Some(Ok(batch.slice(0, rows)));
                    }
                }
            }
        }
        None
    }
}

impl Stream for RowStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.next_batch())
    }
}
