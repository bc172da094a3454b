//! Tests of `cases`.

use super::*;

#[test]
fn names_are_unique_and_floors_exist_with_the_same_unit() {
    let rows: Vec<&Row> = FLOORS.iter().chain(WORKLOADS).flat_map(|c| c.rows).collect();
    for (i, row) in rows.iter().enumerate() {
        assert!(rows[..i].iter().all(|other| other.name != row.name), "{}", row.name);
        for floor in row.floors {
            let floor = rows.iter().find(|r| r.name == *floor).expect(floor);
            assert_eq!(floor.unit, row.unit, "{} on {}", row.name, floor.name);
        }
    }
}

#[test]
fn floors_come_along_with_their_workloads() {
    let names = |cases: &[&Case]| cases.iter().map(|c| c.name).collect::<Vec<_>>();
    let (floors, workloads) = select(&["seq_read".into()], |_| true).unwrap();
    assert_eq!(names(&workloads), ["sequential"]);
    assert_eq!(names(&floors), ["disk", "network", "fuse"]);
    let (floors, workloads) = select(&["fsync".into()], |_| true).unwrap();
    assert_eq!((names(&floors), names(&workloads)), (vec!["log"], vec![]));
    let (floors, workloads) = select(&[], |needs| needs == Needs::Nothing).unwrap();
    let everywhere = FLOORS.iter().filter(|floor| floor.needs == Needs::Nothing).count();
    assert_eq!((floors.len(), names(&workloads)), (everywhere, vec!["encode"]));
    let (floors, workloads) = select(&["gpu".into()], |_| true).unwrap();
    assert_eq!(names(&workloads), ["gpu"]);
    assert_eq!(names(&floors), ["disk", "network", "gpu_copy"]);
    assert!(select(&["nonsense".into()], |_| true).is_err());
    let without = |needs| needs != Needs::Isal;
    let (floors, workloads) = select(&["encode".into()], without).unwrap();
    assert_eq!((names(&floors), names(&workloads)), (vec!["memory"], vec!["encode"]));
    let (floors, _) = select(&["isal".into()], without).unwrap();
    assert_eq!(names(&floors), ["isal"], "what is asked for fails with the reason");
    // What cannot be measured is not found out after the floors.
    let missing = select(&["seq_read".into()], |_| false).err().unwrap().to_string();
    assert!(missing.contains("--mount"), "{missing}");
}
