//! Runs tasks at the same time, in threads of this process or in processes of their own (this
//! binary again), and starts the clock of all of them together.

use super::task::{Outcome, Task};
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Barrier;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spread {
    Threads,
    Processes,
}

/// Runs the tasks together. Bytes and operations are summed; the time is that of the slowest.
pub fn run(tasks: &[Task], spread: Spread) -> Result<Outcome> {
    let outcomes = match spread {
        Spread::Threads => in_threads(tasks)?,
        Spread::Processes => in_processes(tasks)?,
    };
    let mut sum = Outcome::default();
    for outcome in outcomes {
        sum.bytes += outcome.bytes;
        sum.operations += outcome.operations;
        sum.seconds = sum.seconds.max(outcome.seconds);
        sum.latencies_us.extend(outcome.latencies_us);
    }
    Ok(sum)
}

fn in_threads(tasks: &[Task]) -> Result<Vec<Outcome>> {
    let gate = Barrier::new(tasks.len());
    let run = |task: &Task| {
        let mut waited = false;
        let outcome = task.run(&mut || {
            waited = true;
            gate.wait();
            Ok(())
        });
        if !waited {
            // It failed before it was ready: the others must not wait for it.
            gate.wait();
        }
        outcome
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = tasks.iter().map(|task| scope.spawn(|| run(task))).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| bail!("a thread died"))).collect()
    })
}

fn in_processes(tasks: &[Task]) -> Result<Vec<Outcome>> {
    let mut workers: Vec<Worker> = tasks.iter().map(Worker::spawn).collect::<Result<_>>()?;
    for worker in &mut workers {
        worker.expect_ready()?;
    }
    for worker in &mut workers {
        worker.go.write_all(b"go\n").context("a worker died before its work")?;
    }
    workers.iter_mut().map(Worker::outcome).collect()
}

/// Another process that runs one task; killed if it is dropped before it ended.
struct Worker {
    child: Child,
    go: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    fn spawn(task: &Task) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let mut child = Command::new(&program)
            .args(["bench", "--worker"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let (go, out) = (child.stdin.take(), child.stdout.take());
        let mut go = go.context("a worker has no input")?;
        let answers = BufReader::new(out.context("a worker has no output")?);
        // The task may be longer than an argument can be.
        writeln!(go, "{}", serde_json::to_string(task)?).context("a worker died at once")?;
        Ok(Self { child, go, answers })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).context("cannot hear from a worker")?;
        match line.strip_prefix("error: ") {
            Some(error) => bail!("{}", error.trim()),
            None if line.is_empty() => bail!("a worker ended without an answer"),
            None => Ok(line),
        }
    }

    fn expect_ready(&mut self) -> Result<()> {
        match self.line()?.trim() {
            "ready" => Ok(()),
            other => bail!("a worker said {other:?} instead of ready"),
        }
    }

    fn outcome(&mut self) -> Result<Outcome> {
        let outcome =
            serde_json::from_str(&self.line()?).context("a worker's answer is damaged")?;
        self.child.wait().context("cannot wait for a worker")?;
        Ok(outcome)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It has ended already where all went well; then both do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other side: `weft bench --worker` reads its task, says ready, waits, works, answers.
pub fn serve() -> Result<()> {
    let mut lines = std::io::stdin().lines();
    let mut next = move || {
        lines.next().context("the bench that started this worker has gone")?.context("cannot read")
    };
    let answer = next()
        .and_then(|task| Ok(serde_json::from_str::<Task>(&task)?))
        .and_then(|task| {
            task.run(&mut || {
                println!("ready");
                next().map(drop)
            })
        })
        .and_then(|outcome| Ok(serde_json::to_string(&outcome)?));
    match answer {
        Ok(outcome) => println!("{outcome}"),
        Err(error) => println!("error: {}", format!("{error:#}").replace('\n', " ")),
    }
    Ok(())
}
