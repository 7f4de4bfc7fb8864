//! Selection and trigger: which policy governs a Deployment, and whether a template change counts. The same rules stand in CEL in deploy/.
