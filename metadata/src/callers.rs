//! Who may call what of the gRPC service, where certificates prove who calls.

use std::sync::Arc;
use weft_net::Subject;
use weft_proto::{Error, ErrorKind, Result, Role, Roles};

const ALL: Roles = Roles::of(&Role::ALL);
const STORAGE: Roles = Roles::of(&[Role::Storage]);
const ADMIN: Roles = Roles::of(&[Role::Admin]);
const PEOPLE: Roles = Roles::of(&[Role::Admin, Role::Client]);

/// Who may call a method, by its path. What is not listed here is an admin's to call.
fn may_call(path: &str) -> Roles {
    match path.rsplit('/').next().unwrap_or_default() {
        "Status" | "WatchMap" => ALL,
        "RegisterTarget" | "Heartbeat" | "CheckChunks" => STORAGE,
        "CheckDomains" | "ListEvents" => PEOPLE,
        _ => ADMIN,
    }
}

/// Why a call is refused, if it is; else the call says from now on whose it is.
pub fn admit<B>(subject: Option<&Arc<Subject>>, request: &mut hyper::Request<B>) -> Option<Error> {
    let subject = subject?;
    let path = request.uri().path().to_owned();
    let roles = may_call(&path);
    let confined = subject.confinement.is_any() && roles != ALL;
    if roles.has(subject.role) && !confined {
        request.extensions_mut().insert(subject.clone());
        return None;
    }
    let what = match confined {
        true => format!("{path} is not for clients that are confined to a part, as {subject}"),
        false => format!("{path} is for {roles}, and {subject} is none of them"),
    };
    tracing::warn!(peer = %subject, "refused: {what}");
    Some(Error::new(ErrorKind::NotPermitted, what))
}

/// Who has a certificate is the daemon that it names, and no other.
pub fn speaks_for<T>(request: &tonic::Request<T>, daemon: &str) -> Result<()> {
    match request.extensions().get::<Arc<Subject>>() {
        Some(subject) if subject.name != daemon => {
            let what = format!("the certificate is that of {subject}, and not of {daemon:?}");
            tracing::warn!("refused: {what}");
            Err(Error::new(ErrorKind::NotPermitted, what))
        }
        _ => Ok(()),
    }
}

/// Whether it was proved who calls.
pub fn is_proved<T>(request: &tonic::Request<T>) -> bool {
    request.extensions().get::<Arc<Subject>>().is_some()
}

/// Whether who calls is to see only a part.
pub fn is_confined<T>(request: &tonic::Request<T>) -> bool {
    let subject = request.extensions().get::<Arc<Subject>>();
    subject.is_some_and(|subject| subject.confinement.is_any())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_net::Confinement;

    fn call(role: Role, subtree: &[&str], method: &str) -> Option<Error> {
        let confinement = Confinement {
            subtree: subtree.iter().map(|part| part.to_string()).collect(),
            ..Confinement::NONE
        };
        let subject = Arc::new(Subject { role, name: "x".into(), confinement });
        let uri = format!("/weft.v1.Control/{method}");
        let mut request = hyper::Request::builder().uri(uri).body(()).unwrap();
        admit(Some(&subject), &mut request)
    }

    #[test]
    fn methods_are_for_those_whose_part_they_are() {
        for (method, roles) in [
            ("Status", "admin storage metadata client"),
            ("WatchMap", "admin storage metadata client"),
            ("Heartbeat", "storage"),
            ("RegisterTarget", "storage"),
            ("CheckChunks", "storage"),
            ("ListEvents", "admin client"),
            ("CheckDomains", "admin client"),
            ("SetTarget", "admin"),
            ("SetMember", "admin"),
            ("SetQos", "admin"),
            ("ListQos", "admin"),
            ("WhatComesNext", "admin"),
        ] {
            for role in Role::ALL {
                let admitted = call(role, &[], method).is_none();
                assert_eq!(admitted, roles.split(' ').any(|r| r == role.name()), "{role} {method}");
            }
        }
        assert!(call(Role::Client, &["a"], "ListEvents").is_some());
        assert!(call(Role::Client, &["a"], "WatchMap").is_none());
    }
}
