//! The base: graphs merged into one in steps are as good as one that was built whole, every node can be reached after
//! every step, and a step changes what it says and nothing else.

use crate::common::{Rows, clustered, glove, insert};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use vectide_graph::{
    BaseChanges, BaseGraph, BaseLinks, BaseRows, BaseSeed, BaseWriter, ChunkedVectors, Codes, Compiled, Graph,
    GraphSections, Hit, MappedGraph, Metric, Nulls, Params, Query, Scratch, Section, Vectors, row_words, walk_order,
};

/// A base's links in memory.
#[derive(Default, Clone)]
struct Memory {
    m: usize,
    rows: HashMap<u32, Vec<u32>>,
    upper: HashMap<u32, Vec<u32>>,
    entry: Option<u32>,
    root: Option<u32>,
}

impl BaseLinks for Memory {
    fn row(&self, node: u32, out: &mut Vec<u32>) {
        out.extend(self.rows.get(&node).into_iter().flatten());
    }

    fn upper(&self, node: u32, level: u8, out: &mut Vec<u32>) {
        let links = self.upper.get(&node).map(Vec::as_slice).unwrap_or_default();
        let at = (usize::from(level) - 1) * self.m;
        out.extend(links[at..at + self.m].iter().take_while(|id| **id != u32::MAX));
    }

    fn has(&self, node: u32) -> bool {
        self.rows.contains_key(&node)
    }

    fn entry(&self) -> Option<u32> {
        self.entry
    }

    fn root(&self) -> Option<u32> {
        self.root
    }
}

impl Memory {
    fn seeded(rows: &BaseRows<f32>, graph: &MappedGraph) -> Self {
        let seed = BaseSeed::new(graph).expect("whole");
        let (m, words) = (usize::from(rows.params().m), row_words(rows.params()));
        let mut memory = Self { m, entry: seed.entry(), root: seed.entry(), ..Self::default() };
        for (id, row) in seed.rows().flatten().collect::<Vec<_>>().chunks(words).enumerate() {
            memory.rows.insert(id as u32, row.to_vec());
        }
        let (nodes, links) = seed.upper();
        memory.put_upper(rows, &nodes, &links);
        memory
    }

    fn put_upper(&mut self, rows: &BaseRows<f32>, nodes: &[u32], links: &[u32]) {
        let mut left = links;
        for &node in nodes {
            let (own, rest) = left.split_at(usize::from(rows.level(node)) * self.m);
            self.upper.insert(node, own.to_vec());
            left = rest;
        }
        assert!(left.is_empty());
    }

    fn apply(&mut self, rows: &BaseRows<f32>, changes: &BaseChanges) {
        let words = row_words(rows.params());
        for (node, row) in changes.nodes.iter().zip(changes.rows.chunks(words)) {
            self.rows.insert(*node, row.to_vec());
        }
        self.put_upper(rows, &changes.upper_nodes, &changes.upper_links);
        (self.entry, self.root) = (changes.entry, changes.root);
    }
}

type Stored = (Arc<MappedGraph>, Arc<ChunkedVectors<f32>>);

fn stored(rows: &Rows, params: Params) -> Stored {
    let table = rows.table(params.metric);
    let graph = Graph::new(params).expect("valid");
    let mut scratch = Scratch::new();
    let added = (0..table.len()).filter(|&id| insert(&graph, &table, id, &mut scratch).expect("a row")).count();
    assert_eq!(added, rows.len());
    let frozen = graph.freeze(&table).expect("settled");
    let take = |section| frozen.chunks(section).flatten().collect::<Vec<u8>>();
    let sections = GraphSections::new(
        take(Section::BaseLinks),
        take(Section::Levels),
        take(Section::UpperStarts),
        take(Section::UpperLinks),
    );
    let sections = match params.codes {
        Codes::None => sections,
        _ => sections.with_codes(take(Section::Codes)),
    };
    let mapped = MappedGraph::open(frozen.header(), sections).expect("opens");
    let chunks: Vec<Vec<f32>> = rows.values.chunks(4_096 * rows.dim).map(<[f32]>::to_vec).collect();
    let mut vectors = ChunkedVectors::new(params.dim, 4_096, chunks, Nulls::none()).expect("whole chunks");
    if params.metric == Metric::Cosine {
        vectors = vectors.with_inv_norms(take(Section::InverseNorms)).expect("one a row");
    }
    (Arc::new(mapped), Arc::new(vectors))
}

