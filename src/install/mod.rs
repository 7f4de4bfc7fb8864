//! Installation and removal of definitions, admission policies and rights.
