//! What the figures were measured on.

use super::report::Machine;
use std::fs;
use std::path::Path;

pub fn describe(mount: Option<&Path>, scratch: &Path) -> Machine {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Machine {
        version: env!("CARGO_PKG_VERSION"),
        kernel: kernel.trim().to_owned(),
        cpu: processor(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        mount: mount.map(filesystem),
        scratch: filesystem(scratch),
    }
}

fn processor(cpuinfo: &str) -> String {
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.and_then(|rest| rest.split_once(':')).map(|(_, name)| name.trim());
    model.map_or_else(|| std::env::consts::ARCH.to_owned(), str::to_owned)
}

/// `kind at path`, by the longest mount point above the path.
fn filesystem(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let kind = kind_of(&mounts, &path).unwrap_or("unknown filesystem");
    format!("{kind} at {}", path.display())
}

fn kind_of<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let entries = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?.replace("\\040", " "), fields.next()?))
    });
    // Of mounts one over the other, the last is the one that shows.
    let above = entries.filter(|(point, _)| path.starts_with(point));
    above.max_by_key(|(point, _)| point.len()).map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_mount_point_tells_the_kind() {
        let mounts =
            "/dev/vda / ext4 rw 0 0\nweft /mnt/a\\040b fuse.weft rw 0 0\nx /mnt tmpfs rw 0 0\n";
        let kind = |path: &str| kind_of(mounts, Path::new(path));
        assert_eq!(kind("/home"), Some("ext4"));
        assert_eq!(kind("/mnt/a b/c"), Some("fuse.weft"));
        assert_eq!(kind("/mnt/a"), Some("tmpfs"));
        assert_eq!(kind("relative"), None);
    }

    #[test]
    fn the_processor_has_a_name() {
        assert_eq!(processor("x: y\nmodel name\t: Some CPU @ 1 GHz\n"), "Some CPU @ 1 GHz");
        assert_eq!(processor(""), std::env::consts::ARCH);
    }
}
