//! Content of files that has lost its place in the log is committed before what comes later.

use super::table::{Files, MAX_FLUSHES};
use crate::namespace::Owing;
use futures_util::stream::{self, StreamExt};
use std::pin::Pin;
use weft_proto::{Error, ErrorKind, Result};

impl Owing for Files {
    fn pay(&self) -> Pin<Box<dyn Future<Output = Result<()>> + Send + '_>> {
        let owing: Vec<_> = self.all().into_iter().filter(|file| file.is_displaced()).collect();
        Box::pin(async move {
            let paying = owing.into_iter().map(|file| async move {
                let mut flushed = file.flush().await;
                // That it could not be made may be all that was found.
                if flushed.is_err() && file.is_displaced() {
                    flushed = file.flush().await;
                }
                match flushed {
                    // It is none of who waits what is wrong with it.
                    Err(error) if file.is_displaced() => {
                        let what = format!("what was closed before is not committed: {error}");
                        Err(Error::new(ErrorKind::TimedOut, what))
                    }
                    // What is given up is told otherwise.
                    _ => Ok(()),
                }
            });
            let mut paying = stream::iter(paying).buffer_unordered(MAX_FLUSHES);
            let mut first = Ok(());
            while let Some(paid) = paying.next().await {
                first = first.and(paid);
            }
            first
        })
    }
}
