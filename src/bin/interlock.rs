//! The controller and its installation.

use std::process::ExitCode;

use clap::Parser as _;
use interlock::cli::server::Interlock;

// Two threads do: more would only cost memory on a large machine.
#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    match Interlock::parse().run().await {
        Ok(exit) => exit.into(),
        Err(failure) => {
            eprintln!("interlock: {failure}");
            failure.exit.into()
        }
    }
}
