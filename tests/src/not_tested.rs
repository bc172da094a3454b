//! What a test cannot do on this machine is named and counted, and not passed over in silence.

use std::fs::File;
use std::io::Write;

/// Says what was not tested, and why. `make test` tells it at its end (`scripts/not-tested`).
pub fn not_tested(what: &str) {
    println!("not tested: {what}");
    if let Some(list) = std::env::var_os("WEFT_NOT_TESTED") {
        let file = File::options().append(true).create(true).open(&list);
        let written = file.and_then(|mut file| file.write_all(format!("{what}\n").as_bytes()));
        written.unwrap_or_else(|error| panic!("WEFT_NOT_TESTED={}: {error}", list.display()));
    }
}
