//! Names of what attempts make: a function of the key, so that whoever carries it out again finds it.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// So many hexadecimal digits: 80 bits.
const DIGITS: usize = 20;

/// A hash of these parts, fit for names and labels.
pub(super) fn hash(parts: &[&str]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        // The length keeps `a`, `bc` apart from `ab`, `c`.
        digest.update(part.len().to_be_bytes());
        digest.update(part);
    }
    hex(&digest.finalize()).chars().take(DIGITS).collect()
}

/// A prefix for people, cut, and the hash: at most 63 characters, a valid name whatever the parts are.
pub(super) fn name(prefix: &str, parts: &[&str]) -> String {
    let most = 63 - DIGITS - 1;
    let fit = prefix.chars().map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' });
    let cut: String = fit.take(most).collect();
    let cut = cut.trim_matches('-');
    format!("{}-{}", if cut.is_empty() { "hook" } else { cut }, hash(parts))
}

/// Bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression 16: names over 63 characters.
    #[test]
    fn r16_names_are_valid_and_their_own_whatever_the_key_is() {
        let long = "x".repeat(300);
        let mut seen = std::collections::BTreeSet::new();
        for (prefix, parts) in [
            ("migrate", ["run", "migrate"]),
            ("migrate", ["runm", "igrate"]),
            (long.as_str(), ["run", long.as_str()]),
            ("-Ä-", ["", ""]),
            ("9", ["Ä", "\n"]),
            ("-a-", ["a", "b"]),
        ] {
            let name = name(prefix, &parts);
            assert!(name.len() <= 63, "{name}");
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{name}");
            assert!(!name.starts_with('-') && !name.ends_with('-'), "{name}");
            assert!(seen.insert(name));
        }
    }
}
