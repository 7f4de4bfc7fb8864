//! The only writer: one function per effect.
