//! What was called and what was answered, in order of time.

use nix::errno::Errno;
use std::fmt;
use std::io::{self, Write};
use std::sync::Mutex;
use std::time::Instant;

/// One record that a client appends: unique in the whole history.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Record {
    pub client: u32,
    /// Grows by one with every record of the client, over all files.
    pub seq: u64,
}

impl Record {
    /// What lies at this place of a file is no record, or not all of one.
    pub fn torn(at: u64) -> Self {
        Self { client: u32::MAX, seq: at }
    }
}

/// A file, by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileNo(pub u32);

/// A register, lock, element or counter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// What it is made of.
    pub kind: &'static str,
    pub number: u32,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.number)
    }
}

/// What a client asked for. What is answered is in the outcome.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    /// Appends these records, one `write` each, then fsyncs.
    Append {
        file: FileNo,
        records: Vec<Record>,
    },
    /// A client reads a whole file of records. `last`: after all appends.
    Read {
        client: u32,
        file: FileNo,
        last: bool,
    },
    /// Sets a register. Each value is written to it once.
    Write {
        key: Key,
        value: u64,
    },
    Get {
        key: Key,
    },
    /// Sets a register if it has a certain value.
    Swap {
        key: Key,
        from: u64,
        to: u64,
    },
    /// Adds one to a counter and answers what it is then.
    Increment {
        key: Key,
    },
}

/// What a call answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    Done,
    Records(Vec<Record>),
    Value(u64),
}

/// How an event ends a call, or that it begins one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    Invoke,
    /// It took effect and is durable.
    Ok(Answer),
    /// It had no effect: a register had another value.
    Fail,
    /// An error came back: it may have taken effect or not.
    Info(String),
}

/// One line of the history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Who calls: has no other call under way.
    pub process: u32,
    pub time_ns: u64,
    pub call: Call,
    pub kind: Kind,
}

impl fmt::Display for Event {
    /// EDN: appends and reads as Elle's list-append checker reads them, the rest as Jepsen's
    /// independent registers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Invoke => "invoke",
            Kind::Ok(_) => "ok",
            Kind::Fail => "fail",
            Kind::Info(_) => "info",
        };
        let what = match self.call {
            Call::Append { .. } | Call::Read { .. } => "txn",
            Call::Write { .. } => "write",
            Call::Get { .. } => "read",
            Call::Swap { .. } => "cas",
            Call::Increment { .. } => "increment",
        };
        let Self { process, time_ns, .. } = self;
        write!(f, "{{:type :{kind}, :f :{what}, :process {process}, :time {time_ns}, :value [")?;
        match (&self.call, &self.kind) {
            (Call::Append { file, records }, _) => {
                for r in records {
                    write!(f, "[:append {} \"{}.{}\"]", file.0, r.client, r.seq)?;
                }
            }
            (Call::Read { file, .. }, Kind::Ok(Answer::Records(seen))) => {
                write!(f, "[:r {} [", file.0)?;
                for r in seen {
                    write!(f, "\"{}.{}\" ", r.client, r.seq)?;
                }
                write!(f, "]]")?;
            }
            (Call::Read { file, .. }, _) => write!(f, "[:r {} nil]", file.0)?,
            (Call::Write { key, value }, _) => write!(f, "\"{key}\" {value}")?,
            (Call::Swap { key, from, to }, _) => write!(f, "\"{key}\" [{from} {to}]")?,
            (Call::Get { key } | Call::Increment { key }, Kind::Ok(Answer::Value(value))) => {
                write!(f, "\"{key}\" {value}")?;
            }
            (Call::Get { key } | Call::Increment { key }, _) => write!(f, "\"{key}\" nil")?,
        }
        write!(f, "]")?;
        if let Kind::Info(error) = &self.kind {
            write!(f, ", :error {error:?}")?;
        }
        write!(f, "}}")
    }
}

/// Takes events from all clients.
pub struct Recorder {
    start: Instant,
    events: Mutex<Vec<Event>>,
    /// Errors that no fault explains.
    unexplained: Mutex<Vec<String>>,
}

/// What comes of a mount that is dead, and of what was lost with it or with a session.
const EXPLAINED: [Errno; 4] = [Errno::ECONNABORTED, Errno::ENOTCONN, Errno::ESTALE, Errno::EIO];

impl Default for Recorder {
    fn default() -> Self {
        Self { start: Instant::now(), events: Mutex::default(), unexplained: Mutex::default() }
    }
}

impl Recorder {
    pub fn record(&self, process: u32, call: Call, kind: Kind) {
        let mut events = self.events.lock().expect("no recorder panics");
        // Taken under the lock, so that times and order agree.
        let time_ns = self.start.elapsed().as_nanos() as u64;
        events.push(Event { process, time_ns, call, kind });
    }

    /// Of a call that ended with this error it is not known whether it took effect.
    pub fn record_unknown(&self, process: u32, call: Call, error: &io::Error) {
        if let Some(errno) = error.raw_os_error()
            && !EXPLAINED.contains(&Errno::from_raw(errno))
        {
            let mut unexplained = self.unexplained.lock().expect("no recorder panics");
            unexplained.push(format!("no fault explains what {call:?} answered: {error}"));
        }
        self.record(process, call, Kind::Info(error.to_string()));
    }

    /// A call of which it is not known how it ended.
    pub fn unknown(&self) -> Option<Event> {
        let events = self.events.lock().expect("no recorder panics");
        events.iter().find(|event| matches!(event.kind, Kind::Info(_))).cloned()
    }

    /// All that happened, and the errors that no fault explains.
    pub fn finish(self) -> (Vec<Event>, Vec<String>) {
        let events = self.events.into_inner().expect("no recorder panics");
        (events, self.unexplained.into_inner().expect("no recorder panics"))
    }
}

/// Writes a history for other checkers.
pub fn write_edn(events: &[Event], mut out: impl Write) -> io::Result<()> {
    events.iter().try_for_each(|e| writeln!(out, "{e}"))
}
