//! What commands print: a table for people, JSON for scripts.

use anyhow::Result;
use serde::Serialize;
use std::io::{self, Write};

/// How a command prints its answer.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Format {
    /// For people; may change between versions.
    #[default]
    Text,
    /// For scripts; fields are only ever added.
    Json,
}

/// The `--output` flag.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct OutputArgs {
    /// Form of the answer on standard output
    #[arg(long, value_enum, default_value = "text", value_name = "FORM")]
    pub output: Format,
}

impl OutputArgs {
    /// Prints `value` as JSON, or whatever `text` makes of it.
    pub fn print<T: Serialize>(self, value: &T, text: impl FnOnce(&T) -> String) -> Result<()> {
        let out = match self.output {
            Format::Json => serde_json::to_string_pretty(value)?,
            Format::Text => text(value),
        };
        say(&out)
    }
}

/// Prints an answer on standard output. A reader that went away (`weft status | head`) is not an
/// error.
pub fn say(text: &str) -> Result<()> {
    tell(text).map(drop)
}

/// As [`say`], for who has more to say later. Answers whether somebody still reads.
pub fn tell(text: &str) -> Result<bool> {
    match writeln!(io::stdout(), "{}", text.trim_end()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        other => Ok(other.map(|()| true)?),
    }
}

/// Says why something failed on standard error. Nobody reads it any more: that is no reason to
/// panic.
pub fn complain(why: &str) {
    let _ = writeln!(io::stderr(), "{why}");
}

/// Text fit for a terminal: names come from outside.
pub fn plain(text: &str) -> String {
    text.replace(char::is_control, "?")
}

/// An error with its causes. A cause that the text before it already tells is left out: libraries
/// differ in whether they repeat it.
pub fn describe(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(|cause| cause.to_string()) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text += ": ";
            text += &cause;
        }
    }
    text
}

/// Rows of cells with a heading, printed in aligned columns. Nothing in a cell drives the terminal.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(heading: &[&str]) -> Self {
        Self { rows: vec![heading.iter().map(|h| h.to_string()).collect()] }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = impl ToString>) {
        self.rows.push(cells.into_iter().map(|c| plain(&c.to_string())).collect());
    }

    /// The table, each line starting with `indent`.
    pub fn render(&self, indent: &str) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| {
            self.rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = String::new();
        for row in &self.rows {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, &w)| format!("{cell:<w$}")).collect();
            out.push_str(indent);
            out.push_str(cells.join("  ").trim_end());
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::{Table, describe};
    use anyhow::Context;

    #[test]
    fn no_cause_is_told_twice() {
        let refused = || std::io::Error::from_raw_os_error(111);
        let twice: anyhow::Result<()> =
            Err(refused()).context(format!("tcp connect error: {}", refused())).context("m1:7100");
        let said = describe(&twice.unwrap_err());
        assert_eq!(said.matches("Connection refused").count(), 1, "{said}");
        let once: anyhow::Result<()> = Err(refused()).context("m1:7100");
        assert_eq!(describe(&once.unwrap_err()), format!("m1:7100: {}", refused()));
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["ID", "STATE"]);
        table.row(["1", "up"]);
        table.row(["100", "down"]);
        assert_eq!(table.render(" "), " ID   STATE\n 1    up\n 100  down\n");
    }

    #[test]
    fn a_name_from_outside_makes_no_lines_and_drives_no_terminal() {
        let mut table = Table::new(&["CLIENT"]);
        table.row(["a\n0 failed\x1b[2J"]);
        assert_eq!(table.render(""), "CLIENT\na?0 failed?[2J\n");
    }
}
