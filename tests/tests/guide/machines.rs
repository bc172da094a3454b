//! Machines of folders and namespaces, joined by a bridge on the first of them. Nothing of them is
//! left when the process that made them ends, however it ends.

use crate::repository;
use anyhow::{Context, Result, ensure};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;
use weft_tests::{eventually, path, run};

const PATIENCE: Duration = Duration::from_secs(120);
/// How long the commands of one block may take.
const LIMIT: &str = "180";
/// The packages that an admin's machine has besides the essential ones.
const PACKAGES: [&str; 3] = ["mount", "passwd", "bash"];

/// A machine that is on: the process that holds its namespaces, and the first process in it.
struct Machine {
    holder: Child,
    init: u32,
}

pub struct Machines {
    work: PathBuf,
    on: BTreeMap<String, Machine>,
    names: Vec<String>,
}

impl Machines {
    /// Makes machines with these names, and starts them. The first is that of the admin.
    pub fn new(work: &Path, package: &Path, names: &[String]) -> Result<Self> {
        let base = work.join("base");
        let depends = run("dpkg-deb", &["-f", path(package), "Depends"], Path::new("/"))?;
        let depends = depends.split(',').filter_map(|one| one.split_whitespace().next());
        let script = repository("tests/tests/first_hour/bare-root.sh");
        let args: Vec<&str> =
            [path(&script), path(&base)].into_iter().chain(PACKAGES).chain(depends).collect();
        run("sh", &args, Path::new("/")).context("make what all machines have")?;
        let here = repository("tests/tests/guide");
        for (from, to) in [("systemctl.sh", "systemctl"), ("ssh.sh", "ssh"), ("ssh.sh", "scp")] {
            let to = base.join("usr/bin").join(to);
            let _ = fs::remove_file(&to);
            fs::copy(here.join(from), &to)?;
            fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
        }
        // The network of the guide has Debian's archive, this one has the package itself.
        let get = "#!/bin/sh\nfor last; do :; done\nexec dpkg -i $last\n";
        fs::write(base.join("usr/bin/apt-get"), get)?;
        fs::set_permissions(base.join("usr/bin/apt-get"), fs::Permissions::from_mode(0o755))?;
        fs::create_dir_all(base.join("root"))?;
        let name = package.file_name().context("a package without a name")?;
        fs::copy(package, base.join("root").join(name))?;
        let hosts = (1..).zip(names).map(|(n, name)| format!("10.77.0.{n} {name}\n"));
        fs::write(base.join("etc/hosts"), hosts.collect::<String>() + "127.0.0.1 localhost\n")?;
        for name in names {
            fs::create_dir_all(work.join(name))?;
        }
        fs::create_dir(work.join("pids"))?;
        let mut machines = Self { work: work.into(), on: BTreeMap::new(), names: names.to_vec() };
        machines.boot(&names.iter().collect::<Vec<_>>())?;
        Ok(machines)
    }

