//! The points at which the worker can be killed, which of them were reached, and which to try next.
//!
//! A run in order of each layout shows which file calls there are; the engine's own points are named in
//! `failpoint::POINTS`. Invariant: a point counts as hit only once a process died there.

use crate::home::Home;
use crate::rows::Rng;
use crate::worker::{Report, Worker};
use std::collections::BTreeMap;

/// One point in one layout.
#[derive(Clone, Debug, Default)]
struct Tally {
    /// Passed by a run in order, and by a recovery after a kill.
    written: u64,
    recovered: u64,
    tries: u64,
    kills: u64,
}

/// All points.
#[derive(Debug, Default)]
pub struct Points(BTreeMap<(&'static str, String), Tally>);

/// Whether only a log in files passes the point.
fn is_local(name: &str) -> bool {
    name.starts_with("wal.local") || name.starts_with("wal.replay")
}

/// A point to kill at.
#[derive(Clone, Debug)]
pub struct Target {
    pub layout: &'static str,
    pub name: String,
    /// The how manieth time that it is passed.
    pub nth: u64,
    /// While a `check` recovers, not while a writer runs.
    pub in_recovery: bool,
    /// In an empty directory.
    pub is_fresh: bool,
    /// The writer ends in order after a while: some points are passed only by a close.
    pub is_orderly: bool,
}

impl Points {
    /// Finds out which points there are in these layouts, in an empty place of each.
    pub fn explore(layouts: &[&'static str], home: &impl Home) -> Self {
        let mut points = Self::default();
        for &layout in layouts {
            let place = home.place(layout);
            let start = |mode: &str, stop: &[(&str, u64)]| Worker::start(mode, &place, "", stop);
            let written = start("write", &[("stop_after_ms", 500), ("seed", 1)]).finish();
            assert!(written.is_done, "{layout}: {:?}", written.bad);
            let mut killed = start("write", &[("version", 1_000_000), ("seed", 2)]);
            killed.read(std::time::Duration::from_millis(600), |_| false);
            drop(killed.kill());
            let checked = start("check", &[]).finish();
            assert!(checked.is_done, "{layout}: {:?}", checked.bad);
            points.note(layout, &written, |tally, count| tally.written = count);
            points.note(layout, &checked, |tally, count| tally.recovered = count);
        }
        for name in vectide::failpoint::POINTS {
            let passed_in = if is_local(name) { "files" } else { *layouts.last().expect("at least one") };
            // Those that any layout passes are a matter of the first, where there are several.
            let is_common = !is_local(name) && !name.contains("object") && !name.contains("fence");
            let layout = if is_common { layouts[0] } else { passed_in };
            if layouts.contains(&layout) {
                points.0.entry((layout, (*name).to_owned())).or_default();
            }
        }
        points
    }

    fn note(&mut self, layout: &'static str, report: &Report, set: impl Fn(&mut Tally, u64)) {
        for (name, count) in &report.points {
            set(self.0.entry((layout, name.clone())).or_default(), *count);
        }
    }

    /// One of the points that were hit least, preferring those tried least: while a writer runs, if one passes there, else
    /// while a recovery does.
    pub fn next(&mut self, rng: &mut Rng) -> Target {
        self.least(rng, None, |_| true).expect("there are points")
    }

    /// One of the points that were hit least of those that a recovery of this layout passes.
    pub fn next_in_recovery(&mut self, rng: &mut Rng, layout: &'static str) -> Option<Target> {
        self.least(rng, Some(layout), |tally| tally.recovered > 0)
    }

    /// `layout`: only points of this one, and in its recoveries.
    fn least(
        &mut self,
        rng: &mut Rng,
        layout: Option<&'static str>,
        may_be: impl Fn(&Tally) -> bool,
    ) -> Option<Target> {
        let fits = |key: &(&str, String), tally: &Tally| layout.is_none_or(|layout| layout == key.0) && may_be(tally);
        let fitting = || self.0.iter().filter(|(key, tally)| fits(key, tally));
        let least = fitting().map(|(_, tally)| (tally.kills, tally.tries)).min()?;
        let candidates: Vec<_> =
            fitting().filter(|(_, t)| (t.kills, t.tries) == least).map(|(key, _)| key.clone()).collect();
        let key = candidates[rng.below(candidates.len() as u64) as usize].clone();
        let tally = self.0.get_mut(&key).expect("just found");
        tally.tries += 1;
        let in_recovery =
            layout.is_some() || tally.written == 0 || (tally.recovered > 0 && tally.tries.is_multiple_of(2));
        let passed = if in_recovery { tally.recovered } else { tally.written };
        // The first try is anywhere, later ones where the point is surely passed.
        let nth = if tally.tries == 1 { 1 + rng.below(passed.clamp(1, 60)) } else { 1 + rng.below(passed.clamp(1, 3)) };
        let is_fresh = !in_recovery && (passed < 5 || tally.tries > 1);
        let is_orderly = !in_recovery && passed < 5 && tally.tries > 1;
        Some(Target { layout: key.0, name: key.1, nth, in_recovery, is_fresh, is_orderly })
    }

    /// A process died there.
    pub fn killed(&mut self, target: &Target) {
        self.0.get_mut(&(target.layout, target.name.clone())).expect("a target is one of them").kills += 1;
    }

    /// Points at which nothing was killed yet.
    pub fn missed(&self) -> Vec<String> {
        let missed = self.0.iter().filter(|(_, tally)| tally.kills == 0);
        missed.map(|((layout, name), _)| format!("{layout} {name}")).collect()
    }

    /// The table of points.
    pub fn print(&self) {
        println!("{:<8} {:<44} {:>7} {:>9} {:>6}", "layout", "point", "passed", "recovery", "kills");
        for ((layout, name), tally) in &self.0 {
            println!("{layout:<8} {name:<44} {:>7} {:>9} {:>6}", tally.written, tally.recovered, tally.kills);
        }
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}
