//! Ctrl-C and SIGTERM: the first asks the command to stop after what it is doing, the second ends the process.
//!
//! Commands that write many batches or run until stopped listen; all others leave the signals alone, since whatever was
//! acknowledged is durable.

use crate::error::EXIT_INTERRUPTED;
use tokio::sync::watch;

/// Whether the user asked to stop.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(watch::Receiver<bool>);

impl Interrupt {
    /// Starts to listen. Must be called inside the runtime.
    pub(crate) fn listen() -> Self {
        let (asked, receiver) = watch::channel(false);
        tokio::spawn(async move {
            let mut terms = Signals::new();
            terms.next().await;
            asked.send_replace(true);
            terms.next().await;
            std::process::exit(i32::from(EXIT_INTERRUPTED));
        });
        Self(receiver)
    }

    /// Whether to stop now.
    pub(crate) fn asked(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until asked to stop.
    pub(crate) async fn wait(&mut self) {
        if self.0.wait_for(|asked| *asked).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

struct Signals {
    #[cfg(unix)]
    term: Option<tokio::signal::unix::Signal>,
}

impl Signals {
    fn new() -> Self {
        Self {
            #[cfg(unix)]
            term: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).ok(),
        }
    }

    async fn next(&mut self) {
        let interrupted = async {
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        #[cfg(unix)]
        if let Some(term) = &mut self.term {
            tokio::select! {
                () = interrupted => {}
                _ = term.recv() => {}
            }
            return;
        }
        interrupted.await;
    }
}
