//! The Debian packages that `scripts/deb` makes of what was built: what is in them, and how they do
//! on a machine that has nothing else. Needs no network.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use weft_tests::{not_tested, path, run, weft_binary};

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

pub fn repository(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file)
}

/// The packages, and a folder for what is done with them.
struct Packages {
    main: PathBuf,
    dev: PathBuf,
    work: tempfile::TempDir,
}

impl Packages {
    fn make() -> Result<Self> {
        let work = tempfile::Builder::new().prefix("weft-deb-").tempdir()?;
        let binary = weft_binary();
        let target = binary.parent().context("the binary is in no folder")?;
        let out = path(work.path());
        let arch = run("dpkg", &["--print-architecture"], Path::new("/"))?;
        let file = |name| work.path().join(format!("{name}_{VERSION}_{}.deb", arch.trim()));
        let (main, dev) = (file("weft"), file("libweft-dev"));
        // What is there already is replaced.
        fs::write(&main, "of before")?;
        run(path(&repository("scripts/deb")), &[path(target), out], Path::new("/"))?;
        let made = fs::read_dir(work.path())?.count();
        ensure!(main.exists() && dev.exists() && made == 2, "{made} files");
        Ok(Self { main, dev, work })
    }

    fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.work.path().join(name);
        fs::create_dir(&folder)?;
        Ok(folder)
    }
}

fn dpkg_deb(args: &[&str]) -> Result<String> {
    run("dpkg-deb", args, Path::new("/"))
}

/// Files and links of a package, each with its rights and owner.
fn content(package: &Path) -> Result<BTreeMap<String, String>> {
    let listed = dpkg_deb(&["-c", path(package)])?;
    let mut files = BTreeMap::new();
    for line in listed.lines().filter(|line| !line.starts_with('d')) {
        let words: Vec<_> = line.split_whitespace().collect();
        let name = words.get(5).and_then(|name| name.strip_prefix('.')).context("no name")?;
        files.insert(name.to_owned(), format!("{} {}", words[0], words[1]));
    }
    Ok(files)
}

fn content_is_whole(packages: &Packages) -> Result<()> {
    let main = content(&packages.main)?;
    for (file, rights) in [
        ("/usr/bin/weft", "-rwxr-xr-x root/root"),
        ("/usr/sbin/mount.weft", "lrwxrwxrwx root/root"),
        (&format!("/usr/lib/libweft.so.{VERSION}"), "-rwxr-xr-x root/root"),
        ("/usr/lib/libweft.so.0", "lrwxrwxrwx root/root"),
        ("/usr/lib/systemd/system/weft-metadata@.service", "-rw-r--r-- root/root"),
        ("/usr/lib/systemd/system/weft-mount@.service", "-rw-r--r-- root/root"),
        ("/usr/lib/systemd/system/weft-storaged.service", "-rw-r--r-- root/root"),
        ("/usr/share/man/man1/weft-dev-start.1.gz", "-rw-r--r-- root/root"),
        ("/usr/share/man/man8/mount.weft.8.gz", "-rw-r--r-- root/root"),
        ("/usr/share/bash-completion/completions/weft", "-rw-r--r-- root/root"),
        ("/usr/share/zsh/vendor-completions/_weft", "-rw-r--r-- root/root"),
        ("/usr/share/fish/vendor_completions.d/weft.fish", "-rw-r--r-- root/root"),
        ("/usr/share/doc/weft/copyright", "-rw-r--r-- root/root"),
        ("/usr/share/doc/weft/packages.md", "-rw-r--r-- root/root"),
        ("/usr/share/doc/weft/config/fstab", "-rw-r--r-- root/root"),
        ("/usr/share/weft/slurm/prolog.sh", "-rwxr-xr-x root/root"),
        ("/usr/share/weft/slurm/epilog.sh", "-rwxr-xr-x root/root"),
        ("/usr/share/weft/slurm/scratch.sh", "-rwxr-xr-x root/root"),
        ("/usr/share/weft/slurm/warm.sh", "-rwxr-xr-x root/root"),
        ("/usr/share/weft/slurm/job.sh", "-rw-r--r-- root/root"),
        ("/usr/share/weft/slurm/slurm.conf", "-rw-r--r-- root/root"),
        ("/etc/weft/metadata.toml", "-rw-r--r-- root/root"),
        ("/etc/weft/storaged.toml", "-rw-r--r-- root/root"),
        ("/etc/weft/mount.env", "-rw-r--r-- root/root"),
    ] {
        ensure!(main.get(file).map(String::as_str) == Some(rights), "{file}: {:?}", main.get(file));
    }
    let dev = content(&packages.dev)?;
    for file in ["include/weft.h", "lib/libweft.a", "lib/libweft.so", "lib/pkgconfig/weft.pc"] {
        ensure!(dev.contains_key(&format!("/usr/{file}")), "{file}: {dev:?}");
    }
    ensure!(dev.contains_key("/usr/share/man/man3/weft_connect.3.gz"), "{dev:?}");
    for (file, rights) in main.iter().chain(&dev) {
        ensure!(file.starts_with("/usr/") || file.starts_with("/etc/weft/"), "{file}");
        ensure!(rights.ends_with(" root/root"), "{file}: {rights}");
    }
    let both: Vec<_> = main.keys().filter(|file| dev.contains_key(*file)).collect();
    ensure!(both.is_empty(), "in both packages: {both:?}");
    Ok(())
}

