//! Intel's ISA-L, loaded at run time where it is installed: a yardstick, never needed.

use std::ffi::{CStr, c_int, c_uchar, c_void};

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

/// The functions that we use.
pub struct Isal {
    generate: Generate,
    tables: Tables,
    encode: Encode,
}

impl Isal {
    /// `None` where the library is not installed.
    pub fn load() -> Option<Self> {
        // SAFETY: loading this library runs no code that needs anything of us; the names and
        // signatures are those of its erasure_code.h, stable within version 2.
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

    /// Tables for k data and m parity shards.
    pub fn code(&self, k: usize, m: usize) -> Code {
        let (mut matrix, mut tables) = (vec![0u8; (k + m) * k], vec![0u8; 32 * k * m]);
        // SAFETY: the matrix has (k+m)*k bytes and the tables 32*k*m, as ISA-L asks.
        unsafe {
            (self.generate)(matrix.as_mut_ptr(), (k + m) as c_int, k as c_int);
            (self.tables)(k as c_int, m as c_int, matrix[k * k..].as_ptr(), tables.as_mut_ptr());
        }
        Code { encode: self.encode, tables, k, m }
    }
}

pub struct Code {
    encode: Encode,
    tables: Vec<u8>,
    k: usize,
    m: usize,
}

impl Code {
    /// All slices must have one length, and be k and m. Panics if not.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        let len = data[0].len();
        assert!(data.len() == self.k && data.iter().all(|d| d.len() == len));
        assert!(parity.len() == self.m && parity.iter().all(|p| p.len() == len));
        let from: Vec<*const u8> = data.iter().map(|d| d.as_ptr()).collect();
        let to: Vec<*mut u8> = parity.iter_mut().map(|p| p.as_mut_ptr()).collect();
        // SAFETY: all pointers are valid for `len` bytes, the tables are for k and m.
        unsafe {
            (self.encode)(
                len as c_int,
                self.k as c_int,
                self.m as c_int,
                self.tables.as_ptr(),
                from.as_ptr(),
                to.as_ptr(),
            )
        }
    }
}
