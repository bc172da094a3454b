//! Says on standard error what a slow command is waiting for: a spinner on a terminal, one line a
//! phase elsewhere. Standard output stays clean for the answer.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// What the command does now. Dropping it leaves nothing on the screen.
pub struct Progress {
    bar: Option<ProgressBar>,
    last: String,
}

impl Progress {
    pub fn new(message: impl Into<String>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        let mut progress = Self { bar, last: String::new() };
        progress.set(message);
        progress
    }

    /// Replaces the message. Repeating the same one prints nothing.
    pub fn set(&mut self, message: impl Into<String>) {
        let message = message.into();
        if message == self.last {
            return;
        }
        match &self.bar {
            Some(bar) => bar.set_message(message.clone()),
            None => eprintln!("weft: {message}"),
        }
        self.last = message;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
