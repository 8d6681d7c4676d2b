use super::*;
use crate::ids::{PubNo, RowId, Seq};
use crate::manifest::{AdoptedMeta, LinksMeta, PartMeta};

/// A shard whose segments have so many rows, and how many of each are dead.
struct World {
    manifest: ShardManifest,
    dead: Vec<u32>,
    options: MergeOptions,
}

fn links(n: u64, len: u64) -> LinksMeta {
    LinksMeta { id: format!("1-{n}"), len, crc32c: 0 }
}

impl World {
    fn new(rows: &[u32]) -> Self {
        let mut world = Self {
            manifest: ShardManifest {
                epoch: crate::ids::Epoch(1),
                next_publication: PubNo(100),
                ..ShardManifest::empty()
            },
            dead: Vec::new(),
            options: MergeOptions { step_rows: 100, ..MergeOptions::default() },
        };
        rows.iter().for_each(|&rows| world.flush(rows));
        world
    }

    fn flush(&mut self, rows: u32) {
        let manifest = &mut self.manifest;
        let parts = vec![PartMeta { name: "rows.arrow".into(), len: 1, crc32c: 0 }];
        manifest.segments.push(SegmentMeta {
            id: format!("1-{}", manifest.next_segment),
            first_row: manifest.next_row,
            rows,
            first_seq: Seq(1),
            last_seq: Seq(1),
            first_publication: PubNo(1),
            last_publication: PubNo(1),
            parts,
        });
        manifest.next_segment += 1;
        manifest.next_row = RowId(manifest.next_row.0 + u64::from(rows));
        self.dead.push(0);
    }

    fn next(&self) -> Option<Job> {
        let place = |s: &SegmentMeta| self.manifest.segments.iter().position(|o| o.id == s.id).expect("listed");
        next(&self.manifest, &self.options, &|s| {
            let dead = self.dead[place(s)];
            Known { dead, can_adopt: true, is_gone: dead == s.rows }
        })
    }

    /// Does the job as `table/merging` would, in as much as the policy sees of it.
    fn carry_out(&mut self, job: &Job) {
        let n = self.manifest.next_segment;
        self.manifest.next_segment += 1;
        let manifest = &mut self.manifest;
        let at = |segment: &str| manifest.segments.iter().position(|s| s.id == segment).expect("listed");
        match job {
            Job::Begin { target, segment } => {
                let adopted = segment.as_ref().map(|id| AdoptedMeta {
                    id: id.clone(),
                    first_node: 0,
                    horizon: PubNo(0),
                    inserted: manifest.segments[at(id)].rows,
                    is_complete: true,
                });
                let base = BaseMeta {
                    id: format!("1-{n}"),
                    version: 0,
                    folded: 0,
                    file: segment.as_ref().map(|_| links(n, 1_000)),
                    deltas: Vec::new(),
                    segments: adopted.into_iter().collect(),
                };
                match target {
                    Target::Current => manifest.base = Some(base),
                    Target::Next => manifest.next_base = Some(base),
                }
            }
            Job::Step { target, segment, rows } => {
                let place = at(segment);
                let live = manifest.segments[place].rows - self.dead[place];
                let base = match target {
                    Target::Current => manifest.base.as_mut(),
                    Target::Next => manifest.next_base.as_mut(),
                };
                let base = base.expect("there");
                if base.segment(segment).is_none() {
                    let first_node = base.segments.last().map_or(0, |last| last.first_node + 1_000_000 / 64 * 64);
                    base.segments.push(AdoptedMeta {
                        id: segment.clone(),
                        first_node,
                        horizon: PubNo(0),
                        inserted: 0,
                        is_complete: false,
                    });
                }
                let last = base.segments.last_mut().expect("adopted");
                assert_eq!(&last.id, segment);
                last.inserted = live.min(last.inserted + *rows as u32);
                last.is_complete = last.inserted == live;
                base.version += 1;
                base.deltas.push(links(n, 100));
            }
            Job::Retire(segments) => {
                let retired = manifest.segments.iter_mut().filter(|s| segments.contains(&s.id));
                retired.for_each(|s| s.rows = 0);
                for (segment, dead) in manifest.segments.iter().zip(&mut self.dead) {
                    *dead = (*dead).min(segment.rows);
                }
            }
            Job::Switch => manifest.base = manifest.next_base.take().filter(|base| !base.segments.is_empty()),
            Job::Fold => {
                let base = manifest.base.as_mut().expect("there");
                base.folded = base.version;
                base.deltas.clear();
                base.file = Some(links(n, 1_000));
            }
        }
        manifest.validate_for_tests();
    }

