//! What the demo prints. Colours only where the output is a terminal and `NO_COLOR` is not set.

use std::fmt::Arguments;
use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anstyle::{AnsiColor, Style};

use super::chat::{Chat, Told};
use super::proof::Seen;

const LABEL: Style = Style::new().bold();
const GOOD: Style = AnsiColor::Green.on_default().bold();
const BAD: Style = AnsiColor::Red.on_default().bold();

/// A reader that has seen enough and closed the pipe does not end the gateway.
fn write(text: Arguments<'_>) {
    let mut out = anstream::stdout().lock();
    let _ = out.write_fmt(text);
    let _ = out.flush();
}

pub fn title(engine: &str, pairs: usize, profile: &str) {
    write(format_args!(
        "{LABEL}{pairs} prefill and {pairs} decode workers{LABEL:#}, simulated {engine} as fast as {profile}\n\n"
    ));
}

pub fn line(label: &str, text: &str) {
    write(format_args!("  {LABEL}{label:<9}{LABEL:#} {text}\n"));
}

pub fn sending(chat: &Chat) {
    write(format_args!("\nSending a chat of {} words, streamed ...\n\n", chat.words()));
}

pub fn begin_of_pieces() {
    write(format_args!("  {LABEL}text     {LABEL:#} "));
}

pub fn piece(text: &str) {
    write(format_args!("{text}"));
}

pub fn end_of_pieces() {
    write(format_args!("\n"));
}

pub fn told(told: &Told, seen: &Seen) {
    let (prefill, decode) = (&seen.prefill.stats.tokens, &seen.decode.stats.tokens);
    line("prefill", &format!("{}  computed the prompt's {} tokens", seen.prefill.url, prefill.computed));
    line(
        "decode",
        &format!(
            "{}  got the KV of {} tokens in {} blocks, computed {} itself, wrote {}",
            seen.decode.url, decode.transferred, seen.blocks, decode.computed, decode.generated
        ),
    );
    let (first, total) = (millis(told.to_first_piece), millis(told.total));
    line("time", &format!("first token after {first} ms, all {} after {total} ms", told.pieces));
}

pub fn moved() {
    write(format_args!(
        "\n{GOOD}The KV moved{GOOD:#} from prefill to decode, and every KV block is free again.\n"
    ));
}

pub fn invite(gateway: SocketAddr, model: &str) {
    let json = "-H 'content-type: application/json'";
    write(format_args!(
        "\nTry it; the headers of the answer name the workers:\n\n  \
         curl -iN http://{gateway}/v1/chat/completions {json} -d \
         '{{\"model\": \"{model}\", \"stream\": true, \"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}]}}'\n  \
         curl -i http://{gateway}/v1/completions {json} -d \
         '{{\"model\": \"{model}\", \"prompt\": \"Once upon a time\", \"max_tokens\": 16}}'\n\n\
         http://{gateway}/workers lists the workers. Ctrl-C ends the demo.\n"
    ));
}

pub fn failed(reason: &str) -> ExitCode {
    let _ = writeln!(anstream::stderr().lock(), "{BAD}error:{BAD:#} {reason}");
    ExitCode::FAILURE
}

pub fn millis(time: Duration) -> u128 {
    time.as_millis()
}
