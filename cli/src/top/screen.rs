//! The terminal: taken over, drawn on, and given back as it was, however this ends.

use anyhow::{Context, Result};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc;

/// Another screen, without a cursor, whose lines do not wrap; and back.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &[u8] = b"\x1b[?7h\x1b[?25h\x1b[?1049l";

/// What somebody has pressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    Quit,
    /// Look now.
    Look,
}

pub struct Screen {
    keys: mpsc::Receiver<Key>,
    /// As it was, if it could be asked.
    before: Option<libc::termios>,
    ended: Arc<AtomicBool>,
}

impl Screen {
    /// Takes the terminal: keys come as they are pressed, and are not shown.
    pub fn take() -> Result<Self> {
        let before = quiet();
        let ended = Arc::new(AtomicBool::new(false));
        let keys = keys(before.is_some(), ended.clone());
        let screen = Self { keys, before, ended };
        let mut out = std::io::stdout().lock();
        out.write_all(ENTER).and_then(|()| out.flush()).context("cannot write to the terminal")?;
        Ok(screen)
    }

    /// The next key; for ever none where there is no keyboard.
    pub async fn key(&mut self) -> Option<Key> {
        match self.keys.recv().await {
            Some(key) => Some(key),
            None => std::future::pending().await,
        }
    }

    /// Columns and lines.
    pub fn size(&self) -> (usize, usize) {
        // SAFETY: all zeros is a value of this plain structure.
        let mut size: libc::winsize = unsafe { std::mem::zeroed() };
        let fd = std::io::stdout().as_raw_fd();
        // SAFETY: the structure lives through the call, which fills it.
        let rc = unsafe { libc::ioctl(fd, libc::TIOCGWINSZ, &raw mut size) };
        match (rc, size.ws_col, size.ws_row) {
            (0, columns @ 1.., rows @ 1..) => (columns.into(), rows.into()),
            _ => (80, 24),
        }
    }

    /// Shows these lines, as many as there is room for.
    pub fn draw(&mut self, lines: &[String], height: usize) -> Result<()> {
        let mut all = String::from("\x1b[H");
        for (n, line) in lines.iter().take(height).enumerate() {
            if n > 0 {
                all += "\r\n";
            }
            all += line;
            all += "\x1b[0m\x1b[K";
        }
        all += "\x1b[J";
        let mut out = std::io::stdout().lock();
        out.write_all(all.as_bytes()).and_then(|()| out.flush()).context("the terminal is gone")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(LEAVE).and_then(|()| out.flush());
        if let Some(before) = &self.before {
            // SAFETY: the structure is one that tcgetattr has filled.
            unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSAFLUSH, before) };
        }
    }
}

/// Has the terminal pass each key on, and not show it. `None`: standard input is no terminal.
fn quiet() -> Option<libc::termios> {
    // SAFETY: all zeros is a value of this plain structure.
    let mut now: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives through the call, which fills it.
    if unsafe { libc::tcgetattr(libc::STDIN_FILENO, &raw mut now) } != 0 {
        return None;
    }
    let before = now;
    now.c_lflag &= !(libc::ICANON | libc::ECHO);
    // A read ends after a fifth of a second, so that its thread can. It is not stopped by a key:
    // the other screen would stay.
    now.c_cc[libc::VMIN] = 0;
    now.c_cc[libc::VTIME] = 2;
    now.c_cc[libc::VSUSP] = 0;
    // SAFETY: the structure is one that tcgetattr has filled.
    let set = unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &raw const now) };
    (set == 0).then_some(before)
}

fn keys(terminal: bool, ended: Arc<AtomicBool>) -> mpsc::Receiver<Key> {
    let (tell, keys) = mpsc::channel(8);
    if terminal {
        std::thread::spawn(move || {
            let mut byte = [0];
            while !ended.load(Ordering::Relaxed) {
                let key = match std::io::stdin().lock().read(&mut byte) {
                    Ok(1) => match byte[0] {
                        b'q' | b'Q' | 3 | 4 => Key::Quit,
                        b' ' | b'\r' | b'\n' => Key::Look,
                        _ => continue,
                    },
                    Ok(_) => continue,
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                    Err(_) => return,
                };
                if tell.blocking_send(key).is_err() {
                    return;
                }
            }
        });
    }
    keys
}
