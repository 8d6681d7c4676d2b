//! Vectors to measure with: out of an Arrow or Parquet file, or generated.
//!
//! Queries are the last rows and never among the base rows. Invariant: the report can say exactly what the data was,
//! also where more rows were asked for than there are.

use crate::error::{Error, Outcome};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float16Type, Float32Type};
use serde_json::{Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Queries that are held out.
pub const QUERIES: usize = 1_000;
/// Strength of the noise on repeated rows, as a share of the row's norm.
const REPEAT_NOISE: f32 = 0.25;

/// Where vectors come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A generator of clustered rows with an intrinsic dimension of about [`INTRINSIC`].
    Generated,
    /// An Arrow IPC or Parquet file: its first column of fixed-size float lists.
    File(PathBuf),
}

/// Hidden numbers behind each generated row.
pub const INTRINSIC: usize = 32;
const CLUSTERS: usize = 200;

impl FromStr for Source {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(if text == "gen" { Self::Generated } else { Self::File(text.into()) })
    }
}

/// Base rows and queries, `[rows, dim]` f32, row-major.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// What it is, for ratio names: the file's stem, or `generated`, with the dimension.
    pub name: String,
    /// Elements a row.
    pub dim: usize,
    /// Rows to insert.
    pub base: Vec<f32>,
    /// Rows to search for.
    pub queries: Vec<f32>,
    /// How the rows came about, in words.
    pub origin: String,
}

impl Dataset {
    /// Reads `source`. `dim` takes only the first columns of each row (and is the dimension of generated ones, 1,024
    /// unless given); `rows` takes so many base rows, repeated with noise where there are fewer.
    ///
    /// # Errors
    /// [`Error::Data`] for a file that cannot be read or has no vectors, [`Error::Argument`] for a dimension that it
    /// does not have.
    pub fn load(source: &Source, dim: Option<usize>, rows: Option<usize>) -> Outcome<Self> {
        let loaded = match source {
            Source::Generated => generated(rows.unwrap_or(20_000), dim.unwrap_or(1_024)),
            Source::File(path) => from_file(path, dim)?,
        };
        let have = loaded.base.len() / loaded.dim;
        Ok(match rows {
            Some(rows) => loaded.with_rows(rows, have),
            None => loaded,
        })
    }

    /// How many base rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.base.len() / self.dim
    }

    /// One base row.
    #[must_use]
    pub fn row(&self, at: usize) -> &[f32] {
        &self.base[at * self.dim..][..self.dim]
    }

    /// All queries.
    pub fn queries(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.queries.chunks_exact(self.dim)
    }

    /// What a report says of it.
    #[must_use]
    pub fn describe(&self) -> Value {
        let queries = self.queries.len() / self.dim;
        json!({"name": self.name, "dim": self.dim, "rows": self.rows(), "queries": queries, "origin": self.origin})
    }

    fn with_rows(mut self, rows: usize, have: usize) -> Self {
        if rows > have {
            self.origin = format!(
                "{}; {have} rows repeated to {rows}, with noise of {REPEAT_NOISE} of the row's norm",
                self.origin
            );
            let mut rng = fastrand::Rng::with_seed(11);
            self.base.reserve_exact((rows - have) * self.dim);
            for at in 0..rows - have {
                let row: Vec<f32> = self.row(at % have).to_vec();
                let norm = row.iter().map(|x| x * x).sum::<f32>().sqrt();
                // Uniform in -1..1 has a variance of a third.
                let scale = REPEAT_NOISE * norm * (3.0 / self.dim as f32).sqrt();
                self.base.extend(row.iter().map(|x| x + scale * (2.0 * rng.f32() - 1.0)));
            }
        }
        self.base.truncate(rows * self.dim);
        self
    }

    fn split(name: String, origin: String, dim: usize, mut all: Vec<f32>) -> Self {
        let rows = all.len() / dim;
        // Small sets keep most of their rows.
        let queries = QUERIES.min(rows / 5);
        let queries = all.split_off((rows - queries) * dim);
        Self { name, dim, base: all, queries, origin }
    }
}

fn generated(rows: usize, dim: usize) -> Dataset {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut symmetric = move || 2.0 * rng.f32() - 1.0;
    let map: Vec<f32> = (0..dim * INTRINSIC).map(|_| symmetric()).collect();
    let centres: Vec<[f32; INTRINSIC]> = (0..CLUSTERS).map(|_| std::array::from_fn(|_| symmetric())).collect();
    let mut all = Vec::with_capacity((rows + QUERIES) * dim);
    for at in 0..rows + QUERIES {
        // Clusters of unequal size: the first ones are met more often.
        let cluster = (at * at) % CLUSTERS;
        let hidden: [f32; INTRINSIC] = std::array::from_fn(|i| centres[cluster][i] + 0.7 * symmetric());
        for weights in map.chunks_exact(INTRINSIC) {
            let value: f32 = weights.iter().zip(&hidden).map(|(a, b)| a * b).sum();
            all.push(value + 0.1 * symmetric());
        }
    }
    let origin = format!("generated: {CLUSTERS} clusters, intrinsic dimension about {INTRINSIC}, seed 7");
    let mut data = Dataset::split(format!("generated{dim}"), origin, dim, all);
    // Exactly as many base rows as were asked for.
    data.base.truncate(rows * dim);
    data
}

