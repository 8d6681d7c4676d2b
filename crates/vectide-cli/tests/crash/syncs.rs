//! The checker's own check: with any one kind of sync left out, some power cut loses or damages something.
//!
//! If one of these stopped failing, either the sync is not needed or the power cuts no longer see what they should.

use crate::power_cut::{DIR, Ends, run};
use std::path::Path;
use vectide::store::sim::{Sync, SyncKind};

/// Worlds that are tried at most before a missing sync counts as unnoticed.
const WORLDS: u64 = 200;
/// Lives of a world; of one whose lives are killed and cut by turns, more, since only some leave frames unsynced.
const LIVES: u64 = 4;
const LIVES_BY_TURNS: u64 = 16;

/// A kind of sync: what it makes durable, how the worlds end that show it, and which calls it is.
type Site = (&'static str, Ends, fn(&Sync<'_>) -> bool);

fn file_in(sync: &Sync<'_>, folder: &str) -> bool {
    sync.kind == SyncKind::File && sync.path.to_string_lossy().contains(folder)
}

/// The directory whose last part is `name`.
fn dir_named(sync: &Sync<'_>, name: &str) -> bool {
    sync.kind == SyncKind::Dir && sync.path.ends_with(name)
}

/// The directory `depth` levels below the database's own.
fn dir_below(sync: &Sync<'_>, depth: usize) -> bool {
    let below = sync.path.strip_prefix(DIR).ok().map(|rest| rest.components().count());
    sync.kind == SyncKind::Dir && below == Some(depth)
}

const SITES: &[Site] = &[
    ("frames in a log file", Ends::AtRandom, |s| s.point == "wal.local.sync.before" && file_in(s, "/wal/")),
    ("frames that a killed writer left", Ends::KilledThenCut, |s| {
        s.point == "wal.replay.sync.before" && file_in(s, "/wal/")
    }),
    ("a log file's name", Ends::AtRandom, |s| s.point == "wal.local.sync_dir.before" && s.kind == SyncKind::Dir),
    ("an epoch's folder in wal/", Ends::AtRandom, |s| dir_named(s, "wal")),
    ("a segment's part", Ends::AtRandom, |s| file_in(s, "/segments/")),
    ("a segment part's name", Ends::AtRandom, |s| {
        s.kind == SyncKind::Dir && s.path.parent().is_some_and(|p| p.ends_with("segments"))
    }),
    ("a segment's folder in segments/", Ends::AtRandom, |s| dir_named(s, "segments")),
    ("a file of links", Ends::AtRandom, |s| file_in(s, "/base/")),
    ("a file of links' name", Ends::AtRandom, |s| dir_named(s, "base")),
    ("a manifest", Ends::AtRandom, |s| file_in(s, "/manifest/")),
    ("a manifest's name", Ends::AtRandom, |s| dir_named(s, "manifest")),
    ("the catalog", Ends::AtRandom, |s| file_in(s, "/catalog/")),
    ("a catalog's name", Ends::AtRandom, |s| dir_named(s, "catalog")),
    ("the shard's folders", Ends::AtRandom, |s| dir_below(s, 3)),
    ("the shard's folder in the table's", Ends::AtRandom, |s| dir_below(s, 2)),
    ("the table's folder in tables/", Ends::AtRandom, |s| dir_named(s, "tables")),
    ("the folders in the database's", Ends::AtRandom, |s| dir_below(s, 0)),
    ("the database's folder", Ends::AtRandom, |s| s.kind == SyncKind::Dir && Path::new(DIR).parent() == Some(s.path)),
];

#[test]
fn the_checker_notices_each_missing_sync() {
    if crate::number("VECTIDE_POWER_CUTS", 40) == 0 {
        return;
    }
    let started = std::time::Instant::now();
    let mut unnoticed = Vec::new();
    for &(what, ends, is_it) in SITES {
        let mut skipped = 0;
        let lives = if ends == Ends::KilledThenCut { LIVES_BY_TURNS } else { LIVES };
        let mut try_one = |seed: u64| match run(seed, lives, ends, Some(is_it)) {
            Ok(figures) => {
                skipped += figures.skipped;
                None
            }
            Err(reason) => Some((seed, reason)),
        };
        match (0..WORLDS).find_map(&mut try_one) {
            Some((seed, reason)) => {
                let reason: String = reason.chars().take(140).collect();
                println!("without a sync of {what}: world {seed} shows it ({reason})");
            }
            None => unnoticed.push(format!("{what} ({skipped} left out)")),
        }
    }
    println!("{} kinds of sync in {:.1} s", SITES.len(), started.elapsed().as_secs_f64());
    assert!(unnoticed.is_empty(), "nothing shows that these syncs are missing: {unnoticed:#?}");
}
