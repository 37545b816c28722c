//! A file of workers in a directory of its own, which goes with it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

pub struct List(PathBuf);

impl List {
    /// Nothing is written yet.
    pub fn new() -> List {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let home = std::env::temp_dir().join(format!("baton-list-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&home).unwrap();
        List(home)
    }

    pub fn home(&self) -> &Path {
        &self.0
    }

    pub fn path(&self) -> PathBuf {
        self.0.join("workers")
    }

    /// Another file takes its place, as careful writers do it.
    pub fn write(&self, text: &str) {
        let new = self.0.join("workers.new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.path()).unwrap();
    }

    /// The file itself is written, as careless ones do.
    pub fn overwrite(&self, text: &str) {
        std::fs::write(self.path(), text).unwrap();
    }
}

impl Drop for List {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
