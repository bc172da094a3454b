//! Test data: reproducible bytes, trees of files, and digests of trees.

use anyhow::{Context, Result};
use rand::{Rng, RngCore, SeedableRng, rngs::SmallRng};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// `len` bytes that only `seed` decides.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    SmallRng::seed_from_u64(seed).fill_bytes(&mut data);
    data
}

/// Writes `count` files of up to `max_len` bytes in a few folders; answers their number of bytes.
pub fn make_tree(root: &Path, seed: u64, count: usize, max_len: usize) -> Result<u64> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut total = 0;
    for i in 0..count {
        let folder = root.join(format!("d{}", rng.random_range(0..8)));
        fs::create_dir_all(&folder)?;
        // Most files are small, some are large: sizes are spread evenly over their magnitude.
        let len = (max_len as f64).powf(rng.random_range(0.0..1.0)) as usize;
        fs::write(folder.join(format!("f{i}")), bytes(seed ^ i as u64, len))?;
        total += len as u64;
    }
    Ok(total)
}

/// SHA-256 of a file's content.
pub fn digest(path: &Path) -> Result<String> {
    let mut file = fs::File::open(path).with_context(|| format!("open {}", path.display()))?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        let n = file.read(&mut buffer).with_context(|| format!("read {}", path.display()))?;
        if n == 0 {
            return Ok(format!("{:x}", hash.finalize()));
        }
        hash.update(&buffer[..n]);
    }
}

/// Relative path → what is there (digest and size, link target, or folder) with its mode, for
/// everything below `root`.
pub fn digest_tree(root: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let (mut all, mut folders) = (BTreeMap::new(), vec![root.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
            let path = entry?.path();
            let meta = fs::symlink_metadata(&path)?;
            let what = if meta.is_dir() {
                folders.push(path.clone());
                "folder".to_string()
            } else if meta.is_symlink() {
                format!("-> {}", fs::read_link(&path)?.display())
            } else {
                format!("{} {}", meta.len(), digest(&path)?)
            };
            let name = path.strip_prefix(root).expect("below root").to_path_buf();
            all.insert(name, format!("{:o} {what}", meta.mode() & 0o7777));
        }
    }
    Ok(all)
}
