//! `mount.weft`: this program under the name by which mount(8) calls it for `mount -t weft` and for
//! lines of fstab(5): `mount.weft SPEC MNT [-sfnv] [-N NAMESPACE] [-o OPTION,..] [-t TYPE]`.
//!
//! It makes a command line of `weft mount` of that. Exit codes are those of mount(8).

use super::fstab::Options;
use super::spec::Spec;
use nix::sched::{CloneFlags, setns};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

const NAME: &str = "mount.weft";
const USAGE: &str = "usage: mount.weft ADDR[,ADDR..][:/SUBDIR] MNT [-sfnv] [-N NAMESPACE] \
                     [-o OPTION,..]; mount(8) calls it for `mount -t weft`";

/// Why nothing is mounted.
#[derive(Debug)]
pub enum Refusal {
    /// It was asked for in a way that makes no sense.
    Usage(String),
    /// The system does not do what is needed before.
    System(String),
    /// It cannot be mounted.
    Mount(String),
}

impl Refusal {
    /// As mount(8) has them.
    pub fn code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => 1.into(),
            Self::System(_) => 2.into(),
            Self::Mount(_) => 32.into(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Usage(why) | Self::System(why) | Self::Mount(why)) = self;
        write!(f, "{NAME}: {why}")
    }
}

/// What mount(8) asks for.
#[derive(Debug)]
pub struct Call {
    /// A command line of this program under its own name.
    pub words: Vec<String>,
    /// Nothing is to be mounted: only all that comes before it is done.
    pub fake: bool,
}

/// The arguments, if this program was called as `mount.weft`.
pub fn called() -> Option<Vec<OsString>> {
    let mut args = std::env::args_os();
    let name = args.next()?;
    let ours = Path::new(&name).file_name()?.as_encoded_bytes().ends_with(NAME.as_bytes());
    ours.then(|| args.collect())
}

#[derive(Default)]
struct Words {
    places: Vec<String>,
    options: Vec<String>,
    namespace: Option<String>,
    sloppy: bool,
    fake: bool,
    verbose: bool,
}

impl Call {
    /// Reads the arguments, and enters the namespace that they name.
    pub fn read(args: Vec<OsString>) -> Result<Self, Refusal> {
        let words = Words::read(args)?;
        let [spec, mnt] = &words.places[..] else { return Err(Refusal::Usage(USAGE.into())) };
        let options = Options::parse(&words.options.join(","), words.sloppy);
        let options = options.map_err(Refusal::Usage)?;
        if options.remount {
            let what = format!(
                "a mount of weft is not changed in place: umount {mnt}, and mount it with other \
                 options; for a new version of the program: weft mount --takeover {mnt}"
            );
            return Err(Refusal::Mount(what));
        }
        if let Some(namespace) = &words.namespace {
            enter(namespace)?;
        }
        let all = command(spec, mnt, &options).map_err(Refusal::Usage)?;
        if words.verbose {
            println!("{NAME}: {}", all.join(" "));
        }
        Ok(Self { words: all, fake: words.fake })
    }
}

/// The command line of `weft mount`.
fn command(source: &str, mnt: &str, options: &Options) -> Result<Vec<String>, String> {
    let spec = Spec::parse(source)?;
    let mut all = vec!["weft".into(), "mount".into()];
    all.push(format!("--cluster={}", spec.cluster.join(",")));
    all.push(format!("--source={source}"));
    if spec.subdir != "/" {
        if options.words.iter().any(|word| word.starts_with("--subdir=")) {
            return Err(format!("two folders: {} and that of subdir=; say one", spec.subdir));
        }
        all.push(format!("--subdir={}", spec.subdir));
    }
    all.extend(options.arguments());
    all.extend(["--".into(), mnt.into()]);
    Ok(all)
}

/// What is mounted from here on is seen in that namespace.
fn enter(namespace: &str) -> Result<(), Refusal> {
    let failed = |e: &dyn fmt::Display| {
        Refusal::System(format!("cannot enter the mount namespace {namespace}: {e}"))
    };
    let file = File::open(namespace).map_err(|e| failed(&e))?;
    setns(file, CloneFlags::CLONE_NEWNS).map_err(|e| failed(&e))
}

