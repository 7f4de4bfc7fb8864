//! What the two binaries share: arguments, output, verbs.
