//! Tests of `plan`.

use super::*;
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn parse(line: &str) -> Result<Args, clap::Error> {
    Line::try_parse_from(std::iter::once("plan").chain(line.split_whitespace())).map(|l| l.args)
}

fn close(a: f64, b: f64) {
    assert!((a - b).abs() < 0.005 * b.abs().max(1.0), "{a} is not {b}");
}

#[test]
fn the_plan_that_was_worked_out_by_hand() {
    let line = "--gpus 32 --gpu-gbytes-per-s 10 --dataset-tb 500 --profile 4+2 \
                --enclosure-gbytes-per-s 75 --enclosure-tb 300";
    let plan = plan(&parse(line).unwrap().need).unwrap();
    assert_eq!((plan.enclosures, plan.bound_by), (5, "bandwidth"));
    close(plan.enclosures_by_bandwidth, 4.27);
    close(plan.enclosures_by_capacity, 2.5);
    close(plan.per_gpu_gbytes_per_s, 375.0 / 32.0);
    close(plan.used_fraction, 0.5);
    close(plan.usable_fraction, 2.0 / 3.0);
    // 150 TB of an enclosure, five times over the wire, by 4 x 75 x 0.25 GB/s.
    close(plan.rebuild_enclosure_hours.unwrap(), 150_000.0 * 5.0 / 75.0 / 3600.0);
    // 6.25 TB of a drive by almost 5 x 75 x 0.25 GB/s.
    close(plan.rebuild_drive_hours.unwrap(), 6250.0 * 5.0 / (4.958 * 18.75) / 3600.0);
    assert_eq!(plan.enclosures_to_survive_one, Some(3));
    let said = text(&plan);
    for part in ["5 (bandwidth-bound)", "4.27", "2.50", "yes (from 3 on)", "one more would keep it"]
    {
        assert!(said.contains(part), "{part} in\n{said}");
    }
}

#[test]
fn capacity_binds_where_it_does_and_the_edges_hold() {
    let plan = |line: &str| plan(&parse(line).unwrap().need);
    let big = plan(
        "--gpus 1 --gpu-gbytes-per-s 1 --dataset-tb 2400 --profile 8+2 --enclosure-tb \
        300 --fill 100",
    )
    .unwrap();
    assert_eq!((big.enclosures, big.bound_by), (10, "capacity"), "a whole number stays whole");
    assert!(big.warnings.iter().any(|w| w.contains("--fill")));
    let tiny = plan("--gpus 1 --gpu-gbytes-per-s 0.001 --dataset-tb 0.5 --profile 8+2 --drives 4")
        .unwrap();
    assert_eq!(tiny.enclosures, 1);
    assert_eq!((tiny.rebuild_enclosure_hours, tiny.per_gpu_gbytes_per_s_without_one), (None, None));
    assert!(tiny.warnings.iter().any(|w| w.contains("does not survive")), "{:?}", tiny.warnings);
    assert!(tiny.warnings.iter().any(|w| w.contains("too few")), "{:?}", tiny.warnings);
    let bare = plan("--gpus 1 --gpu-gbytes-per-s 1 --dataset-tb 1 --profile replica=1").unwrap();
    assert_eq!((bare.rebuild_drive_hours, bare.enclosures_to_survive_one), (None, None));
    assert!(plan("--gpus 9999999 --gpu-gbytes-per-s 9e11 --dataset-tb 1").is_err());
    for line in [
        "--gpus 0 --gpu-gbytes-per-s 1 --dataset-tb 1",
        "--gpus 1 --gpu-gbytes-per-s -1 --dataset-tb 1",
        "--gpus 1 --gpu-gbytes-per-s NaN --dataset-tb 1",
        "--gpus 1 --gpu-gbytes-per-s inf --dataset-tb 1",
        "--gpus 1 --gpu-gbytes-per-s 1 --dataset-tb 0",
        "--gpus 1 --gpu-gbytes-per-s 1 --dataset-tb 1 --profile 0+2",
        "--gpus 1 --gpu-gbytes-per-s 1 --dataset-tb 1 --fill 101",
        "--gpus 1 --dataset-tb 1",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
}
