//! What a table's rows look like: an Arrow schema, its key column and its vector columns.
//!
//! Comes from [`schema!`](crate::schema!), from any Arrow schema through [`TableSchema::builder`], or from the catalog;
//! used by every module that touches rows. Invariant: a `TableSchema` is valid, and `stored` has the same columns in the
//! same order as `user` with dictionary encoding removed (each tier re-packs rows, and a dictionary belongs to one batch).

use crate::error::{Error, Result};
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use base64::Engine as _;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
pub use vectide_graph::{Codes, Metric};

/// Column names that begin so belong to Vectide.
pub const RESERVED_PREFIX: char = '_';
/// The column of a search result that holds the distance: f32, smaller is nearer.
pub const DISTANCE_COLUMN: &str = "_distance";
/// The column in `rows.arrow` that holds each row's sequence number.
pub const SEQ_COLUMN: &str = "_seq";
/// Largest dimension of a vector column.
pub const MAX_DIMENSION: u32 = 65_536;

const KEY_METADATA: &str = "vectide.key";
const METRIC_METADATA: &str = "vectide.metric";
const M_METADATA: &str = "vectide.m";
const EF_CONSTRUCTION_METADATA: &str = "vectide.ef_construction";
const CODES_METADATA: &str = "vectide.codes";

/// The type of a vector's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VectorElement {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
}

/// A column that can be searched by distance: `FixedSizeList` of f32 or f16.
#[derive(Clone, Debug, PartialEq)]
pub struct VectorColumn {
    /// Position in the schema.
    pub index: usize,
    /// Name in the schema.
    pub name: String,
    /// Dimension.
    pub dim: u32,
    /// Element type.
    pub element: VectorElement,
    /// Distance.
    pub metric: Metric,
    /// Links a node keeps on upper levels (twice as many on level 0), Malkov & Yashunin's `M`.
    pub m: u16,
    /// Beam width while building.
    pub ef_construction: u32,
    /// Compact codes that the graph walks on; searches end with exact distances.
    pub codes: Codes,
}

/// The type of a table's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyType {
    /// Signed 64-bit integers.
    Int64,
    /// Unsigned 64-bit integers.
    UInt64,
    /// UTF-8 strings.
    Utf8,
    /// Byte strings.
    Binary,
    /// Byte strings of one length, such as UUIDs.
    FixedSizeBinary(i32),
}

/// The key column: at most one row per key is live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyColumn {
    /// Position in the schema.
    pub index: usize,
    /// Name in the schema.
    pub name: String,
    /// Its type.
    pub key_type: KeyType,
}

/// A table's schema. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct TableSchema(Arc<Inner>);

#[derive(Debug, PartialEq)]
struct Inner {
    user: SchemaRef,
    stored: SchemaRef,
    delete: Option<SchemaRef>,
    key: Option<KeyColumn>,
    vectors: Vec<VectorColumn>,
}

impl TableSchema {
    /// Starts from any Arrow schema.
    ///
    /// ```
    /// use vectide::{Metric, TableSchema};
    /// use arrow::datatypes::{DataType, Field, Schema};
    /// # fn main() -> vectide::Result<()> {
    /// let arrow = Schema::new(vec![
    ///     Field::new("id", DataType::Utf8, false),
    ///     Field::new_fixed_size_list("vec", Field::new_list_field(DataType::Float32, true), 8, true),
    /// ]);
    /// let schema = TableSchema::builder(arrow).key("id").vector("vec", Metric::Cosine).build()?;
    /// assert_eq!(schema.vectors()[0].dim, 8);
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(arrow: impl Into<Schema>) -> TableSchemaBuilder {
        TableSchemaBuilder { arrow: arrow.into(), key: None, vectors: Vec::new() }
    }

