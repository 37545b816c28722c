//! Writes docs/flags.md.
pub fn flags() -> String {
    String::new()
}
