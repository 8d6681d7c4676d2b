//! Rounds of SIGKILL: writers, deleters, a flush loop and searches run on tiny memtables until the process is killed, at
//! random or at a named point; then it is opened again (and sometimes killed again, twice, in the middle of recovering).
//! In local directories, and over HTTP against a server that outlives the process and fails on its own account.
//!
//! Each directory is carried through several rounds. Invariant of every round: all acknowledged writes are there, each
//! unacknowledged one wholly or not at all, nothing is doubled or back from the dead, and a second reopen shows the same.

use crate::home::{Bucket, Directories, Home};
use crate::model::{Model, Settled};
use crate::points::{Points, Target};
use crate::rows::Rng;
use crate::worker::{Place, Report, Worker};
use std::time::{Duration, Instant};

/// Rounds that one directory lives.
const LIFE: u32 = 12;
/// How long a worker may take to reach the point that it shall die at, once it writes.
const POINT_PATIENCE: Duration = Duration::from_millis(2_000);

/// A directory and what it has to hold.
struct Ground {
    place: Place,
    model: Model,
    version: u64,
    rounds: u32,
}

impl Ground {
    fn new(home: &impl Home, layout: &'static str) -> Self {
        Self { place: home.place(layout), model: Model::default(), version: 1, rounds: 0 }
    }
}

/// Figures of the whole run.
#[derive(Debug, Default)]
struct Figures {
    kills: u64,
    /// Kills of a writing process, and those of them with unacknowledged writes.
    writing: u64,
    in_flight: u64,
    recovering: u64,
    errors: u64,
    conflicts: u64,
    batches: u64,
    rows: u64,
    settled: Settled,
    written_for: Duration,
}

struct Harness<H> {
    home: H,
    layouts: &'static [&'static str],
    rng: Rng,
    points: Points,
    /// By layout; none where the next round needs a new one.
    grounds: Vec<Option<Ground>>,
    figures: Figures,
}

/// From so many rounds on every point has to be died at: rounds that aim at those that were missed follow, up to as many
/// again.
const ALL_POINTS_ROUNDS: u64 = 200;

/// Runs as many rounds as the variable says, `default` without it.
fn rounds<H: Home>(variable: &str, default: u64, layouts: &'static [&'static str], home: H) {
    let rounds = crate::number(variable, default);
    if rounds == 0 {
        return;
    }
    let seed = crate::seed("VECTIDE_CRASH_SEED");
    let started = Instant::now();
    let mut harness = Harness {
        rng: Rng(seed),
        points: Points::explore(layouts, &home),
        grounds: layouts.iter().map(|_| None).collect(),
        figures: Figures::default(),
        layouts,
        home,
    };
    let mut run = 0;
    let aims_at_missed =
        |run: u64, points: &Points| rounds >= ALL_POINTS_ROUNDS && run < 2 * rounds && !points.missed().is_empty();
    while run < rounds || aims_at_missed(run, &harness.points) {
        let round = run;
        run += 1;
        harness.home.shake(harness.rng.next());
        if let Err((reason, place)) = harness.round() {
            let replay = format!("VECTIDE_CRASH_SEED={seed} {variable}={}", round + 1);
            let kept = harness.home.keep(place);
            panic!("round {round}: {reason}\nwhat is there is kept at {kept}\nreplay with {replay}");
        }
    }
    harness.report(run, started.elapsed());
}

#[test]
fn kill_nine_loses_nothing_doubles_nothing_and_resurrects_nothing() {
    rounds("VECTIDE_CRASH_ROUNDS", 20, &["files", "objects"], Directories);
}

#[test]
fn kill_nine_over_http_loses_nothing_doubles_nothing_and_resurrects_nothing() {
    rounds("VECTIDE_CRASH_S3_ROUNDS", 3, &["s3"], Bucket::start());
}

type Failure = (String, Place);

