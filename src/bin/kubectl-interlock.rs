//! The `kubectl-interlock` binary.

fn main() {}
