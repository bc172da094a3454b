//! Tests of identity.

use super::*;

#[test]
fn a_folder_serves_one_server_of_one_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let members = vec![NodeId(1), NodeId(2)];
    let mut a = Identity::claim(dir.path(), NodeId(1), members.clone()).unwrap();
    assert_eq!(a.cluster(), None);
    a.set_cluster(Uuid([7; 16])).unwrap();
    assert!(a.set_cluster(Uuid([8; 16])).is_err());
    let again = Identity::claim(dir.path(), NodeId(1), members.clone()).unwrap();
    assert_eq!(again.cluster(), Some(Uuid([7; 16])));
    let e = Identity::claim(dir.path(), NodeId(2), members.clone()).unwrap_err();
    assert!(e.message.contains("belongs to metadata server 1"), "{e}");
    Identity::claim(dir.path(), NodeId(1), vec![NodeId(1)]).unwrap();
    fs::write(dir.path().join("identity"), b"\xff\x00garbage").unwrap();
    assert!(Identity::claim(dir.path(), NodeId(1), members).is_err());
}

#[test]
fn only_a_bootstrap_makes_an_empty_folder_new() {
    let dir = tempfile::tempdir().unwrap();
    let members = || vec![NodeId(2), NodeId(1)];
    let claim = || Identity::claim(dir.path(), NodeId(1), members());
    assert_eq!(claim().unwrap().standing(), Standing::Empty);
    for _ in 0..2 {
        Identity::bootstrap(dir.path(), NodeId(1), members()).unwrap();
        assert_eq!(claim().unwrap().standing(), Standing::New);
        let e = Identity::claim(dir.path(), NodeId(1), vec![NodeId(1)]).unwrap_err();
        assert!(e.message.contains("bootstrapped with"), "{e}");
    }
    let admitted = Position { index: 7, term: 3 };
    claim().unwrap().stand(Standing::CatchingUp, admitted).unwrap();
    let mut found = claim().unwrap();
    assert_eq!((found.standing(), found.admitted()), (Standing::CatchingUp, admitted));
    assert!(Identity::bootstrap(dir.path(), NodeId(1), members()).is_err());
    found.stand(Standing::Member, admitted).unwrap();
    assert!(Identity::bootstrap(dir.path(), NodeId(1), members()).is_err());
    found.stand(Standing::Removed, admitted).unwrap();
    let e = Identity::claim(dir.path(), NodeId(1), members()).unwrap_err();
    assert!(e.message.contains("left its group"), "{e}");
    // What an earlier version wrote has run.
    let text = "format = 1\nnode = 1\nmembers = [1, 2]\ncluster = \"\"\n";
    fs::write(dir.path().join("identity"), text).unwrap();
    assert_eq!(claim().unwrap().standing(), Standing::Member);
}

#[test]
fn a_folder_without_its_identity_is_no_empty_one() {
    for data in [LOG, STATE] {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(data)).unwrap();
        let members = || vec![NodeId(1)];
        assert!(Identity::claim(dir.path(), NodeId(1), members()).is_err());
        assert!(Identity::bootstrap(dir.path(), NodeId(1), members()).is_err());
    }
}
