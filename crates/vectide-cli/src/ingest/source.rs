//! A file of rows: what format it is in, its schema, and its batches from any row on.
//!
//! In: a path. Out: batches of exactly the asked size (the last one smaller), in file order. `ingest` reads one in a
//! thread of its own while it writes the batch before. Invariant: the same file and batch size give the same batches, so
//! that a resumed run continues where the earlier one stopped.

use super::jsonl::{self, JsonLines};
use crate::error::{Failure, Outcome};
use arrow::array::RecordBatch;
use arrow::compute::BatchCoalescer;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::reader::{FileReader, StreamReader};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileFormat {
    /// Apache Parquet.
    Parquet,
    /// Arrow IPC with a footer (also called Feather 2).
    ArrowFile,
    /// Arrow IPC as a stream.
    ArrowStream,
    /// One JSON object a line.
    JsonLines,
}

/// A file that was looked at and can be read.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) format: FileFormat,
    /// The file's schema; inferred from its first lines for JSON.
    pub(crate) schema: SchemaRef,
    /// Its rows, where the format says.
    pub(crate) rows: Option<u64>,
    /// Bytes.
    pub(crate) size: u64,
    /// Last change, in nanoseconds since 1970.
    pub(crate) modified_ns: u64,
}

/// Batches of a source.
pub(crate) type Batches = Box<dyn Iterator<Item = Outcome<RecordBatch>> + Send>;

impl Source {
    /// Looks at a file: format by its first bytes, else by its name; then its schema.
    pub(crate) fn open(path: &Path) -> Outcome<Self> {
        Self::look_at(path).map_err(|failure| failure.context(path.display()))
    }

    fn look_at(path: &Path) -> Outcome<Self> {
        let mut file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(Failure::invalid("not a file").hint("name files, such as rows/*.parquet"));
        }
        let modified = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut first = Vec::with_capacity(8);
        (&mut file).take(8).read_to_end(&mut first)?;
        let format = detect(&first, path)?;
        let (schema, rows) = match format {
            FileFormat::Parquet => {
                let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)?;
                let rows = u64::try_from(builder.metadata().file_metadata().num_rows()).ok();
                (Arc::clone(builder.schema()), rows)
            }
            FileFormat::ArrowFile => (FileReader::try_new_buffered(File::open(path)?, None)?.schema(), None),
            FileFormat::ArrowStream => (StreamReader::try_new_buffered(File::open(path)?, None)?.schema(), None),
            FileFormat::JsonLines => (jsonl::infer_schema(BufReader::new(File::open(path)?))?, None),
        };
        let modified_ns = u64::try_from(modified.as_nanos()).unwrap_or(u64::MAX);
        Ok(Self { path: path.to_owned(), format, schema, rows, size: metadata.len(), modified_ns })
    }

    /// The file's rows from row `skip` on, `batch_rows` at a time. JSON is read as `schema`, the other formats have
    /// their own.
    pub(crate) fn batches(&self, skip: u64, batch_rows: usize, schema: &SchemaRef) -> Outcome<Batches> {
        let file = File::open(&self.path)?;
        match self.format {
            FileFormat::Parquet => {
                let skip = usize::try_from(skip).unwrap_or(usize::MAX);
                let builder = ParquetRecordBatchReaderBuilder::try_new(file)?;
                let reader = builder.with_offset(skip).with_batch_size(batch_rows).build()?;
                Ok(resized(reader, &self.schema, 0, batch_rows))
            }
            FileFormat::ArrowFile => {
                Ok(resized(FileReader::try_new_buffered(file, None)?, &self.schema, skip, batch_rows))
            }
            FileFormat::ArrowStream => {
                Ok(resized(StreamReader::try_new_buffered(file, None)?, &self.schema, skip, batch_rows))
            }
            FileFormat::JsonLines => Ok(Box::new(JsonLines::new(BufReader::new(file), schema, skip, batch_rows)?)),
        }
    }
}

