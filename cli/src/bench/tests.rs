//! The cases that start no processes, on a plain folder, with real files.

use super::cases::{FLOORS, WORKLOADS};
use super::context::Context;
use super::task::{Files, Task, Work};
use super::workers::{self, Spread};
use super::*;
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn args(line: &str) -> Args {
    Line::try_parse_from(["bench"].into_iter().chain(line.split_whitespace())).unwrap().args
}

fn context(dir: &std::path::Path) -> Context {
    let (mount, scratch) = (dir.join("mount"), dir.join("scratch"));
    std::fs::create_dir(&mount).unwrap();
    std::fs::create_dir(&scratch).unwrap();
    let args = args("--size 16MiB --ops 20 --files 3 --limit 30 --keep-caches");
    let mount = Some(OwnDir::create(&mount).unwrap());
    Context::new(&args, mount, OwnDir::create(&scratch).unwrap(), Cluster::default())
}

/// Runs a case and checks that it answers each of its figures, with something in it.
fn run_case(context: &Context, name: &str) {
    let case = FLOORS.iter().chain(WORKLOADS).find(|c| c.name == name).unwrap();
    let samples = (case.run)(context).unwrap();
    let names: Vec<_> = samples.iter().map(|s| s.name).collect();
    assert_eq!(names, case.rows.iter().map(|r| r.name).collect::<Vec<_>>());
    assert_eq!(report::figures(&[case], &samples, &[]).len(), names.len());
    for sample in &samples {
        let outcome = &sample.outcome;
        assert!(outcome.seconds > 0.0 && outcome.bytes + outcome.operations > 0, "{sample:?}");
    }
}

#[test]
fn cases_on_a_plain_folder_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path());
    for name in ["disk", "log", "network", "sequential", "random", "sync_write", "encode"] {
        run_case(&context, name);
        let left = |path: &std::path::Path| std::fs::read_dir(path).unwrap().count();
        assert_eq!(left(context.mount().unwrap()) + left(context.scratch()), 0, "{name}");
    }
    drop(context);
    assert_eq!(std::fs::read_dir(dir.path().join("mount")).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(dir.path().join("scratch")).unwrap().count(), 0);
}

/// What is read must have been written: the library writes whole MiB.
#[test]
fn large_files_are_of_whole_mib() {
    let dir = tempfile::tempdir().unwrap();
    let scratch = OwnDir::create(dir.path()).unwrap();
    let context = Context::new(&args("--size 20000000"), None, scratch, Cluster::default());
    assert_eq!(context.size, 19 << 20);
}

/// JSON has no other numbers.
#[test]
fn what_came_to_nothing_is_told_in_numbers() {
    let sample = |name| {
        let cpu = cpu::Cpu([("bench", 1.0)].into());
        Sample { name, outcome: task::Outcome { seconds: 1.0, ..Default::default() }, cpu }
    };
    let samples = [sample("net_call"), sample("stat_1")];
    let floors = report::figures(&FLOORS.iter().collect::<Vec<_>>(), &samples, &[]);
    let all = report::figures(&WORKLOADS.iter().collect::<Vec<_>>(), &samples, &floors);
    assert_eq!((floors.len(), all.len()), (1, 1));
    assert!(all[0].compared.is_empty(), "so many times nothing: {all:?}");
    assert!(all[0].cpu_us_per_operation.as_ref().unwrap().total().is_finite(), "{all:?}");
}

#[test]
fn wrong_bytes_are_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let go = |work: Work| workers::run(&[Task { work, limit_s: 30.0 }], Spread::Threads);
    let read = || go(Work::Read { path: path.clone(), request: 1 << 16, verify: true });
    let random = || {
        let path = path.clone();
        go(Work::RandomRead { path, request: 4096, count: 400, seed: 1, verify: true })
    };
    go(Work::Write { path: path.clone(), bytes: 100_000, request: 1 << 16 }).unwrap();
    assert_eq!(read().unwrap().bytes, 100_000);
    assert_eq!(random().unwrap().operations, 400);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4096 * 20] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    assert!(read().unwrap_err().to_string().contains("81920"));
    assert!(random().is_err());
    assert!(go(Work::Read { path: dir.path().join("none"), request: 1, verify: false }).is_err());

    let paths = vec![path.clone()];
    std::fs::write(&path, [0; 50]).unwrap();
    assert!(go(Work::ReadFiles { paths, bytes: 50 }).is_err());
}

#[test]
fn tasks_run_together_and_stop_at_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let files = |name: &str| {
        let dir = dir.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        Files { dir, count: 50 }
    };
    let both = |make: fn(Files) -> Work, limit_s: f64| {
        let task = |prefix| Task { work: make(files(prefix)), limit_s };
        workers::run(&[task("a"), task("b")], Spread::Threads)
    };
    let made = both(|files| Work::Create { files }, 30.0).unwrap();
    assert_eq!((made.operations, made.latencies_us.len()), (100, 100));
    assert!(both(|files| Work::Create { files }, 30.0).is_err(), "they are there");
    assert_eq!(both(|files| Work::Stat { files }, 0.0).unwrap().operations, 0);
    assert_eq!(both(|files| Work::Unlink { files }, 30.0).unwrap().operations, 100);
    let left = |name| std::fs::read_dir(dir.path().join(name)).unwrap().count();
    assert_eq!(left("a") + left("b"), 0);
}

#[test]
fn a_failing_case_is_reported_and_the_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path());
    let find = |name| WORKLOADS.iter().find(|c: &&Case| c.name == name).unwrap();
    // There is no cluster.
    let (samples, failed) =
        rounds(&context, 2, &[], &[find("library"), find("sync_write")]).unwrap();
    assert_eq!(samples.len(), 2);
    assert_eq!(failed.len(), 1);
    assert!(failed[0].error.contains("--cluster"), "{}", failed[0].error);
}
