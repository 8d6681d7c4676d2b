//! The rows of a run: vectors of the data set, and what the shape has beside them.
//!
//! All are made before anything is timed; a batch is a slice of them, without a copy. Invariant: row `i` has the key
//! `text::id(i)` and the data set's base vector `i`.

use super::text;
use crate::dataset::Dataset;
use crate::error::{Error, Outcome};
use arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use std::sync::Arc;
use vectide::TableSchema;
use vectide::schema::VectorOptions;

pub(super) const KEY: &str = "id";
pub(super) const VECTOR: &str = "vec";

/// Which columns a row has: those of Lance's own bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SchemaShape {
    /// A page of a crawl: key, 1,536 bytes of text, five columns about it, and the vector.
    Fineweb,
    /// Key and vector.
    VectorOnly,
}

impl SchemaShape {
    /// As in a ratio's name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Fineweb => "fineweb",
            Self::VectorOnly => "vector_only",
        }
    }
}

/// All rows of a run.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    pub(super) all: RecordBatch,
    /// Vectors to search for, which no row has.
    pub(super) queries: Vec<Vec<f32>>,
    /// Bytes of the values of a row, on average: 4,160 and 5,760, about, at 1,024 dimensions.
    pub(super) row_bytes: f64,
}

impl Rows {
    /// Puts the data set's vectors into rows. Takes the vectors as they are.
    pub(super) fn new(shape: SchemaShape, data: Dataset) -> Outcome<Self> {
        let rows = data.rows();
        let queries = data.queries().map(<[f32]>::to_vec).collect();
        let item = Arc::new(Field::new_list_field(DataType::Float32, true));
        let dim = i32::try_from(data.dim).map_err(|_| Error::argument("--dim is too large"))?;
        let vectors = FixedSizeListArray::try_new(item, dim, Arc::new(Float32Array::from(data.base)), None)?;
        let mut columns: Vec<(&str, ArrayRef)> = vec![(KEY, strings(rows, text::id))];
        if shape == SchemaShape::Fineweb {
            columns.push(("text", strings(rows, text::text)));
            columns.push(("dump", strings(rows, text::dump)));
            columns.push(("url", strings(rows, text::url)));
            columns.push(("file_path", strings(rows, text::file_path)));
            columns.push(("language", strings(rows, |_| "en")));
            let score = Float64Array::from_iter_values((0..rows).map(text::language_score));
            columns.push(("language_score", Arc::new(score)));
            columns.push(("token_count", Arc::new(Int64Array::from_iter_values((0..rows).map(text::token_count)))));
        }
        columns.push((VECTOR, Arc::new(vectors)));
        let all = RecordBatch::try_from_iter(columns)?;
        let bytes: usize =
            all.columns().iter().map(|column| column.to_data().get_slice_memory_size().unwrap_or(0)).sum();
        Ok(Self { all, queries, row_bytes: bytes as f64 / rows.max(1) as f64 })
    }

    pub(super) fn len(&self) -> usize {
        self.all.num_rows()
    }

    /// Rows `first` to `first + rows`, or to the last.
    pub(super) fn batch(&self, first: usize, rows: usize) -> RecordBatch {
        self.all.slice(first, rows.min(self.len() - first))
    }

    /// The table's schema: keyed by `id`, and searchable by `vec` if an index is wanted.
    pub(super) fn schema(&self, index: Option<VectorOptions>) -> Outcome<TableSchema> {
        let schema = TableSchema::builder(Schema::clone(&self.all.schema())).key(KEY);
        let schema = match index {
            Some(options) => schema.vector_with(VECTOR, options),
            None => schema,
        };
        Ok(schema.build()?)
    }
}

fn strings<S: AsRef<str>>(rows: usize, of: impl Fn(usize) -> S) -> ArrayRef {
    Arc::new(StringArray::from_iter_values((0..rows).map(of)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Source;
    use arrow::array::AsArray;

    #[test]
    fn rows_have_the_sizes_of_the_shapes_and_the_vectors_of_the_data() {
        let data = Dataset::load(&Source::Generated, Some(1_024), Some(300)).expect("generated");
        for (shape, columns, bytes) in
            [(SchemaShape::VectorOnly, 2, 4_100.0..4_200.0), (SchemaShape::Fineweb, 9, 5_700.0..5_820.0)]
        {
            let rows = Rows::new(shape, data.clone()).expect("rows");
            assert!(bytes.contains(&rows.row_bytes), "{shape:?}: {}", rows.row_bytes);
            assert_eq!((rows.len(), rows.all.num_columns()), (300, columns));
            let batch = rows.batch(290, 100);
            assert_eq!((batch.num_rows(), batch.column(0).as_string::<i32>().value(0)), (10, "row-000000000290"));
            let vector = batch.column(columns - 1).as_fixed_size_list().value(0);
            assert_eq!(vector.as_primitive::<arrow::datatypes::Float32Type>().values().as_ref(), data.row(290));
        }
    }

    #[test]
    fn text_is_words_of_one_length_that_differ_by_row() {
        let (one, two) = (text::text(1), text::text(2));
        assert_eq!((one.len(), two.len()), (text::TEXT_BYTES, text::TEXT_BYTES));
        assert_ne!(one, two);
        assert_eq!(one, text::text(1));
        let the = one.split(' ').filter(|word| *word == "the").count();
        assert!((10..100).contains(&the), "{the} of 350 words are `the`: {one}");
    }
}
