//! Gives the shared library the name that programs are linked to, and keeps it loaded once it is:
//! threads and handlers of its own may run until the process ends.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libweft.so.0");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
