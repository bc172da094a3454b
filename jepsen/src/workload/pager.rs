//! Mapped files, through a process of its own (`weft-jepsen-page`): a fault that waits for a mount
//! locks the address space of its process, and this one serves the disks on which the mount waits.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Starts when it is first asked, and again after a page could not be had.
#[derive(Default)]
pub struct Pager {
    running: Option<Running>,
    /// What those before have waited for a processor.
    waited: Duration,
}

struct Running {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Pager {
    /// The first eight bytes of the file's page, which is made if need be.
    pub fn get(&mut self, at: &Path) -> io::Result<u64> {
        self.ask(OsStr::new("get "), at)
    }

    /// Writes them, durably.
    pub fn set(&mut self, at: &Path, value: u64) -> io::Result<()> {
        self.ask(format!("set {value} ").as_ref(), at).map(drop)
    }

    /// How long it has waited for a processor so far, though it could go on.
    pub fn waited(&self) -> Duration {
        self.waited + self.running.as_ref().map_or(Duration::ZERO, Running::waited)
    }

    fn ask(&mut self, what: &OsStr, at: &Path) -> io::Result<u64> {
        let running = match &mut self.running {
            Some(running) => running,
            None => self.running.insert(Running::start()?),
        };
        let answer = running.ask(what, at);
        let Some((is_ok, number)) = answer.as_deref().ok().and_then(parse) else {
            // It is known as long as nobody has waited for its end.
            self.waited = self.waited();
            self.running = None;
            return Err(io::Error::other(format!("the page cannot be had: {answer:?}")));
        };
        if is_ok { Ok(number) } else { Err(io::Error::from_raw_os_error(number as i32)) }
    }
}

/// How long a thread has waited for a processor, by its `schedstat` (the second number, in
/// nanoseconds).
pub fn waited_in(schedstat: &Path) -> Option<Duration> {
    let told = fs::read_to_string(schedstat).ok()?;
    told.split(' ').nth(1)?.parse().ok().map(Duration::from_nanos)
}

fn parse(answer: &str) -> Option<(bool, u64)> {
    let (word, number) = answer.trim_end().split_once(' ')?;
    Some((word == "ok", number.parse().ok()?))
}

impl Running {
    fn start() -> io::Result<Self> {
        let mut command = Command::new(weft_tests::binary("weft-jepsen-page"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (requests, answers) = pipes.ok_or_else(|| io::Error::other("no pipes"))?;
        Ok(Self { child, requests, answers: BufReader::new(answers) })
    }

    fn waited(&self) -> Duration {
        let of = format!("/proc/{}/schedstat", self.child.id());
        waited_in(Path::new(&of)).unwrap_or_default()
    }

    fn ask(&mut self, what: &OsStr, at: &Path) -> io::Result<String> {
        let line = [what.as_encoded_bytes(), at.as_os_str().as_encoded_bytes(), b"\n"].concat();
        self.requests.write_all(&line)?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}
