//! From a file's columns to a table's: the schema that a file's table gets, and batches brought to a table's types.
//!
//! Vectors may come as any list of numbers, keys as any integers or strings of another width. Invariant: no value is
//! changed on the way: what does not fit is an error that names column, expected and got.

use super::source::{FileFormat, Source};
use crate::declare::VectorSpec;
use crate::error::{Failure, Outcome};
use crate::vectors;
use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::util::display::FormatOptions;
use std::sync::Arc;
use vectide::TableSchema;
use vectide::schema::VectorElement;

/// The schema of a table made for `source`: its columns, with the key and the vectors that were named.
pub(crate) fn table_schema(source: &Source, key: Option<&str>, vectors: &[VectorSpec]) -> Outcome<TableSchema> {
    if key.is_none() && vectors.is_empty() {
        // A file that was exported from a table says itself what its columns are.
        let marked = TableSchema::from_arrow(&source.schema)?;
        if !marked.vectors().is_empty() || marked.key().is_some() {
            return Ok(marked);
        }
    }
    refuse_unmentioned(&source.schema, vectors)?;
    let first = if vectors.is_empty() { None } else { first_batch(source)? };
    let mut fields = Vec::with_capacity(source.schema.fields().len());
    for field in source.schema.fields() {
        let vector = vectors.iter().find(|v| v.column == *field.name());
        fields.push(match vector {
            Some(vector) => vector_field(field, vector, first.as_ref())?,
            None if key == Some(field.name()) => field.as_ref().clone().with_data_type(key_type(field.data_type())),
            None => field.as_ref().clone(),
        });
    }
    let mut builder = TableSchema::builder(Schema::new(fields));
    if let Some(key) = key {
        builder = builder.key(key);
    }
    for vector in vectors {
        builder = builder.vector(&vector.column, vector.metric);
    }
    Ok(builder.build()?)
}

/// A list of floats that nobody called a vector would be stored and never found: better to ask.
fn refuse_unmentioned(schema: &Schema, vectors: &[VectorSpec]) -> Outcome {
    let is_float_list = |field: &&Arc<Field>| match field.data_type() {
        DataType::FixedSizeList(item, _) | DataType::List(item) | DataType::LargeList(item) => {
            item.data_type().is_floating()
        }
        _ => false,
    };
    match schema.fields().iter().find(is_float_list) {
        Some(field) if vectors.is_empty() => {
            let name = field.name();
            let message = format!("column `{name}` holds lists of numbers and no vector column was named");
            Err(Failure::invalid(message).hint(format!(
                "say --vector {name}:cosine (or l2, dot) to search it; to keep it as a plain column, `vectide create` the table first"
            )))
        }
        _ => Ok(()),
    }
}

fn first_batch(source: &Source) -> Outcome<Option<RecordBatch>> {
    source.batches(0, 64, &source.schema)?.next().transpose()
}

fn vector_field(field: &Field, vector: &VectorSpec, first: Option<&RecordBatch>) -> Outcome<Field> {
    let name = field.name();
    if !vectors::is_vector_like(field.data_type()) {
        let message =
            format!("column `{name}` cannot be a vector: expected lists of numbers, got {}", field.data_type());
        return Err(Failure::invalid(message).hint("name another column with --vector"));
    }
    let found =
        first.and_then(|batch| batch.column_by_name(name)).and_then(|column| vectors::dimension(column.as_ref()));
    let dim = vector.dim.or(found).ok_or_else(|| {
        Failure::invalid(format!("the first rows do not say the dimension of `{name}`"))
            .hint(format!("say it: --vector {name}:DIM"))
    })?;
    let element = match field.data_type() {
        DataType::FixedSizeList(item, _) | DataType::List(item) | DataType::LargeList(item)
            if *item.data_type() == DataType::Float16 =>
        {
            VectorElement::F16
        }
        _ => VectorElement::F32,
    };
    Ok(vector.field(dim, element))
}

