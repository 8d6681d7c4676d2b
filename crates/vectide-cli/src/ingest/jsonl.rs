//! JSON lines: a schema inferred from the first ones, batches decoded with the line named where one does not fit.
//!
//! Numbers, strings and booleans become columns of their kind, lists become list columns (`adapt` makes vectors of
//! them). Invariant: a column that the schema does not have is refused, not dropped.

use crate::error::{Failure, Outcome};
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::json::ReaderBuilder;
use arrow::json::reader::{Decoder, infer_json_schema};
use std::io::BufRead;
use std::sync::Arc;

/// Lines that are looked at to infer a schema.
const INFER_LINES: usize = 1_000;

/// Infers a schema: every column that stands in one of the first thousand lines.
pub(crate) fn infer_schema(reader: impl BufRead) -> Outcome<SchemaRef> {
    let (schema, lines) = infer_json_schema(reader, Some(INFER_LINES))?;
    if lines == 0 {
        return Err(Failure::invalid("the file has no rows, so nothing says what its columns are")
            .hint("create the table first: `vectide create URI TABLE --column NAME:TYPE`"));
    }
    Ok(Arc::new(schema))
}

/// Reads lines `batch_rows` at a time.
pub(crate) struct JsonLines<R> {
    reader: R,
    schema: SchemaRef,
    decoder: Decoder,
    batch_rows: usize,
    skip: u64,
    /// Lines read so far, blank ones included.
    line: u64,
    /// The lines of the batch being read, with their numbers: looked at again if the batch does not decode.
    pending: Vec<(u64, Vec<u8>)>,
    ended: bool,
}

impl<R: BufRead> JsonLines<R> {
    /// Starts at row `skip`.
    pub(crate) fn new(reader: R, schema: &SchemaRef, skip: u64, batch_rows: usize) -> Outcome<Self> {
        let decoder = decoder(schema, batch_rows)?;
        let schema = Arc::clone(schema);
        Ok(Self { reader, schema, decoder, batch_rows, skip, line: 0, pending: Vec::new(), ended: false })
    }

    fn read(&mut self) -> Outcome<Option<RecordBatch>> {
        self.pending.clear();
        while self.pending.len() < self.batch_rows {
            let mut line = Vec::new();
            if self.reader.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            self.line += 1;
            if line.trim_ascii().is_empty() {
                continue;
            }
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            self.pending.push((self.line, line));
        }
        if self.pending.is_empty() {
            return Ok(None);
        }
        let lines = self.pending.iter().map(|(_, line)| line.as_slice());
        match decode(&mut self.decoder, lines) {
            Ok(batch) if batch.num_rows() == self.pending.len() => Ok(Some(batch)),
            Ok(_) => Err(self.misshapen("expected one object a line".to_owned())),
            Err(error) => Err(self.misshapen(error)),
        }
    }

    /// Names the line that does not decode by itself.
    fn misshapen(&self, error: String) -> Failure {
        let alone = |line: &[u8]| {
            let mut decoder = decoder(&self.schema, 2).map_err(|failure| failure.message)?;
            let batch = decode(&mut decoder, std::iter::once(line))?;
            if batch.num_rows() == 1 { Ok(()) } else { Err("expected one object a line".to_owned()) }
        };
        for (number, line) in &self.pending {
            if let Err(why) = alone(line) {
                return Failure::invalid(format!("line {number}: {why}"))
                    .hint("correct that line and run the command again");
            }
        }
        let (from, to) = (self.pending.first().map_or(0, |p| p.0), self.pending.last().map_or(0, |p| p.0));
        Failure::invalid(format!("lines {from} to {to}: {error}")).hint("correct them and run the command again")
    }
}

fn decoder(schema: &SchemaRef, batch_rows: usize) -> Outcome<Decoder> {
    let builder = ReaderBuilder::new(Arc::clone(schema)).with_batch_size(batch_rows).with_strict_mode(true);
    Ok(builder.build_decoder()?)
}

fn decode<'a>(decoder: &mut Decoder, lines: impl Iterator<Item = &'a [u8]>) -> Result<RecordBatch, String> {
    let plain = |error: arrow::error::ArrowError| {
        let text = error.to_string();
        text.strip_prefix("Json error: ").map_or(text.clone(), str::to_owned)
    };
    for line in lines {
        let taken = decoder.decode(line).map_err(plain)?;
        if taken < line.trim_ascii_end().len() {
            return Err("expected one object a line".to_owned());
        }
    }
    if decoder.has_partial_record() {
        return Err("the object does not end on its line".to_owned());
    }
    decoder.flush().map_err(plain)?.ok_or_else(|| "no object".to_owned())
}

impl<R: BufRead> Iterator for JsonLines<R> {
    type Item = Outcome<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let read = self.read().transpose();
        self.ended = !matches!(read, Some(Ok(_)));
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, skip: u64, batch_rows: usize) -> Vec<Outcome<RecordBatch>> {
        let schema = infer_schema(text.as_bytes()).expect("infers");
        JsonLines::new(text.as_bytes(), &schema, skip, batch_rows).expect("opens").collect()
    }

    const LINES: &str = "{\"id\":1,\"vec\":[1,2.5]}\n\n{\"id\":2}\n{\"id\":3,\"vec\":[3,4]}";

    #[test]
    fn blank_lines_are_passed_over_and_reading_begins_anywhere() {
        let sizes: Vec<usize> = read(LINES, 0, 2).into_iter().map(|b| b.expect("reads").num_rows()).collect();
        assert_eq!(sizes, [2, 1]);
        let rest = read(LINES, 2, 2);
        assert_eq!(rest.len(), 1);
        assert_eq!(rest[0].as_ref().expect("reads").num_rows(), 1);
    }

    #[test]
    fn the_line_that_does_not_fit_is_named() {
        let schema = infer_schema("{\"id\":1}\n".as_bytes()).expect("infers");
        for (bad, why) in [("{\"id\":\"x\"}", "id"), ("{\"id\":", "line"), ("{\"id\":1,\"name\":2}", "name"), ("7", "")]
        {
            let text = format!("{{\"id\":1}}\n{bad}\n{{\"id\":3}}\n");
            let mut batches = JsonLines::new(text.as_bytes(), &schema, 0, 10).expect("opens");
            let failure = batches.next().expect("an answer").expect_err("must be refused");
            assert!(failure.message.starts_with("line 2: "), "{bad}: {}", failure.message);
            assert!(failure.message.contains(why), "{bad}: {}", failure.message);
            assert!(batches.next().is_none());
        }
    }

    #[test]
    fn an_empty_file_says_how_to_declare_the_table() {
        assert!(infer_schema("".as_bytes()).expect_err("no rows").hint.is_some());
    }
}
