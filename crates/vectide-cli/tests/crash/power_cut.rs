//! Lives of a database on a simulated disk, each ended in the middle by a cut of the power (or a kill).
//!
//! In-process: SIGKILL leaves the page cache and so proves no sync; the simulated disk forgets what was not synced, page by
//! page and name by name. A life opens the database (sometimes it ends in there), writes with several writers, flushes, and
//! ends at a random point before or after a random file call. What a reopen, or a read beside the writers, has shown must
//! be there ever after. From a seed; threads of the engine make the order of calls differ a little from run to run, so a
//! failure also says at which point the world stopped.

use crate::model::{Model, Settled};
use crate::rows::{self, Kind, Op, Rng, TABLE};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use vectide::store::LocalStore;
use vectide::store::fault_fs::FaultFs;
use vectide::store::sim::{SimFs, Sync};
use vectide::{ErrorKind, Table, Vectide};

/// Where the database lies on the simulated disk.
pub const DIR: &str = "/data/db";
/// Writes of one writer in one life.
const WRITES: u64 = 30;

/// Figures of a world, or of many.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub lives: u64,
    /// Lives that ended while the database was being opened.
    pub in_open: u64,
    /// Lives that ended with unacknowledged writes.
    pub in_flight: u64,
    pub batches: u64,
    /// Unacknowledged writes that a read had shown.
    pub seen: u64,
    pub settled: Settled,
    /// Syncs left out.
    pub skipped: u64,
}

/// A disk and what it has to hold.
struct World {
    sim: SimFs,
    model: Model,
    undecided: Vec<Op>,
    version: u64,
    rng: Rng,
    figures: Figures,
}

/// What a life's tasks share.
#[derive(Default)]
struct Life {
    under_way: BTreeMap<u64, Op>,
    acknowledged: Vec<Op>,
    failed: Vec<Op>,
    /// Versions that a read has shown before their acknowledgement.
    seen: BTreeSet<u64>,
}

/// How the lives of a database end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Mostly by a power cut, one in five by a kill.
    AtRandom,
    /// By a kill; the next life only opens the database, reads it, and ends by a power cut. So whatever that reader has
    /// seen in the page cache must have been made durable before it was shown.
    KilledThenCut,
}

