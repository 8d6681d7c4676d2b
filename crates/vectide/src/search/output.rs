//! Turns stored rows into the batches that callers get.
//!
//! In: rows in stored columns. Out: the user's columns (dictionary encoding restored), a distance column where a search
//! asked. Called by `exec`. Invariant: column order is the projection's.

use crate::error::{Error, Result};
use crate::schema::{DISTANCE_COLUMN, TableSchema};
use arrow::array::{ArrayRef, Float32Array, RecordBatch, RecordBatchOptions, new_empty_array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use std::sync::Arc;

/// The user's schema at `projection`.
pub(crate) fn user_schema(schema: &TableSchema, projection: &[usize]) -> SchemaRef {
    let fields: Vec<Field> = projection.iter().map(|&i| schema.arrow().field(i).clone()).collect();
    Arc::new(Schema::new(fields))
}

/// Positions of the named columns; by default all but the vector columns.
pub(crate) fn projection(
    schema: &TableSchema,
    columns: Option<&[String]>,
    vectors_by_default: bool,
) -> Result<Vec<usize>> {
    let Some(columns) = columns else {
        let is_vector = |i: &usize| schema.vectors().iter().any(|v| v.index == *i);
        return Ok((0..schema.arrow().fields().len()).filter(|i| vectors_by_default || !is_vector(i)).collect());
    };
    columns
        .iter()
        .map(|name| {
            schema.arrow().index_of(name).map_err(|_| {
                let names: Vec<_> = schema.arrow().fields().iter().map(|f| f.name().as_str()).collect();
                Error::invalid(format!("column `{name}` is not in the table; it has: {}", names.join(", ")))
            })
        })
        .collect()
}

/// Stored columns as the user's.
pub(crate) fn to_user(schema: &TableSchema, projection: &[usize], stored: &RecordBatch) -> Result<RecordBatch> {
    let user = user_schema(schema, projection);
    let columns: Vec<ArrayRef> = (stored.columns().iter().zip(user.fields()))
        .map(|(column, field)| {
            if column.data_type() == field.data_type() {
                Ok(Arc::clone(column))
            } else {
                arrow::compute::cast(column, field.data_type())
            }
        })
        .collect::<Result<_, _>>()?;
    batch(user, columns, stored.num_rows())
}

/// Rows of several stored batches in the given `(batch, row)` order, as the user's columns.
pub(crate) fn interleave(
    schema: &TableSchema,
    projection: &[usize],
    taken: &[RecordBatch],
    order: &[(usize, usize)],
) -> Result<RecordBatch> {
    let columns: Vec<ArrayRef> = (0..projection.len())
        .map(|column| {
            if taken.is_empty() {
                return Ok(new_empty_array(schema.stored().field(projection[column]).data_type()));
            }
            let arrays: Vec<_> = taken.iter().map(|batch| &**batch.column(column)).collect();
            arrow::compute::interleave(&arrays, order)
        })
        .collect::<Result<_, _>>()?;
    let fields: Vec<Field> = projection.iter().map(|&i| schema.stored().field(i).clone()).collect();
    let stored = batch(Arc::new(Schema::new(fields)), columns, order.len())?;
    to_user(schema, projection, &stored)
}

/// The batch with the distance column behind its own.
pub(crate) fn with_distances(rows: &RecordBatch, distances: impl Iterator<Item = f32>) -> Result<RecordBatch> {
    let mut fields: Vec<Field> = rows.schema_ref().fields().iter().map(|f| f.as_ref().clone()).collect();
    fields.push(Field::new(DISTANCE_COLUMN, DataType::Float32, false));
    let mut columns = rows.columns().to_vec();
    columns.push(Arc::new(distances.collect::<Float32Array>()));
    batch(Arc::new(Schema::new(fields)), columns, rows.num_rows())
}

fn batch(schema: SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(schema, columns, &options)?)
}
