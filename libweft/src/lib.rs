//! The C face of the client.
