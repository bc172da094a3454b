//! Byte sizes as people write them: `4GiB`, `128K`, `1048576`.

use std::str::FromStr;

/// A number of bytes. Units are binary: `K`, `KB` and `KiB` all mean 1024.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size(pub u64);

const UNITS: [(char, u32); 5] = [('K', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a size; write for example 512MiB, 4GiB or 1048576");
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let number: u64 = text[..digits].parse().map_err(|_| bad())?;
        let unit = text[digits..].trim_start().to_ascii_uppercase();
        let letter = match unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit) {
            "" => return Ok(Self(number)),
            one if one.len() == 1 => one.chars().next(),
            _ => None,
        };
        let shift = UNITS.iter().find(|(c, _)| Some(*c) == letter).ok_or_else(bad)?.1;
        number.checked_mul(1 << shift).map(Self).ok_or_else(|| format!("{text} is too large"))
    }
}

impl Size {
    /// As it would be typed, to the byte: `3MiB`, `4097`.
    pub fn exact(self) -> String {
        weft_proto::exact_size(self.0)
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match UNITS.iter().rev().find(|(_, shift)| self.0 >> shift > 0) {
            None => write!(f, "{} B", self.0),
            Some((c, shift)) => write!(f, "{:.1} {c}iB", self.0 as f64 / (1u64 << shift) as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Size;

    #[test]
    fn sizes_parse_in_every_spelling() {
        for (text, bytes) in [
            ("0", 0),
            ("17", 17),
            ("17B", 17),
            ("4k", 4096),
            ("4 KiB", 4096),
            ("3MB", 3 << 20),
            ("4GiB", 4 << 30),
            ("1T", 1 << 40),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "GiB", "-1", "1.5G", "4XiB", "4GiBB", "99999999999P", "1 0", "4€"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        assert_eq!(Size(1536 << 20).to_string(), "1.5 GiB");
        assert_eq!(Size(9).to_string(), "9 B");
        for text in ["0", "17", "4KiB", "1536MiB", "4GiB", "1025"] {
            assert_eq!(text.parse::<Size>().unwrap().exact(), text);
        }
    }
}
