//! Who is on the other end, proved: TLS 1.3 with certificates on both sides.
//!
//! - [`Credentials`]: the certificate authority that is trusted, what was revoked, and what this
//!   process shows of itself; read again whenever the files change.
//! - [`Subject`]: who a certificate says its holder is, and what he may.
//! - `Secured`: a stream whose other end was proved. It ends when its certificate does: expired,
//!   revoked, or of an authority that is not trusted any more.
//!
//! Invariants: nothing is read of a peer before its certificate was verified; keys are neither
//! logged nor shown; what a certificate says in words that are not known here is refused, since
//! they might take rights away.

mod credentials;
mod secured;
mod standing;
mod subject;
mod trust;

pub use credentials::Credentials;
pub use subject::{Confinement, Subject};
pub use trust::TlsFiles;
