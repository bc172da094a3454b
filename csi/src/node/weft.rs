//! Runs the commands by which volumes are mounted, unmounted and made durable.

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::RwLock;
use tokio::time::timeout;

/// A command that was told to end gets so long.
const END_TIMEOUT: Duration = Duration::from_secs(20);
/// Of what a command says, so much is told.
const MAX_SAID: usize = 2000;

/// What a command is to find in its environment, and, without a value, what it is not to find.
pub type Environment = Vec<(OsString, Option<OsString>)>;

/// The program, and how it is called.
#[derive(Clone)]
pub struct Weft {
    program: PathBuf,
    environment: Vec<(OsString, OsString)>,
    /// Held to read while a command runs: nobody else may hear of its end then.
    running: Arc<RwLock<()>>,
}

impl Weft {
    /// Commands of `program` have this in their environment.
    pub fn new(program: PathBuf, environment: Vec<(OsString, OsString)>) -> Self {
        Self { program, environment, running: Arc::default() }
    }

    /// Runs a command, with changes to its environment. Errors: what it said when it failed.
    pub async fn run(
        &self,
        arguments: Vec<OsString>,
        more: Environment,
        limit: Duration,
    ) -> Result<(), String> {
        let _running = self.running.read().await;
        let what = arguments.first().cloned().unwrap_or_default();
        let what = format!("weft {}", what.to_string_lossy());
        let mut command = Command::new(&self.program);
        command.args(arguments).envs(self.environment.iter().cloned());
        for (name, value) in more {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|e| format!("{what} cannot be run: {e}"))?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let mut output = std::pin::pin!(child.wait_with_output());
        if let Ok(ended) = timeout(limit, &mut output).await {
            return told(&what, ended);
        }
        // It undoes what it has begun.
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            if let Some(pid) = pid {
                let _ = kill(Pid::from_raw(pid), signal);
            }
            if timeout(END_TIMEOUT, &mut output).await.is_ok() {
                break;
            }
        }
        Err(format!("{what} was not done after {limit:?}"))
    }

    /// As the first process of a container this one inherits those that others have started: what
    /// has ended of them is forgotten.
    pub fn reap(&self) {
        if std::process::id() != 1 {
            return;
        }
        let Ok(_nobody) = self.running.try_write() else { return };
        let ended = || waitpid(None, Some(WaitPidFlag::WNOHANG));
        while ended().is_ok_and(|status| status.pid().is_some()) {}
    }
}

fn told(what: &str, ended: std::io::Result<Output>) -> Result<(), String> {
    let output = ended.map_err(|e| format!("{what}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said: String = said.trim().chars().take(MAX_SAID).collect();
    Err(format!("{what} failed ({}): {said}", output.status))
}