    /// Reads key and vector columns from the metadata that [`TableSchema::arrow`] carries.
    ///
    /// # Errors
    /// `Invalid` if the schema is not one that Vectide can keep.
    pub fn from_arrow(arrow: &Schema) -> Result<Self> {
        let mut builder = Self::builder(arrow.clone());
        for field in arrow.fields() {
            if field.metadata().contains_key(KEY_METADATA) {
                builder = builder.key(field.name());
            }
            if let Some(metric) = field.metadata().get(METRIC_METADATA) {
                let mut options = VectorOptions::new(parse_metric(metric)?);
                let number = |name: &str| field.metadata().get(name).and_then(|v| v.parse::<u32>().ok());
                options.m = number(M_METADATA).and_then(|m| u16::try_from(m).ok()).unwrap_or(options.m);
                options.ef_construction = number(EF_CONSTRUCTION_METADATA).unwrap_or(options.ef_construction);
                options.codes = field.metadata().get(CODES_METADATA).map(|name| parse_codes(name)).transpose()?;
                builder = builder.vector_with(field.name(), options);
            }
        }
        builder.build()
    }

    /// The schema that callers write and read, with key and vector columns marked in the field metadata.
    #[must_use]
    pub fn arrow(&self) -> &SchemaRef {
        &self.0.user
    }

    /// The schema as the tiers keep it: without dictionary encoding.
    pub(crate) fn stored(&self) -> &SchemaRef {
        &self.0.stored
    }

    /// The schema of a delete's frame: the key column alone. `None` without a key.
    pub(crate) fn delete(&self) -> Option<&SchemaRef> {
        self.0.delete.as_ref()
    }

    /// The key column; `None` for an append-only table.
    #[must_use]
    pub fn key(&self) -> Option<&KeyColumn> {
        self.0.key.as_ref()
    }

    /// The vector columns, in schema order.
    #[must_use]
    pub fn vectors(&self) -> &[VectorColumn] {
        &self.0.vectors
    }

    /// The ordinal (among the vector columns) of the column that a search means: the named one, or the only one.
    ///
    /// # Errors
    /// `Invalid` if there is no such column, or several and none was named.
    pub fn vector(&self, name: Option<&str>) -> Result<usize> {
        let names = || self.0.vectors.iter().map(|v| v.name.as_str()).collect::<Vec<_>>().join(", ");
        match (name, self.0.vectors.len()) {
            (None, 1) => Ok(0),
            (None, 0) => Err(Error::invalid("the table has no vector column to search")),
            (None, _) => Err(Error::invalid(format!("name the vector column to search: one of {}", names()))),
            (Some(name), _) => self.0.vectors.iter().position(|v| v.name == name).ok_or_else(|| {
                Error::invalid(format!("`{name}` is no vector column of this table; there are: {}", names()))
            }),
        }
    }

    /// The schema as text for the catalog: base64 of its Arrow IPC message.
    pub(crate) fn encode(&self) -> String {
        let generator = arrow_ipc::writer::IpcDataGenerator::default();
        let mut tracker = arrow_ipc::writer::DictionaryTracker::new(false);
        let options = arrow_ipc::writer::IpcWriteOptions::default();
        let encoded = generator.schema_to_bytes_with_dictionary_tracker(&self.0.user, &mut tracker, &options);
        base64::engine::general_purpose::STANDARD.encode(encoded.ipc_message)
    }

    /// Reads [`TableSchema::encode`]'s text back.
    pub(crate) fn decode(text: &str) -> Result<Self> {
        let corrupt = |what: String| Error::corrupt(format!("the catalog's table schema cannot be read: {what}"));
        let bytes = base64::engine::general_purpose::STANDARD.decode(text).map_err(|e| corrupt(e.to_string()))?;
        let message = arrow_ipc::root_as_message(&bytes).map_err(|e| corrupt(e.to_string()))?;
        let schema = message.header_as_schema().ok_or_else(|| corrupt("no schema message".into()))?;
        Self::from_arrow(&arrow_ipc::convert::fb_to_schema(schema))
    }
}

