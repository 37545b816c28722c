//! One Rust file, reduced to what the rules ask about.
//!
//! Rules look for mentions of paths (`std::env::var`), method calls, macro calls, keywords and literals. They are taken
//! from the token stream rather than from the syntax tree, because half of asynchronous code stands inside macros such as
//! `select!`, which a syntax tree leaves unparsed. Paths are resolved through the file's own imports, so that
//! `use std::env as e; e::var("X")` is still a mention of `std::env::var`. Re-exports through other modules are not
//! followed, and comments and doc comments are no code.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

pub struct Code {
    /// Every path of one or more segments, and every import.
    pub paths: Vec<Mention>,
    /// The flat token sequence; literals as written.
    pub tokens: Vec<Mention>,
    pub functions: Vec<Function>,
    pub types: Vec<Mention>,
    /// Names `x` of `#[cfg(test)] mod x;`.
    pub test_modules: Vec<String>,
    pub ast: syn::File,
    whole_is_test: bool,
}

/// A piece of source, where it stands, and whether only tests compile it.
#[derive(Clone, Debug, PartialEq)]
pub struct Mention {
    pub text: String,
    pub line: usize,
    pub test: bool,
}

pub struct Function {
    /// `name`, or `Type::name` for a method.
    pub name: String,
    pub line: usize,
    /// From the signature to the closing brace.
    pub lines: usize,
    /// `self` counts, as clippy counts it.
    pub arguments: usize,
    pub test: bool,
}

impl Code {
    /// # Errors
    /// The parser's own, when the text is not Rust.
    pub fn parse(text: &str, test: bool) -> syn::Result<Code> {
        let ast = syn::parse_file(text)?;
        let mut outline = Outline::default();
        outline.visit_file(&ast);
        let test = test || ast.attrs.iter().any(is_test_attribute);
        let stream: TokenStream = text.parse()?;
        let mut tokens = Vec::new();
        flatten(stream, &mut tokens);
        for token in &mut tokens {
            token.test = outline.test_spans.iter().any(|(from, to)| (*from..=*to).contains(&token.line));
        }
        let mut code = Code {
            paths: Vec::new(),
            tokens,
            functions: outline.functions,
            types: outline.types,
            test_modules: outline.test_modules,
            ast,
            whole_is_test: false,
        };
        code.paths = code.resolve(&outline.imports);
        if test {
            code.mark_as_test();
        }
        Ok(code)
    }

    /// Declares the whole file to be test code.
    pub fn mark_as_test(&mut self) {
        let marks = self.paths.iter_mut().chain(&mut self.tokens).chain(&mut self.types);
        marks.for_each(|mention| mention.test = true);
        self.functions.iter_mut().for_each(|function| function.test = true);
        self.whole_is_test = true;
    }

    pub fn is_test(&self) -> bool {
        self.whole_is_test
    }

    /// Every string literal with its quotes removed; escapes stay as written.
    pub fn strings(&self) -> impl Iterator<Item = Mention> {
        self.tokens.iter().filter_map(|token| {
            let inner = token.text.strip_prefix('"')?.strip_suffix('"')?;
            Some(Mention { text: inner.to_owned(), ..token.clone() })
        })
    }

    fn resolve(&self, imports: &[(String, String, usize)]) -> Vec<Mention> {
        let names: BTreeMap<&str, &str> =
            imports.iter().map(|(name, path, _)| (name.as_str(), path.as_str())).collect();
        let mut found: Vec<Mention> = imports
            .iter()
            .map(|(_, path, line)| Mention { text: path.clone(), line: *line, test: self.test_at(*line) })
            .collect();
        let mut at = 0;
        while at < self.tokens.len() {
            let (path, next) = path_at(&self.tokens, at);
            if let Some(path) = path {
                let (first, rest) =
                    path.split_once("::").map_or((path.as_str(), None), |(f, r)| (f, Some(r)));
                let first = names.get(first).copied().unwrap_or(first);
                let text = rest.map_or_else(|| first.to_owned(), |rest| format!("{first}::{rest}"));
                found.push(Mention { text, ..self.tokens[at].clone() });
            }
            at = next;
        }
        found
    }

    fn test_at(&self, line: usize) -> bool {
        self.tokens.iter().any(|token| token.line == line && token.test)
    }
}

