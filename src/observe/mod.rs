//! The only reader: watches, live lists, and the facts of the planner made from them.