/// The key type that holds every value of a column type; one that has none is left for the schema's check to refuse.
fn key_type(found: &DataType) -> DataType {
    match found {
        DataType::Int8 | DataType::Int16 | DataType::Int32 => DataType::Int64,
        DataType::UInt8 | DataType::UInt16 | DataType::UInt32 => DataType::UInt64,
        DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::LargeBinary | DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(_, values) => key_type(values),
        other => other.clone(),
    }
}

/// Checks that a table is what the flags of this run say.
pub(crate) fn refuse_other_declaration(
    table: &str,
    schema: &TableSchema,
    key: Option<&str>,
    vectors: &[VectorSpec],
) -> Outcome {
    let differs = |what: String| {
        Err(Failure::invalid(format!("table `{table}` is there and {what}"))
            .hint("leave the flag out: the table's own declaration holds (`vectide tables URI TABLE` shows it)"))
    };
    let own = schema.key().map(|k| k.name.as_str());
    if key.is_some() && key != own {
        return differs(own.map_or("has no key".to_owned(), |own| format!("its key is `{own}`")));
    }
    for vector in vectors {
        match schema.vectors().iter().find(|v| v.name == vector.column) {
            None => return differs(format!("`{}` is no vector column of it", vector.column)),
            Some(own) if own.metric != vector.metric => {
                let metric = vectide::schema::metric_name(own.metric);
                return differs(format!("its vector column `{}` is {metric}", own.name));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// The schema to read a source with: a file's own; for JSON the table's, so that types follow the table, not the text.
pub(crate) fn reading_schema(source: &Source, table: &TableSchema) -> SchemaRef {
    if source.format != FileFormat::JsonLines {
        return Arc::clone(&source.schema);
    }
    let readable = |field: &Arc<Field>| match table.vectors().iter().any(|v| v.name == *field.name()) {
        true => Field::new_list(field.name(), Field::new_list_field(DataType::Float32, true), true),
        false => field.as_ref().clone().with_nullable(true),
    };
    Arc::new(Schema::new(table.arrow().fields().iter().map(readable).collect::<Vec<_>>()))
}

/// Brings a batch's columns to the table's types. Columns that the table does not have stay: the engine refuses them.
pub(crate) fn adapt(batch: &RecordBatch, table: &TableSchema) -> Outcome<RecordBatch> {
    let mut fields = Vec::with_capacity(batch.num_columns());
    let mut columns = Vec::with_capacity(batch.num_columns());
    for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
        let (field, column) = match table.arrow().field_with_name(field.name()) {
            Ok(wanted) => {
                let is_vector = table.vectors().iter().any(|v| v.name == *field.name());
                (Arc::new(wanted.clone().with_nullable(true)), to_type(column, wanted, is_vector)?)
            }
            Err(_) => (Arc::clone(field), Arc::clone(column)),
        };
        fields.push(field);
        columns.push(column);
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

fn to_type(column: &ArrayRef, wanted: &Field, is_vector: bool) -> Outcome<ArrayRef> {
    let name = wanted.name();
    if column.data_type() == wanted.data_type() {
        return Ok(Arc::clone(column));
    }
    if is_vector {
        return vectors::to_fixed(column, wanted.data_type(), name, &|row| format!("row {row}"));
    }
    if !keeps_values(column.data_type(), wanted.data_type()) {
        let (expected, got) = (wanted.data_type(), column.data_type());
        return Err(Failure::invalid(format!("column `{name}`: expected {expected}, the file has {got}"))
            .hint("convert the column in the file"));
    }
    let options = CastOptions { safe: false, format_options: FormatOptions::new() };
    cast_with_options(column, wanted.data_type(), &options)
        .map_err(|error| Failure::from(error).context(format_args!("column `{name}`")))
}

/// Whether a cast keeps each value or fails on it.
fn keeps_values(from: &DataType, to: &DataType) -> bool {
    use DataType::{
        Binary, BinaryView, Dictionary, FixedSizeBinary, FixedSizeList, Float16, Float32, Float64, LargeBinary,
        LargeList, LargeUtf8, List, Null, Utf8, Utf8View,
    };
    match (from, to) {
        (Null, _) => true,
        (Dictionary(_, values), to) => values.as_ref() == to || keeps_values(values, to),
        (from, Dictionary(_, values)) => from == values.as_ref() || keeps_values(from, values),
        (Utf8 | LargeUtf8 | Utf8View, Utf8 | LargeUtf8 | Utf8View) => true,
        (
            Binary | LargeBinary | BinaryView | FixedSizeBinary(_),
            Binary | LargeBinary | BinaryView | FixedSizeBinary(_),
        ) => true,
        (Float16, Float32 | Float64) | (Float32, Float64) => true,
        (List(a) | LargeList(a) | FixedSizeList(a, _), List(b) | LargeList(b)) => {
            a.data_type() == b.data_type() || keeps_values(a.data_type(), b.data_type())
        }
        // A field's name or nullability, at any depth: the engine compares types without them.
        (from, to) if from.is_nested() && to.is_nested() => from.equals_datatype(to),
        (from, to) => from.is_integer() && to.is_integer(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Array, AsArray, Float64Array, Int32Array, Int64Array, LargeStringArray, ListArray};
    use arrow::datatypes::Float64Type;

    fn table() -> TableSchema {
        vectide::schema! { key id: Int64, name: Utf8, vector vec: [f32; 2] cosine }.expect("valid")
    }

    #[test]
    fn keys_strings_and_vectors_of_other_widths_fit() {
        let lists = ListArray::from_iter_primitive::<Float64Type, _, _>([Some(vec![Some(1.0), Some(0.5)])]);
        let batch = RecordBatch::try_from_iter([
            ("vec", Arc::new(lists) as ArrayRef),
            ("id", Arc::new(Int32Array::from(vec![7])) as _),
            ("name", Arc::new(LargeStringArray::from(vec!["a"])) as _),
        ])
        .expect("a batch");
        let out = adapt(&batch, &table()).expect("fits");
        for name in ["id", "name", "vec"] {
            let wanted = table().arrow().field_with_name(name).expect("a column").data_type().clone();
            assert_eq!(out.column_by_name(name).expect("a column").data_type(), &wanted);
        }
    }

    #[test]
    fn a_column_whose_values_would_change_is_refused_by_name() {
        let doubles = Arc::new(Float64Array::from(vec![1.5])) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("id", doubles)]).expect("a batch");
        let failure = adapt(&batch, &table()).expect_err("must be refused");
        assert_eq!(failure.message, "column `id`: expected Int64, the file has Float64");
    }

    #[test]
    fn an_integer_that_does_not_fit_is_an_error_not_a_null() {
        let schema = vectide::schema! { key id: Int64, small: Int8 }.expect("valid");
        let big = Arc::new(Int64Array::from(vec![300])) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("small", big)]).expect("a batch");
        let failure = adapt(&batch, &schema).expect_err("must be refused");
        assert!(failure.message.contains("`small`"), "{failure:?}");
    }

    #[test]
    fn unknown_columns_are_left_for_the_engine_to_name() {
        let batch =
            RecordBatch::try_from_iter([("extra", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]).expect("a batch");
        let out = adapt(&batch, &table()).expect("stays");
        assert_eq!(out.column(0).as_primitive::<arrow::datatypes::Int64Type>().len(), 1);
    }

    #[test]
    fn a_list_of_floats_asks_for_its_metric() {
        let schema = Schema::new(vec![Field::new_list("vec", Field::new_list_field(DataType::Float64, true), true)]);
        let failure = refuse_unmentioned(&schema, &[]).expect_err("must ask");
        assert!(failure.hint.is_some_and(|hint| hint.contains("--vector vec:cosine")));
    }
}
