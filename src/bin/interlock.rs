//! The `interlock` binary.

fn main() {}
