//! Rows on their way out: as an aligned table, JSON lines, one JSON object, Arrow IPC or Parquet.
//!
//! `search`, `get` and `scan` write batches into a [`RowWriter`]; it streams, except that a table is laid out a thousand
//! rows at a time. Invariant: Arrow and Parquet output hold the rows as they are stored, the others are for reading.

use crate::error::{Failure, Outcome};
use arrow::array::{Array, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::ipc::writer::{FileWriter, StreamWriter};
use arrow::json::WriterBuilder;
use arrow::json::writer::{JsonArray, LineDelimited, Writer as JsonWriter};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use parquet::arrow::ArrowWriter;
use std::fs::File;
use std::io::{BufWriter, IsTerminal as _, Write};
use std::path::Path;

/// What rows look like on the way out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Aligned columns, vectors shortened
    #[default]
    Table,
    /// JSON lines: one object a row
    Json,
    /// Arrow IPC: a stream on stdout, a file with -o
    Arrow,
    /// Parquet, compressed with zstd
    Parquet,
}

impl Format {
    /// The format that a file's name asks for, unless one was given.
    pub(crate) fn for_output(given: Option<Self>, file: Option<&Path>) -> Self {
        let by_name = || match file?.extension()?.to_str()? {
            "json" | "jsonl" | "ndjson" => Some(Self::Json),
            "arrow" | "ipc" | "feather" => Some(Self::Arrow),
            "parquet" => Some(Self::Parquet),
            _ => None,
        };
        given.or_else(by_name).unwrap_or_default()
    }

    /// Whether it is made for eyes: then few rows are wanted, not all.
    pub(crate) fn is_for_reading(self) -> bool {
        self == Self::Table
    }
}

type Sink = Box<dyn Write + Send>;

/// Writes batches of one schema in one format.
pub(crate) struct RowWriter {
    kind: Kind,
    rows: u64,
}

enum Kind {
    Table { sink: Sink, schema: SchemaRef, pending: Vec<RecordBatch>, pending_rows: usize, titled: bool },
    Lines(Box<JsonWriter<Sink, LineDelimited>>),
    Object(Box<JsonWriter<Sink, JsonArray>>),
    ArrowStream(Box<StreamWriter<Sink>>),
    ArrowFile(Box<FileWriter<Sink>>),
    Parquet(Box<ArrowWriter<Sink>>),
}

/// Rows of a table that are laid out together.
const TABLE_ROWS: usize = 1_000;

impl RowWriter {
    /// Writes to `file`, or to stdout.
    pub(crate) fn new(format: Format, schema: &SchemaRef, file: Option<&Path>) -> Outcome<Self> {
        let binary = matches!(format, Format::Arrow | Format::Parquet);
        if binary && file.is_none() && std::io::stdout().is_terminal() {
            return Err(Failure::usage("Arrow and Parquet bytes are not for a terminal")
                .hint("name a file with -o, or pipe the output"));
        }
        let sink: Sink = match file {
            Some(path) => {
                let created = File::create(path).map_err(|e| Failure::from(e).context(path.display()))?;
                Box::new(BufWriter::with_capacity(1 << 20, created))
            }
            None => Box::new(BufWriter::with_capacity(1 << 16, std::io::stdout())),
        };
        let kind = match format {
            Format::Table => {
                Kind::Table { sink, schema: schema.clone(), pending: Vec::new(), pending_rows: 0, titled: false }
            }
            Format::Json => Kind::Lines(Box::new(json().build(sink))),
            Format::Arrow if file.is_some() => Kind::ArrowFile(Box::new(FileWriter::try_new(sink, schema)?)),
            Format::Arrow => Kind::ArrowStream(Box::new(StreamWriter::try_new(sink, schema)?)),
            Format::Parquet => {
                let zstd = parquet::basic::Compression::ZSTD(parquet::basic::ZstdLevel::default());
                let properties = parquet::file::properties::WriterProperties::builder().set_compression(zstd).build();
                Kind::Parquet(Box::new(ArrowWriter::try_new(sink, schema.clone(), Some(properties))?))
            }
        };
        Ok(Self { kind, rows: 0 })
    }

    /// Writes one JSON object to stdout: `head` is its beginning up to the rows' array, `{"table":"docs","rows":`.
    pub(crate) fn object(head: &str) -> Outcome<Self> {
        let mut sink: Sink = Box::new(BufWriter::with_capacity(1 << 16, std::io::stdout()));
        sink.write_all(head.as_bytes())?;
        Ok(Self { kind: Kind::Object(Box::new(json().build(sink))), rows: 0 })
    }

    /// Writes a batch.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Outcome {
        self.rows += batch.num_rows() as u64;
        match &mut self.kind {
            Kind::Table { sink, schema, pending, pending_rows, titled } => {
                pending.push(batch.clone());
                *pending_rows += batch.num_rows();
                if *pending_rows >= TABLE_ROWS {
                    write_table(sink, schema, pending, titled)?;
                    *pending_rows = 0;
                }
            }
            Kind::Lines(writer) => writer.write(batch)?,
            Kind::Object(writer) => writer.write(batch)?,
            Kind::ArrowStream(writer) => writer.write(batch)?,
            Kind::ArrowFile(writer) => writer.write(batch)?,
            Kind::Parquet(writer) => writer.write(batch)?,
        }
        Ok(())
    }

    /// Ends the output; `tail` ends an object's. Gives the number of rows written.
    pub(crate) fn finish(self, tail: &str) -> Outcome<u64> {
        let mut sink = match self.kind {
            Kind::Table { mut sink, schema, mut pending, mut titled, .. } => {
                if !titled || !pending.is_empty() {
                    write_table(&mut sink, &schema, &mut pending, &mut titled)?;
                }
                sink
            }
            Kind::Lines(mut writer) => {
                writer.finish()?;
                writer.into_inner()
            }
            Kind::Object(mut writer) => {
                writer.finish()?;
                let mut sink = writer.into_inner();
                sink.write_all(tail.as_bytes())?;
                sink
            }
            Kind::ArrowStream(writer) => writer.into_inner()?,
            Kind::ArrowFile(writer) => writer.into_inner()?,
            Kind::Parquet(writer) => writer.into_inner()?,
        };
        sink.flush()?;
        Ok(self.rows)
    }
}

