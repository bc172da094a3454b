//! Options as fstab(5) and `mount -o` have them, as options of `weft mount`.

use weft_fuse::MountFlags;

/// What mount(8), systemd or the admin keep for themselves, or what is so anyway. `defaults` leaves
/// set-user-id programs and device nodes without effect, as all mounts of weft do.
const IGNORED: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "nouser",
    "nousers",
    "noowner",
    "nogroup",
    "_netdev",
    "relatime",
    "nostrictatime",
    "nolazytime",
    "diratime",
    "nodiratime",
    "nomand",
    "noiversion",
    "symfollow",
    "loud",
];
/// The same with something behind it.
const IGNORED_WITH: &[&str] = &["x-", "X-", "comment=", "user=", "helper=", "uhelper="];
/// Options with a value that `weft` has too, with dashes for the underscores.
const VALUES: &[&str] = &[
    "subdir",
    "cache",
    "hot",
    "hot_size",
    "write_buffer",
    "read_ahead",
    "name",
    "workers",
    "fuse_threads",
    "io_uring",
    "timeout",
    "stop_timeout",
    "transport",
    "rdma_traffic_class",
    "rdma_busy_poll",
    "log",
    "log_file",
    "log_format",
    "metrics",
    "otlp",
    "trace_ratio",
    "allow_other",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_crl",
];

/// What was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// For the command line of `weft mount`, but for those that follow its `-o`.
    pub words: Vec<String>,
    /// Those, in order.
    pub flags: Vec<String>,
    /// The mount is brought back when its process dies.
    pub supervise: bool,
    /// A mount that there is, is to be changed.
    pub remount: bool,
}

/// What is wrong with an option.
enum Wrong {
    /// Weft has none such.
    Unknown(String),
    /// It has, and it is not used so.
    Used(String),
}

impl Options {
    /// Reads a list. `sloppy`: what is not known is passed over. Errors: what is wrong with it.
    pub fn parse(text: &str, sloppy: bool) -> Result<Self, String> {
        let (words, flags) = (Vec::new(), Vec::new());
        let mut all = Self { words, flags, supervise: true, remount: false };
        for option in split(text) {
            match all.take(&option) {
                Ok(()) => {}
                Err(Wrong::Unknown(_)) if sloppy => {}
                Err(Wrong::Unknown(why) | Wrong::Used(why)) => return Err(why),
            }
        }
        Ok(all)
    }

    /// The command line of `weft mount` that they make.
    pub fn arguments(&self) -> Vec<String> {
        let mut all = self.words.clone();
        if !self.flags.is_empty() {
            all.push(format!("--options={}", self.flags.join(",")));
        }
        all.extend(self.supervise.then(|| "--supervise".into()));
        all
    }

    fn take(&mut self, option: &str) -> Result<(), Wrong> {
        let (key, value) = match option.split_once('=') {
            Some((key, value)) => (key.replace('-', "_"), Some(value)),
            None => (option.to_owned(), None),
        };
        let ignored = option.is_empty()
            || IGNORED.contains(&option)
            || IGNORED_WITH.iter().any(|begin| option.starts_with(begin));
        match (key.as_str(), value) {
            _ if ignored => {}
            ("remount", None) => self.remount = true,
            ("supervise", None) => self.supervise = true,
            ("nosupervise", None) => self.supervise = false,
            // Who is no admin gets no programs with more rights; nor any, as mount(8) has it.
            ("user" | "users", None) => self.flag(&["noexec", "nosuid", "nodev"]),
            ("owner" | "group", None) => self.flag(&["nosuid", "nodev"]),
            ("insecure", None) => self.words.push("--insecure".into()),
            ("allow_other", None) => self.words.push("--allow-other=yes".into()),
            ("noallow_other", None) => self.words.push("--allow-other=no".into()),
            ("nonempty" | "allow_nonempty", None) => self.words.push("--allow-nonempty".into()),
            ("hard" | "closesync" | "noclosesync", None) => self.flag(&[option]),
            ("soft", _) => self.flag(&[option]),
            (key, Some(value)) if VALUES.contains(&key) => {
                self.words.push(format!("--{}={value}", key.replace('_', "-")));
            }
            (key, None) if VALUES.contains(&key) => {
                return Err(Wrong::Used(format!("option {key} needs a value: write {key}=...")));
            }
            (_, None) if MountFlags::default().set(option) => self.flag(&[option]),
            ("sync", None) => {
                return Err(Wrong::Unknown(
                    "there is no option sync: closesync and dirsync have closes and names \
                            wait until they are durable"
                        .into(),
                ));
            }
            ("strictatime" | "norelatime" | "lazytime", None) => {
                return Err(Wrong::Unknown(format!(
                    "there is no option {option}: access times are kept as by relatime, or with \
                     noatime not at all"
                )));
            }
            _ => {
                let what = format!("there is no option {option:?}; mount.weft(8) lists them");
                return Err(Wrong::Unknown(what));
            }
        }
        Ok(())
    }

