//! Named places where a test can stop, fail or kill the process: every write, sync, create, rename, trim and put.
//!
//! Code on the row's path calls `hit` with a name out of [`POINTS`]. In tests and under the feature `testing` a registry
//! counts the hits and carries out what a test (`set`) or the variable `VECTIDE_FAILPOINTS` asks for; otherwise `hit`
//! compiles to nothing. Invariant: without an action, `hit` changes nothing but a counter.

use std::io;

/// Every point that the engine passes, in the order of a row's path. The crash harness kills a process at each of them.
pub const POINTS: &[&str] = &[
    "manifest.put.before",
    "manifest.put.after",
    "open.epoch.after",
    "open.fences.after",
    "open.segments.after",
    "open.replay.after",
    "open.ends.after",
    "wal.replay.sync.before",
    "wal.fence.put.before",
    "wal.fence.put.after",
    "wal.local.mkdir.before",
    "wal.local.create.before",
    "wal.local.allocate.before",
    "wal.local.header.before",
    "wal.local.header.sync.before",
    "wal.local.sync_dir.before",
    "wal.local.write.before",
    "wal.local.sync.before",
    "wal.local.sync.after",
    "wal.local.mark.before",
    "wal.local.trim.before",
    "wal.object.put.before",
    "wal.object.put.after",
    "wal.object.trim.before",
    "flush.rows.before",
    "flush.rows.after",
    "flush.graph.before",
    "flush.graph.after",
    "flush.keys.before",
    "flush.keys.after",
    "flush.ends.before",
    "flush.ends.after",
    "flush.commit.before",
    "flush.commit.after",
    "merge.base.before",
    "merge.base.after",
    "merge.delta.before",
    "merge.delta.after",
    "merge.commit.before",
    "merge.commit.after",
    "merge.fold.before",
    "merge.fold.after",
    "merge.collect.before",
];

/// Passes a fail point. `Err` only if an `error` action was set on it.
#[cfg(not(any(test, feature = "testing")))]
#[inline(always)]
pub(crate) fn hit(_name: &'static str) -> io::Result<()> {
    Ok(())
}

#[cfg(any(test, feature = "testing"))]
pub(crate) use active::hit;
#[cfg(any(test, feature = "testing"))]
pub use active::{Action, counts, last_on_this_thread, parse, pass, set};

#[cfg(any(test, feature = "testing"))]
mod active {
    use super::{POINTS, io};
    use parking_lot::Mutex;
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::sync::OnceLock;
    use std::time::Duration;