/// How a vector column is indexed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VectorOptions {
    /// Distance.
    pub metric: Metric,
    /// Links per node on upper levels, 2 to 128. Default 16.
    pub m: u16,
    /// Beam width while building, at least `m`. Default 100.
    pub ef_construction: u32,
    /// Compact codes that the graph walks on; `None`, the default, takes what measured best for the dimension
    /// ([`Codes::auto`]).
    pub codes: Option<Codes>,
}

impl VectorOptions {
    /// The defaults under `metric`.
    #[must_use]
    pub const fn new(metric: Metric) -> Self {
        Self { metric, m: 16, ef_construction: 100, codes: None }
    }
}

/// Builds a [`TableSchema`].
#[derive(Clone, Debug)]
pub struct TableSchemaBuilder {
    arrow: Schema,
    key: Option<String>,
    vectors: Vec<(String, VectorOptions)>,
}

impl TableSchemaBuilder {
    /// Names the key column.
    #[must_use]
    pub fn key(mut self, column: impl Into<String>) -> Self {
        self.key = Some(column.into());
        self
    }

    /// Names a vector column and its metric.
    #[must_use]
    pub fn vector(self, column: impl Into<String>, metric: Metric) -> Self {
        self.vector_with(column, VectorOptions::new(metric))
    }

    /// Names a vector column and how it is indexed.
    #[must_use]
    pub fn vector_with(mut self, column: impl Into<String>, options: VectorOptions) -> Self {
        self.vectors.push((column.into(), options));
        self
    }

    /// Checks everything.
    ///
    /// # Errors
    /// `Invalid`, naming the column and what is wrong with it.
    pub fn build(self) -> Result<TableSchema> {
        let mut seen = std::collections::HashSet::new();
        for field in self.arrow.fields() {
            let name = field.name();
            if name.is_empty() || name.starts_with(RESERVED_PREFIX) {
                return Err(Error::invalid(format!("column `{name}`: names must not be empty or begin with `_`")));
            }
            if !seen.insert(name.as_str()) {
                return Err(Error::invalid(format!("column `{name}` stands twice in the schema")));
            }
        }
        let key = self.key.as_deref().map(|name| key_column(&self.arrow, name)).transpose()?;
        let mut vectors = Vec::with_capacity(self.vectors.len());
        for (name, options) in &self.vectors {
            if vectors.iter().any(|v: &VectorColumn| v.name == *name) {
                return Err(Error::invalid(format!("vector column `{name}` is declared twice")));
            }
            vectors.push(vector_column(&self.arrow, name, options)?);
        }
        vectors.sort_by_key(|v| v.index);
        let fields: Vec<Field> =
            (self.arrow.fields().iter().enumerate()).map(|(i, field)| mark(field, i, key.as_ref(), &vectors)).collect();
        let user = Arc::new(Schema::new(fields));
        let stored_fields: Vec<Field> = user.fields().iter().map(|f| plain_field(f)).collect();
        let delete = key.as_ref().map(|k| Arc::new(Schema::new(vec![stored_fields[k.index].clone()])));
        let stored = Arc::new(Schema::new(stored_fields));
        Ok(TableSchema(Arc::new(Inner { user, stored, delete, key, vectors })))
    }
}

fn column(arrow: &Schema, name: &str, role: &str) -> Result<(usize, Field)> {
    match arrow.index_of(name) {
        Ok(index) => Ok((index, arrow.field(index).clone())),
        Err(_) => {
            let names: Vec<_> = arrow.fields().iter().map(|f| f.name().as_str()).collect();
            Err(Error::invalid(format!("{role} column `{name}` is not in the schema; there are: {}", names.join(", "))))
        }
    }
}

fn key_column(arrow: &Schema, name: &str) -> Result<KeyColumn> {
    let (index, field) = column(arrow, name, "key")?;
    let key_type = match field.data_type() {
        DataType::Int64 => KeyType::Int64,
        DataType::UInt64 => KeyType::UInt64,
        DataType::Utf8 => KeyType::Utf8,
        DataType::Binary => KeyType::Binary,
        DataType::FixedSizeBinary(n) => KeyType::FixedSizeBinary(*n),
        other => {
            return Err(Error::invalid(format!(
                "key column `{name}` is {other}; a key is Int64, UInt64, Utf8, Binary or FixedSizeBinary"
            )));
        }
    };
    Ok(KeyColumn { index, name: name.to_owned(), key_type })
}

