//! Chores of this repository, run as `cargo xtask <chore>`.
//!
//! The only chore so far is `tidy`: the rules of STYLE.md and ARCHITECTURE.md as code. It also runs as a test, so
//! `cargo test --workspace` fails where `cargo xtask tidy` does.

mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask tidy [--bless] [--rules]

  tidy           check every rule, print what is wrong and how to mend it
  tidy --bless   the same, after rewriting the size ratchet to today's sizes
  tidy --rules   list the rules and the reason of each";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["tidy"] => tidy::run(&root(), tidy::Mode::Check),
        ["tidy", "--bless"] => tidy::run(&root(), tidy::Mode::Bless),
        ["tidy", "--rules"] => tidy::list(),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// The repository's root: the folder above this crate. Cargo says where that is, unless the program is run without it.
fn root() -> PathBuf {
    let manifest =
        std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let here = Path::new(&manifest);
    here.parent().unwrap_or(here).to_path_buf()
}
