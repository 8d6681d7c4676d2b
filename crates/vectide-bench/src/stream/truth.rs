//! What a query had to find: the nearest among the rows that were acknowledged when it began.
//!
//! Rows that came later may stand in an answer as well; they are no mistake, so of those that were due only as many are
//! asked for as have room beside them.

use super::load::Asked;
use crate::dataset::Dataset;
use crate::error::Outcome;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use vectide_graph::{Compiled, Metric, Query, Scratch, VectorBlock, VectorTable};

/// Queries of a stage that truth is computed for: more change the third digit.
const MOST: usize = 200;

/// All rows, to be scanned.
pub(super) struct Truth<'a> {
    data: &'a Dataset,
    metric: Metric,
    rows: VectorTable<f32>,
}

impl<'a> Truth<'a> {
    pub(super) fn new(data: &'a Dataset, metric: Metric) -> Outcome<Self> {
        let rows = VectorTable::new(data.dim as u32, metric)?;
        for rows_of in data.base.chunks(1_000 * data.dim) {
            rows.append(VectorBlock::copied(rows_of.to_vec(), data.dim as u32, metric, None)?)?;
        }
        Ok(Self { data, metric, rows })
    }

    /// The share of the nearest `k` that the answers for `k` hold; `None` without such answers.
    pub(super) fn recall(&self, asked: &[Asked], k: usize) -> Outcome<Option<f64>> {
        let of_k: Vec<&Asked> = asked.iter().filter(|a| a.k == k && a.rows > 0).collect();
        let step = of_k.len().div_ceil(MOST).max(1);
        let (mut found, mut due) = (0usize, 0usize);
        let mut known: HashMap<(usize, usize), Vec<u32>> = HashMap::new();
        let mut scratch = Scratch::new();
        for asked in of_k.into_iter().step_by(step) {
            let wanted = match known.entry((asked.query, asked.rows)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => {
                    let vector = &self.data.queries[asked.query * self.data.dim..][..self.data.dim];
                    let query = Query::new(self.metric, self.data.dim as u32, vector)?;
                    let hits = f32::scan_live(&self.rows, &query, 0..asked.rows as u32, &|_| true, k, &mut scratch);
                    unknown.insert(hits.iter().map(|hit| hit.id).collect())
                }
            };
            let later = asked.ids.iter().filter(|id| **id as usize >= asked.rows).count();
            let wanted = &wanted[..wanted.len().min(k - later.min(k))];
            due += wanted.len();
            found += wanted.iter().filter(|id| asked.ids.contains(id)).count();
        }
        Ok((due > 0).then(|| found as f64 / due as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Source;

    #[test]
    fn rows_that_came_after_a_query_began_are_no_mistake() {
        let data = Dataset::load(&Source::Generated, Some(8), Some(200)).expect("generated");
        let truth = Truth::new(&data, Metric::L2).expect("rows");
        let mut scratch = Scratch::new();
        let query = Query::new(Metric::L2, 8, &data.queries[..8]).expect("finite");
        let nearest = |rows: u32, scratch: &mut Scratch| -> Vec<u32> {
            let hits = f32::scan_live(&truth.rows, &query, 0..rows, &|_| true, 10, scratch);
            hits.iter().map(|hit| hit.id).collect()
        };
        let asked = |ids: Vec<u32>| Asked { query: 0, k: 10, rows: 100, ids, ms: 1.0, at_s: 0.0 };
        let (then, later) = (nearest(100, &mut scratch), nearest(200, &mut scratch));
        assert_eq!(truth.recall(&[asked(then.clone())], 10).expect("scans"), Some(1.0));
        assert_eq!(truth.recall(&[asked(later)], 10).expect("scans"), Some(1.0));
        let half: Vec<u32> = then[5..].to_vec();
        assert_eq!(truth.recall(&[asked(half)], 10).expect("scans"), Some(0.5));
        assert_eq!(truth.recall(&[], 10).expect("scans"), None);
    }
}