    fn flag(&mut self, flags: &[&str]) {
        self.flags.extend(flags.iter().map(|flag| (*flag).to_owned()));
    }
}

/// At commas, but for those between quotation marks, which are taken away.
fn split(text: &str) -> Vec<String> {
    let (mut all, mut quoted) = (vec![String::new()], false);
    for c in text.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => all.push(String::new()),
            // There is always a last one.
            c => all.last_mut().into_iter().for_each(|last| last.push(c)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Options {
        Options::parse(text, false).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn what_mount_and_systemd_keep_for_themselves_is_passed_over() {
        let text = "defaults,_netdev,noauto,nofail,x-systemd.automount,x-systemd.requires=a,\
                    comment=mine,relatime,,X-mount.mkdir";
        assert_eq!(parse(text), parse(""));
        assert_eq!(parse(text).arguments(), ["--supervise"]);
    }

    #[test]
    fn options_of_weft_are_handed_on() {
        let all = parse(
            "ro,noatime,soft=60,cache=1GiB,write-buffer=64MiB,allow_other,nosupervise,name=\"a,b\",\
             tls_ca=/etc/weft/ca.pem,insecure,nonempty,subdir=/x",
        );
        let wanted = [
            "--cache=1GiB",
            "--write-buffer=64MiB",
            "--allow-other=yes",
            "--name=a,b",
            "--tls-ca=/etc/weft/ca.pem",
            "--insecure",
            "--allow-nonempty",
            "--subdir=/x",
            "--options=ro,noatime,soft=60",
        ];
        assert_eq!(all.arguments(), wanted);
    }

    #[test]
    fn users_who_may_mount_get_no_programs_unless_that_is_said() {
        let flags = |text: &str| {
            let options = super::super::options::mount_options(&parse(text).flags.join(","));
            options.unwrap().flags
        };
        let user = flags("suid,dev,user");
        assert!(user.noexec && !user.suid && !user.dev);
        let exec = flags("users,exec,suid");
        assert!(!exec.noexec && exec.suid);
        assert!(!flags("suid,dev,exec,group").suid && !flags("owner").noexec);
    }

    #[test]
    fn what_is_not_known_is_named_or_passed_over() {
        for (bad, named) in [
            ("ro,sfot=1", "sfot=1"),
            ("sync", "closesync"),
            ("strictatime", "relatime"),
            ("cache", "cache"),
            ("_netdevv", "_netdevv"),
            ("hard=1", "hard=1"),
            ("supervise=no", "supervise=no"),
        ] {
            let said = Options::parse(bad, false).unwrap_err();
            assert!(said.contains(named), "{bad}: {said}");
            assert_eq!(Options::parse(bad, true).is_ok(), bad != "cache", "{bad}");
        }
        assert_eq!(Options::parse("ro,xyz", true).unwrap().flags, ["ro"]);
        assert!(parse("remount,ro").remount);
    }
}
