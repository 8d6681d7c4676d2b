//! The graph from outside: what it finds, what it keeps reachable, what it costs,
//! and what it does while others write.

mod base;
mod codes;
mod common;
mod concurrent;
mod filtered;
mod quality;
mod stored;
