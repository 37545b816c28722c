//! Where log lines go: standard output, and files if a directory is set.
//!
//! Lines are written by a thread of their own through a bounded queue ([`MAX_QUEUED_LINES`]): a terminal, a pipe or a disk
//! that stands still must not hold requests up, so lines that find the queue full are dropped and counted
//! (`smg_log_dropped_lines`). Files change daily; [`MAX_LOG_FILES`] of them are kept.
//!
//! `NO_COLOR` and a standard output that is no terminal turn colours off.

use std::io::{self, IsTerminal};
use std::path::Path;

use tracing::Subscriber;
use tracing::subscriber::SetGlobalDefaultError;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_appender::rolling::{InitError, RollingFileAppender, Rotation};
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::config::{Log, LogLevel};

/// Lines that wait for one sink.
pub const MAX_QUEUED_LINES: usize = 16_384;

/// Daily files kept in the log directory, today's included.
pub const MAX_LOG_FILES: usize = 14;

/// Why logging could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("--log-filter (RUST_LOG) cannot be read: {0}")]
    Filter(#[from] ParseError),
    #[error("--log-dir {dir}: {cause}")]
    Directory { dir: String, cause: InitError },
    #[error("logging was already started: {0}")]
    Started(#[from] SetGlobalDefaultError),
}

/// Keeps the writers alive. Dropping it writes what is queued, so drop it last.
#[must_use = "lines still queued are lost when this is dropped early"]
pub struct Logging {
    drops: Drops,
    _writers: Vec<WorkerGuard>,
}

impl Logging {
    pub fn drops(&self) -> Drops {
        self.drops.clone()
    }
}

/// Counts of lines that were dropped, one for each sink.
#[derive(Clone, Debug, Default)]
pub struct Drops(Vec<(&'static str, ErrorCounter)>);

impl Drops {
    /// One sink that never drops a line.
    #[cfg(test)]
    pub fn idle(sink: &'static str) -> Drops {
        let (writer, _) = tracing_appender::non_blocking(io::sink());
        Drops(vec![(sink, writer.error_counter())])
    }

    pub fn lines(&self) -> impl Iterator<Item = (&'static str, usize)> {
        self.0.iter().map(|(sink, counter)| (*sink, counter.dropped_lines()))
    }
}

/// Starts logging for the process.
///
/// # Errors
/// A filter that cannot be read, a directory that cannot be written, logging that was started before.
pub fn init(log: &Log) -> Result<Logging, LogError> {
    let filter = filter(log)?;
    let mut logging = Logging { drops: Drops::default(), _writers: Vec::new() };
    let stdout = logging.sink("stdout", io::stdout());
    let colours = Colours::of_stdout();
    let mut layers = vec![layer(log.json, colours, stdout)];
    if let Some(dir) = &log.dir {
        let file = logging.sink("file", files(dir)?);
        layers.push(layer(log.json, Colours::Never, file));
    }
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layers).with(filter))?;
    Ok(logging)
}

impl Logging {
    fn sink(&mut self, name: &'static str, to: impl io::Write + Send + 'static) -> NonBlocking {
        let queue = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(MAX_QUEUED_LINES);
        let (writer, guard) = queue.thread_name(name).finish(to);
        self.drops.0.push((name, writer.error_counter()));
        self._writers.push(guard);
        writer
    }
}

fn files(dir: &Path) -> Result<RollingFileAppender, LogError> {
    RollingFileAppender::builder()
        .rotation(Rotation::DAILY)
        .filename_prefix("baton")
        .filename_suffix("log")
        .max_log_files(MAX_LOG_FILES)
        .build(dir)
        .map_err(|cause| LogError::Directory { dir: dir.display().to_string(), cause })
}

/// The filter as given, or the level for us and a quieter one for the libraries below us.
fn filter(log: &Log) -> Result<EnvFilter, ParseError> {
    match &log.filter {
        Some(filter) => EnvFilter::try_new(filter),
        None => EnvFilter::try_new(from_level(log.level)),
    }
}

fn from_level(level: LogLevel) -> String {
    let word = level.as_str();
    match level {
        // hyper tells each connection and frame at these levels, which nobody who debugs a fleet wants to read.
        LogLevel::Debug | LogLevel::Trace => format!("info,baton={word},baton_gateway={word}"),
        _ => word.to_owned(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Colours {
    /// Unless `NO_COLOR` is set.
    Usual,
    Never,
}

impl Colours {
    fn of_stdout() -> Colours {
        if io::stdout().is_terminal() { Colours::Usual } else { Colours::Never }
    }
}

type AnyLayer = Box<dyn Layer<Registry> + Send + Sync>;

fn layer<W>(json: bool, colours: Colours, writer: W) -> AnyLayer
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
    Registry: Subscriber,
{
    let plain = tracing_subscriber::fmt::layer().with_writer(writer);
    match (json, colours) {
        (true, _) => Box::new(plain.json().flatten_event(true).with_current_span(true).with_span_list(false)),
        // The library itself looks at NO_COLOR; saying `true` here would overrule it.
        (false, Colours::Usual) => Box::new(plain),
        (false, Colours::Never) => Box::new(plain.with_ansi(false)),
    }
}
