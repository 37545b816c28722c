//! `baton decide`.

use std::process::ExitCode;

use anstream::eprintln;
use baton_gateway::decide;

/// The exit code of a scenario whose expectations are not met.
const UNMET: u8 = 1;

#[derive(clap::Args)]
pub struct DecideArgs {
    /// Scenarios, YAML (docs/decide.md).
    #[arg(required = true, value_name = "SCENARIO")]
    scenarios: Vec<String>,
    /// Print JSON, one line for each scenario.
    #[arg(long)]
    json: bool,
}

pub fn run(args: DecideArgs) -> ExitCode {
    let mut out = String::new();
    let (mut met, mut bad) = (true, None);
    for path in &args.scenarios {
        let report = match decide::decide_file(path) {
            Ok(report) => report,
            Err(error) => {
                bad = Some(crate::launch::refuse(&error.to_string()));
                continue;
            }
        };
        met &= report.unmet.is_empty();
        if args.json {
            out += &format!("{}\n", report.to_json());
            continue;
        }
        for warning in &report.warnings {
            eprintln!("{path}: warning: {warning}");
        }
        out += &report.to_text();
    }
    match (crate::launch::print(out.as_bytes()), bad, met) {
        (_, Some(refused), _) => refused,
        (printed, None, true) => printed,
        (_, None, false) => ExitCode::from(UNMET),
    }
}
