//! What a filesystem and a mount tell of themselves.

/// Room in the filesystem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatFs {
    /// User data that the filesystem could hold when empty, bytes.
    pub capacity_bytes: u64,
    /// User data that still fits, bytes.
    pub free_bytes: u64,
    /// Of the free ones, those that can be written before the targets are full.
    pub available_bytes: u64,
    /// Inodes that there are.
    pub inodes: u64,
    /// That can be made yet, if a quota limits them.
    pub free_inodes: Option<u64>,
}

/// What a mount did since it was connected.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Answers that did not match their checksums.
    pub corrupt_chunks: u64,
    /// Reads for which shards were rebuilt from others.
    pub rebuilt_reads: u64,
    /// Segments that were written again, on other targets or in another session.
    pub rewritten_segments: u64,
    /// Requests to the metadata group that operations had to make.
    pub metadata_requests: u64,
}

/// What became of content that the hot tier was to keep.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Warmed {
    /// Bytes that lie on targets.
    pub wanted: u64,
    /// Bytes of those that are kept.
    pub kept: u64,
    /// Bytes that there is room for.
    pub room: u64,
}

impl Counters {
    /// As a JSON object, which the virtual attribute `user.weft.stats` shows.
    pub fn to_json(&self) -> String {
        let Self { corrupt_chunks, rebuilt_reads, rewritten_segments, metadata_requests } = self;
        let known = [
            ("corrupt_chunks", corrupt_chunks),
            ("rebuilt_reads", rebuilt_reads),
            ("rewritten_segments", rewritten_segments),
            ("metadata_requests", metadata_requests),
        ];
        let fields = known.map(|(name, count)| format!(r#""{name}":{count}"#));
        format!("{{{}}}", fields.join(","))
    }
}
