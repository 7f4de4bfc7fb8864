//! What the two binaries share: arguments, output, verbs.

pub mod admin;
pub mod connect;
pub mod controller;
pub mod exit;
pub mod output;
pub mod plugin;
pub mod read;
pub mod server;
pub mod target;
pub mod verbs;

/// 80 random bits in hexadecimal digits, for names that must not repeat.
pub fn random_id() -> String {
    let mut bytes = [0; 10];
    if getrandom::fill(&mut bytes).is_err() {
        // Without a random source the time still tells processes apart.
        let nanos = jiff::Timestamp::now().as_nanosecond().to_le_bytes();
        bytes.iter_mut().zip(nanos).for_each(|(to, from)| *to = from);
    }
    bytes.iter().fold(String::with_capacity(20), |text, byte| text + &format!("{byte:02x}"))
}