/// Merges a stored graph in steps and returns what each changed.
fn merge(
    rows: &mut BaseRows<f32>,
    memory: &mut Memory,
    (graph, vectors): &Stored,
    step: usize,
    skip: &dyn Fn(u32) -> bool,
) -> Vec<BaseChanges> {
    let first = rows.next_first();
    *rows = rows.with_part(Arc::clone(graph), Arc::clone(vectors)).expect("the same settings");
    let mut scratch = Scratch::new();
    let mut steps = Vec::new();
    for nodes in walk_order(graph, skip).chunks(step) {
        let mut writer = BaseWriter::new(rows, &*memory);
        for &row in nodes {
            let added = <f32 as Compiled>::merge(&mut writer, first + row, &mut scratch).expect("a row");
            assert!(added && writer.has(first + row));
        }
        let changes = writer.finish();
        let before = memory.clone();
        memory.apply(rows, &changes);
        let changed: BTreeSet<u32> = changes.nodes.iter().copied().collect();
        assert!(memory.rows.iter().all(|(node, row)| changed.contains(node) || before.rows[node] == *row));
        assert!(changed.iter().all(|node| before.rows.get(node) != Some(&memory.rows[node])), "a change changes");
        steps.push(changes);
    }
    steps
}

fn recall(
    queries: &Rows,
    k: usize,
    truth: &dyn Fn(&Query) -> Vec<Hit>,
    found: &dyn Fn(&Query) -> Vec<Hit>,
    metric: Metric,
) -> f64 {
    let mut hit = 0;
    for at in 0..queries.len() {
        let query = Query::new(metric, queries.dim as u32, queries.row(at)).expect("finite");
        let (truth, found) = (truth(&query), found(&query));
        assert_eq!(found.len(), k);
        hit += truth.iter().filter(|t| found.iter().any(|f| f.id == t.id)).count();
    }
    hit as f64 / (k * queries.len()) as f64
}

/// Merges `parts` equal parts and compares recall with a graph that was built whole.
fn check(all: Rows, queries: &Rows, parts: usize, params: Params) {
    let metric = params.metric;
    let size = all.len() / parts / 64 * 64;
    let (all, _) = all.split(size * parts);
    let dim = all.dim;
    let of = |part: usize| Rows { dim, values: all.values[part * size * dim..(part + 1) * size * dim].to_vec() };
    let first = stored(&of(0), params);
    let mut rows = BaseRows::new(params).expect("valid");
    rows = rows.with_part(Arc::clone(&first.0), Arc::clone(&first.1)).expect("fits");
    let mut memory = Memory::seeded(&rows, &first.0);
    assert_eq!(BaseGraph::new(&rows, &memory).verify().expect("sound"), size as u32);
    for part in 1..parts {
        let steps = merge(&mut rows, &mut memory, &stored(&of(part), params), 200, &|_| false);
        assert_eq!(BaseGraph::new(&rows, &memory).verify().expect("sound"), (size * (part + 1)) as u32);
        let (dirty, touched, added) = steps.iter().fold((0, 0, 0), |sum, step| {
            (sum.0 + step.nodes.len(), sum.1 + step.touched.len(), sum.2 + step.inserted as usize)
        });
        println!(
            "part {part}: {added} inserted, {} dirty and {} touched a step",
            dirty / steps.len(),
            touched / steps.len()
        );
        assert!(dirty < touched, "fewer nodes are changed than read");
    }
    let whole = stored(&all, params);
    let k = 10;
    let scratch = std::cell::RefCell::new(Scratch::new());
    let everything = |_: u32| true;
    let truth =
        |query: &Query| f32::scan_stored(&whole.1, query, 0..whole.1.len(), &everything, k, &mut scratch.borrow_mut());
    let merged =
        |query: &Query| f32::search_base((&rows, &memory), query, k, 64, &everything, &mut scratch.borrow_mut());
    let built =
        |query: &Query| f32::search_stored((&whole.0, &whole.1), query, k, 64, &everything, &mut scratch.borrow_mut());
    let merged = recall(queries, k, &truth, &merged, metric);
    let built = recall(queries, k, &truth, &built, metric);
    println!("recall@10 at ef 64: merged {merged:.4}, built whole {built:.4}");
    assert!(merged >= built - 0.01, "merged {merged}, built whole {built}");
    assert_eq!(rows.bad_links(), 0);
}