fn vector_column(arrow: &Schema, name: &str, options: &VectorOptions) -> Result<VectorColumn> {
    let (index, field) = column(arrow, name, "vector")?;
    let wrong = || {
        let found = field.data_type();
        Error::invalid(format!("vector column `{name}` is {found}; expected FixedSizeList of Float32 or Float16"))
    };
    let DataType::FixedSizeList(item, dim) = field.data_type() else {
        return Err(wrong());
    };
    let element = match item.data_type() {
        DataType::Float32 => VectorElement::F32,
        DataType::Float16 => VectorElement::F16,
        _ => return Err(wrong()),
    };
    let dim = u32::try_from(*dim).unwrap_or(0);
    if dim == 0 || dim > MAX_DIMENSION {
        return Err(Error::invalid(format!(
            "vector column `{name}` has dimension {dim}; it must be 1 to {MAX_DIMENSION}"
        )));
    }
    if !(2..=128).contains(&options.m) {
        return Err(Error::invalid(format!("vector column `{name}`: m is {}; it must be 2 to 128", options.m)));
    }
    if options.ef_construction < u32::from(options.m) || options.ef_construction > 10_000 {
        return Err(Error::invalid(format!(
            "vector column `{name}`: ef_construction is {}; it must be at least m ({}) and at most 10000",
            options.ef_construction, options.m
        )));
    }
    let VectorOptions { metric, m, ef_construction, codes } = *options;
    let codes = codes.unwrap_or_else(|| Codes::auto(dim, metric));
    Ok(VectorColumn { index, name: name.to_owned(), dim, element, metric, m, ef_construction, codes })
}

fn mark(field: &Field, index: usize, key: Option<&KeyColumn>, vectors: &[VectorColumn]) -> Field {
    let mut metadata = field.metadata().clone();
    metadata.retain(|name, _| {
        ![KEY_METADATA, METRIC_METADATA, M_METADATA, EF_CONSTRUCTION_METADATA, CODES_METADATA].contains(&name.as_str())
    });
    let mut field = field.clone();
    if key.is_some_and(|k| k.index == index) {
        metadata.insert(KEY_METADATA.to_owned(), "true".to_owned());
        field = field.with_nullable(false);
    }
    if let Some(vector) = vectors.iter().find(|v| v.index == index) {
        metadata.insert(METRIC_METADATA.to_owned(), metric_name(vector.metric).to_owned());
        metadata.insert(M_METADATA.to_owned(), vector.m.to_string());
        metadata.insert(EF_CONSTRUCTION_METADATA.to_owned(), vector.ef_construction.to_string());
        metadata.insert(CODES_METADATA.to_owned(), vector.codes.name().to_owned());
    }
    field.with_metadata(metadata)
}

/// A field with every dictionary replaced by the type of its values, at any depth.
fn plain_field(field: &Field) -> Field {
    field.clone().with_data_type(plain_type(field.data_type()))
}

fn plain_type(data_type: &DataType) -> DataType {
    let item = |f: &Arc<Field>| Arc::new(plain_field(f));
    match data_type {
        DataType::Dictionary(_, values) => plain_type(values),
        DataType::List(f) => DataType::List(item(f)),
        DataType::LargeList(f) => DataType::LargeList(item(f)),
        DataType::FixedSizeList(f, n) => DataType::FixedSizeList(item(f), *n),
        DataType::Map(f, sorted) => DataType::Map(item(f), *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(|f| plain_field(f)).collect::<Fields>()),
        other => other.clone(),
    }
}

/// A metric's name in schemas, flags and JSON.
#[must_use]
pub const fn metric_name(metric: Metric) -> &'static str {
    match metric {
        Metric::L2 => "l2",
        Metric::Cosine => "cosine",
        Metric::Dot => "dot",
    }
}

