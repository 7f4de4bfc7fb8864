//! The plugin `kubectl interlock`.

use std::process::ExitCode;

use clap::Parser as _;
use interlock::cli::plugin::Plugin;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match Plugin::parse().run().await {
        Ok(exit) => exit.into(),
        Err(failure) => {
            eprintln!("error: {failure}");
            failure.exit.into()
        }
    }
}
