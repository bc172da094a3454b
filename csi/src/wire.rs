//! Messages and gRPC stubs, as `proto/csi.proto` makes them.
#![allow(missing_docs, reason = "the definition has the comments")]

tonic::include_proto!("csi.v1");
