//! Progress on stderr: a bar when the total is known, a spinner when not, nothing without a terminal or with `--json`.

use crate::clock;
use crate::output::Out;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

/// A bar over rows.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    since: Instant,
    done: u64,
}

impl Progress {
    /// Shows progress over `total` rows, led by `label`.
    pub(crate) fn rows(out: Out, label: &str, total: Option<u64>) -> Self {
        let shown = !out.json() && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr_with_hz(8) } else { ProgressDrawTarget::hidden() };
        let template = match total {
            Some(_) => "{prefix} {bar:24} {human_pos}/{human_len} rows  {msg}",
            None => "{prefix} {spinner} {human_pos} rows  {msg}",
        };
        let bar = ProgressBar::with_draw_target(total, target).with_prefix(label.to_owned());
        bar.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
        if shown {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Self { bar, since: clock::now(), done: 0 }
    }

    /// Sets where the bar starts without counting it as done: rows of an earlier run.
    pub(crate) fn start_at(&self, rows: u64) {
        self.bar.set_position(rows);
    }

    /// Counts rows and says `message` after the rate.
    pub(crate) fn advance(&mut self, rows: u64, message: &str) {
        self.done += rows;
        self.bar.inc(rows);
        let rate = per_second(self.done, self.since.elapsed());
        self.bar.set_message(format!("{} rows/s{message}", thousands(rate as u64)));
    }

    /// Takes the bar off the screen.
    pub(crate) fn finish(self) {
        self.bar.finish_and_clear();
    }
}

/// `count` per second over `elapsed`.
pub(crate) fn per_second(count: u64, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64().max(1e-9)
}

/// `1234567` as `1,234,567`.
pub(crate) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1` as `1 row`, `2000` as `2,000 rows`.
pub(crate) fn rows(n: u64) -> String {
    format!("{} row{}", thousands(n), if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped() {
        for (n, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (25_000, "25,000"), (1_234_567, "1,234,567")] {
            assert_eq!(thousands(n), text);
        }
    }
}