    /// Carries out jobs until there are none; how many.
    fn drain(&mut self) -> usize {
        let mut jobs = 0;
        while let Some(job) = self.next() {
            self.carry_out(&job);
            jobs += 1;
            assert!(jobs < 10_000, "it never ends: {job:?}");
        }
        jobs
    }
}

impl ShardManifest {
    fn validate_for_tests(&self) {
        crate::manifest::Document::validate(self, "the manifest").expect("consistent");
    }
}

#[test]
fn one_segment_is_left_alone_and_two_become_a_base_of_the_larger_one() {
    assert_eq!(World::new(&[]).next(), None);
    assert_eq!(World::new(&[500, 0]).next(), None);
    let mut world = World::new(&[500, 900]);
    assert_eq!(world.next(), Some(Job::Begin { target: Target::Current, segment: Some("1-2".into()) }));
    world.drain();
    let base = world.manifest.base.as_ref().expect("a base");
    assert!(base.segments.iter().all(|s| s.is_complete) && base.segments.len() == 2 && base.version == 5);
}

#[test]
fn without_writes_everything_ends_in_one_base() {
    for rows in [&[1_000; 12][..], &[100, 5_000, 300, 80_000, 10], &[7, 7, 7]] {
        let mut world = World::new(rows);
        world.drain();
        let base = world.manifest.base.as_ref().expect("a base");
        assert!(world.manifest.segments.iter().all(|s| base.segment(&s.id).is_some()));
        assert_eq!(world.next(), None);
        world.flush(50);
        world.drain();
        assert_eq!(world.manifest.base.as_ref().map(|base| base.segments.len()), Some(rows.len() + 1));
    }
}

#[test]
fn a_segment_that_outgrows_the_base_becomes_the_next_one() {
    let mut world = World::new(&[100, 100]);
    world.drain();
    let before = world.manifest.base.as_ref().expect("a base").id.clone();
    world.flush(10_000);
    assert_eq!(world.next(), Some(Job::Begin { target: Target::Next, segment: Some("1-5".into()) }));
    world.drain();
    let base = world.manifest.base.as_ref().expect("a base");
    assert!(base.id != before && base.segments.len() == 3 && world.manifest.next_base.is_none());
}

#[test]
fn dead_rows_are_left_behind_and_segments_that_are_all_dead_are_not_merged() {
    let mut world = World::new(&[1_000, 1_000, 1_000]);
    world.drain();
    world.dead = vec![1_000, 900, 10];
    assert_eq!(world.next(), Some(Job::Begin { target: Target::Next, segment: Some("1-3".into()) }));
    world.drain();
    let base = world.manifest.base.as_ref().expect("a base");
    let ids: Vec<&str> = base.segments.iter().map(|s| s.id.as_str()).collect();
    assert_eq!(ids, ["1-3", "1-2"]);
    assert_eq!(world.next(), None, "what was left out is no reason for another base");
    assert_eq!(world.manifest.segments[0].rows, 0, "its space was given back");
    world.dead = vec![0, 1_000, 1_000];
    world.drain();
    assert_eq!(world.manifest.base, None);
    assert!(world.manifest.segments.iter().all(|s| s.rows == 0));
}

#[test]
fn deltas_are_folded_once_they_are_as_large_as_the_base_file() {
    let mut world = World::new(&[5_000, 900]);
    assert_eq!(world.drain(), 1 + 9);
    assert_eq!(world.manifest.base.as_ref().map(|base| base.deltas.len()), Some(9));
    world.flush(100);
    assert_eq!(world.drain(), 2);
    let base = world.manifest.base.as_ref().expect("a base");
    assert_eq!((base.deltas.len(), base.folded, base.version), (0, 10, 10));
}

#[test]
fn a_step_grows_with_the_base() {
    let mut world = World::new(&[100_000, 2_000]);
    world.carry_out(&Job::Begin { target: Target::Current, segment: Some("1-1".into()) });
    assert_eq!(world.next(), Some(Job::Step { target: Target::Current, segment: "1-2".into(), rows: 500 }));
}
