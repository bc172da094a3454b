//! The page itself: one document with its style and its script in it, and a policy that lets a
//! browser use those two and nothing else.

use bytes::Bytes;
use ring::digest::{SHA256, digest};
use std::sync::{Arc, LazyLock};
use weft_control::Page;

const STYLE: &str = include_str!("console.css");
const SCRIPT: &str = include_str!("console.js");

static PAGE: LazyLock<(Bytes, Arc<str>)> = LazyLock::new(|| {
    let page = include_str!("console.html").replace("/*STYLE*/", STYLE);
    let page = page.replace("/*SCRIPT*/", SCRIPT);
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        base64(digest(&SHA256, STYLE.as_bytes()).as_ref()),
        base64(digest(&SHA256, SCRIPT.as_bytes()).as_ref())
    );
    (page.into(), policy.into())
});

pub(super) fn page() -> Page {
    let (body, policy) = PAGE.clone();
    Page { content_type: "text/html; charset=utf-8", body, policy: Some(policy) }
}

/// As policies want digests.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in bytes.chunks(3) {
        let at = |n: usize| u32::from(three.get(n).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            match digit <= three.len() {
                true => out.push(DIGITS[(bits >> (18 - 6 * digit) & 63) as usize].into()),
                false => out.push('='),
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_written_as_base64() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn the_page_is_whole_and_takes_nothing_from_elsewhere() {
        let page = String::from_utf8(page().body.to_vec()).unwrap();
        assert!(page.contains(&format!("<style>{STYLE}</style>")), "as its digest says");
        assert!(page.contains(&format!("<script>{SCRIPT}</script>")), "as its digest says");
        for outside in ["http://", "https://", "src=", "innerHTML", "eval(", " style=", "onclick="]
        {
            let where_ = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!where_.contains(outside), "{outside}");
        }
    }
}
