//! What is merged next, and how fast: decisions without a store, and the thread that does the work.
//!
//! `table/merging` asks [`policy`] and commits what comes of it; a step's inserts run on the [`worker`].

pub(crate) mod gc;
pub(crate) mod pace;
pub(crate) mod policy;
pub(crate) mod worker;
