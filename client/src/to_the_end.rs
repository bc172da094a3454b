//! Work that ends, whatever becomes of who asked for it.
//!
//! A caller may drop a call that it made, as `tokio::time::timeout` does. What has been asked of a
//! server by then is carried out all the same; so what follows from the answer has to be, too.

use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::runtime::Handle;

type Boxed<W> = Pin<Box<W>>;

/// `work`, in its caller's task; but if that drops it when it has begun, it goes on in one of its
/// own. It waits in a box, so that futures around it stay small.
pub(crate) fn to_the_end<W>(work: W) -> impl Future<Output = W::Output> + Send
where
    W: Future<Output: Send> + Send + 'static,
{
    handing_over(work, |_| std::future::ready(()))
}

/// [`to_the_end`]; what nobody is there to take goes to `unwanted`.
pub(crate) fn handing_over<W, U, F>(work: W, unwanted: U) -> impl Future<Output = W::Output> + Send
where
    W: Future<Output: Send> + Send + 'static,
    U: FnOnce(W::Output) -> F + Send + Unpin + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    Handed { work: Some(Box::pin(work)), begun: None, unwanted: Some(unwanted) }
}

struct Handed<W, U, F>
where
    W: Future<Output: Send> + Send + 'static,
    U: FnOnce(W::Output) -> F + Send + Unpin + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    work: Option<Boxed<W>>,
    /// Where it was begun.
    begun: Option<Handle>,
    unwanted: Option<U>,
}

impl<W, U, F> Future for Handed<W, U, F>
where
    W: Future<Output: Send> + Send + 'static,
    U: FnOnce(W::Output) -> F + Send + Unpin + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    type Output = W::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<W::Output> {
        if self.begun.is_none() {
            self.begun = Handle::try_current().ok();
        }
        // Taken out, so that nothing goes on that has panicked.
        let mut work = self.work.take().expect("polled after its end");
        let polled = work.as_mut().poll(context);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl<W, U, F> Drop for Handed<W, U, F>
where
    W: Future<Output: Send> + Send + 'static,
    U: FnOnce(W::Output) -> F + Send + Unpin + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    fn drop(&mut self) {
        if let (Some(work), Some(runtime), Some(unwanted)) =
            (self.work.take(), self.begun.take(), self.unwanted.take())
        {
            runtime.spawn(async move { unwanted(work.await).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::pin::pin;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn what_has_begun_ends_and_its_outcome_is_handed_on() {
        let (go, gate) = oneshot::channel();
        let (tell, told) = oneshot::channel();
        {
            let work = handing_over(async { gate.await.unwrap_or(0) + 1 }, |sum| async move {
                tell.send(sum).unwrap()
            });
            assert!(pin!(work).now_or_never().is_none());
        }
        go.send(6).unwrap();
        assert_eq!(told.await, Ok(7));
    }

    #[tokio::test]
    async fn what_has_not_begun_does_not_begin() {
        let (tell, told) = oneshot::channel();
        drop(to_the_end(async { tell.send(()).unwrap() }));
        assert!(told.await.is_err());
        assert_eq!(to_the_end(async { 3 }).await, 3);
    }
}
