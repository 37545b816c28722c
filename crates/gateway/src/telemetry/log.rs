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
    writers: Vec<WorkerGuard>,
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
    let (subscriber, logging) = build(log)?;
    tracing::subscriber::set_global_default(subscriber)?;
    Ok(logging)
}

fn build(log: &Log) -> Result<(impl Subscriber + Send + Sync + use<>, Logging), LogError> {
    let filter = filter(log)?;
    let mut logging = Logging { drops: Drops::default(), writers: Vec::new() };
    let colours = if io::stdout().is_terminal() { Colours::Usual } else { Colours::Never };
    let mut layers = vec![layer(log.json, colours, logging.sink("stdout", io::stdout()))];
    if let Some(dir) = &log.dir {
        layers.push(layer(log.json, Colours::Never, logging.sink("file", files(dir)?)));
    }
    Ok((tracing_subscriber::registry().with(layers).with(filter), logging))
}

impl Logging {
    fn sink(&mut self, name: &'static str, to: impl io::Write + Send + 'static) -> NonBlocking {
        let queue = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(MAX_QUEUED_LINES);
        let (writer, guard) = queue.thread_name(name).finish(to);
        self.drops.0.push((name, writer.error_counter()));
        self.writers.push(guard);
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

#[derive(Clone, Copy)]
enum Colours {
    /// Unless `NO_COLOR` is set.
    Usual,
    Never,
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_level_is_for_us_and_a_filter_for_everything() {
        let shown = |log: &Log| filter(log).unwrap().to_string();
        let mut log = Log { level: LogLevel::Warn, ..Log::default() };
        assert_eq!(shown(&log), "warn");
        log.level = LogLevel::Debug;
        assert_eq!(shown(&log), "baton_gateway=debug,baton=debug,info");
        log.filter = Some("error,baton::access=info".to_owned());
        assert_eq!(shown(&log), "baton::access=info,error");
        log.filter = Some("baton=loud".to_owned());
        let error = build(&log).err().unwrap().to_string();
        assert!(error.starts_with("--log-filter (RUST_LOG) cannot be read: "), "{error}");
    }

    #[test]
    fn lines_reach_the_file_when_the_writers_are_dropped() {
        let dir = std::env::temp_dir().join(format!("baton-log-{}", std::process::id()));
        let log = Log { json: true, dir: Some(dir.clone()), ..Log::default() };
        let (subscriber, logging) = build(&log).unwrap();
        tracing::subscriber::with_default(
            subscriber,
            || tracing::info!(target: "baton::access", n = 7, "served"),
        );
        assert_eq!(logging.drops().lines().collect::<Vec<_>>(), [("stdout", 0), ("file", 0)]);
        drop(logging);
        let files: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|file| file.unwrap().path()).collect();
        let text = std::fs::read_to_string(&files[0]).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(files.len(), 1);
        assert!(text.contains(r#""message":"served","n":7,"target":"baton::access""#), "{text}");
    }

    #[test]
    fn a_directory_that_is_none_is_an_error_that_names_it() {
        let log = Log { dir: Some("/dev/null/logs".into()), ..Log::default() };
        let error = build(&log).err().unwrap().to_string();
        assert!(error.starts_with("--log-dir /dev/null/logs: "), "{error}");
    }

    /// Stands still until the other end of the channel is dropped.
    struct Stuck(mpsc::Receiver<()>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_sink_that_stands_still_costs_lines_and_holds_nobody_up() {
        let (open, gate) = mpsc::channel();
        let mut logging = Logging { drops: Drops::default(), writers: Vec::new() };
        let mut queue = logging.sink("pipe", Stuck(gate));
        for _ in 0..MAX_QUEUED_LINES + 10 {
            queue.write_all(b"line\n").unwrap();
        }
        let (sink, dropped) = logging.drops().lines().next().unwrap();
        assert_eq!(sink, "pipe");
        // One or none is with the writer.
        assert!((9..=10).contains(&dropped), "{dropped}");
        drop(open);
    }
}
