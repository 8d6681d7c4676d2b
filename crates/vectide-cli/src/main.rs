//! vectide cli
fn main() {}