fn says_what_it_needs_and_does(packages: &Packages) -> Result<()> {
    let field = |package: &Path, name| dpkg_deb(&["-f", path(package), name]);
    let depends = field(&packages.main, "Depends")?;
    for library in ["libc6 (>= ", "libstdc++6 (>= "] {
        ensure!(depends.contains(library), "{depends}");
    }
    ensure!(field(&packages.main, "Version")?.trim() == VERSION);
    ensure!(field(&packages.dev, "Depends")?.trim() == format!("weft (= {VERSION})"));
    let control = packages.work.path().join("control");
    dpkg_deb(&["-e", path(&packages.main), path(&control)])?;
    let conffiles = fs::read_to_string(control.join("conffiles"))?;
    let expected = ["metadata.toml", "storaged.toml", "mount.env"];
    ensure!(conffiles.lines().eq(expected.map(|name| format!("/etc/weft/{name}"))), "{conffiles}");
    for name in ["postinst", "prerm", "postrm"] {
        let script = control.join(name);
        run("sh", &["-n", path(&script)], Path::new("/"))?;
        ensure!(fs::metadata(&script)?.permissions().mode() & 0o777 == 0o755, "{name}");
        let text = fs::read_to_string(&script)?;
        // Nothing that carries data is started or stopped.
        let said = |line: &&str| line.starts_with('#') || line.starts_with("echo ");
        for line in text.lines().map(str::trim_start).filter(|line| !said(line)) {
            ensure!(!line.contains("systemctl") || line.contains("daemon-reload"), "{line}");
        }
        let wrong = Command::new(&script).arg("frobnicate").output()?;
        ensure!(!wrong.status.success(), "{name} takes anything");
    }
    Ok(())
}

/// What is unpacked works where it lies: the program, what units name, and the library.
fn unpacked_it_works(packages: &Packages) -> Result<()> {
    let root = packages.folder("unpacked")?;
    for package in [&packages.main, &packages.dev] {
        dpkg_deb(&["-x", path(package), path(&root)])?;
    }
    let usr = root.join("usr");
    let version = run(path(&usr.join("bin/weft")), &["--version"], Path::new("/"))?;
    ensure!(version.trim() == format!("weft {VERSION}"), "{version}");
    for unit in fs::read_dir(usr.join("lib/systemd/system"))? {
        let text = fs::read_to_string(unit?.path())?;
        let start = text.lines().find_map(|line| line.strip_prefix("ExecStart=/"));
        let program =
            start.and_then(|start| start.split_whitespace().next()).context("ExecStart")?;
        ensure!(root.join(program).exists(), "{program}");
    }
    let flags = Command::new("pkg-config")
        .arg(format!("--define-variable=prefix={}", usr.display()))
        .args(["--cflags", "--libs", "weft"])
        .env("PKG_CONFIG_PATH", usr.join("lib/pkgconfig"))
        .output()?;
    ensure!(flags.status.success(), "{}", String::from_utf8_lossy(&flags.stderr));
    let flags = String::from_utf8(flags.stdout)?;
    let (source, program) = (repository("libweft/examples/read.c"), root.join("read"));
    let mut args = vec![path(&source), "-o", path(&program)];
    args.extend(flags.split_whitespace());
    run("cc", &args, Path::new("/"))?;
    let needs = run("readelf", &["-d", path(&program)], Path::new("/"))?;
    ensure!(needs.contains("[libweft.so.0]"), "{needs}");
    Ok(fs::remove_dir_all(root)?)
}

/// A machine that has what every Debian machine has, mount(8), and what the package says that it
/// needs. Processes and mounts are in namespaces of their own, and end with them.
fn a_bare_machine_serves(packages: &Packages) -> Result<()> {
    const ENTER: &str = "set -eu; mount -t proc proc \"$1/proc\"; mount --rbind /dev \"$1/dev\"; \
        exec chroot \"$1\" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
        sh /on-a-machine.sh /weft.deb";
    let root = packages.folder("machine")?;
    let depends = dpkg_deb(&["-f", path(&packages.main), "Depends"])?;
    let names = depends.split(',').filter_map(|one| one.split_whitespace().next());
    let script = repository("tests/tests/first_hour/bare-root.sh");
    let mut args = vec![path(&script), path(&root), "mount"];
    args.extend(names);
    run("sh", &args, Path::new("/")).context("make a machine")?;
    fs::copy(&packages.main, root.join("weft.deb"))?;
    let script = repository("tests/tests/first_hour/on-a-machine.sh");
    fs::copy(script, root.join("on-a-machine.sh"))?;
    let enter = ["-s", "KILL", "400", "unshare", "--mount", "--pid", "--fork", "--kill-child=KILL"];
    let args = [&enter[..], &["sh", "-c", ENTER, "sh", path(&root)]].concat();
    run("timeout", &args, Path::new("/")).map(drop).context("on a bare machine")
}

#[test]
fn the_packages_are_whole_and_serve_a_bare_machine() -> Result<()> {
    // Where Debian's packages are used at all, `make setup` has brought what makes them.
    if Command::new("dpkg").arg("--version").output().is_err() {
        not_tested("packages: this is no Debian");
        return Ok(());
    }
    let packages = Packages::make()?;
    content_is_whole(&packages)?;
    says_what_it_needs_and_does(&packages)?;
    unpacked_it_works(&packages)?;
    if !nix::unistd::geteuid().is_root() {
        not_tested("an installed package: only root can make a machine of folders");
        return Ok(());
    }
    a_bare_machine_serves(&packages)
}
