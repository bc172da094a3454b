//! Encoding of one stripe and reconstruction of lost shards.

use crate::kernel::Kernel;
use crate::matrix::{COLS, Coefficients, Decoder, GENERATOR, ROWS};
use weft_proto::{Error, ErrorKind, Profile, Result};

/// The code of one profile. Holds nothing but numbers: copy it freely.
#[derive(Clone, Copy, Debug)]
pub struct Codec {
    k: u8,
    m: u8,
    kernel: Kernel,
}

impl Codec {
    /// The code for `profile`, on the fastest kernel of this processor.
    pub fn get(profile: Profile) -> Self {
        Self { k: profile.k(), m: profile.m(), kernel: Kernel::best() }
    }

    /// The same code on a chosen kernel, for comparison; it must be one that is available here.
    pub fn with_kernel(self, kernel: Kernel) -> Self {
        Self { kernel, ..self }
    }

    /// Computes the m parity shards of k data shards. Parity slices have one length; a data slice
    /// that is shorter is taken as extended with zeros. Any length and alignment will do.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<()> {
        self.check_profile()?;
        if data.len() != usize::from(self.k) || parity.len() != usize::from(self.m) {
            return Err(invalid(format!(
                "encode {}+{} was given {} data and {} parity slices",
                self.k,
                self.m,
                data.len(),
                parity.len()
            )));
        }
        self.check_lengths(data.iter().map(|d| d.len()), parity.iter().map(|p| p.len()))?;
        extended(self.kernel, &GENERATOR, data, parity);
        Ok(())
    }

    /// Rebuilds the shards named in `out` from any k of the `present` ones (pairs of shard index,
    /// data first then parity, and bytes). Destinations have one length; a present shard that is
    /// shorter is taken as extended with zeros, so that a data shard which a short last stripe
    /// does not reach is given as an empty slice. Fails with `Io` when fewer than k are present.
    pub fn reconstruct(&self, present: &[(u8, &[u8])], out: &mut [(u8, &mut [u8])]) -> Result<()> {
        self.check_profile()?;
        let shards = self.index(present, out)?;
        let decoder =
            Decoder::choose(self.k, self.k + self.m, |shard| shards[usize::from(shard)].is_some())
                .ok_or_else(|| {
                    Error::new(
                        ErrorKind::Io,
                        format!(
                            "{} of {}+{} shards are present, which is too few",
                            present.len(),
                            self.k,
                            self.m
                        ),
                    )
                })?;
        let mut sources = [&[][..]; COLS];
        for (source, shard) in sources.iter_mut().zip(decoder.sources()) {
            *source = shards[usize::from(*shard)].unwrap_or_default();
        }
        let sources = &sources[..usize::from(self.k)];
        for group in out.chunks_mut(ROWS) {
            let mut rows = [[0; COLS]; ROWS];
            let mut slices: [&mut [u8]; ROWS] = Default::default();
            let count = group.len();
            for ((row, slice), (shard, bytes)) in rows.iter_mut().zip(&mut slices).zip(group) {
                *row = decoder.row(*shard);
                *slice = bytes;
            }
            extended(self.kernel, &rows, sources, &mut slices[..count]);
        }
        Ok(())
    }

    /// Sorts the present shards by index, refusing what makes no sense.
    fn index<'a>(
        &self,
        present: &[(u8, &'a [u8])],
        out: &[(u8, &mut [u8])],
    ) -> Result<[Option<&'a [u8]>; COLS + ROWS]> {
        let width = self.k + self.m;
        let mut shards = [None; COLS + ROWS];
        for &(shard, bytes) in present {
            if shard >= width || shards[usize::from(shard)].replace(bytes).is_some() {
                return Err(invalid(format!("shard {shard} of {width} is given twice or unknown")));
            }
        }
        for (shard, _) in out {
            if *shard >= width || shards[usize::from(*shard)].is_some() {
                return Err(invalid(format!(
                    "shard {shard} of {width} is wanted but present or unknown"
                )));
            }
        }
        self.check_lengths(present.iter().map(|(_, s)| s.len()), out.iter().map(|(_, s)| s.len()))?;
        Ok(shards)
    }

    /// Profiles are checked when parsed, but their fields are open.
    fn check_profile(&self) -> Result<()> {
        if self.k == 0 || usize::from(self.k) > COLS || usize::from(self.m) > ROWS {
            return Err(invalid(format!("profile {}+{} is out of bounds", self.k, self.m)));
        }
        Ok(())
    }

    fn check_lengths(
        &self,
        mut sources: impl Iterator<Item = usize>,
        mut out: impl Iterator<Item = usize>,
    ) -> Result<()> {
        let Some(len) = out.next() else { return Ok(()) };
        if let Some(other) = out.find(|&l| l != len) {
            return Err(invalid(format!(
                "destinations have {len} and {other} bytes, not one length"
            )));
        }
        match sources.find(|&l| l > len) {
            Some(long) => {
                Err(invalid(format!("a shard of {long} bytes exceeds the destination's {len}")))
            }
            None => Ok(()),
        }
    }
}

/// Applies `rows` with each source extended by zeros to the length of the destinations: between
/// two lengths at which sources end, only those that reach further take part.
pub fn extended(kernel: Kernel, rows: &Coefficients, sources: &[&[u8]], out: &mut [&mut [u8]]) {
    let Some(end) = out.first().map(|d| d.len()) else { return };
    let mut start = 0;
    while start < end {
        let reaching = sources.iter().map(|s| s.len()).filter(|&len| len > start);
        let stop = reaching.min().unwrap_or(end).min(end);
        if start == 0 && sources.iter().all(|s| s.len() >= stop) {
            kernel.apply(rows, sources, out, start..stop);
        } else {
            let mut part = [&[][..]; COLS];
            let mut part_rows = [[0; COLS]; ROWS];
            let mut count = 0;
            for (j, source) in sources.iter().enumerate().filter(|(_, s)| s.len() >= stop) {
                part[count] = source;
                for (to, from) in part_rows.iter_mut().zip(rows) {
                    to[count] = from[j];
                }
                count += 1;
            }
            kernel.apply(&part_rows, &part[..count], out, start..stop);
        }
        start = stop;
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

#[cfg(test)]
mod tests;
