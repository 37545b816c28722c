//! Being told that a file may have changed, by whichever of the names that lead to it.
//!
//! A file that is replaced is another file under the same name, so directories are watched and not the file. Where a link
//! leads to it, the link may be turned instead: Kubernetes writes a new directory for each state of a ConfigMap and turns
//! one link (`..data`) to it. So each link on the way is heeded too.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

/// Most links that are followed, and most names heeded on the way: about what an operating system follows.
const LINKS_MAX: usize = 40;

/// Names by directory.
type Names = BTreeMap<PathBuf, BTreeSet<OsString>>;

/// Watches over one file at a time.
pub struct Watch {
    bell: Arc<Bell>,
    names: Names,
    /// Which directories those were: another one may be there under the name.
    homes: Vec<Option<(u64, u64)>>,
    watcher: Option<RecommendedWatcher>,
    /// It was said already that changes are not told.
    said: bool,
}

#[derive(Debug, Default)]
struct Bell {
    rung: Notify,
    /// A directory is gone, and with it whoever would tell of changes. One that is made anew may well get its number.
    gone: AtomicBool,
}

impl Watch {
    pub fn new() -> Watch {
        let (bell, names, homes) = (Arc::default(), Names::new(), Vec::new());
        Watch { bell, names, homes, watcher: None, said: false }
    }

    /// From now on, changes of what this path leads to are told.
    pub fn follow(&mut self, path: &Path) {
        let names = heeded(path);
        let gone = self.bell.gone.swap(false, Ordering::AcqRel);
        let homes = names.keys().map(|home| identity(std::fs::metadata(home).ok())).collect();
        if self.watcher.is_some() && !gone && (&names, &homes) == (&self.names, &self.homes) {
            return;
        }
        match watcher(&names, self.bell.clone()) {
            Ok(watcher) => (self.watcher, self.said) = (Some(watcher), false),
            Err(error) => {
                if !self.said {
                    let path = path.display();
                    tracing::warn!(%path, %error, "changes of the file are not told: it is read every so often");
                }
                (self.watcher, self.said) = (None, true);
            }
        }
        (self.names, self.homes) = (names, homes);
    }

    /// Something may have changed since the last call.
    pub async fn rung(&self) {
        self.bell.rung.notified().await;
    }

    /// Waits until nothing has changed for `quiet`, at most so many times that long.
    pub async fn settle(&self, quiet: Duration, times: usize) {
        for _ in 0..times {
            if tokio::time::timeout(quiet, self.rung()).await.is_err() {
                return;
            }
        }
    }
}

fn identity(directory: Option<Metadata>) -> Option<(u64, u64)> {
    directory.map(|directory| (directory.dev(), directory.ino()))
}

