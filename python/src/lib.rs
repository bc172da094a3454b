//! The Python face of the client.
