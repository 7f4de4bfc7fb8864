//! The queue that plans one Deployment at a time, and the passes that are not about one Deployment.
