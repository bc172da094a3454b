//! The layout as text, for `user.weft.layout` and people: `4+2 unit=131072 segment=16777216
//! inline=16384`.

use weft_proto::{Error, ErrorKind, Layout, Profile, Result};

/// The virtual attribute.
pub const NAME: &[u8] = b"user.weft.layout";

pub fn print(layout: &Layout) -> String {
    format!(
        "{} unit={} segment={} inline={}",
        layout.profile, layout.unit, layout.segment_len, layout.inline_limit
    )
}

/// Reads what [`print()`] writes; parts may be left out. A profile alone brings the default unit
/// and segment for it; without a profile, what is not named stays as in `now`.
pub fn parse(text: &[u8], now: &Layout) -> Result<Layout> {
    let bad = |what: String| Error::new(ErrorKind::Invalid, what);
    let text = std::str::from_utf8(text).map_err(|_| bad("the layout is not text".into()))?;
    let mut layout = *now;
    let mut segment = None;
    let words = || text.trim_end_matches('\0').split_whitespace();
    let sets = |word: &&str| {
        let name = word.split_once('=').map(|(name, _)| name);
        matches!(name, Some("unit" | "segment" | "inline"))
    };
    // The profile first, wherever it stands: what else is said holds for it.
    for word in words().filter(|word| !sets(word)) {
        let profile: Profile = word.parse()?;
        layout = Layout { inline_limit: now.inline_limit, ..Layout::for_profile(profile) };
    }
    for word in words().filter(sets) {
        let number = |text: &str| -> Result<u64> {
            text.parse().map_err(|_| bad(format!("{word:?} in a layout does not end in a number")))
        };
        let small = |text: &str| -> Result<u32> {
            u32::try_from(number(text)?).map_err(|_| bad(format!("{word:?} is too large")))
        };
        match word.split_once('=') {
            Some(("unit", value)) => layout.unit = small(value)?,
            Some(("segment", value)) => segment = Some(number(value)?),
            Some((_, value)) => layout.inline_limit = small(value)?,
            None => {}
        }
    }
    let stripe = u64::from(layout.profile.k()) * u64::from(layout.unit);
    layout.segment_len = match segment {
        Some(len) => len,
        // Whole stripes, whatever the unit has become.
        None if stripe > 0 => (layout.segment_len / stripe).max(1) * stripe,
        None => layout.segment_len,
    };
    layout.validate()?;
    Ok(layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_prints() {
        let now = Layout::for_profile("4+2".parse().unwrap());
        assert_eq!(print(&now), "4+2 unit=131072 segment=16777216 inline=16384");
        let other = Layout { unit: 65536, segment_len: 1 << 20, inline_limit: 0, ..now };
        assert_eq!(parse(print(&other).as_bytes(), &now).unwrap(), other);
        assert_eq!(parse(b"", &other).unwrap(), other);
    }

    #[test]
    fn parts_may_be_left_out() {
        let now = Layout::for_profile("4+2".parse().unwrap());
        assert_eq!(parse(b"8+3", &now).unwrap(), Layout::for_profile("8+3".parse().unwrap()));
        assert_eq!(parse(b"replica=3\n\0", &now).unwrap().profile, Profile::Replica { copies: 3 });
        let unit = parse(b"unit=196608", &now).unwrap();
        assert_eq!((unit.unit, unit.segment_len % (4 * 196608)), (196608, 0));
        assert_eq!(parse(b"inline=0", &now).unwrap(), Layout { inline_limit: 0, ..now });
        for text in [&b"inline=0 unit=65536 8+3"[..], b"8+3 unit=65536 inline=0"] {
            let layout = parse(text, &now).unwrap();
            assert_eq!((layout.unit, layout.inline_limit), (65536, 0), "{text:?}");
            assert_eq!(layout.profile, "8+3".parse().unwrap());
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let now = Layout::for_profile("4+2".parse().unwrap());
        for text in [
            &b"5"[..],
            b"unit=x",
            b"unit=1",
            b"segment=5",
            b"a=b",
            b"inline=99999999999",
            b"\xff",
            b"unit=0",
        ] {
            assert!(parse(text, &now).is_err(), "{text:?}");
        }
    }
}
