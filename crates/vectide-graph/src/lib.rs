//! vectide-graph
/// Placeholder until the graph lands.
#[derive(Debug, thiserror::Error)]
#[error("graph")]
pub struct GraphError;
