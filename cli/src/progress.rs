//! Says on standard error what a slow command is waiting for: a spinner on a terminal, elsewhere
//! one line a phase, and how far it is now and then. Standard output stays clean for the answer.
//!
//! A command that is done soon says nothing.

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::{Condvar, Mutex};
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What takes no longer is not worth a word.
const SOON: Duration = Duration::from_secs(1);
/// Where there is no terminal, how far a phase is is told so often.
const DETAIL_INTERVAL: Duration = Duration::from_secs(30);

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
    said: Instant,
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
        let (message, said) = (message.into(), Instant::now());
        let phase = Phase { message, shown: None, said, ended: false };
        let shared = Arc::new(Shared { phase: Mutex::new(phase), ended: Condvar::new() });
        let watched = shared.clone();
        // Without a thread there is only nothing to be seen.
        let _ = std::thread::Builder::new().name("progress".into()).spawn(move || watched.show());
        Self(shared)
    }

    /// Replaces the message. Repeating the same one prints nothing.
    pub fn set(&mut self, message: impl Into<String>) {
        self.0.phase.lock().say(message.into());
    }

    /// Says how far the phase is, so often as can be read.
    pub fn detail(&mut self, message: impl Into<String>) {
        let mut phase = self.0.phase.lock();
        let is_early = phase.said.elapsed() < DETAIL_INTERVAL;
        match phase.shown {
            Some(Screen::Lines) if is_early => {}
            _ => phase.say(message.into()),
        }
    }
}

impl Phase {
    fn say(&mut self, message: String) {
        if message == self.message {
            return;
        }
        if let Some(screen) = &self.shown {
            screen.say(&message);
            self.said = Instant::now();
        }
        self.message = message;
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
            phase.said = Instant::now();
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
        let phase = Phase { message: "waiting".into(), shown: None, said: Instant::now(), ended };
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
