//! The words: 25,000 of GloVe's most frequent English words, 100-d f16 vectors, compiled into the binary.
//!
//! GloVe (Pennington, Socher and Manning, 2014; 6B tokens, 100-d), public domain (PDDL 1.0). Columns: `word` Utf8, `rank`
//! Int32 (frequency rank), `vec` FixedSizeList of 100 f16.

use crate::error::{Failure, Outcome};
use crate::vectors;
use arrow::array::{Array, AsArray, RecordBatch, StringArray};
use arrow::compute::concat_batches;
use arrow::ipc::reader::FileReader;
use std::io::Cursor;
use vectide::{Metric, TableSchema};

static FILE: &[u8] = include_bytes!("../../../../data/glove-100d-25k.arrow");

/// Column of the words: the key.
pub(crate) const WORD: &str = "word";
/// Column of the vectors.
pub(crate) const VECTOR: &str = "vec";

/// Words with their vectors, most frequent first.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    pub(crate) batch: RecordBatch,
    words: StringArray,
    vectors: Vec<Vec<f32>>,
}

impl Words {
    /// The first `rows` words, or all.
    pub(crate) fn load(rows: Option<u32>) -> Outcome<Self> {
        let reader = FileReader::try_new(Cursor::new(FILE), None)?;
        let schema = reader.schema();
        let all = concat_batches(&schema, &reader.collect::<Result<Vec<_>, _>>()?)?;
        let rows = rows.map_or(all.num_rows(), |rows| rows as usize);
        if rows == 0 || rows > all.num_rows() {
            let message = format!("--rows {rows}: there are 1 to {} words", all.num_rows());
            return Err(Failure::usage(message).hint("leave --rows out for all of them"));
        }
        let batch = all.slice(0, rows);
        let column = |name: &str| batch.column_by_name(name).expect("the shipped file has word, rank and vec");
        let words = column(WORD).as_string::<i32>().clone();
        let vectors = vectors::rows_f32(column(VECTOR))?;
        Ok(Self { words, vectors, batch })
    }

    /// The table's schema: words as keys, cosine.
    pub(crate) fn schema(&self) -> Outcome<TableSchema> {
        let builder = TableSchema::builder(self.batch.schema().as_ref().clone());
        Ok(builder.key(WORD).vector(VECTOR, Metric::Cosine).build()?)
    }

    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }

    /// A word.
    pub(crate) fn word(&self, row: usize) -> &str {
        self.words.value(row)
    }

    /// A word's vector, `[100] f32`.
    pub(crate) fn vector(&self, row: usize) -> &[f32] {
        &self.vectors[row]
    }

    /// The row of a word.
    pub(crate) fn find(&self, word: &str) -> Option<usize> {
        (0..self.len()).find(|&row| self.word(row) == word)
    }

    /// The words of some search answer, nearest first.
    pub(crate) fn of_answer(answer: &RecordBatch) -> Vec<String> {
        let words = answer.column_by_name(WORD).map(|column| column.as_string::<i32>());
        words.into_iter().flatten().flatten().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_words_are_whole() {
        let words = Words::load(None).expect("loads");
        assert_eq!(words.len(), 25_000);
        assert_eq!(words.find("the"), Some(0));
        assert!(words.vector(24_999).len() == 100 && words.vector(0).iter().all(|v| v.is_finite()));
        assert_eq!(words.schema().expect("a schema").vectors()[0].dim, 100);
    }

    #[test]
    fn more_words_than_there_are_is_wrong_usage() {
        let failure = Words::load(Some(25_001)).expect_err("must be refused");
        assert!(failure.message.contains("25000"), "{failure:?}");
    }
}
