//! What the rules look at: every text file of the repository, read once, Rust files parsed once.
//!
//! A tree is made from the disk or, in tests, from a few literal files; the rules cannot tell which. It does not ask
//! git, so that a source archive without history is checked the same way.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use super::code::Code;

/// Folders that hold nothing of ours.
const SKIPPED: [&str; 7] = ["target", ".git", "node_modules", "__pycache__", ".venv", "corpus", "artifacts"];

/// All files, ordered by path.
pub struct Tree {
    pub files: Vec<File>,
}

pub struct File {
    /// Relative to the root, with `/` between the parts.
    pub path: String,
    pub text: String,
    /// Present for `.rs` files that parse.
    pub code: Option<Code>,
    /// Why a `.rs` file does not parse.
    pub broken: Option<String>,
}

impl File {
    fn new(path: String, text: String) -> File {
        let (code, broken) = match path.ends_with(".rs").then(|| Code::parse(&text, is_test_path(&path))) {
            None => (None, None),
            Some(Ok(code)) => (Some(code), None),
            Some(Err(error)) => (None, Some(error.to_string())),
        };
        File { path, text, code, broken }
    }

    /// Line count as an editor shows it.
    pub fn lines(&self) -> usize {
        self.text.lines().count()
    }
}

impl Tree {
    /// Reads every UTF-8 file below `root`, but for build output and history.
    ///
    /// # Errors
    /// When a folder or a file cannot be read.
    pub fn read(root: &Path) -> io::Result<Tree> {
        let mut found = Vec::new();
        walk(root, "", &mut found)?;
        Ok(Tree::of(found))
    }

    /// A tree of files given as (path, text).
    pub fn of(files: Vec<(String, String)>) -> Tree {
        let mut files: Vec<File> = files.into_iter().map(|(path, text)| File::new(path, text)).collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let tests = test_modules(&files);
        for file in &mut files {
            if let Some(code) = file.code.as_mut().filter(|_| in_test_module(&file.path, &tests)) {
                code.mark_as_test();
            }
        }
        Tree { files }
    }

    pub fn get(&self, path: &str) -> Option<&File> {
        self.files.binary_search_by(|file| file.path.as_str().cmp(path)).ok().map(|i| &self.files[i])
    }

    /// The Rust files that parse and whose path starts with one of `scopes`.
    pub fn code<'a>(&'a self, scopes: &'a [&str]) -> impl Iterator<Item = (&'a File, &'a Code)> {
        self.files
            .iter()
            .filter(|file| under(&file.path, scopes))
            .filter_map(|file| file.code.as_ref().map(|code| (file, code)))
    }
}

/// Whether `path` is one of `scopes` or below one that ends in `/`.
pub fn under(path: &str, scopes: &[&str]) -> bool {
    scopes.iter().any(|scope| path == *scope || (scope.ends_with('/') && path.starts_with(scope)))
}

fn is_test_path(path: &str) -> bool {
    ["/tests/", "/benches/", "/examples/"].iter().any(|part| path.contains(part))
}

/// Paths without extension of the modules declared as `#[cfg(test)] mod name;`.
fn test_modules(files: &[File]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in files {
        let Some(code) = &file.code else { continue };
        let stem = file.path.trim_end_matches(".rs");
        let folder = match stem.rsplit_once('/') {
            Some((folder, "mod" | "lib" | "main")) => folder,
            _ => stem,
        };
        found.extend(code.test_modules.iter().map(|name| format!("{folder}/{name}")));
    }
    found
}

fn in_test_module(path: &str, modules: &BTreeSet<String>) -> bool {
    let stem = path.trim_end_matches(".rs");
    modules.iter().any(|module| {
        stem.strip_prefix(module.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

fn walk(folder: &Path, prefix: &str, found: &mut Vec<(String, String)>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        let kind = entry.file_type()?;
        if kind.is_dir() && !SKIPPED.contains(&name.as_str()) {
            walk(&entry.path(), &path, found)?;
        } else if kind.is_file()
            && name != ".git"
            && let Ok(text) = String::from_utf8(fs::read(entry.path())?)
        {
            found.push((path, text));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_declared_for_tests_is_test_code_in_its_own_file() {
        let tree = Tree::of(vec![
            ("crates/a/src/lib.rs".into(), "//! A.\n#[cfg(test)]\nmod tests;\nmod real;\n".into()),
            ("crates/a/src/real.rs".into(), "//! R.\nfn f() { g::h(); }\n".into()),
            ("crates/a/src/tests.rs".into(), "//! T.\nfn f() { g::h(); }\n".into()),
            ("crates/a/src/tests/deep.rs".into(), "//! T.\nfn f() { g::h(); }\n".into()),
        ]);
        let test_of = |path: &str| tree.get(path).and_then(|f| f.code.as_ref()).map(|c| c.paths[0].test);
        assert_eq!(test_of("crates/a/src/real.rs"), Some(false));
        assert_eq!(test_of("crates/a/src/tests.rs"), Some(true));
        assert_eq!(test_of("crates/a/src/tests/deep.rs"), Some(true));
    }

    #[test]
    fn a_scope_is_a_file_or_a_folder() {
        assert!(under("crates/core/src/lib.rs", &["crates/core/"]));
        assert!(under("crates/core/src/lib.rs", &["crates/core/src/lib.rs"]));
        assert!(!under("crates/core2/src/lib.rs", &["crates/core/"]));
    }
}