/// The path that starts at token `at`, if one does, and the index after it.
fn path_at(tokens: &[Mention], at: usize) -> (Option<String>, usize) {
    if !is_word(&tokens[at].text) {
        return (None, at + 1);
    }
    let mut path = tokens[at].text.clone();
    let mut next = at + 1;
    while next + 1 < tokens.len() && tokens[next].text == "::" && is_word(&tokens[next + 1].text) {
        path.push_str("::");
        path.push_str(&tokens[next + 1].text);
        next += 2;
    }
    let is_field_or_method = at > 0 && tokens[at - 1].text == ".";
    (Some(path).filter(|_| !is_field_or_method), next)
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Appends the tokens of `stream` in reading order. `::` and the two-character comparisons become one token; doc comments
/// are dropped.
fn flatten(stream: TokenStream, out: &mut Vec<Mention>) {
    let mut joined = false;
    for token in stream {
        let line = token.span().start().line;
        let mut push = |text: String, line: usize| out.push(Mention { text, line, test: false });
        match token {
            TokenTree::Ident(ident) => push(ident.to_string(), line),
            TokenTree::Literal(literal) => push(literal.to_string(), line),
            TokenTree::Punct(punct) => {
                let glue = joined && out.last().is_some_and(|last| is_pair(&last.text, punct.as_char()));
                match out.last_mut().filter(|_| glue) {
                    Some(last) => last.text.push(punct.as_char()),
                    None => out.push(Mention { text: punct.as_char().to_string(), line, test: false }),
                }
                joined = punct.spacing() == proc_macro2::Spacing::Joint;
                continue;
            }
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                if is_doc(&group) {
                    continue;
                }
                push(open.to_owned(), line);
                flatten(group.stream(), out);
                out.push(Mention {
                    text: close.to_owned(),
                    line: group.span_close().start().line,
                    test: false,
                });
            }
        }
        joined = false;
    }
}

fn is_pair(first: &str, second: char) -> bool {
    matches!(
        (first, second),
        (":", ':') | ("=" | "!" | "<" | ">" | ".", '=') | ("=", '>') | (".", '.') | ("..", '=')
    )
}

/// Whether this is the `[doc = "..."]` that a doc comment turns into.
fn is_doc(group: &proc_macro2::Group) -> bool {
    let mut inner = group.stream().into_iter();
    group.delimiter() == Delimiter::Bracket
        && matches!(inner.next(), Some(TokenTree::Ident(ident)) if ident == "doc")
        && matches!(inner.next(), Some(TokenTree::Punct(punct)) if punct.as_char() == '=')
}

fn is_test_attribute(attribute: &syn::Attribute) -> bool {
    let last = attribute.path().segments.last().map(|s| s.ident.to_string()).unwrap_or_default();
    match &attribute.meta {
        syn::Meta::List(list) if last == "cfg" => {
            let inside = list.tokens.to_string();
            inside == "test" || inside.starts_with("all (test") || inside.starts_with("all(test")
        }
        _ => last == "test",
    }
}

/// Collects functions, types, imports and the line ranges that only tests compile.
#[derive(Default)]
struct Outline {
    functions: Vec<Function>,
    types: Vec<Mention>,
    /// (name in this file, full path, line)
    imports: Vec<(String, String, usize)>,
    test_modules: Vec<String>,
    test_spans: Vec<(usize, usize)>,
    owner: Option<String>,
    depth_in_tests: usize,
}

impl Outline {
    fn function(&mut self, signature: &syn::Signature, whole: proc_macro2::Span) {
        let name = match &self.owner {
            Some(owner) => format!("{owner}::{}", signature.ident),
            None => signature.ident.to_string(),
        };
        let line = signature.span().start().line;
        self.functions.push(Function {
            name,
            line,
            lines: whole.end().line + 1 - line,
            arguments: signature.inputs.len(),
            test: self.depth_in_tests > 0,
        });
    }

    fn type_name(&mut self, ident: &syn::Ident) {
        let test = self.depth_in_tests > 0;
        self.types.push(Mention { text: ident.to_string(), line: ident.span().start().line, test });
    }

    /// Visits with `visit`, inside a test span if `attributes` say so.
    fn scoped(
        &mut self,
        attributes: &[syn::Attribute],
        span: proc_macro2::Span,
        visit: impl FnOnce(&mut Outline),
    ) {
        let test = attributes.iter().any(is_test_attribute);
        if test {
            self.test_spans.push((span.start().line, span.end().line));
            self.depth_in_tests += 1;
        }
        visit(self);
        if test {
            self.depth_in_tests -= 1;
        }
    }
}