impl Words {
    fn read(args: Vec<OsString>) -> Result<Self, Refusal> {
        let usage = |what: String| Refusal::Usage(format!("{what}; {USAGE}"));
        let text = |word: &OsStr| {
            let text = word.to_str().map(str::to_owned);
            text.ok_or_else(|| usage(format!("{word:?} is not UTF-8")))
        };
        let mut words = Self::default();
        let mut args = args.into_iter();
        while let Some(word) = args.next() {
            let word = text(&word)?;
            let Some(flags) = word.strip_prefix('-').filter(|flags| !flags.is_empty()) else {
                words.places.push(word);
                continue;
            };
            let mut flags = flags.chars();
            while let Some(flag) = flags.next() {
                match flag {
                    's' => words.sloppy = true,
                    'f' => words.fake = true,
                    'v' => words.verbose = true,
                    // There is no mtab.
                    'n' => {}
                    'o' | 'N' | 't' => {
                        let rest = std::mem::replace(&mut flags, "".chars()).as_str();
                        let value = match rest {
                            "" => args.next().map(|word| text(&word)).transpose()?,
                            rest => Some(rest.to_owned()),
                        };
                        let value = value.ok_or_else(|| usage(format!("-{flag} needs a value")))?;
                        match flag {
                            'o' => words.options.push(value),
                            'N' => words.namespace = Some(value),
                            // That it is called says the type.
                            _ => {}
                        }
                    }
                    _ => return Err(usage(format!("there is no option -{flag}"))),
                }
            }
        }
        Ok(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &[&str]) -> Result<Call, Refusal> {
        Call::read(args.iter().map(OsString::from).collect())
    }

    #[test]
    fn a_call_of_mount_becomes_a_command_line() {
        let call = read(&["a:1,[::1]:2:/x y", "/mnt", "-o", "rw,noauto,cache=1MiB"]).unwrap();
        let wanted = [
            "weft",
            "mount",
            "--cluster=a:1,[::1]:2",
            "--source=a:1,[::1]:2:/x y",
            "--subdir=/x y",
            "--cache=1MiB",
            "--options=rw",
            "--supervise",
            "--",
            "/mnt",
        ];
        assert_eq!(call.words, wanted);
        assert!(!call.fake);
        let call = read(&["-sfn", "a:1", "-t", "weft", "-vo", "nosupervise,what", "-m"]);
        assert!(matches!(call, Err(Refusal::Usage(_))), "{call:?}");
        let call = read(&["-sfn", "a:1", "-ttype", "/m", "-onosupervise,what"]).unwrap();
        assert!(call.fake);
        assert_eq!(call.words, ["weft", "mount", "--cluster=a:1", "--source=a:1", "--", "/m"]);
    }

    #[test]
    fn what_makes_no_sense_is_told_apart_from_what_cannot_be_done() {
        let code = |args: &[&str]| read(args).map(drop).map_err(|e| (e.code(), e.to_string()));
        for bad in [
            &["a:1"][..],
            &["a:1", "/m", "/n"],
            &["a", "/m"],
            &["a:1", "/m", "-o"],
            &["a:1", "/m", "-x"],
            &["a:1", "/m", "-o", "nope"],
            &["a:1:/x", "/m", "-o", "subdir=/y"],
        ] {
            assert_eq!(code(bad).unwrap_err().0, ExitCode::from(1), "{bad:?}");
        }
        let (code_of, said) = code(&["a:1", "/m", "-o", "remount,ro"]).unwrap_err();
        assert_eq!(code_of, ExitCode::from(32));
        assert!(said.contains("umount /m"), "{said}");
        let (code_of, said) = code(&["a:1", "/m", "-N", "/nonexistent"]).unwrap_err();
        assert_eq!(code_of, ExitCode::from(2), "{said}");
    }
}
