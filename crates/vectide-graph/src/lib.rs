//! vectide-graph
