//! The custom resources as kube sees them, and their CustomResourceDefinitions.