/// Reads a metric's name.
///
/// # Errors
/// `Invalid` for any other than `l2`, `cosine` and `dot`.
pub fn parse_metric(name: &str) -> Result<Metric> {
    match name {
        "l2" => Ok(Metric::L2),
        "cosine" => Ok(Metric::Cosine),
        "dot" => Ok(Metric::Dot),
        other => Err(Error::invalid(format!("`{other}` is no metric; it must be l2, cosine or dot"))),
    }
}

/// The codes of a [`Codes::name`].
///
/// # Errors
/// `Invalid` for any other name.
pub fn parse_codes(name: &str) -> Result<Codes> {
    Codes::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = Codes::ALL.iter().map(|codes| codes.name()).collect();
        Error::invalid(format!("`{name}` names no codes; it must be one of {}", names.join(", ")))
    })
}

/// Writes a table schema down: `key NAME: TYPE`, `vector NAME: [f32; DIM] METRIC` and plain `NAME: TYPE` columns.
///
/// `TYPE` is an Arrow [`DataType`] variant. Plain and vector columns are nullable. Gives a
/// `Result<TableSchema>`.
///
/// ```
/// # fn main() -> vectide::Result<()> {
/// let schema = vectide::schema! { key id: Int64, name: Utf8, vector vec: [f32; 384] cosine }?;
/// assert_eq!(schema.key().map(|k| k.name.as_str()), Some("id"));
/// # Ok(())
/// # }
/// ```
#[macro_export]
macro_rules! schema {
    (@ $fields:ident $builder:ident ;) => {};
    (@ $fields:ident $builder:ident ; key $name:ident : $ty:ident $(( $($arg:tt)* ))? $(, $($rest:tt)*)?) => {
        $fields.push($crate::arrow::datatypes::Field::new(
            stringify!($name), $crate::arrow::datatypes::DataType::$ty $(( $($arg)* ))?, false));
        $builder.push($crate::schema::Declared::Key(stringify!($name)));
        $crate::schema!(@ $fields $builder ; $($($rest)*)?);
    };
    (@ $fields:ident $builder:ident ; vector $name:ident : [ $elem:ident ; $dim:expr ] $metric:ident $(, $($rest:tt)*)?) => {
        $fields.push($crate::schema::vector_field(stringify!($name), stringify!($elem), $dim));
        $builder.push($crate::schema::Declared::Vector(stringify!($name), stringify!($metric)));
        $crate::schema!(@ $fields $builder ; $($($rest)*)?);
    };
    (@ $fields:ident $builder:ident ; $name:ident : $ty:ident $(( $($arg:tt)* ))? $(, $($rest:tt)*)?) => {
        $fields.push($crate::arrow::datatypes::Field::new(
            stringify!($name), $crate::arrow::datatypes::DataType::$ty $(( $($arg)* ))?, true));
        $crate::schema!(@ $fields $builder ; $($($rest)*)?);
    };
    ($($columns:tt)*) => {{
        let mut fields = ::std::vec::Vec::new();
        #[allow(unused_mut)]
        let mut declared: ::std::vec::Vec<$crate::schema::Declared> = ::std::vec::Vec::new();
        $crate::schema!(@ fields declared ; $($columns)*);
        $crate::schema::from_declared(fields, &declared)
    }};
}