fn detect(first: &[u8], path: &Path) -> Outcome<FileFormat> {
    if first.starts_with(b"PAR1") {
        return Ok(FileFormat::Parquet);
    }
    if first.starts_with(b"ARROW1") {
        return Ok(FileFormat::ArrowFile);
    }
    if first.starts_with(&[0xff; 4]) {
        return Ok(FileFormat::ArrowStream);
    }
    let name = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    let text = first.trim_ascii_start().first();
    if text == Some(&b'{') || (first.is_empty() && matches!(name, "json" | "jsonl" | "ndjson")) {
        return Ok(FileFormat::JsonLines);
    }
    let why = match (name, text) {
        (_, Some(b'[')) => "a JSON array; expected one object a line",
        ("parquet", _) => "named .parquet, but no Parquet file",
        ("csv" | "tsv", _) => "CSV is not read",
        ("npy", _) => "a NumPy file has no columns; `search --file` takes it as queries",
        _ => "neither Parquet, nor Arrow IPC, nor JSON lines",
    };
    Err(Failure::invalid(why).hint("convert it to Parquet, Arrow IPC or JSON lines"))
}

/// Skips rows and cuts the rest into batches of one size.
fn resized(
    batches: impl Iterator<Item = Result<RecordBatch, ArrowError>> + Send + 'static,
    schema: &SchemaRef,
    skip: u64,
    batch_rows: usize,
) -> Batches {
    let coalescer = BatchCoalescer::new(Arc::clone(schema), batch_rows);
    Box::new(Resized { batches, coalescer, skip, ended: false })
}

struct Resized<I> {
    batches: I,
    coalescer: BatchCoalescer,
    skip: u64,
    ended: bool,
}

impl<I: Iterator<Item = Result<RecordBatch, ArrowError>>> Resized<I> {
    fn fill(&mut self) -> Outcome {
        while !self.coalescer.has_completed_batch() && !self.ended {
            match self.batches.next() {
                Some(batch) => {
                    let batch = batch?;
                    let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(batch.num_rows());
                    self.skip -= skipped as u64;
                    self.coalescer.push_batch(batch.slice(skipped, batch.num_rows() - skipped))?;
                }
                None => {
                    self.ended = true;
                    self.coalescer.finish_buffered_batch()?;
                }
            }
        }
        Ok(())
    }
}

impl<I: Iterator<Item = Result<RecordBatch, ArrowError>>> Iterator for Resized<I> {
    type Item = Outcome<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(failure) = self.fill() {
            self.ended = true;
            return Some(Err(failure));
        }
        self.coalescer.next_completed_batch().map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::Int64Type;

    fn ints(from: i64, to: i64) -> RecordBatch {
        RecordBatch::try_from_iter([("id", Arc::new(Int64Array::from_iter_values(from..to)) as _)]).expect("a batch")
    }

    #[test]
    fn batches_have_the_asked_size_wherever_reading_begins() {
        let parts = [ints(0, 3), ints(3, 3), ints(3, 10), ints(10, 11)];
        let read = |skip| {
            let schema = parts[0].schema();
            let batches = resized(parts.clone().into_iter().map(Ok), &schema, skip, 4);
            batches.map(|b| b.expect("reads").column(0).as_primitive::<Int64Type>().values().to_vec()).collect()
        };
        let all: Vec<Vec<i64>> = read(0);
        assert_eq!(all, [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9, 10]]);
        let rest: Vec<Vec<i64>> = read(4);
        assert_eq!(rest, all[1..]);
        assert_eq!(read(11), Vec::<Vec<i64>>::new());
    }

    #[test]
    fn formats_are_told_by_their_first_bytes() {
        let path = Path::new("rows");
        for (first, format) in [
            (b"PAR1\x15\0\x15\0".as_slice(), FileFormat::Parquet),
            (b"ARROW1\0\0", FileFormat::ArrowFile),
            (b"\xff\xff\xff\xff\x10\x01\0\0", FileFormat::ArrowStream),
            (b"\n {\"id\":", FileFormat::JsonLines),
        ] {
            assert_eq!(detect(first, path).expect("is known"), format);
        }
        let failure = detect(b"id,name\n", Path::new("rows.csv")).expect_err("CSV");
        assert!(failure.message.contains("CSV") && failure.hint.is_some(), "{failure:?}");
        assert!(detect(b"[{\"id\"", path).expect_err("an array").message.contains("array"));
    }
}
