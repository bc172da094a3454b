//! Many things that one entry changes together, of which none keeps the others: one that the state
//! does not take, as since its record makes no sense, would have the whole entry refused, again and
//! again.

use std::future::Future;
use weft_proto::{Error, ErrorKind, Result};

/// What has become of them.
pub(super) struct Outcome<T> {
    /// Some were changed.
    pub any: bool,
    /// Those that the state does not take, and why.
    pub refused: Vec<(T, Error)>,
    /// What is not changed for another reason, such as that another leads, is for another time.
    pub failed: Option<Error>,
}

/// Has `change` change things, all at once. If that is refused, those that are at fault are found
/// by halves, and the others changed.
pub(super) async fn change<T, F>(things: Vec<T>, mut change: impl FnMut(Vec<T>) -> F) -> Outcome<T>
where
    T: Clone,
    F: Future<Output = Result<()>>,
{
    let mut outcome = Outcome { any: false, refused: Vec::new(), failed: None };
    let mut todo = vec![things];
    while let Some(mut some) = todo.pop() {
        match change(some.clone()).await {
            Ok(()) => outcome.any = true,
            Err(error) if !is_refusal(&error) => {
                outcome.failed = Some(error);
                break;
            }
            Err(_) if some.len() > 1 => {
                todo.push(some.split_off(some.len() / 2));
                todo.push(some);
            }
            Err(error) => {
                outcome.refused.extend(some.into_iter().map(|thing| (thing, error.clone())));
            }
        }
    }
    outcome
}

/// Whether the state does not take an entry, whoever proposes it.
pub(super) fn is_refusal(error: &Error) -> bool {
    use ErrorKind::{Corrupt, Exists, Internal, Invalid, NotFound};
    matches!(error.kind, Corrupt | Exists | Internal | Invalid | NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_that_is_refused_keeps_no_other() {
        let mut changed: Vec<u32> = Vec::new();
        let outcome = change((0..100).collect(), |some: Vec<u32>| {
            let bad = some.iter().any(|n| [7, 8, 63].contains(n));
            if !bad {
                changed.extend(&some);
            }
            let refused = || Err(Error::new(ErrorKind::NotFound, "no such group"));
            async move { if bad { refused() } else { Ok(()) } }
        })
        .await;
        let refused: Vec<u32> = outcome.refused.iter().map(|(n, _)| *n).collect();
        assert_eq!(refused, [7, 8, 63]);
        assert!(outcome.any && outcome.failed.is_none());
        let others: Vec<u32> = (0..100).filter(|n| !refused.contains(n)).collect();
        assert_eq!(changed, others, "each once, in order");
    }

    #[tokio::test]
    async fn who_leads_no_more_refuses_nothing() {
        let mut asked = 0;
        let outcome = change((0..9).collect(), |_: Vec<u32>| {
            asked += 1;
            async { Err(Error::new(ErrorKind::NotLeader, "another leads")) }
        })
        .await;
        assert!(!outcome.any && outcome.refused.is_empty());
        assert_eq!(outcome.failed.map(|e| e.kind), Some(ErrorKind::NotLeader));
        assert_eq!(asked, 1);
    }
}
