//! vectide-graph
/// Placeholder until the graph lands.
#[derive(Debug, thiserror::Error)]
#[error("graph")]
pub struct GraphError;
/// Placeholder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// l2
    L2,
    /// cos
    Cosine,
    /// dot
    Dot,
}
/// Placeholder.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hit {
    /// d
    pub distance: f32,
    /// id
    pub id: u32,
}