fn from_file(path: &Path, dim: Option<usize>) -> Outcome<Dataset> {
    let (whole, all) = read_vectors(path)?;
    let taken = dim.unwrap_or(whole);
    if taken == 0 || taken > whole {
        return Err(Error::argument(format!(
            "--dim {taken}: {} has vectors of dimension {whole}; take 1 to {whole}",
            path.display()
        )));
    }
    let all = match taken == whole {
        true => all,
        false => all.chunks_exact(whole).flat_map(|row| row[..taken].to_vec()).collect(),
    };
    let stem = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let family = stem.split('-').next().unwrap_or_default();
    let origin = match taken == whole {
        true => stem.clone(),
        false => format!("{stem}, the first {taken} of {whole} elements"),
    };
    Ok(Dataset::split(format!("{family}{taken}"), origin, taken, all))
}

/// Dimension and values of a file's first column of fixed-size (or uniform) float lists.
fn read_vectors(path: &Path) -> Outcome<(usize, Vec<f32>)> {
    let file = File::open(path).map_err(|e| Error::data(path, e))?;
    let mut found = Found { dim: 0, values: Vec::new() };
    if path.extension().is_some_and(|e| e == "parquet") {
        let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file)
            .and_then(|builder| builder.with_batch_size(4_096).build())
            .map_err(|e| Error::data(path, e))?;
        for batch in reader {
            found.take(path, &batch.map_err(|e| Error::data(path, e))?)?;
        }
    } else {
        let reader = arrow::ipc::reader::FileReader::try_new_buffered(file, None).map_err(|e| Error::data(path, e))?;
        for batch in reader {
            found.take(path, &batch.map_err(|e| Error::data(path, e))?)?;
        }
    }
    if found.values.is_empty() {
        return Err(Error::data(path, "it has no rows"));
    }
    Ok((found.dim, found.values))
}

struct Found {
    dim: usize,
    values: Vec<f32>,
}

impl Found {
    fn take(&mut self, path: &Path, batch: &RecordBatch) -> Outcome {
        let lists = batch.columns().iter().find_map(|column| elements(column));
        let Some((elements, rows)) = lists else {
            return Err(Error::data(path, "no column of it is a list of f32 or f16"));
        };
        if rows == 0 {
            return Ok(());
        }
        let dim = elements.len() / rows;
        if dim * rows != elements.len() || (self.dim != 0 && self.dim != dim) {
            return Err(Error::data(path, "its vectors are of several lengths"));
        }
        self.dim = dim;
        match elements.data_type() {
            DataType::Float16 => {
                self.values.extend(elements.as_primitive::<Float16Type>().values().iter().map(|v| v.to_f32()));
            }
            _ => self.values.extend_from_slice(elements.as_primitive::<Float32Type>().values()),
        }
        Ok(())
    }
}

/// All elements of a list column, and its rows.
fn elements(column: &ArrayRef) -> Option<(ArrayRef, usize)> {
    let values = match column.data_type() {
        DataType::FixedSizeList(..) => {
            let list = column.as_fixed_size_list();
            let (dim, offset) = (list.value_length() as usize, list.offset());
            list.values().slice(offset * dim, list.len() * dim)
        }
        DataType::List(_) => {
            let list = column.as_list::<i32>();
            let (first, last) = (*list.value_offsets().first()?, *list.value_offsets().last()?);
            list.values().slice(first as usize, (last - first) as usize)
        }
        _ => return None,
    };
    let is_float = matches!(values.data_type(), DataType::Float16 | DataType::Float32);
    is_float.then_some((values, column.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_rows_are_as_many_as_asked_and_always_the_same() {
        let one = Dataset::load(&Source::Generated, Some(24), Some(300)).expect("generated");
        let two = Dataset::load(&Source::Generated, Some(24), Some(300)).expect("generated");
        assert_eq!((one.rows(), one.dim, one.queries().len()), (300, 24, 260));
        assert_eq!(one.base, two.base);
    }

    #[test]
    fn a_file_gives_its_vectors_and_says_what_it_lacks() {
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/glove-100d-25k.arrow");
        let all = Dataset::load(&Source::File(shipped.clone()), None, None).expect("read");
        assert_eq!((all.rows(), all.dim, all.queries().len(), all.name.as_str()), (24_000, 100, 1_000, "glove100"));
        let part = Dataset::load(&Source::File(shipped.clone()), Some(8), Some(30_000)).expect("read");
        assert_eq!((part.rows(), part.dim), (30_000, 8));
        assert_eq!(part.row(5), &all.row(5)[..8]);
        assert!(part.origin.contains("24000 rows repeated to 30000"), "{}", part.origin);
        let wide = Dataset::load(&Source::File(shipped), Some(101), None).expect_err("too wide");
        assert!(wide.to_string().contains("dimension 100"), "{wide}");
        let none = Dataset::load(&Source::File("no/such.parquet".into()), None, None).expect_err("missing");
        assert!(none.to_string().contains("no/such.parquet"), "{none}");
    }
}
