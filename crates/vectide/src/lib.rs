//! vectide