/// Leads a database through `lives` lives; what is wrong in the end. Syncs of which `is_skipped` says so are left out.
pub fn run(seed: u64, lives: u64, ends: Ends, is_skipped: Option<fn(&Sync<'_>) -> bool>) -> Result<Figures, String> {
    let sim = SimFs::new();
    if let Some(is_skipped) = is_skipped {
        sim.skip_syncs_where(is_skipped);
    }
    let rng = Rng(seed.wrapping_mul(0x9e37_79b9).wrapping_add(1));
    let model = Model::default();
    let mut world = World { sim, model, undecided: Vec::new(), version: 1, rng, figures: Figures::default() };
    for life in 0..lives {
        if ends == Ends::KilledThenCut && life % 2 == 1 {
            world.only_read().map_err(|reason| format!("life {life}, which only reads: {reason}"))?;
            continue;
        }
        // Short lives end while opening, long ones end in flushes.
        let calls = 1u64 << world.rng.below(11);
        let point = world.rng.below(2 * calls);
        world.live(point).map_err(|reason| format!("life {life}, stopped at point {point}: {reason}"))?;
        world.figures.skipped += world.sim.skipped();
        let fate = world.rng.next();
        let is_kill = ends == Ends::KilledThenCut || fate.is_multiple_of(5);
        world.sim = if is_kill { world.sim.kill() } else { world.sim.power_cut(fate >> 3) };
    }
    world.check()?;
    Ok(world.figures)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(future)
}

async fn open(fs: &FaultFs) -> vectide::Result<(Vectide, Table)> {
    let store = LocalStore::open(fs.shared(), DIR)?.inline();
    let db = Vectide::builder("simulated").options(rows::options()).store(Arc::new(store)).open().await?;
    let table = match db.open_table(TABLE).await {
        Err(error) if error.kind() == ErrorKind::NotFound => db.create_table(TABLE, rows::schema()).await?,
        other => other?,
    };
    Ok((db, table))
}

impl World {
    fn live(&mut self, point: u64) -> Result<(), String> {
        let fs = FaultFs::new(self.sim.shared());
        fs.stop_at(point);
        self.figures.lives += 1;
        block_on(async {
            let opened = match open(&fs).await {
                Ok((db, table)) => self.settle(&table).await.map(|()| (db, table)),
                Err(error) => Err(format!("open: {error:?}")),
            };
            match opened {
                Ok((_db, table)) => self.write(&fs, &table).await,
                Err(_) if fs.stopped() => {
                    self.figures.in_open += 1;
                    Ok(())
                }
                Err(reason) => Err(reason),
            }
        })
    }

    /// A life that opens the database, reads it, and ends there by a power cut.
    fn only_read(&mut self) -> Result<(), String> {
        self.figures.lives += 1;
        let fs = FaultFs::new(self.sim.shared());
        let fate = self.rng.next();
        self.sim = block_on(async {
            let (_db, table) = open(&fs).await.map_err(|e| format!("open: {e:?}"))?;
            self.settle(&table).await?;
            self.figures.skipped += self.sim.skipped();
            // Cut before anything is closed in order.
            Ok::<_, String>(self.sim.power_cut(fate))
        })?;
        Ok(())
    }

    /// A reopened table decides what was undecided.
    async fn settle(&mut self, table: &Table) -> Result<(), String> {
        let found = rows::rows(table).await?;
        let settled = self.model.settle(&self.undecided, &found)?;
        self.figures.settled.whole += settled.whole;
        self.figures.settled.absent += settled.absent;
        self.undecided.clear();
        Ok(())
    }

    /// Writes with several writers until the world stops or everybody is done.
    async fn write(&mut self, fs: &FaultFs, table: &Table) -> Result<(), String> {
        let life = RefCell::new(Life::default());
        let writers = 1 + self.rng.below(4);
        let rows = self.model.rows();
        let each = (0..writers).map(|writer| {
            let first = writer as i64 * rows::KEYS_STRIDE;
            let present: BTreeSet<i64> = rows.range(first..first + rows::KEYS_STRIDE).map(|(&key, _)| key).collect();
            let rng = Rng(self.rng.0 ^ writer);
            write_on(table, &life, fs, (writer, writers, self.version), present, rng)
        });
        let each: Vec<_> = each.collect();
        let flushing = flush_on(table, fs, Rng(self.rng.0 ^ 0xf1));
        let reading = read_on(table, &life);
        let done: Result<(), String> = tokio::select! {
            done = futures::future::try_join_all(each) => done.map(drop),
            failed = flushing => Err(failed),
            () = reading => Ok(()),
        };
        done?;
        self.version += WRITES * 8;
        let life = life.into_inner();
        self.figures.batches += life.acknowledged.len() as u64;
        life.acknowledged.iter().for_each(|op| self.model.apply(op));
        let (seen, undecided): (Vec<Op>, Vec<Op>) =
            life.under_way.into_values().chain(life.failed).partition(|op| life.seen.contains(&op.version));
        seen.iter().for_each(|op| self.model.apply(op));
        self.figures.seen += seen.len() as u64;
        self.figures.in_flight += u64::from(!undecided.is_empty() || !seen.is_empty());
        self.undecided = undecided;
        Ok(())
    }

    /// Opens twice, undisturbed, and reads in every way.
    fn check(&mut self) -> Result<(), String> {
        let mut first = None;
        for reopen in 0..2 {
            let fs = FaultFs::new(self.sim.shared());
            let mut rng = Rng(self.rng.next());
            let found = block_on(async {
                let (db, table) = open(&fs).await.map_err(|e| format!("the last open: {e:?}"))?;
                let found = rows::audit(&table, &mut rng).await?;
                db.close().await.map_err(|e| format!("close: {e:?}"))?;
                Ok::<_, String>(found)
            })?;
            let settled = self.model.settle(&self.undecided, &found).map_err(|e| format!("reopen {reopen}: {e}"))?;
            self.figures.settled.whole += settled.whole;
            self.figures.settled.absent += settled.absent;
            self.undecided.clear();
            if first.get_or_insert_with(|| found.clone()) != &found {
                return Err("a second reopen shows other rows".into());
            }
        }
        Ok(())
    }
}

/// `numbers`: the writer, how many there are, and the first version.
async fn write_on(
    table: &Table,
    life: &RefCell<Life>,
    fs: &FaultFs,
    numbers: (u64, u64, u64),
    mut present: BTreeSet<i64>,
    mut rng: Rng,
) -> Result<(), String> {
    let (writer, writers, first) = numbers;
    for version in (first + writer..).step_by(writers as usize).take(WRITES as usize) {
        let op = Op::random(&mut rng, writer, version, &present);
        life.borrow_mut().under_way.insert(writer, op.clone());
        let done = op.run(table).await;
        let mut life = life.borrow_mut();
        life.under_way.remove(&writer);
        match done {
            Ok(()) => life.acknowledged.push(op.clone()),
            Err(_) if fs.stopped() => {
                life.failed.push(op);
                return Ok(());
            }
            Err(error) => return Err(format!("{op:?} failed: {error:?}")),
        }
        op.note(&mut present);
    }
    Ok(())
}

/// Flushes now and then; returns only what must not happen.
async fn flush_on(table: &Table, fs: &FaultFs, mut rng: Rng) -> String {
    loop {
        tokio::time::sleep(std::time::Duration::from_micros(200 + rng.below(8_000))).await;
        match table.flush().await {
            Err(_) if fs.stopped() => std::future::pending().await,
            Err(error) => return format!("flush: {error:?}"),
            Ok(()) => {}
        }
    }
}

/// Reads rows of writes that are under way: what it sees must never be lost.
async fn read_on(table: &Table, life: &RefCell<Life>) {
    loop {
        tokio::task::yield_now().await;
        let puts: Vec<(u64, i64)> = {
            let life = life.borrow();
            let puts = life.under_way.values().filter(|op| op.kind != Kind::Delete);
            puts.map(|op| (op.version, op.keys[0])).collect()
        };
        for (version, key) in puts {
            let Ok(batch) = table.get(vec![key]).await else { continue };
            if rows::read(&batch).is_ok_and(|rows| rows.contains(&(key, version))) {
                life.borrow_mut().seen.insert(version);
            }
        }
        tokio::time::sleep(std::time::Duration::from_micros(300)).await;
    }
}

#[test]
fn a_power_cut_loses_nothing_doubles_nothing_and_resurrects_nothing() {
    let cuts = crate::number("VECTIDE_POWER_CUTS", 40);
    if cuts == 0 {
        return;
    }
    let first = crate::seed("VECTIDE_POWER_SEED");
    let started = std::time::Instant::now();
    let mut total = Figures::default();
    let mut seed = first;
    while total.lives < cuts {
        let lives = 1 + seed % 6;
        let figures = run(seed, lives, Ends::AtRandom, None);
        let figures =
            figures.unwrap_or_else(|e| panic!("{e}\nreplay with VECTIDE_POWER_SEED={seed} VECTIDE_POWER_CUTS=1"));
        total.add(&figures);
        seed += 1;
    }
    println!(
        "{} cuts of {} databases in {:.1} s: {} while opening, {} with writes in flight",
        total.lives,
        seed - first,
        started.elapsed().as_secs_f64(),
        total.in_open,
        total.in_flight
    );
    println!(
        "acknowledged: {} batches; unacknowledged ones found whole: {}, absent: {}, seen by a reader before: {}",
        total.batches, total.settled.whole, total.settled.absent, total.seen
    );
}

impl Figures {
    pub fn add(&mut self, other: &Self) {
        self.lives += other.lives;
        self.in_open += other.in_open;
        self.in_flight += other.in_flight;
        self.batches += other.batches;
        self.seen += other.seen;
        self.settled.whole += other.settled.whole;
        self.settled.absent += other.settled.absent;
        self.skipped += other.skipped;
    }
}