impl<H: Home> Harness<H> {
    fn round(&mut self) -> Result<(), Failure> {
        // One round in ten is killed at random, one in ten meets an error at a point first.
        let roll = self.rng.below(10);
        let target = (roll >= 1).then(|| self.points.next(&mut self.rng));
        let any = self.layouts[self.rng.below(self.layouts.len() as u64) as usize];
        let layout = target.as_ref().map_or(any, |target| target.layout);
        let slot = self.layouts.iter().position(|l| *l == layout).expect("one of them");
        let is_fresh = target.as_ref().is_some_and(|target| target.is_fresh);
        let lived = self.grounds[slot].take().filter(|ground| ground.rounds < LIFE && !is_fresh);
        let mut ground = lived.unwrap_or_else(|| Ground::new(&self.home, layout));
        if let Err(reason) = self.round_on(&mut ground, target, roll < 2) {
            return Err((reason, ground.place));
        }
        self.grounds[slot] = Some(ground);
        Ok(())
    }

    fn round_on(&mut self, ground: &mut Ground, target: Option<Target>, is_error: bool) -> Result<(), String> {
        ground.rounds += 1;
        let (writing, recovering) = match target {
            Some(target) if target.in_recovery => (None, Some(target)),
            other => (other, None),
        };
        let is_error = is_error && writing.is_some();
        let report = self.write_and_kill(ground, writing.as_ref(), is_error)?;
        let what = match (&writing, &recovering) {
            (Some(target), _) if is_error => format!("an error at {}@{}", target.name, target.nth),
            (Some(target), _) => format!("killed at {}@{}", target.name, target.nth),
            (_, Some(target)) => format!("killed while recovering at {}@{}", target.name, target.nth),
            _ => "killed at random".to_owned(),
        };
        let again = self.rng.below(3);
        self.kill_recoveries(ground, recovering, again)?;
        let settled = self.settle(ground, &report.undecided());
        settled.map_err(|reason| format!("{what} (layout {}): {reason}", ground.place.layout))
    }

    /// Runs writers until they are killed.
    fn write_and_kill(
        &mut self,
        ground: &mut Ground,
        target: Option<&Target>,
        is_error: bool,
    ) -> Result<Report, String> {
        let action = if is_error { "error" } else { "kill" };
        let armed = target.map_or(String::new(), |target| format!("{}={action}@{}", target.name, target.nth));
        let (seed, writers) = (self.rng.next() >> 1, 1 + self.rng.below(6));
        let mut numbers = vec![("seed", seed), ("version", ground.version), ("writers", writers)];
        if target.is_some_and(|target| target.is_orderly) {
            numbers.push(("stop_after_ms", 300));
        }
        let mut worker = Worker::start("write", &ground.place, &armed, &numbers);
        let mut runs = worker.read(Duration::from_secs(30), |report| report.is_ready);
        let ready = Instant::now();
        // Only of a worker that does not kill itself meanwhile.
        if runs && ground.place.layout == "files" && target.is_none() {
            self.expect_conflict(ground, &worker)?;
        }
        if runs {
            let random = Duration::from_millis(20 + self.rng.below(500));
            let time = if target.is_some() && !is_error { POINT_PATIENCE } else { random };
            runs = worker.read(time, |_| false);
        }
        let report = worker.kill();
        self.figures.written_for += if report.is_ready { ready.elapsed() } else { Duration::ZERO };
        self.figures.kills += 1;
        match target {
            Some(target) if !runs && !is_error && !report.is_done => self.points.killed(target),
            Some(_) if is_error => self.figures.errors += 1,
            _ => {}
        }
        self.take(ground, &report, is_error)?;
        Ok(report)
    }

    fn take(&mut self, ground: &mut Ground, report: &Report, is_error: bool) -> Result<(), String> {
        if report.is_ready {
            self.figures.writing += 1;
            self.figures.in_flight += u64::from(!report.undecided().is_empty());
        }
        for op in &report.acknowledged {
            ground.model.apply(op);
            self.figures.batches += 1;
            self.figures.rows += op.keys.len() as u64;
        }
        ground.version += 1_000_000;
        // An injected error may refuse the open; nothing else may be wrong.
        let wrong = report.bad.iter().find(|bad| !(is_error && bad.starts_with("open:")));
        match wrong {
            Some(bad) => Err(bad.clone()),
            None if !is_error && !report.failed.is_empty() => Err(format!("a write failed: {:?}", report.failed[0])),
            None => Ok(()),
        }
    }

