//! What was called and what was answered, in order of time.

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

/// A file, by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileNo(pub u32);

/// What a client asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    /// Appends these records, one `write` each, then fsyncs.
    Append { file: FileNo, records: Vec<Record> },
    /// Reads the whole file. The answer is in the outcome.
    Read { file: FileNo },
}

/// How an event ends a call, or that it begins one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    Invoke,
    /// It took effect and is durable; a read carries what it saw.
    Ok(Option<Vec<Record>>),
    /// An error came back: it may have taken effect or not.
    Info(String),
}

/// One line of the history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    pub client: u32,
    pub time_ns: u64,
    pub call: Call,
    pub kind: Kind,
}

impl fmt::Display for Event {
    /// EDN, as Elle's list-append checker reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Invoke => "invoke",
            Kind::Ok(_) => "ok",
            Kind::Info(_) => "info",
        };
        write!(
            f,
            "{{:type :{kind}, :f :txn, :process {}, :time {}, :value [",
            self.client, self.time_ns
        )?;
        match (&self.call, &self.kind) {
            (Call::Append { file, records }, _) => {
                for r in records {
                    write!(f, "[:append {} \"{}.{}\"]", file.0, r.client, r.seq)?;
                }
            }
            (Call::Read { file }, Kind::Ok(Some(seen))) => {
                write!(f, "[:r {} [", file.0)?;
                for r in seen {
                    write!(f, "\"{}.{}\" ", r.client, r.seq)?;
                }
                write!(f, "]]")?;
            }
            (Call::Read { file }, _) => write!(f, "[:r {} nil]", file.0)?,
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
}

impl Default for Recorder {
    fn default() -> Self {
        Self { start: Instant::now(), events: Mutex::default() }
    }
}

impl Recorder {
    pub fn record(&self, client: u32, call: Call, kind: Kind) {
        let mut events = self.events.lock().expect("no recorder panics");
        // Taken under the lock, so that times and order agree.
        let time_ns = self.start.elapsed().as_nanos() as u64;
        events.push(Event { client, time_ns, call, kind });
    }

    pub fn finish(self) -> Vec<Event> {
        self.events.into_inner().expect("no recorder panics")
    }
}

/// Writes a history for other checkers.
pub fn write_edn(events: &[Event], mut out: impl Write) -> io::Result<()> {
    events.iter().try_for_each(|e| writeln!(out, "{e}"))
}
