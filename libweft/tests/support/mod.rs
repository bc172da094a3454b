//! The library as it is installed, beside a cluster, and programs that are compiled with it.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use weft_tests::{Cluster, weft_binary};

/// A cluster, and the library installed beside it.
pub struct Setup {
    pub cluster: Cluster,
    pub address: String,
    pub prefix: PathBuf,
    pub programs: PathBuf,
}

impl Setup {
    pub fn new() -> Result<Self> {
        let cluster = Cluster::start()?;
        let destdir = cluster.scratch("a package")?;
        let binary = weft_binary();
        let target = binary.parent().context("the binary is in no folder")?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/install");
        // Twice: what is there already stays as good.
        for _ in 0..2 {
            let mut install = Command::new(&source);
            let install = install.arg(target).arg("/opt/weft").arg(&destdir);
            succeeded(install.output()?).context("install")?;
        }
        let (address, programs) = (cluster.address()?, cluster.scratch("programs")?);
        // pkg-config does not quote the space.
        let prefix = programs.join("prefix");
        symlink(destdir.join("opt/weft"), &prefix)?;
        Ok(Self { cluster, address, prefix, programs })
    }

    /// What `pkg-config` says, for the folder that it is installed in for now.
    pub fn flags(&self, what: &[&str]) -> Result<Vec<String>> {
        let out = Command::new("pkg-config")
            .arg(format!("--define-variable=prefix={}", self.prefix.display()))
            .args(what)
            .arg("weft")
            .env("PKG_CONFIG_PATH", self.prefix.join("lib/pkgconfig"))
            .output()?;
        Ok(succeeded(out)?.split_whitespace().map(str::to_owned).collect())
    }

    pub fn compile(&self, source: &str, name: &str, more: &[&str]) -> Result<PathBuf> {
        let link = self.flags(&["--cflags", "--libs"])?;
        let rpath = format!("-Wl,-rpath,{}", self.prefix.join("lib").display());
        let link: Vec<_> = link.iter().map(String::as_str).chain([rpath.as_str()]).collect();
        self.compile_with(source, name, more, &link)
    }

    pub fn compile_with(
        &self,
        source: &str,
        name: &str,
        more: &[&str],
        link: &[&str],
    ) -> Result<PathBuf> {
        let program = self.programs.join(name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-g", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror"]);
        cc.args(more).arg("-o").arg(&program).arg(source).args(link);
        succeeded(cc.output()?).with_context(|| format!("compile {name}"))?;
        Ok(program)
    }

    /// A test program and a folder of its own.
    pub fn command(&self, program: &Path, dir: &str) -> Result<Command> {
        fs::create_dir_all(self.cluster.mnt().join(dir))?;
        let mut command = Command::new(program);
        command.arg(&self.address).arg(format!("/{dir}")).envs(self.cluster.environment());
        command.stdin(Stdio::null());
        Ok(command)
    }

    pub fn run(&self, program: &Path, dir: &str) -> Result<()> {
        succeeded(self.command(program, dir)?.output()?).map(drop).with_context(|| dir.to_owned())
    }
}

/// What a program said that has succeeded.
pub fn succeeded(out: Output) -> Result<String> {
    let stdout = String::from_utf8_lossy(&out.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "ended with {}: {stdout}{stderr}", out.status);
    Ok(stdout)
}