    /// A second process is refused and told who holds the directory.
    fn expect_conflict(&mut self, ground: &Ground, worker: &Worker) -> Result<(), String> {
        let second = Worker::start("check", &ground.place, "", &[]).finish();
        let named = second.bad.iter().any(|bad| bad.contains("conflict") && bad.contains(&worker.pid().to_string()));
        self.figures.conflicts += 1;
        if named { Ok(()) } else { Err(format!("a second writer was told {:?}, not {}", second.bad, worker.pid())) }
    }

    /// Kills recoveries: one at the target, others at random or at points that recoveries pass.
    fn kill_recoveries(&mut self, ground: &Ground, target: Option<Target>, again: u64) -> Result<(), String> {
        if let Some(target) = target {
            self.kill_recovery_at(ground, &target)?;
        }
        for _ in 0..again {
            let target = self.points.next_in_recovery(&mut self.rng, ground.place.layout);
            // Points come first while there are some that nothing died at.
            let is_random = self.rng.one_in(3) && self.points.missed().is_empty();
            match target.filter(|_| !is_random) {
                Some(target) => self.kill_recovery_at(ground, &target)?,
                None => {
                    let mut worker = Worker::start("check", &ground.place, "", &[]);
                    worker.read(Duration::from_millis(self.rng.below(60)), |_| false);
                    self.figures.recovering += u64::from(!worker.kill().is_done);
                    self.figures.kills += 1;
                }
            }
        }
        Ok(())
    }

    /// A recovery that dies at the target, if it gets there; one that says that something is wrong fails the round.
    fn kill_recovery_at(&mut self, ground: &Ground, target: &Target) -> Result<(), String> {
        let armed = format!("{}=kill@{}", target.name, target.nth);
        let report = Worker::start("check", &ground.place, &armed, &[]).finish();
        if let Some(bad) = report.bad.first() {
            return Err(format!("a recovery that was to die at {}: {bad}", target.name));
        }
        if !report.is_done {
            self.points.killed(target);
            self.figures.recovering += 1;
            self.figures.kills += 1;
        }
        Ok(())
    }

    /// Opens twice and compares.
    fn settle(&mut self, ground: &mut Ground, undecided: &[crate::rows::Op]) -> Result<(), String> {
        let mut first = None;
        for reopen in 0..2 {
            let seed = self.rng.next() >> 1;
            let report = Worker::start("check", &ground.place, "", &[("seed", seed)]).finish();
            if let Some(bad) = report.bad.first() {
                return Err(format!("reopen {reopen}: {bad}"));
            }
            if !report.is_done {
                return Err(format!("reopen {reopen}: the check died"));
            }
            match &first {
                None => {
                    let settled = ground.model.settle(undecided, &report.rows)?;
                    self.figures.settled.whole += settled.whole;
                    self.figures.settled.absent += settled.absent;
                    first = Some(report.rows);
                }
                Some(first) if *first != report.rows => return Err("a second reopen shows other rows".into()),
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn report(&self, rounds: u64, took: Duration) {
        let figures = &self.figures;
        let share = 100.0 * figures.in_flight as f64 / figures.writing.max(1) as f64;
        let seconds = figures.written_for.as_secs_f64();
        self.points.print();
        println!(
            "{rounds} rounds, {} kills in {:.1} s: nothing lost, doubled or resurrected",
            figures.kills,
            took.as_secs_f64()
        );
        println!(
            "killed while writing: {} ({share:.0}% with writes in flight); while recovering: {}",
            figures.writing, figures.recovering
        );
        println!("rounds with an injected error: {}; second opens refused: {}", figures.errors, figures.conflicts);
        println!("unacknowledged writes found whole: {}, absent: {}", figures.settled.whole, figures.settled.absent);
        println!(
            "acknowledged: {} batches, {} rows; {:.0} rows/s",
            figures.batches,
            figures.rows,
            figures.rows as f64 / seconds
        );
        let missed = self.points.missed();
        println!("points: {} of {} were died at", self.points.len() - missed.len(), self.points.len());
        assert!(share >= 90.0, "too few kills met writes in flight: {share:.0}%");
        assert!(rounds < ALL_POINTS_ROUNDS || missed.is_empty(), "never died at: {missed:#?}");
    }
}
