//! Recall: which share of the true nearest words a search found.
//!
//! The truth is the engine's own exact scan over the same snapshot. The queries are words of the table, and a word is no
//! answer to itself: `k + 1` are asked for and the word is taken out, so that it does not flatter the figure.

use super::words::Words;
use crate::error::Outcome;
use vectide::{Snapshot, Table};

/// Answers that count.
pub(crate) const K: usize = 10;
/// Beam width, the engine's default.
pub(crate) const EF_SEARCH: usize = 64;

/// The nearest other words of some words, nearest first.
pub(crate) type Answers = Vec<Vec<String>>;

/// A sample of words, spread evenly.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    rows: Vec<usize>,
    queries: Vec<Vec<f32>>,
}

impl Sample {
    /// `count` of the words, or all if they are fewer.
    pub(crate) fn of(words: &Words, count: usize) -> Self {
        let count = count.min(words.len());
        let rows: Vec<usize> = (0..count).map(|i| i * words.len() / count).collect();
        let queries = rows.iter().map(|&row| words.vector(row).to_vec()).collect();
        Self { rows, queries }
    }

    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Searches for each, through the graph or exactly.
    pub(crate) async fn ask(&self, table: &Table, words: &Words, exact: bool) -> Outcome<Answers> {
        let search = table.search_batch(&self.queries).k(K + 1).ef_search(EF_SEARCH).columns(["word"]).exact(exact);
        let answers = search.await?;
        Ok(answers.iter().zip(&self.rows).map(|(hits, &row)| others(Words::of_answer(hits), words.word(row))).collect())
    }
}

/// Recall of one search on a snapshot, and whether it came back empty.
pub(crate) async fn of_one(snapshot: &Snapshot, words: &Words, row: usize) -> Outcome<f64> {
    let search =
        |exact: bool| snapshot.search(words.vector(row)).k(K + 1).ef_search(EF_SEARCH).columns(["word"]).exact(exact);
    let found = others(Words::of_answer(&search(false).await?), words.word(row));
    let truth = others(Words::of_answer(&search(true).await?), words.word(row));
    Ok(recall(&[found], &[truth]))
}

fn others(mut answer: Vec<String>, own: &str) -> Vec<String> {
    answer.retain(|word| word != own);
    answer.truncate(K);
    answer
}

/// The share of `truth` that was `found`, over all queries; 1 where there is nothing to find.
pub(crate) fn recall(found: &[Vec<String>], truth: &[Vec<String>]) -> f64 {
    let wanted: usize = truth.iter().map(Vec::len).sum();
    let hits = |(found, truth): (&Vec<String>, &Vec<String>)| truth.iter().filter(|word| found.contains(word)).count();
    let got: usize = found.iter().zip(truth).map(hits).sum();
    if wanted == 0 { 1.0 } else { got as f64 / wanted as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn recall_is_the_share_of_the_truth_in_any_order() {
        let truth = [answer(&["lake", "creek"]), answer(&["jazz", "blues"])];
        let found = [answer(&["creek", "lake"]), answer(&["jazz", "rock"])];
        assert_eq!(recall(&found, &truth), 0.75);
        assert_eq!(recall(&[], &[]), 1.0);
        assert_eq!(recall(&[answer(&[])], &truth[..1]), 0.0);
    }

    #[test]
    fn a_word_is_no_answer_to_itself() {
        assert_eq!(others(answer(&["river", "lake"]), "river"), answer(&["lake"]));
        let many: Vec<String> = (0..12).map(|i| i.to_string()).collect();
        assert_eq!(others(many, "none").len(), K);
    }
}