/// What [`schema!`](crate::schema!) read; not for callers.
#[doc(hidden)]
#[derive(Debug)]
pub enum Declared {
    /// The key column's name.
    Key(&'static str),
    /// A vector column's name and metric.
    Vector(&'static str, &'static str),
}

/// The field of `vector NAME: [elem; dim]`; not for callers.
#[doc(hidden)]
#[must_use]
pub fn vector_field(name: &str, element: &str, dim: i32) -> Field {
    // An element type that is neither is kept as it is named, so that `build` refuses it with its column's name.
    let item = match element {
        "f32" => DataType::Float32,
        "f16" => DataType::Float16,
        _ => DataType::Float64,
    };
    Field::new(name, DataType::FixedSizeList(Arc::new(Field::new_list_field(item, true)), dim), true)
}

/// Builds what [`schema!`](crate::schema!) read; not for callers.
#[doc(hidden)]
pub fn from_declared(fields: Vec<Field>, declared: &[Declared]) -> Result<TableSchema> {
    let mut builder = TableSchema::builder(Schema::new(fields));
    for item in declared {
        builder = match item {
            Declared::Key(name) => builder.key(*name),
            Declared::Vector(name, metric) => builder.vector(*name, parse_metric(metric)?),
        };
    }
    builder.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_macro_declares_key_vectors_and_plain_columns() {
        let schema = crate::schema! {
            key id: FixedSizeBinary(16), name: Utf8, vector a: [f32; 8] l2, vector b: [f16; 4] dot, n: Int32,
        }
        .expect("valid");
        assert_eq!(schema.key().expect("key").key_type, KeyType::FixedSizeBinary(16));
        let vectors: Vec<_> = schema.vectors().iter().map(|v| (v.index, v.dim, v.element, v.metric)).collect();
        assert_eq!(vectors, [(2, 8, VectorElement::F32, Metric::L2), (3, 4, VectorElement::F16, Metric::Dot)]);
        assert_eq!(schema.arrow().fields().len(), 5);
    }

    #[test]
    fn a_schema_survives_the_catalog() {
        let schema = crate::schema! { key id: Utf8, vector v: [f16; 3] cosine, t: Int16 }.expect("valid");
        assert_eq!(TableSchema::decode(&schema.encode()).expect("decodes"), schema);
    }

    #[test]
    fn codes_follow_the_dimension_unless_they_are_asked_for_and_survive_the_catalog() {
        let schema =
            crate::schema! { key id: Int64, vector a: [f32; 8] l2, vector b: [f32; 1024] cosine }.expect("valid");
        let codes = |schema: &TableSchema| schema.vectors().iter().map(|v| v.codes).collect::<Vec<_>>();
        assert_eq!(codes(&schema), [Codes::auto(8, Metric::L2), Codes::auto(1024, Metric::Cosine)]);
        let options = VectorOptions { codes: Some(Codes::None), ..VectorOptions::new(Metric::Cosine) };
        let asked = TableSchema::builder(schema.arrow().as_ref().clone()).key("id").vector_with("b", options);
        let asked = asked.build().expect("valid");
        assert_eq!(codes(&asked), [Codes::None]);
        assert_eq!(TableSchema::decode(&asked.encode()).expect("decodes"), asked);
        assert!(parse_codes("int3").expect_err("no such").to_string().contains("int4"));
    }

    #[test]
    fn dictionaries_are_stored_as_their_values() {
        let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        let list = DataType::List(Arc::new(Field::new_list_field(dictionary.clone(), true)));
        let arrow = Schema::new(vec![Field::new("d", dictionary, true), Field::new("l", list, true)]);
        let schema = TableSchema::builder(arrow).build().expect("valid");
        assert_eq!(schema.stored().field(0).data_type(), &DataType::Utf8);
        let DataType::List(item) = schema.stored().field(1).data_type() else { panic!("a list") };
        assert_eq!(item.data_type(), &DataType::Utf8);
    }

    #[test]
    fn wrong_schemas_are_refused_with_the_column_named() {
        let refused = [
            crate::schema! { key id: Float32, vector v: [f32; 3] l2 },
            crate::schema! { key id: Int64, vector v: [f64; 3] l2 },
            crate::schema! { key id: Int64, vector v: [f32; 0] l2 },
            crate::schema! { key id: Int64, vector v: [f32; 3] hamming },
            crate::schema! { key id: Int64, id: Utf8 },
            crate::schema! { key id: Int64, _seq: Utf8 },
        ];
        for (result, part) in refused.into_iter().zip(["`id`", "`v`", "`v`", "hamming", "`id`", "`_seq`"]) {
            let message = result.expect_err("refused").to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