    /// Starts machines, in this order.
    pub fn boot(&mut self, names: &[&String]) -> Result<()> {
        let hub = self.names[0].clone();
        // It has the bridge.
        let hub_first =
            [&hub].into_iter().chain(names.iter().copied().filter(|name| **name != hub));
        for name in hub_first {
            self.start(name)?;
        }
        // None waits for another, but for what it needs of it.
        let machines = &*self;
        thread::scope(|scope| {
            let begin = |name: &'_ &String| {
                let name = (*name).clone();
                scope.spawn(move || {
                    machines.run(&name, "systemctl boot").with_context(|| format!("boot {name}"))
                })
            };
            let all: Vec<_> = names.iter().map(begin).collect();
            all.into_iter().try_for_each(|one| one.join().expect("a boot does not panic"))
        })
    }

    fn start(&mut self, name: &str) -> Result<()> {
        let dir = self.work.join(name);
        let up = dir.join("up");
        let _ = fs::remove_file(&up);
        let script = repository("tests/tests/guide/init.sh");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--uts", "--net", "--pid", "--fork", "--kill-child=KILL", "sh"]);
        command.args([path(&script), path(&self.work.join("base")), path(&dir), name]);
        command.stdin(Stdio::null());
        // SAFETY: prctl(2) is all that it does.
        unsafe {
            command.pre_exec(|| set_pdeathsig(Signal::SIGKILL).map_err(std::io::Error::from));
        }
        let holder = command.spawn().context("run unshare")?;
        let pid = holder.id();
        let children = PathBuf::from(format!("/proc/{pid}/task/{pid}/children"));
        let first = || fs::read_to_string(&children).ok()?.split_whitespace().next()?.parse().ok();
        let init = eventually(PATIENCE, "the first process of a machine", first)?;
        self.on.insert(name.into(), Machine { holder, init });
        eventually(PATIENCE, "the file system of a machine", || up.exists().then_some(()))?;
        fs::write(self.work.join("pids").join(name), init.to_string())?;
        self.join(name)
    }

    /// Gives a machine its place in the network.
    fn join(&self, name: &str) -> Result<()> {
        let at = self.names.iter().position(|known| known == name).context("no such machine")?;
        let (hub, init) = (self.init(&self.names[0])?, self.init(name)?);
        let link = format!("p{at}");
        let commands = match at {
            0 => "ip link add name bridge0 type bridge\nip link set bridge0 up\n\
                  ip address add 10.77.0.1/24 dev bridge0"
                .to_owned(),
            _ => format!(
                "ip link add {link} type veth peer name eth0 netns {init}\n\
                 ip link set {link} master bridge0 up\n\
                 nsenter -t {init} -n ip address add 10.77.0.{}/24 dev eth0\n\
                 nsenter -t {init} -n ip link set eth0 up",
                at + 1
            ),
        };
        let commands = format!("{commands}\nnsenter -t {init} -n ip link set lo up");
        let hub = hub.to_string();
        run("nsenter", &["-t", &hub, "-n", "sh", "-ec", &commands], Path::new("/"))?;
        Ok(())
    }

    fn init(&self, name: &str) -> Result<u32> {
        let machine = self.on.get(name).with_context(|| format!("there is no machine {name}"))?;
        Ok(machine.init)
    }

    /// Runs commands on a machine, as root in his folder. What runs in the background stays.
    pub fn run(&self, name: &str, commands: &str) -> Result<()> {
        let init = self.init(name)?.to_string();
        let environment = [
            "/usr/bin/env",
            "-i",
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME=/root",
            &format!("HOSTNAME={name}"),
        ];
        // The admin's machine enters the others, whose processes it therefore sees.
        let admin = name == self.names[0];
        let pids = self.work.join("pids");
        let enter = match admin {
            true => vec!["-m", "-u", "-n"],
            false => vec!["-m", "-u", "-n", "-p"],
        };
        // What an admin's shell was told in a block before.
        let told = "! grep -qs WEFT_CLUSTER=meta /etc/weft/mount.env || . /etc/weft/mount.env";
        let told = if admin { told } else { ":" };
        let script = format!("cd /root; set -a; {told}; set +a\n{commands}");
        let mut args = vec!["-s", "KILL", LIMIT, "nsenter", "-t", &init];
        args.extend(enter);
        let root = format!("/proc/{init}/root");
        if admin {
            let bind = format!(
                "mkdir -p {root}/run/machines {root}/proc && mount -t proc proc {root}/proc && \
                 mount --bind {} {root}/run/machines",
                path(&pids)
            );
            let once = format!("test -e {root}/run/machines/{name} || {{ {bind}; }}");
            run("nsenter", &["-t", &init, "-m", "sh", "-ec", &once], Path::new("/"))?;
        }
        args.extend(["-r", "-w"]);
        args.extend(environment);
        args.extend(["bash", "-euo", "pipefail", "-c", &script]);
        let log = self.work.join(format!("{name}.log"));
        let out = fs::File::create(&log)?;
        let status = Command::new("timeout")
            .args(&args)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .status()
            .context("run timeout")?;
        let said = fs::read(&log)?;
        let said = String::from_utf8_lossy(&said);
        println!("{name}: {}\n{said}", commands.lines().take(2).collect::<Vec<_>>().join(" "));
        ensure!(status.success(), "{commands}\nended with {status}:\n{said}{}", self.logs()?);
        Ok(())
    }

    /// The end of what the daemons of all machines have logged.
    fn logs(&self) -> Result<String> {
        let mut all = String::new();
        for name in &self.names {
            let folder = self.work.join(name).join("upper/var/log");
            for entry in fs::read_dir(folder).into_iter().flatten() {
                let log = entry?.path();
                if log.file_name().is_some_and(|name| name.to_string_lossy().starts_with("weft")) {
                    let text = fs::read_to_string(&log).unwrap_or_default();
                    let skipped = text.lines().count().saturating_sub(12);
                    let last: Vec<&str> = text.lines().skip(skipped).collect();
                    all += &format!("\n{name}, {}:\n{}\n", log.display(), last.join("\n"));
                }
            }
        }
        Ok(all)
    }

    /// Every process of every machine ends, without a word.
    pub fn lose_power(&mut self) -> Result<()> {
        for machine in self.on.values_mut() {
            machine.holder.kill()?;
            machine.holder.wait()?;
        }
        for Machine { init, .. } in self.on.values() {
            let gone = || (!Path::new(&format!("/proc/{init}")).exists()).then_some(());
            eventually(PATIENCE, "the end of a machine", gone)?;
        }
        self.on.clear();
        Ok(())
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        if let Err(error) = self.lose_power() {
            eprintln!("{error:#}");
        }
    }
}