fn watcher(names: &Names, bell: Arc<Bell>) -> notify::Result<RecommendedWatcher> {
    let heeded = names.clone();
    let mut watcher = notify::recommended_watcher(move |told: notify::Result<Event>| {
        if told.as_ref().is_ok_and(|event| is_gone(event, &heeded)) {
            bell.gone.store(true, Ordering::Release);
        }
        if told.map_or(true, |event| matters(&event, &heeded)) {
            bell.rung.notify_one();
        }
    })?;
    for directory in names.keys() {
        // A link that leads nowhere yet has no directory to watch; where it stands is watched.
        match watcher.watch(directory, RecursiveMode::NonRecursive) {
            Err(error) if !is_missing(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(watcher)
}

fn is_gone(event: &Event, heeded: &Names) -> bool {
    matches!(event.kind, EventKind::Remove(_)) && event.paths.iter().any(|path| heeded.contains_key(path))
}

fn is_missing(error: &notify::Error) -> bool {
    match &error.kind {
        notify::ErrorKind::PathNotFound => true,
        notify::ErrorKind::Io(error) => error.kind() == std::io::ErrorKind::NotFound,
        _ => false,
    }
}

/// Our own reading of the file is told too, and must not lead to the next.
fn matters(event: &Event, heeded: &Names) -> bool {
    let read = matches!(event.kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write));
    let known = |name: &OsStr| heeded.values().any(|names| names.contains(name));
    let named = |path: &PathBuf| heeded.contains_key(path) || path.file_name().is_none_or(known);
    !read && (event.need_rescan() || event.paths.is_empty() || event.paths.iter().any(named))
}

/// The names by which the file is reached, and those of the links on the way to it.
fn heeded(path: &Path) -> Names {
    let mut names = Names::new();
    let mut ways = vec![std::path::absolute(path).unwrap_or_else(|_| path.to_owned())];
    for _ in 0..LINKS_MAX {
        let Some(way) = ways.pop() else { break };
        for prefix in way.ancestors() {
            let (Some(directory), Some(name)) = (prefix.parent(), prefix.file_name()) else { continue };
            let link = std::fs::read_link(prefix).ok();
            if prefix == way || link.is_some() {
                names.entry(directory.to_owned()).or_default().insert(name.to_owned());
            }
            if let (Some(link), Ok(rest)) = (link, way.strip_prefix(prefix)) {
                // An empty rest would leave a slash behind.
                let target = directory.join(link);
                ways.push(if rest.as_os_str().is_empty() { target } else { target.join(rest) });
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn every_link_on_the_way_is_heeded() {
        let home = tempdir("heeded");
        std::fs::create_dir(home.join("..v1")).unwrap();
        std::fs::write(home.join("..v1/workers.json"), "{}").unwrap();
        symlink("..v1", home.join("..data")).unwrap();
        symlink("..data/workers.json", home.join("workers.json")).unwrap();
        let names = heeded(&home.join("workers.json"));
        let of = |directory: &Path| -> Vec<String> {
            names[directory].iter().map(|name| name.to_string_lossy().into_owned()).collect()
        };
        assert_eq!(of(&home), ["..data", "workers.json"]);
        assert_eq!(of(&home.join("..data")), ["workers.json"]);
        assert_eq!(of(&home.join("..v1")), ["workers.json"]);
        assert_eq!(heeded(&home.join("none.json"))[&home], ["none.json".into()].into());
        // A link to itself ends too.
        symlink("round", home.join("round")).unwrap();
        assert!(heeded(&home.join("round")).contains_key(&home));
        std::fs::remove_dir_all(home).unwrap();
    }

    fn tempdir(name: &str) -> PathBuf {
        let home = std::env::temp_dir().canonicalize().unwrap();
        let home = home.join(format!("baton-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&home);
        std::fs::create_dir(&home).unwrap();
        home
    }

    #[tokio::test]
    async fn a_directory_that_is_made_anew_is_watched_anew() {
        let home = tempdir("anew");
        let file = home.join("in/workers.json");
        let told = async |watch: &Watch| tokio::time::timeout(Duration::from_secs(10), watch.rung()).await;
        let mut watch = Watch::new();
        // Often enough that a directory gets the number of the one before it.
        for _ in 0..6 {
            std::fs::create_dir(home.join("in")).unwrap();
            watch.follow(&file);
            std::fs::write(&file, "a").unwrap();
            told(&watch).await.unwrap();
            watch.settle(Duration::from_millis(100), 100).await;
            std::fs::remove_dir_all(home.join("in")).unwrap();
            told(&watch).await.unwrap();
            watch.settle(Duration::from_millis(100), 100).await;
        }
        std::fs::remove_dir_all(home).unwrap();
    }

    #[tokio::test]
    async fn a_change_is_told_and_a_reading_is_not() {
        let home = tempdir("told");
        let file = home.join("workers.json");
        std::fs::write(&file, "a").unwrap();
        let mut watch = Watch::new();
        watch.follow(&file);
        let told = async |watch: &Watch, limit| tokio::time::timeout(limit, watch.rung()).await.is_ok();
        let (long, short) = (Duration::from_secs(10), Duration::from_millis(200));
        for change in 0..3 {
            match change {
                0 => std::fs::write(&file, "b").unwrap(),
                1 => {
                    std::fs::write(home.join("new"), "c").unwrap();
                    std::fs::rename(home.join("new"), &file).unwrap();
                }
                _ => std::fs::remove_file(&file).unwrap(),
            }
            assert!(told(&watch, long).await, "{change}");
            watch.settle(short, 100).await;
            let _ = std::fs::read(&file);
            std::fs::write(home.join("another"), "d").unwrap();
            assert!(!told(&watch, short).await, "{change}");
        }
        std::fs::remove_dir_all(home).unwrap();
    }
}
