//! Content of files that has lost its place in the log is committed before what comes later.

use super::table::{Files, MAX_FLUSHES};
use crate::namespace::Owing;
use futures_util::stream::{self, StreamExt};
use std::pin::Pin;

impl Owing for Files {
    fn pay(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(async move {
            let owing = self.all().into_iter().filter(|file| file.is_displaced());
            let paying = owing.map(|file| async move {
                // A failure is its handles', or is told to who syncs.
                let _ = file.flush().await;
                !file.is_displaced()
            });
            let mut paying = stream::iter(paying).buffer_unordered(MAX_FLUSHES);
            let mut all = true;
            while let Some(paid) = paying.next().await {
                all &= paid;
            }
            all
        })
    }
}
