//! Buffers on their way to storage.

use super::buffer::BufferNo;
use super::inode::File;
use crate::cache::ALL;
use std::sync::Arc;
use tracing::warn;
use weft_net::buggify::{self, Point};
use weft_proto::{Error, ErrorKind};

/// A buffer on its way to storage, which it is no longer when this ends, however it does.
pub(super) struct Flight {
    file: Arc<File>,
    no: BufferNo,
    /// It has ended, and the buffer may be on another.
    over: bool,
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut state = self.file.state.lock();
        if !self.over && state.dirty.crashed(self.no) {
            let what = "written data did not get to storage; it will be sent again";
            state.failures.fail(Error::new(ErrorKind::Io, what));
        }
        state.forget_times();
    }
}

impl Flight {
    pub fn new(file: Arc<File>, no: BufferNo) -> Self {
        Self { file, no, over: false }
    }

    /// Answers how many bytes of the file are durable then, unless nobody wants the buffer any
    /// more.
    pub async fn land(mut self) -> Option<u64> {
        let Self { file, no, over } = &mut self;
        let ((payload, permits), layout) = {
            let state = file.state.lock();
            (state.dirty.payload(*no)?, state.layout)
        };
        let deadline = file.context.requests.deadline();
        let sent = file.context.segments.put(&layout, &payload, deadline).await;
        drop((payload, permits));
        buggify::pause(Point::LandLate).await;
        let (unwanted, durable) = {
            let mut state = file.state.lock();
            *over = true;
            let unwanted = match sent {
                Ok(segments) => state.dirty.landed(*no, segments),
                Err(error) => {
                    if state.dirty.failed(*no) {
                        let what = "written data is lost; the writer will be told";
                        warn!(ino = %file.ino, %error, "{what}");
                        file.lose(&mut state, &[*no], error);
                        file.commits.send_replace(());
                        file.forget_behind(ALL);
                    }
                    state.forget_times();
                    Vec::new()
                }
            };
            (unwanted, state.dirty.durable())
        };
        unwanted.into_iter().for_each(|segment| file.context.segments.discard(segment));
        Some(durable)
    }
}
