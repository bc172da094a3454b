//! C programs against a cluster: compiled with what `scripts/install` installs, by the way of
//! `pkg-config`, with warnings as errors, under sanitizers, linked to either library.

mod support;

use anyhow::{Context, Result, ensure};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::{Setup, succeeded};
use weft_tests::{Paused, not_tested, weft_binary};

/// Leaks and misuse of memory fail a program.
const ASAN: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"];
const TSAN: &[&str] = &["-fsanitize=thread"];
/// The library is not instrumented: ThreadSanitizer does not see how its threads wait for one
/// another, and looks at the program alone. It also takes what it does itself to `errno` around a
/// handler of signals for the program's.
const SUPPRESSIONS: &str = "called_from_lib:libweft.so.0\nsignal:count\n";
/// Records that the program writes before it is killed.
const RECORDS: usize = 50;

#[test]
fn c_programs_find_all_as_the_manual_says() -> Result<()> {
    let setup = Setup::new()?;
    installed(&setup)?;
    for name in ["basics", "options", "ring", "threads"] {
        let program = setup.compile(&format!("tests/{name}.c"), name, ASAN)?;
        setup.run(&program, name)?;
    }
    forks(&setup)?;
    races(&setup)?;
    static_library(&setup)?;
    exits(&setup)?;
    killed(&setup)?;
    gpus(&setup)?;
    examples(&setup)?;
    header_in_cpp(&setup)?;
    exit_that_loses(&setup)
}

/// What belongs to an installation is there, and its program runs.
fn installed(setup: &Setup) -> Result<()> {
    let prefix = &setup.prefix;
    let soname = fs::read_link(prefix.join("lib/libweft.so"))?;
    ensure!(soname == Path::new("libweft.so.0"), "libweft.so leads to {}", soname.display());
    for path in [
        "share/man/man3/weft_pread.3",
        "share/man/man1/weft.1",
        "share/man/man8/mount.weft.8",
        "sbin/mount.weft",
        "share/bash-completion/completions/weft",
        "share/doc/weft/config/storaged.toml",
    ] {
        ensure!(prefix.join(path).is_file(), "there is no {path}");
    }
    let unit = fs::read_to_string(prefix.join("lib/systemd/system/weft-storaged.service"))?;
    ensure!(unit.contains("ExecStart=/opt/weft/bin/weft storaged"), "it starts what: {unit}");
    succeeded(Command::new(prefix.join("bin/weft")).arg("--version").output()?)?;
    // Each call has a page.
    let header = fs::read_to_string(prefix.join("include/weft.h"))?;
    let calls = header
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|word| word.starts_with("weft_") && header.contains(&format!("{word}(")));
    for call in calls {
        let page = prefix.join(format!("share/man/man3/{call}.3"));
        ensure!(page.is_file(), "{call} has no page");
    }
    Ok(())
}

/// Processes that are forked while other threads are in the middle of calls. AddressSanitizer hangs
/// there: locks of its own allocator stay locked in the child. Valgrind looks at memory instead,
/// if it is installed, and not for leaks: what a child inherited is not its own to free.
fn forks(setup: &Setup) -> Result<()> {
    let program = setup.compile("tests/fork.c", "fork", &[])?;
    setup.run(&program, "fork")?;
    if setup.cluster.has_certificates() {
        println!("valgrind takes what ring's assembly hashes for uninitialised: not with TLS");
        return Ok(());
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        not_tested("memory of processes that fork: valgrind is not installed");
        return Ok(());
    }
    let plain = setup.command(&program, "fork-valgrind")?;
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--error-exitcode=9", "--leak-check=no"]);
    valgrind.envs(setup.cluster.environment());
    let out = valgrind.arg(&program).args(plain.get_args()).stdin(Stdio::null()).output()?;
    succeeded(out).map(drop).context("fork under valgrind")
}

/// Programs whose threads share a connection and a ring.
fn races(setup: &Setup) -> Result<()> {
    let suppressions = setup.programs.join("suppressions");
    fs::write(&suppressions, SUPPRESSIONS)?;
    for name in ["threads", "ring"] {
        let dir = format!("{name}-tsan");
        let program = setup.compile(&format!("tests/{name}.c"), &dir, TSAN)?;
        let options = format!("suppressions={}", suppressions.display());
        let mut command = setup.command(&program, &dir)?;
        succeeded(command.env("TSAN_OPTIONS", options).output()?).context(dir)?;
    }
    Ok(())
}

fn static_library(setup: &Setup) -> Result<()> {
    let flags = setup.flags(&["--static", "--cflags", "--libs"])?;
    let flags: Vec<_> = flags
        .iter()
        .map(|flag| if flag == "-lweft" { "-l:libweft.a" } else { flag.as_str() })
        .collect();
    let program = setup.compile_with("tests/basics.c", "basics-static", &[], &flags)?;
    setup.run(&program, "basics-static")
}

/// `exit` leaves nothing behind that is not durable.
fn exits(setup: &Setup) -> Result<()> {
    let program = setup.compile("tests/exit.c", "exit", ASAN)?;
    for (dir, more) in [("exit", None), ("exit by a handler", Some("handler"))] {
        succeeded(setup.command(&program, dir)?.args(more).output()?).context(dir)?;
        succeeded(setup.command(&program, dir)?.arg("verify").output()?).context(dir)?;
    }
    Ok(())
}

