//! Bounded reading of fixed records and of names; writing of fixed records.

/// Why bytes are not a request.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    #[error("it ends too early")]
    Short,
    #[error("its header tells another length")]
    Length,
    #[error("a name has no end")]
    Name,
}

/// What is left to read of a request.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(Malformed::Short)?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, tail) = self.0.split_first_chunk().ok_or(Malformed::Short)?;
        self.0 = tail;
        Ok(*head)
    }

    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_ne_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_ne_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_ne_bytes)
    }

    /// Bytes up to a NUL, which is taken too.
    pub fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.0.iter().position(|&b| b == 0).ok_or(Malformed::Name)?;
        let name = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Ok(name)
    }
}

/// A record under construction, of bounded length and without an allocation.
#[derive(Clone)]
pub struct Record {
    bytes: [u8; Record::MAX],
    len: usize,
}

impl Record {
    /// The longest record that is sent: a header and the reply to STATX.
    pub const MAX: usize = 320;

    pub const fn new() -> Self {
        Self { bytes: [0; Self::MAX], len: 0 }
    }

    pub fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
        self
    }

    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.put(&value.to_ne_bytes())
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_ne_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_ne_bytes())
    }

    pub fn zeros(&mut self, len: usize) -> &mut Self {
        self.len += len;
        self
    }

    /// Replaces what it begins with.
    pub fn overwrite(&mut self, bytes: &[u8]) {
        self.bytes[..bytes.len()].copy_from_slice(bytes);
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
