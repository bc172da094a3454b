//! Speed of encoding, reconstruction and checksums on one core, beside ISA-L where its library can
//! be loaded: `cargo run --release -p weft-erasure --example speed`.

// A stopwatch measures real time.
#![allow(clippy::disallowed_methods)]

use std::ffi::{CStr, c_int, c_uchar, c_void};
use std::hint::black_box;
use std::time::{Duration, Instant};
use weft_erasure::{Codec, Kernel, block_checksums};
use weft_proto::Profile;

fn main() {
    let isal = Isal::load();
    println!("GB/s of data, one core; ISA-L {}", if isal.is_some() { "loaded" } else { "absent" });
    for (k, m, unit) in
        [(4, 2, 64), (4, 2, 128), (8, 2, 64), (8, 2, 128), (8, 3, 128), (16, 4, 128)]
    {
        stripe(k, m, unit << 10, isal.as_ref());
    }
    let data = vec![3u8; 1 << 20];
    println!(
        "checksums of 4 KiB blocks: {:.1}",
        rate(data.len(), || {
            black_box(block_checksums(black_box(&data)));
        })
    );
    let mut copy = vec![0u8; 1 << 20];
    println!(
        "memcpy 1 MiB: {:.1}",
        rate(data.len(), || black_box(&mut copy).copy_from_slice(&data))
    );
}

/// `len` bytes inside `store` that begin on a block boundary, as I/O buffers do.
fn aligned(store: &mut Vec<u8>, fill: u8, len: usize) -> &mut [u8] {
    store.resize(len + 4096, fill);
    let skip = store.as_ptr().align_offset(4096);
    &mut store[skip..skip + len]
}

fn stripe(k: u8, m: u8, unit: usize, isal: Option<&Isal>) {
    let mut stores = vec![Vec::new(); usize::from(k + m) + usize::from(m) * 2];
    let mut buffers =
        stores.iter_mut().zip(1u8..).map(|(s, i)| aligned(s, i.wrapping_mul(37), unit));
    let mut take = |count: u8| -> Vec<&mut [u8]> { buffers.by_ref().take(count.into()).collect() };
    let (data, mut parity, mut other, mut lost) = (take(k), take(m), take(m), take(m));
    let data: Vec<&[u8]> = data.into_iter().map(|d| &*d).collect();
    let bytes = unit * usize::from(k);
    print!("{k}+{m} {:3} KiB:", unit >> 10);
    for kernel in Kernel::available() {
        let codec = Codec::get(Profile::Ec { k, m }).with_kernel(kernel);
        let encode = rate(bytes, || codec.encode(black_box(&data), &mut parity).expect("encode"));
        print!("  {kernel:?} {encode:.1}");
    }
    if let Some(isal) = isal {
        let encode = isal.encoder(&data, &mut other);
        print!("  ISA-L {:.1}", rate(bytes, encode));
        assert_eq!(parity, other, "parity differs from ISA-L's");
    }
    for losses in 1..=m {
        let present: Vec<(u8, &[u8])> = (0u8..)
            .zip(data.iter().copied().chain(parity.iter().map(|p| &**p)))
            .skip(losses.into())
            .collect();
        let mut out: Vec<(u8, &mut [u8])> =
            (0..losses).zip(lost.iter_mut().map(|l| &mut **l)).collect();
        let codec = Codec::get(Profile::Ec { k, m });
        let rebuild =
            rate(bytes, || codec.reconstruct(black_box(&present), &mut out).expect("rebuild"));
        print!("  rebuild {losses}: {rebuild:.1}");
    }
    println!();
}

/// Best of several short runs, in GB/s.
fn rate(bytes: usize, mut work: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let (start, mut rounds) = (Instant::now(), 0u32);
        while start.elapsed() < Duration::from_millis(60) {
            (0..16).for_each(|_| work());
            rounds += 16;
        }
        best = best.min(start.elapsed().as_secs_f64() / f64::from(rounds));
    }
    bytes as f64 / best / 1e9
}

type Generate = unsafe extern "C" fn(*mut c_uchar, c_int, c_int);
type Tables = unsafe extern "C" fn(c_int, c_int, *const c_uchar, *mut c_uchar);
type Encode = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    *const c_uchar,
    *const *const c_uchar,
    *const *mut c_uchar,
);

/// Intel's library, loaded at run time.
struct Isal {
    generate: Generate,
    tables: Tables,
    encode: Encode,
}

impl Isal {
    fn load() -> Option<Self> {
        // SAFETY: the names and signatures are those of ISA-L's erasure_code.h.
        unsafe {
            let library = libc::dlopen(c"libisal.so.2".as_ptr(), libc::RTLD_NOW);
            if library.is_null() {
                return None;
            }
            let find = |name: &CStr| {
                let symbol = libc::dlsym(library, name.as_ptr());
                (!symbol.is_null()).then_some(symbol)
            };
            Some(Self {
                generate: std::mem::transmute::<*mut c_void, Generate>(find(c"gf_gen_rs_matrix")?),
                tables: std::mem::transmute::<*mut c_void, Tables>(find(c"ec_init_tables")?),
                encode: std::mem::transmute::<*mut c_void, Encode>(find(c"ec_encode_data")?),
            })
        }
    }

    fn encoder(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> impl FnMut() {
        let (k, m, len) = (data.len(), parity.len(), data[0].len());
        let (mut matrix, mut tables) = (vec![0u8; (k + m) * k], vec![0u8; 32 * k * m]);
        let from: Vec<*const u8> = data.iter().map(|d| d.as_ptr()).collect();
        let to: Vec<*mut u8> = parity.iter_mut().map(|p| p.as_mut_ptr()).collect();
        // SAFETY: the matrix has (k+m)*k bytes and the tables 32*k*m, as ISA-L demands.
        unsafe {
            (self.generate)(matrix.as_mut_ptr(), (k + m) as c_int, k as c_int);
            (self.tables)(k as c_int, m as c_int, matrix[k * k..].as_ptr(), tables.as_mut_ptr());
        }
        let encode = self.encode;
        move || {
            // SAFETY: every pointer is valid for `len` bytes while the caller's buffers live.
            unsafe {
                encode(
                    len as c_int,
                    k as c_int,
                    m as c_int,
                    tables.as_ptr(),
                    from.as_ptr(),
                    to.as_ptr(),
                )
            }
        }
    }
}