fn json() -> WriterBuilder {
    WriterBuilder::new().with_explicit_nulls(true)
}

/// Rows as JSON values, for objects that hold more than rows.
pub(crate) fn to_values(batch: &RecordBatch) -> Outcome<serde_json::Value> {
    let mut writer: JsonWriter<Vec<u8>, JsonArray> = json().build(Vec::new());
    writer.write(batch)?;
    writer.finish()?;
    Ok(serde_json::from_slice(&writer.into_inner())?)
}

fn write_table(sink: &mut Sink, schema: &SchemaRef, pending: &mut Vec<RecordBatch>, titled: &mut bool) -> Outcome {
    let batch = concat_batches(schema, pending.iter())?;
    pending.clear();
    let mut lines = Vec::with_capacity(batch.num_rows() + 1);
    if !*titled {
        lines.push(schema.fields().iter().map(|f| f.name().clone()).collect());
        *titled = true;
    }
    let options = FormatOptions::new().with_null("null");
    let columns: Vec<_> =
        batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options)).collect::<Result<_, _>>()?;
    for row in 0..batch.num_rows() {
        let cells = batch.columns().iter().zip(&columns);
        lines.push(cells.map(|(array, formatter)| cell(array.as_ref(), formatter, row)).collect());
    }
    let right: Vec<bool> = schema.fields().iter().map(|f| f.data_type().is_numeric()).collect();
    sink.write_all(aligned(&lines, &right).as_bytes())?;
    Ok(())
}

/// Widest cell of a table; longer text is cut.
const CELL_CHARS: usize = 60;

fn cell(array: &dyn Array, formatter: &ArrayFormatter<'_>, row: usize) -> String {
    if let (DataType::Float32 | DataType::Float64, false) = (array.data_type(), array.is_null(row)) {
        let text = formatter.value(row).to_string();
        return text.parse::<f64>().map_or(text, |value| format!("{value:.4}"));
    }
    if crate::vectors::is_vector_like(array.data_type())
        && let Ok(Some(vector)) = crate::vectors::row_f32(array, row)
    {
        let shown: Vec<String> = vector.iter().take(3).map(|v| format!("{v:.2}")).collect();
        let rest = if vector.len() > 3 { format!(", … {}", vector.len()) } else { String::new() };
        return format!("[{}{rest}]", shown.join(", "));
    }
    let text: String = formatter.value(row).to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().count() <= CELL_CHARS {
        return text;
    }
    text.chars().take(CELL_CHARS - 1).chain(['…']).collect()
}

/// Lays cells out in columns two spaces apart; `right` says which columns are flush right.
pub(crate) fn aligned(lines: &[Vec<String>], right: &[bool]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| lines.iter().filter_map(|line| line.get(column)).map(|c| c.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut out = String::new();
    for line in lines {
        let mut text = String::new();
        for (column, cell) in line.iter().enumerate() {
            let pad = " ".repeat(widths[column] - cell.chars().count());
            if column > 0 {
                text.push_str("  ");
            }
            if right.get(column).copied().unwrap_or(false) {
                text.push_str(&pad);
                text.push_str(cell);
            } else {
                text.push_str(cell);
                text.push_str(&pad);
            }
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{FixedSizeListArray, Float32Array, StringArray};
    use arrow::datatypes::Float32Type;
    use std::sync::Arc;

    fn batch() -> RecordBatch {
        let vectors = [Some(vec![Some(0.5); 4]), None];
        RecordBatch::try_from_iter([
            ("name", Arc::new(StringArray::from(vec![Some("a\nb"), None])) as _),
            ("vec", Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(vectors, 4)) as _),
            ("_distance", Arc::new(Float32Array::from(vec![0.25, 1.0])) as _),
        ])
        .expect("a batch")
    }

    #[test]
    fn a_table_shortens_vectors_and_keeps_one_line_a_row() {
        let batch = batch();
        let mut pending = vec![batch.clone()];
        let buffer = Shared::default();
        let mut sink: Sink = Box::new(buffer.clone());
        write_table(&mut sink, &batch.schema(), &mut pending, &mut false).expect("writes");
        let text = String::from_utf8(buffer.0.lock().expect("not poisoned").clone()).expect("UTF-8");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[1].starts_with("a b") && lines[1].contains("[0.50, 0.50, 0.50, … 4]"), "{text}");
        assert!(lines[1].ends_with("0.2500") && lines[2].contains("null"), "{text}");
    }

    #[derive(Clone, Default)]
    struct Shared(Arc<std::sync::Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("not poisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn json_rows_say_null() {
        let rows = to_values(&batch()).expect("converts");
        assert_eq!(rows[1]["name"], serde_json::Value::Null);
        assert_eq!(rows[1]["_distance"], 1.0);
        assert_eq!(to_values(&batch().slice(0, 0)).expect("converts"), serde_json::json!([]));
    }

    #[test]
    fn the_files_name_chooses_the_format_unless_one_is_given() {
        let parquet = Path::new("rows.parquet");
        assert_eq!(Format::for_output(None, Some(parquet)), Format::Parquet);
        assert_eq!(Format::for_output(Some(Format::Json), Some(parquet)), Format::Json);
        assert_eq!(Format::for_output(None, None), Format::Table);
    }
}