#[test]
fn merged_words_are_found_as_well_as_those_of_a_graph_built_whole() {
    let (all, queries) = glove().split(24_000);
    let (queries, _) = queries.split(300);
    for metric in [Metric::Cosine, Metric::L2] {
        let params = Params { codes: Codes::auto(100, metric), ..Params::new(100, metric) };
        let (all, _) = Rows { dim: all.dim, values: all.values.clone() }.split(12_000);
        check(all, &queries, 4, params);
    }
}

#[test]
fn merging_works_by_exact_distances_and_by_either_code() {
    for codes in Codes::ALL {
        let (all, queries) = clustered(6_400, 32, 40, 6, 9).split(6_200);
        check(all, &queries, 3, Params { codes, m: 8, ..Params::new(32, Metric::L2) });
    }
}

#[test]
fn thousands_of_copies_stay_reachable() {
    let copies = Rows { dim: 4, values: [1.0, 2.0, 3.0, 4.0].repeat(3_000) };
    let params = Params { m: 4, ef_construction: 20, ..Params::new(4, Metric::L2) };
    let parts: Vec<Stored> = (0..2).map(|_| stored(&copies, params)).collect();
    let mut rows = BaseRows::new(params)
        .expect("valid")
        .with_part(Arc::clone(&parts[0].0), Arc::clone(&parts[0].1))
        .expect("fits");
    let mut memory = Memory::seeded(&rows, &parts[0].0);
    merge(&mut rows, &mut memory, &parts[1], 500, &|_| false);
    assert_eq!(BaseGraph::new(&rows, &memory).verify().expect("sound"), 6_000);
}

#[test]
fn a_base_can_begin_empty_and_leave_rows_out() {
    let all = clustered(3_000, 16, 10, 4, 5);
    let params = Params { m: 6, codes: Codes::Int8, ..Params::new(16, Metric::Dot) };
    let one = stored(&all, params);
    let mut rows = BaseRows::new(params).expect("valid");
    let mut memory = Memory { m: 6, ..Memory::default() };
    let dead = |row: u32| row.is_multiple_of(3);
    merge(&mut rows, &mut memory, &one, 100, &dead);
    assert_eq!(BaseGraph::new(&rows, &memory).verify().expect("sound"), 2_000);
    let query = Query::new(Metric::Dot, 16, all.row(9)).expect("finite");
    let hits = f32::search_base((&rows, &memory), &query, 3_000, 3_000, &|_| true, &mut Scratch::new());
    assert_eq!(hits.len(), 2_000);
    assert!(hits.iter().all(|hit| !dead(hit.id)));
}

#[test]
fn rows_of_other_settings_are_refused() {
    let rows = clustered(100, 8, 4, 2, 1);
    let base = BaseRows::new(Params { m: 6, ..Params::new(8, Metric::L2) }).expect("valid");
    for params in [Params::new(8, Metric::L2), Params { m: 6, codes: Codes::Int8, ..Params::new(8, Metric::L2) }] {
        let (graph, vectors) = stored(&rows, params);
        let refused = base.with_part(graph, vectors).err().expect("other settings").to_string();
        assert!(refused.contains("a graph to be adopted"), "{refused}");
    }
}