impl<'ast> Visit<'ast> for Outline {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes: &[syn::Attribute] = match item {
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            syn::Item::Struct(item) => &item.attrs,
            syn::Item::Enum(item) => &item.attrs,
            syn::Item::Macro(item) => &item.attrs,
            syn::Item::Const(item) => &item.attrs,
            syn::Item::Static(item) => &item.attrs,
            _ => &[],
        };
        self.scoped(attributes, item.span(), |outline| {
            match item {
                syn::Item::Struct(item) => outline.type_name(&item.ident),
                syn::Item::Enum(item) => outline.type_name(&item.ident),
                syn::Item::Trait(item) => outline.type_name(&item.ident),
                syn::Item::Type(item) => outline.type_name(&item.ident),
                syn::Item::Union(item) => outline.type_name(&item.ident),
                syn::Item::Mod(item)
                    if item.content.is_none() && item.attrs.iter().any(is_test_attribute) =>
                {
                    outline.test_modules.push(item.ident.to_string());
                }
                _ => {}
            }
            visit::visit_item(outline, item);
        });
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        let owner = self.owner.take();
        self.function(&item.sig, item.span());
        visit::visit_item_fn(self, item);
        self.owner = owner;
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let owner = match item.self_ty.as_ref() {
            syn::Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
            _ => None,
        };
        let before = std::mem::replace(&mut self.owner, owner);
        visit::visit_item_impl(self, item);
        self.owner = before;
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.scoped(&item.attrs, item.span(), |outline| {
            outline.function(&item.sig, item.span());
            visit::visit_impl_item_fn(outline, item);
        });
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        let before = self.owner.replace(item.ident.to_string());
        visit::visit_item_trait(self, item);
        self.owner = before;
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.function(&item.sig, item.span());
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        import(&item.tree, "", &mut self.imports);
    }
}

/// Flattens a `use` tree to (name, full path, line).
fn import(tree: &syn::UseTree, prefix: &str, out: &mut Vec<(String, String, usize)>) {
    let join = |name: &str| if prefix.is_empty() { name.to_owned() } else { format!("{prefix}::{name}") };
    match tree {
        syn::UseTree::Path(path) => import(&path.tree, &join(&path.ident.to_string()), out),
        syn::UseTree::Group(group) => group.items.iter().for_each(|item| import(item, prefix, out)),
        syn::UseTree::Glob(glob) => out.push(("*".to_owned(), join("*"), glob.span().start().line)),
        syn::UseTree::Rename(rename) => {
            let line = rename.ident.span().start().line;
            out.push((rename.rename.to_string(), join(&rename.ident.to_string()), line));
        }
        syn::UseTree::Name(name) => {
            let ident = name.ident.to_string();
            let line = name.ident.span().start().line;
            match prefix.rsplit("::").next().filter(|_| ident == "self") {
                Some(last) => out.push((last.to_owned(), prefix.to_owned(), line)),
                None => out.push((ident.clone(), join(&ident), line)),
            }
        }
        #[allow(unreachable_patterns, reason = "the tree may grow kinds")]
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        Code::parse(text, false).unwrap().paths.into_iter().map(|mention| mention.text).collect()
    }

    #[test]
    fn a_path_is_resolved_through_imports_renames_and_groups() {
        let found = paths(
            "use std::{env as e, time::{self, Instant}}; fn f() { e::var(\"X\"); time::Instant::now(); Instant::now(); }",
        );
        assert!(found.contains(&"std::env::var".to_owned()));
        assert_eq!(found.iter().filter(|p| *p == "std::time::Instant::now").count(), 2);
    }

    #[test]
    fn a_path_inside_a_macro_is_seen_and_one_in_a_comment_is_not() {
        assert!(paths("fn f() { select! { _ = a::b() => {} } }").contains(&"a::b".to_owned()));
        assert!(!paths("/// a::b\nfn f() { /* a::b */ }").iter().any(|p| p.contains("a::b")));
    }

    #[test]
    fn test_code_is_told_from_production_code() {
        let code = Code::parse(
            "fn a() { x::a(); }\n#[cfg(test)]\nmod tests {\n use super::*;\n #[test]\n fn b() { x::b(); }\n}\n",
            false,
        )
        .unwrap();
        let test = |text: &str| code.paths.iter().find(|p| p.text == text).unwrap().test;
        assert!(!test("x::a"));
        assert!(test("x::b"));
        assert!(code.functions.iter().find(|f| f.name == "b").unwrap().test);
    }

    #[test]
    fn functions_are_measured() {
        let code = Code::parse("struct S;\nimpl S {\n fn f(&self, a: u8) {\n  a;\n }\n}\n", false).unwrap();
        let f = &code.functions[0];
        assert_eq!((f.name.as_str(), f.line, f.lines, f.arguments), ("S::f", 3, 3, 2));
    }

    #[test]
    fn strings_are_listed_without_quotes() {
        let code = Code::parse("const A: &str = \"x_y\";", false).unwrap();
        assert_eq!(code.strings().next().unwrap().text, "x_y");
    }
}