/// What `exit` cannot make durable is told, although no call is left to answer it.
fn exit_that_loses(setup: &Setup) -> Result<()> {
    let program = setup.compile("tests/exit.c", "exit-lost", &[])?;
    let mut command = setup.command(&program, "exit-lost")?;
    let command = command.arg("lost").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut writer = command.stderr(Stdio::piped()).spawn()?;
    let mut ready = String::new();
    let said = writer.stdout.as_mut().context("it has no output")?;
    BufReader::new(said).read_line(&mut ready)?;
    ensure!(ready == "ready\n", "it says {ready:?}");
    let status = setup.cluster.status()?;
    let daemons = status["storage"].as_array().context("no storage daemons")?;
    let pids = daemons.iter().map(|one| one["pid"].as_i64().and_then(|pid| pid.try_into().ok()));
    let paused = Paused::all(pids.collect::<Option<_>>().context("no pids")?)?;
    writer.stdin.take().context("it has no input")?.write_all(b"\n")?;
    let ended = writer.wait_with_output()?;
    drop(paused);
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    succeeded(ended).context("exit that loses")?;
    ensure!(told.contains("weft: what was written before the exit was lost: "), "it told {told:?}");
    Ok(())
}

/// A program that is killed in the middle of a write loses nothing that was synced.
fn killed(setup: &Setup) -> Result<()> {
    let program = setup.compile("tests/killed.c", "killed", &[])?;
    let mut writer = setup.command(&program, "killed")?.stdout(Stdio::piped()).spawn()?;
    let told = BufReader::new(writer.stdout.take().context("it has no output")?);
    let mut lines = told.lines();
    let mut acknowledged = lines.by_ref().take(RECORDS).filter(Result::is_ok).count();
    writer.kill()?;
    writer.wait()?;
    // What it told while it was being killed.
    acknowledged += lines.map_while(Result::ok).filter(|line| !line.is_empty()).count();
    ensure!(acknowledged >= RECORDS, "only {acknowledged} records were written");
    let mut verify = setup.command(&program, "killed")?;
    succeeded(verify.arg(acknowledged.to_string()).output()?).map(drop)
}

/// Files in the memory of a GPU that is simulated, and what is said without one.
fn gpus(setup: &Setup) -> Result<()> {
    let program = setup.compile("tests/gpu.c", "gpu", ASAN)?;
    let folder = |name: &str| -> Result<PathBuf> {
        let folder = setup.programs.join(name);
        fs::create_dir(&folder)?;
        Ok(folder)
    };
    let (driver, broken) = (folder("driver")?, folder("broken")?);
    symlink(weft_cuda_sim::library(), driver.join("libcuda.so.1"))?;
    for name in ["libcuda.so.1", "libcuda.so"] {
        fs::write(broken.join(name), "no library")?;
    }
    let run = |folder: &Path, what: &str, gpu: bool| {
        let mut command = setup.command(&program, what)?;
        command.arg(what).env("LD_LIBRARY_PATH", folder);
        if !gpu {
            command.env("WEFT_CUDA_SIM_NO_GPU", "1");
        }
        succeeded(command.output()?).map(drop).with_context(|| format!("gpu {what}"))
    };
    run(&driver, "gpu", true)?;
    run(&driver, "without", false)?;
    run(&broken, "without", false)?;
    gpu_bench(setup, &driver)
}

/// `weft bench --gpu` measures what it says, and checks what it reads.
fn gpu_bench(setup: &Setup, driver: &Path) -> Result<()> {
    let mut bench = Command::new(weft_binary());
    bench.args(["bench", "--gpu", "--size=80MiB", "--repeat=1", "--limit=60", "--output=json"]);
    bench.args(["--cluster", &setup.address]).arg("--scratch").arg(&setup.programs);
    bench.envs(setup.cluster.environment()).env("LD_LIBRARY_PATH", driver);
    let report = succeeded(bench.output()?)?;
    for figure in ["gpu_copy", "gpu_read", "gpu_write"] {
        ensure!(report.contains(&format!("\"{figure}\"")), "{figure} is missing: {report}");
    }
    Ok(())
}

/// The examples, the one with what the other has written.
fn examples(setup: &Setup) -> Result<()> {
    let copy = setup.compile("examples/copy.c", "copy", ASAN)?;
    let read = setup.compile("examples/read.c", "read", ASAN)?;
    let source = setup.programs.join("libweft.a part");
    let mut bytes = fs::read(setup.prefix.join("lib/libweft.a"))?;
    // More than all of the buffers together.
    bytes.truncate((40 << 20) + 1);
    fs::write(&source, &bytes)?;
    let shown = setup.cluster.environment();
    let mut copy = Command::new(copy);
    copy.arg(&setup.address).arg(&source).arg("/copied").envs(shown.clone());
    succeeded(copy.output()?)?;
    let out = Command::new(read).args([&setup.address, "/copied"]).envs(shown).output()?;
    ensure!(out.status.success() && out.stdout == bytes, "what was copied reads otherwise");
    let mounted = fs::read(setup.cluster.mnt().join("copied"))?;
    ensure!(mounted == bytes, "the mount reads otherwise");
    Ok(())
}

/// The header is one of C++, too.
fn header_in_cpp(setup: &Setup) -> Result<()> {
    let source = setup.programs.join("header.cpp");
    let text = "#include <weft.h>\nint main() { weft_options o = WEFT_OPTIONS_INIT; weft_fs *fs; \
                return weft_connect(\"\", &o, &fs) != -22; }\n";
    fs::write(&source, text)?;
    let include = format!("-I{}", setup.prefix.join("include").display());
    let mut cpp = Command::new("c++");
    cpp.args(["-std=c++11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", &include]);
    succeeded(cpp.arg(source).output()?).map(drop)
}
