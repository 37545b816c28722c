//! `--discovery-file`: the file is read when it changes, and every so often in case that was missed.
//!
//! What counts is the last text that could be read: a file that is broken, half written or gone changes nothing. Who is
//! told of a change may be told late, twice or not at all, depending on the file system, so an event means no more than
//! "look", and the list is compared with the workers there are at each look, changed or not.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::links::Watch;
use super::list::{self, Bad, Listed, PROVIDER};
use super::pod::Rules;
use crate::config::{Config, DiscoveryProvider};
use crate::registry::{Registry, Rolled, Spec};
use crate::telemetry::Telemetry;

/// Largest file that is read: some thousand pods with all that a cluster says of them.
pub const FILE_MAX_BYTES: u64 = 32 << 20;
/// SMG 1.13's default.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// A file that changes once more within this time is still being written.
const SETTLE: Duration = Duration::from_millis(50);
/// And is read all the same after so many times.
const SETTLES_MAX: usize = 20;

/// Why the file brought no list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    pub kind: TroubleKind,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TroubleKind {
    Missing,
    Unreadable,
    TooLarge,
    Malformed,
    Invalid,
}

impl TroubleKind {
    pub const ALL: [TroubleKind; 5] = [
        TroubleKind::Missing,
        TroubleKind::Unreadable,
        TroubleKind::TooLarge,
        TroubleKind::Malformed,
        TroubleKind::Invalid,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            TroubleKind::Missing => "missing",
            TroubleKind::Unreadable => "unreadable",
            TroubleKind::TooLarge => "too_large",
            TroubleKind::Malformed => "malformed",
            TroubleKind::Invalid => "invalid",
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Bad> for Trouble {
    fn from(bad: Bad) -> Trouble {
        match bad {
            Bad::Malformed(text) => Trouble { kind: TroubleKind::Malformed, text },
            Bad::Invalid(text) => Trouble { kind: TroubleKind::Invalid, text },
        }
    }
}

/// A file of workers, and what it said last.
pub struct Discovery {
    path: PathBuf,
    interval: Duration,
    rules: Arc<Rules>,
    /// Of the text that was read last, whatever it was worth.
    seen: Option<u64>,
    /// What it said when it could be read last.
    list: Vec<Spec>,
    /// There is such a list.
    listed: bool,
    trouble: Option<Trouble>,
    refused: BTreeSet<String>,
}

/// What a look at the file brought. `None`: what the last look brought.
type Look = Option<Result<Listed, Trouble>>;

impl Discovery {
    /// `None`: no file is given.
    ///
    /// # Errors
    /// What is wrong with the file. One that is not there may come yet, and is waited for.
    pub fn open(config: &Config) -> Result<Option<Discovery>, String> {
        let wanted = config.discovery.from() == Some(DiscoveryProvider::File);
        let Some(path) = config.discovery.file.clone().filter(|_| wanted) else { return Ok(None) };
        let mut discovery = Discovery {
            path,
            interval: config.discovery.check_interval.unwrap_or(CHECK_INTERVAL),
            rules: Arc::new(Rules::of(config)),
            seen: None,
            list: Vec::new(),
            listed: false,
            trouble: None,
            refused: BTreeSet::new(),
        };
        let (look, seen) = look(&discovery.path, &discovery.rules, None);
        discovery.seen = seen;
        discovery.note(look);
        match &discovery.trouble {
            Some(trouble) if trouble.kind != TroubleKind::Missing => {
                Err(format!("--discovery-file {}: {trouble}", discovery.path.display()))
            }
            _ => Ok(Some(discovery)),
        }
    }

    /// There is no such file yet.
    pub fn waits(&self) -> bool {
        !self.listed
    }

    /// Brings in the workers of the file, and those of all its later texts until the task is aborted.
    pub fn begin(mut self, registry: Registry, telemetry: Arc<Telemetry>) -> JoinHandle<()> {
        self.roll(&registry, &telemetry);
        tokio::spawn(async move {
            let mut watch = Watch::new();
            loop {
                // Watched first and read then: what changes in between is seen or told.
                watch.follow(&self.path);
                self.look(&registry, &telemetry).await;
                if tokio::time::timeout(self.interval, watch.rung()).await.is_ok() {
                    watch.settle(SETTLE, SETTLES_MAX).await;
                }
            }
        })
    }

    async fn look(&mut self, registry: &Registry, telemetry: &Arc<Telemetry>) {
        let (path, rules, seen) = (self.path.clone(), self.rules.clone(), self.seen);
        let read = tokio::task::spawn_blocking(move || look(&path, &rules, seen)).await;
        // The runtime ends.
        let Ok((look, seen)) = read else { return };
        self.seen = seen;
        self.note(look);
        self.roll(registry, telemetry);
    }

    /// Keeps what was read, and says what is new of it.
    fn note(&mut self, look: Look) {
        let file = self.path.display();
        match look {
            None => {}
            Some(Ok(listed)) => {
                for odd in &listed.odd {
                    tracing::warn!(%file, "{odd}");
                }
                for (pod, why) in &listed.passed_over {
                    tracing::debug!(%file, pod, "passed over: {why}");
                }
                let (workers, passed_over) = (listed.specs.len(), listed.passed_over.len());
                tracing::info!(%file, workers, passed_over, "the discovery file was read");
                (self.list, self.listed, self.trouble) = (listed.specs, true, None);
            }
            Some(Err(trouble)) => {
                let (kept, known) = (self.list.len(), self.trouble.as_ref() == Some(&trouble));
                match trouble.kind {
                    _ if known => {}
                    TroubleKind::Missing if !self.listed => {
                        tracing::warn!(%file, "the discovery file is not there; it is waited for");
                    }
                    _ => {
                        tracing::warn!(%file, kept, "the discovery file brings no list, the last one stays: {trouble}")
                    }
                }
                self.trouble = Some(trouble);
            }
        }
    }

    /// What could be read last is made so.
    fn roll(&mut self, registry: &Registry, telemetry: &Telemetry) {
        let background = telemetry.background();
        background.listed(
            PROVIDER,
            self.trouble.as_ref().map(|t| t.kind.as_str()),
            registry.clock().unix_seconds(),
        );
        if !self.listed {
            return;
        }
        let began = registry.clock().now();
        let Ok(rolled) = registry.roll(PROVIDER, &self.list) else { return };
        background.rolled(PROVIDER, &rolled, registry.clock().now().since(began));
        self.tell(&rolled);
    }

    fn tell(&mut self, rolled: &Rolled) {
        let Rolled { joined, changed, left, refused } = rolled;
        if !(joined.is_empty() && changed.is_empty() && left.is_empty()) {
            let file = self.path.display();
            tracing::info!(%file, ?joined, ?changed, ?left, "workers of the discovery file");
        }
        let refused: BTreeSet<String> = refused.iter().map(|(id, why)| format!("{id}: {why}")).collect();
        for new in refused.difference(&self.refused) {
            tracing::warn!(file = %self.path.display(), "a worker of the discovery file cannot join: {new}");
        }
        self.refused = refused;
    }
}

/// Reads the file, unless its text is the one with this hash. Gives the hash of its text too.
fn look(path: &Path, rules: &Rules, seen: Option<u64>) -> (Look, Option<u64>) {
    let text = match text(path) {
        Ok(text) => text,
        Err(trouble) => return (Some(Err(trouble)), None),
    };
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let hash = Some(hasher.finish());
    if hash == seen {
        return (None, hash);
    }
    (Some(list::read(&text, rules).map_err(Trouble::from)), hash)
}

fn text(path: &Path) -> Result<String, Trouble> {
    let trouble = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound => Trouble { kind: TroubleKind::Missing, text: "it is not there".to_owned() },
        _ => Trouble { kind: TroubleKind::Unreadable, text: format!("it cannot be read: {e}") },
    };
    // A pipe would be waited for without end.
    if !std::fs::metadata(path).map_err(trouble)?.is_file() {
        return Err(Trouble { kind: TroubleKind::Unreadable, text: "it is no file".to_owned() });
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(trouble)?;
    file.take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes).map_err(trouble)?;
    if bytes.len() as u64 > FILE_MAX_BYTES {
        let text = format!("it is larger than {FILE_MAX_BYTES} bytes");
        return Err(Trouble { kind: TroubleKind::TooLarge, text });
    }
    let no_text = |_| Trouble { kind: TroubleKind::Malformed, text: "it is not UTF-8".to_owned() };
    String::from_utf8(bytes).map_err(no_text)
}
