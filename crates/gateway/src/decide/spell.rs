//! Long texts written short: `{repeat: x, times: 4000}` stands for 4000 of them, wherever a text may stand, with
//! `then` for what follows. Spelled out once, before anything is read, so that nobody else has to know.

use crate::yaml::{Broken, Node, Tree};

/// Most bytes that the short forms of one scenario may stand for.
pub const SPELLED_MAX_BYTES: usize = 64 << 20;

/// Spells out every short form below this node.
///
/// # Errors
/// A number of times that is none, or more bytes than all of them may stand for.
pub fn spell(node: &mut Node) -> Result<(), Broken> {
    let mut left = SPELLED_MAX_BYTES;
    walk(node, &mut left)
}

fn walk(node: &mut Node, left: &mut usize) -> Result<(), Broken> {
    match &mut node.value {
        Tree::Null | Tree::Scalar { .. } => return Ok(()),
        Tree::List(items) => return items.iter_mut().try_for_each(|item| walk(item, left)),
        Tree::Map(entries) => entries.iter_mut().try_for_each(|(_, value)| walk(value, left))?,
    }
    if let Tree::Map(entries) = &node.value
        && let Some(text) = spelled(entries, node.line, left)?
    {
        node.value = Tree::Scalar { text, plain: false };
    }
    Ok(())
}

/// The text that a mapping stands for. `None`: it is no short form.
fn spelled(entries: &[(String, Node)], line: usize, left: &mut usize) -> Result<Option<String>, Broken> {
    let known = |key: &String| matches!(key.as_str(), "repeat" | "times" | "then");
    let text = |name: &str| {
        let (_, node) = entries.iter().find(|(key, _)| key == name)?;
        let Tree::Scalar { text, .. } = &node.value else { return None };
        Some(text.as_str())
    };
    let (Some(repeat), Some(times)) = (text("repeat"), text("times")) else { return Ok(None) };
    if !entries.iter().all(|(key, _)| known(key)) {
        return Ok(None);
    }
    let Ok(times) = times.parse::<usize>() else {
        return Err((line, format!("times of a text must be a whole number, 0 or more, not {times:?}")));
    };
    let then = text("then").unwrap_or_default();
    let bytes = repeat.len().checked_mul(times).and_then(|all| all.checked_add(then.len()));
    match bytes.and_then(|bytes| left.checked_sub(bytes)) {
        Some(rest) => *left = rest,
        None => {
            let why = format!("texts that are repeated stand for more than {SPELLED_MAX_BYTES} bytes");
            return Err((line, why));
        }
    }
    Ok(Some(repeat.repeat(times) + then))
}