    /// What a fail point does.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Action {
        /// SIGKILL to this process: nothing is flushed, no destructor runs.
        Kill,
        /// The operation fails before it has any effect.
        Error,
        /// The operation waits first.
        Sleep(Duration),
    }

    #[derive(Default)]
    struct Registry {
        hits: BTreeMap<String, u64>,
        /// Name to (action, which hit it acts on counted from now; `None` is every one).
        actions: BTreeMap<String, (Action, Option<u64>)>,
    }

    fn registry() -> &'static Mutex<Registry> {
        static REGISTRY: OnceLock<Mutex<Registry>> = OnceLock::new();
        REGISTRY.get_or_init(|| {
            let mut registry = Registry::default();
            if let Ok(text) = std::env::var("VECTIDE_FAILPOINTS") {
                match parse(&text) {
                    Ok(actions) => registry.actions.extend(actions),
                    Err(reason) => panic!("VECTIDE_FAILPOINTS: {reason}"),
                }
            }
            Mutex::new(registry)
        })
    }

    /// Reads `name=action[@nth],...` with actions `kill`, `error` and `sleep:<ms>`; the error says what is wrong.
    #[allow(clippy::type_complexity, reason = "the registry's own entry type, spelled once")]
    pub fn parse(text: &str) -> Result<Vec<(String, (Action, Option<u64>))>, String> {
        let mut actions = Vec::new();
        for entry in text.split(',').filter(|entry| !entry.trim().is_empty()) {
            let (name, rest) = entry.trim().split_once('=').ok_or_else(|| format!("`{entry}` has no `=`"))?;
            let (verb, nth) = match rest.split_once('@') {
                Some((verb, nth)) => (verb, Some(nth.parse().map_err(|_| format!("`{nth}` is no number"))?)),
                None => (rest, None),
            };
            let action = match verb.split_once(':') {
                None if verb == "kill" => Action::Kill,
                None if verb == "error" => Action::Error,
                Some(("sleep", ms)) => {
                    Action::Sleep(Duration::from_millis(ms.parse().map_err(|_| format!("`{ms}` is no number"))?))
                }
                _ => return Err(format!("`{verb}` is none of kill, error, sleep:<ms>")),
            };
            actions.push((name.to_owned(), (action, nth)));
        }
        Ok(actions)
    }

    /// Sets (or with `None` clears) the action of a point; `nth` counts hits from now, `None` means every hit.
    pub fn set(name: &str, action: Option<(Action, Option<u64>)>) {
        let mut registry = registry().lock();
        match action {
            Some(action) => registry.actions.insert(name.to_owned(), action),
            None => registry.actions.remove(name),
        };
    }

    /// How often each point was hit since the process began.
    #[must_use]
    pub fn counts() -> BTreeMap<String, u64> {
        registry().lock().hits.clone()
    }

    thread_local! {
        static LAST: Cell<&'static str> = const { Cell::new("") };
    }

    /// The point of [`POINTS`] that this thread passed last; empty before the first. Tells a simulated disk which of
    /// several syncs of one file it is asked for.
    #[must_use]
    pub fn last_on_this_thread() -> &'static str {
        LAST.get()
    }

    /// Passes a point of [`POINTS`].
    ///
    /// # Errors
    /// Only if an `error` action was set on it.
    pub(crate) fn hit(name: &'static str) -> io::Result<()> {
        assert!(POINTS.contains(&name), "`{name}` is missing in failpoint::POINTS");
        LAST.set(name);
        pass(name)
    }

    /// Passes a point of any name, such as a file layer's: counts it and carries out its action.
    ///
    /// # Errors
    /// Only if an `error` action was set on it.
    pub fn pass(name: &str) -> io::Result<()> {
        let action = {
            let mut registry = registry().lock();
            match registry.hits.get_mut(name) {
                Some(hits) => *hits += 1,
                None => drop(registry.hits.insert(name.to_owned(), 1)),
            }
            match registry.actions.get_mut(name) {
                None => None,
                Some((action, None)) => Some(*action),
                Some((_, Some(0))) => None,
                Some((action, Some(left))) => {
                    *left -= 1;
                    (*left == 0).then_some(*action)
                }
            }
        };
        match action {
            None => Ok(()),
            Some(Action::Kill) => {
                let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
                std::process::abort()
            }
            Some(Action::Error) => Err(io::Error::other(format!("fail point {name}"))),
            Some(Action::Sleep(time)) => {
                #[allow(clippy::disallowed_methods, reason = "a fail point holds up whoever passes it")]
                std::thread::sleep(time);
                Ok(())
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_variable_is_read_or_refused_with_the_reason() {
            let parsed = parse("a.b=kill@3, c=sleep:20,d=error").expect("well formed");
            assert_eq!(parsed[0], ("a.b".into(), (Action::Kill, Some(3))));
            assert_eq!(parsed[1], ("c".into(), (Action::Sleep(Duration::from_millis(20)), None)));
            assert_eq!(parsed[2], ("d".into(), (Action::Error, None)));
            for bad in ["a", "a=explode", "a=kill@x", "a=sleep:long"] {
                assert!(parse(bad).is_err(), "{bad}");
            }
        }

        #[test]
        fn an_action_acts_on_the_nth_hit_only() {
            set("test.nth", Some((Action::Error, Some(2))));
            assert!(pass("test.nth").is_ok());
            assert!(pass("test.nth").is_err());
            assert!(pass("test.nth").is_ok());
            assert_eq!(counts()["test.nth"], 3);
        }

        #[test]
        fn a_thread_knows_the_last_point_that_it_passed() {
            hit("wal.local.sync.before").expect("no action");
            assert_eq!(last_on_this_thread(), "wal.local.sync.before");
            let elsewhere = std::thread::scope(|scope| scope.spawn(last_on_this_thread).join().expect("joins"));
            assert_eq!(elsewhere, "");
        }
    }
}
