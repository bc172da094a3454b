//! Says on standard error what a slow command is waiting for: a spinner on a terminal, one line a
//! phase elsewhere. Standard output stays clean for the answer.
//!
//! A command that is done soon says nothing.

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::{Condvar, Mutex};
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

/// What takes no longer is not worth a word.
const SOON: Duration = Duration::from_secs(1);

/// What the command does now. Dropping it leaves nothing on the screen.
pub struct Progress(Arc<Shared>);

struct Shared {
    phase: Mutex<Phase>,
    ended: Condvar,
}

struct Phase {
    message: String,
    /// Where it is shown, once it has taken long.
    shown: Option<Screen>,
    ended: bool,
}

enum Screen {
    Spinner(ProgressBar),
    Lines,
}

impl Screen {
    fn new() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines;
        }
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        Self::Spinner(bar)
    }

    fn say(&self, message: &str) {
        match self {
            Self::Spinner(bar) => bar.set_message(message.to_owned()),
            Self::Lines => eprintln!("weft: {message}"),
        }
    }
}

impl Progress {
    pub fn new(message: impl Into<String>) -> Self {
        let phase = Phase { message: message.into(), shown: None, ended: false };
        let shared = Arc::new(Shared { phase: Mutex::new(phase), ended: Condvar::new() });
        let watched = shared.clone();
        // Without a thread there is only nothing to be seen.
        let _ = std::thread::Builder::new().name("progress".into()).spawn(move || watched.show());
        Self(shared)
    }

    /// Replaces the message. Repeating the same one prints nothing.
    pub fn set(&mut self, message: impl Into<String>) {
        let message = message.into();
        let mut phase = self.0.phase.lock();
        if message == phase.message {
            return;
        }
        if let Some(screen) = &phase.shown {
            screen.say(&message);
        }
        phase.message = message;
    }
}

impl Shared {
    /// Begins to show what goes on, unless it ends soon.
    fn show(&self) {
        let mut phase = self.phase.lock();
        self.ended.wait_while_for(&mut phase, |phase| !phase.ended, SOON);
        if !phase.ended {
            let screen = Screen::new();
            screen.say(&phase.message);
            phase.shown = Some(screen);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let mut phase = self.0.phase.lock();
        phase.ended = true;
        self.0.ended.notify_all();
        if let Some(Screen::Spinner(bar)) = phase.shown.take() {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(ended: bool) -> Shared {
        let phase = Phase { message: "waiting".into(), shown: None, ended };
        Shared { phase: Mutex::new(phase), ended: Condvar::new() }
    }

    #[test]
    fn only_what_takes_long_is_shown() {
        let soon = shared(true);
        soon.show();
        assert!(soon.phase.lock().shown.is_none());
        let long = shared(false);
        long.show();
        assert!(long.phase.lock().shown.is_some());
    }
}
