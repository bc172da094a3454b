//! Tests of `mount`.

use super::*;
use crate::{Outcome, abi};

/// Answers nothing but what a mount needs.
struct Silent;

impl Handler for Silent {
    fn handle(&self, request: &abi::Request<'_>) -> Outcome {
        match request.op {
            abi::Op::Lookup { .. } => Outcome::working(std::future::pending()),
            _ => Outcome::Done(Err(abi::Errno(libc::ENOSYS))),
        }
    }

    fn unwanted(&self, _: &abi::Header, _: &abi::Reply) {}
}

/// Who waits for it is told, whichever way it ended.
#[test]
fn a_thread_that_fails_takes_the_connection_with_it() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    let failed = || Err(io::Error::from_raw_os_error(libc::EBADF));
    let panicked = || panic!("as a ring might");
    let ways: [fn() -> io::Result<()>; 2] = [failed, panicked];
    for (way, fails) in ways.into_iter().enumerate() {
        let name = format!("weft-connection-{}-{way}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir(&dir).unwrap();
        let options = Options { io_uring: IoUring::Off, ..Options::default() };
        let mounted = mount_handler(Arc::new(Silent), &dir, &options).unwrap();
        let session = mounted.session.clone();
        assert!(session.guarded("a test", || Ok(())).is_ok());
        assert!(session.guarded("a test", fails).is_err());
        // Whatever comes now has an answer, and nobody serves it any more.
        assert!(fs::symlink_metadata(dir.join("x")).is_err());
        mounted.join().unwrap();
        if mount_at(&dir).unwrap().is_some() {
            unmount(&dir, true).unwrap();
        }
        fs::remove_dir(&dir).unwrap();
    }
}

#[test]
fn mount_points_that_cannot_be_are_refused_with_a_reason() {
    let dir = std::env::temp_dir().join(format!("weft-mount-point-{}", std::process::id()));
    let says = |path: &Path| check_mount_point(path, false).unwrap_err().to_string();
    assert!(says(&dir).contains("does not exist"), "{}", says(&dir));
    fs::create_dir(&dir).unwrap();
    assert_eq!(check_mount_point(&dir, false).unwrap(), dir.canonicalize().unwrap());
    let file = dir.join("file");
    fs::write(&file, "x").unwrap();
    assert!(says(&dir).contains("not empty"), "{}", says(&dir));
    assert!(check_mount_point(&dir, true).is_ok());
    assert!(says(&file).contains("not a directory"), "{}", says(&file));
    assert!(says(&file.join("x")).contains("not a directory"), "{}", says(&file.join("x")));
    assert!(says(Path::new("/proc")).contains("already a mount"), "{}", says(Path::new("/proc")));
    fs::remove_dir_all(&dir).unwrap();
}
