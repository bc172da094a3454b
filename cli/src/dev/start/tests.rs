//! Tests of `start`.

use super::*;

#[test]
fn targets_have_room_or_are_refused() {
    let size = |wanted: Option<&str>, free: u64| {
        let wanted = wanted.map(|text| text.parse().unwrap());
        target_size(wanted, 6, free, Path::new("/d")).map(Size::exact)
    };
    assert_eq!(size(None, 100 << 30).unwrap(), "4GiB");
    assert_eq!(size(None, 13 << 30).unwrap(), "2176MiB", "less, where there is less room");
    assert_eq!(size(Some("1GiB"), 7 << 30).unwrap(), "1GiB");
    let refused = size(Some("1GiB"), 5 << 30).unwrap_err().to_string();
    for part in ["6 targets of 1GiB", "5.0 GiB", "/d", "--target-size 810MiB"] {
        assert!(refused.contains(part), "no {part:?}: {refused}");
    }
    let refused = size(None, 300 << 20).unwrap_err().to_string();
    assert!(refused.contains("no room") && !refused.contains("--target-size"), "{refused}");
    assert!(size(Some("16MiB"), 0).is_err());
}

#[test]
fn the_free_space_of_what_is_not_there_is_that_of_its_parent() {
    let dir = tempfile::tempdir().unwrap();
    assert!(free_space(&dir.path().join("a/b/c")).unwrap() > 0);
}
