//! A Kubernetes label selector: which workers, by their labels?
//!
//! The whole grammar that Kubernetes reads from a text (`labels.Parse` of apimachinery 0.34): terms joined by commas, all
//! of which must hold. `key=value`, `key==value`, `key!=value`, `key in (a,b)`, `key notin (a,b)`, `key`, `!key`,
//! `key>1`, `key<1`. A label that is not there is unequal to every value and in no set, so `!=` and `notin` hold; an empty
//! text selects everything. Keys and values are checked as Kubernetes checks them, since one that no label can have is a
//! mistake and not a selection of nobody.
//!
//! The text is a client's: its length, terms and values are bounded.

use std::collections::BTreeMap;
use std::fmt;

/// Longest selector that is read, in bytes.
pub const SELECTOR_MAX_BYTES: usize = 4096;
/// Most terms of one selector.
pub const TERMS_MAX: usize = 64;
/// Most values of all its terms together.
pub const VALUES_MAX: usize = 256;

/// Longest parts of a key, and longest value, in bytes (Kubernetes).
const PREFIX_MAX: usize = 253;
const NAME_MAX: usize = 63;

/// What is read of a text that is no selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSelector(String);

impl fmt::Display for BadSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a term asks of its label.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    Exists,
    Absent,
    /// Values in order.
    In(Vec<String>),
    NotIn(Vec<String>),
    Above(i64),
    Below(i64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    key: String,
    test: Test,
}

/// Terms that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    terms: Vec<Term>,
}

impl Selector {
    /// # Errors
    /// [`BadSelector`] in words, with what was found where something else was due.
    pub fn parse(text: &str) -> Result<Selector, BadSelector> {
        if text.len() > SELECTOR_MAX_BYTES {
            return Err(BadSelector(format!("it is longer than {SELECTOR_MAX_BYTES} bytes")));
        }
        let mut reader = Reader { rest: text, values: 0 };
        let mut terms = Vec::new();
        if reader.peek() == Token::End {
            return Ok(Selector { terms });
        }
        loop {
            if terms.len() == TERMS_MAX {
                return Err(BadSelector(format!("it has more than {TERMS_MAX} terms")));
            }
            terms.push(reader.term()?);
            match reader.next() {
                Token::End => return Ok(Selector { terms }),
                Token::Comma => {}
                found => return Err(due(found, "a comma or the end")),
            }
        }
    }

    /// Does it select everything?
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.terms.iter().all(|term| term.holds(labels.get(&term.key).map(String::as_str)))
    }
}

impl Term {
    fn holds(&self, label: Option<&str>) -> bool {
        let among = |values: &[String]| {
            label.is_some_and(|label| values.binary_search_by(|value| value.as_str().cmp(label)).is_ok())
        };
        let number = || label.and_then(|label| label.parse::<i64>().ok());
        match &self.test {
            Test::Exists => label.is_some(),
            Test::Absent => label.is_none(),
            Test::In(values) => among(values),
            Test::NotIn(values) => !among(values),
            Test::Above(bound) => number().is_some_and(|n| n > *bound),
            Test::Below(bound) => number().is_some_and(|n| n < *bound),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Term { key, test }) in self.terms.iter().enumerate() {
            f.write_str(if at > 0 { "," } else { "" })?;
            match test {
                Test::Exists => write!(f, "{key}"),
                Test::Absent => write!(f, "!{key}"),
                Test::In(values) if values.len() == 1 => write!(f, "{key}={}", values.concat()),
                Test::NotIn(values) if values.len() == 1 => write!(f, "{key}!={}", values.concat()),
                Test::In(values) => write!(f, "{key} in ({})", values.join(",")),
                Test::NotIn(values) => write!(f, "{key} notin ({})", values.join(",")),
                Test::Above(bound) => write!(f, "{key}>{bound}"),
                Test::Below(bound) => write!(f, "{key}<{bound}"),
            }?;
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Comma,
    Open,
    Close,
    Not,
    Equal,
    Unequal,
    Above,
    Below,
    End,
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Token::Word(word) => return write!(f, "{word:?}"),
            Token::Comma => "a comma",
            Token::Open => "\"(\"",
            Token::Close => "\")\"",
            Token::Not => "\"!\"",
            Token::Equal => "\"=\"",
            Token::Unequal => "\"!=\"",
            Token::Above => "\">\"",
            Token::Below => "\"<\"",
            Token::End => "the end",
        })
    }
}

fn due(found: Token<'_>, what: &str) -> BadSelector {
    BadSelector(format!("found {found} where {what} was due"))
}

/// The text that is left.
struct Reader<'a> {
    rest: &'a str,
    values: usize,
}

const BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];

impl<'a> Reader<'a> {
    fn peek(&self) -> Token<'a> {
        self.look().0
    }

    fn next(&mut self) -> Token<'a> {
        let (token, rest) = self.look();
        self.rest = rest;
        token
    }

    /// The next token, and what follows it.
    fn look(&self) -> (Token<'a>, &'a str) {
        let text = self.rest.trim_start_matches(BLANKS);
        for (sign, token) in [
            (",", Token::Comma),
            ("(", Token::Open),
            (")", Token::Close),
            ("!=", Token::Unequal),
            ("!", Token::Not),
            ("==", Token::Equal),
            ("=", Token::Equal),
            (">", Token::Above),
            ("<", Token::Below),
        ] {
            if let Some(rest) = text.strip_prefix(sign) {
                return (token, rest);
            }
        }
        let ends = |c: char| BLANKS.contains(&c) || ",()!=><".contains(c);
        let (word, rest) = text.split_at(text.find(ends).unwrap_or(text.len()));
        (if word.is_empty() { Token::End } else { Token::Word(word) }, rest)
    }

    fn term(&mut self) -> Result<Term, BadSelector> {
        let absent = self.peek() == Token::Not;
        if absent {
            self.next();
        }
        let key = match self.next() {
            Token::Word(word) => key(word)?,
            found => return Err(due(found, "a label's key")),
        };
        if absent {
            return Ok(Term { key, test: Test::Absent });
        }
        let test = match self.peek() {
            Token::Comma | Token::End => Test::Exists,
            _ => self.test()?,
        };
        Ok(Term { key, test })
    }

    fn test(&mut self) -> Result<Test, BadSelector> {
        Ok(match self.next() {
            Token::Equal => Test::In(vec![self.value()?]),
            Token::Unequal => Test::NotIn(vec![self.value()?]),
            Token::Above => Test::Above(self.number()?),
            Token::Below => Test::Below(self.number()?),
            Token::Word("in") => Test::In(self.set()?),
            Token::Word("notin") => Test::NotIn(self.set()?),
            found => return Err(due(found, "=, ==, !=, in, notin, >, < or a comma")),
        })
    }

    /// One value, which may be empty.
    fn value(&mut self) -> Result<String, BadSelector> {
        self.values += 1;
        if self.values > VALUES_MAX {
            return Err(BadSelector(format!("it has more than {VALUES_MAX} values")));
        }
        match self.peek() {
            Token::Comma | Token::End | Token::Close => Ok(String::new()),
            Token::Word(word) => {
                self.next();
                value(word)
            }
            found => Err(due(found, "a value")),
        }
    }

    fn number(&mut self) -> Result<i64, BadSelector> {
        match self.next() {
            Token::Word(word) => {
                word.parse().map_err(|_| BadSelector(format!("{word:?} is no whole number to compare with")))
            }
            found => Err(due(found, "a whole number")),
        }
    }

    /// Values in brackets, at least one.
    fn set(&mut self) -> Result<Vec<String>, BadSelector> {
        match self.next() {
            Token::Open => {}
            found => return Err(due(found, "\"(\"")),
        }
        if self.peek() == Token::Close {
            return Err(BadSelector("a set of values is empty".to_owned()));
        }
        let mut values = vec![self.value()?];
        loop {
            match self.next() {
                Token::Close => break,
                Token::Comma => values.push(self.value()?),
                found => return Err(due(found, "a comma or \")\"")),
            }
        }
        values.sort_unstable();
        values.dedup();
        Ok(values)
    }
}

/// Begins and ends with a letter or a digit; dashes, dots and underscores between.
fn is_name(text: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    text.len() <= NAME_MAX
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(b))
}

/// A name in the DNS, in lower case.
fn is_domain(text: &str) -> bool {
    let part = |part: &str| {
        let ends = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let bytes = part.as_bytes();
        ends(bytes.first())
            && ends(bytes.last())
            && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
    };
    text.len() <= PREFIX_MAX && text.split('.').all(part)
}

fn key(text: &str) -> Result<String, BadSelector> {
    let fits = match text.split_once('/') {
        Some((prefix, name)) => is_domain(prefix) && is_name(name),
        None => is_name(text),
    };
    if fits { Ok(text.to_owned()) } else { Err(BadSelector(format!("{text:?} can be no label's key"))) }
}

fn value(text: &str) -> Result<String, BadSelector> {
    if is_name(text) {
        Ok(text.to_owned())
    } else {
        Err(BadSelector(format!("{text:?} can be no label's value")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn each_kind_of_term_on_a_label_that_is_there_another_and_none() {
        for (text, a, b, none) in [
            ("x=a", true, false, false),
            ("x==a", true, false, false),
            ("x!=a", false, true, true),
            ("x in (a, c)", true, false, false),
            ("x in(a,b)", true, true, false),
            ("x notin (a,c)", false, true, true),
            ("x", true, true, false),
            ("!x", false, false, true),
            ("! x", false, false, true),
            ("x=", false, false, false),
            ("x!=", true, true, true),
            ("x in (,a)", true, false, false),
            ("", true, true, true),
            (" \t\n", true, true, true),
            ("x,x=a", true, false, false),
            ("x!=a,x!=b", false, false, true),
            ("x>1", false, false, false),
            (" x = a , !y ", true, false, false),
        ] {
            let selector = Selector::parse(text).unwrap();
            let of = |labels: &[(&str, &str)]| selector.selects(&self::labels(labels));
            assert_eq!((of(&[("x", "a")]), of(&[("x", "b")]), of(&[])), (a, b, none), "{text:?}");
            assert_eq!(Selector::parse(&selector.to_string()), Ok(selector), "{text:?}");
        }
    }

    #[test]
    fn numbers_and_empty_values_and_words_that_mean_something() {
        let selects =
            |text: &str, pairs: &[(&str, &str)]| Selector::parse(text).unwrap().selects(&labels(pairs));
        assert!(selects("gen>3,gen<9", &[("gen", "5")]));
        assert!(!selects("gen>5", &[("gen", "5")]) && !selects("gen<5", &[("gen", "five")]));
        assert!(selects("x=", &[("x", "")]) && !selects("x=", &[("x", "a")]));
        assert!(selects("in in (in,notin)", &[("in", "notin")]));
        assert!(selects("notin=in", &[("notin", "in")]));
        assert!(selects("model.aibrix.ai/name=m,role-name notin (decode)", &[("model.aibrix.ai/name", "m")]));
    }

    #[test]
    fn what_is_no_selector_is_told_in_words() {
        for (text, said) in [
            ("x=a b", "found \"b\" where a comma or the end was due"),
            ("=a", "found \"=\" where a label's key was due"),
            (",x", "found a comma where a label's key was due"),
            ("x,", "found the end where a label's key was due"),
            ("x in a", "found \"a\" where \"(\" was due"),
            ("x in (a", "found the end where a comma or \")\" was due"),
            ("x in ()", "a set of values is empty"),
            ("x in (a b)", "found \"b\" where a comma or \")\" was due"),
            ("x=>1", "found \">\" where a value was due"),
            ("x is a", "found \"is\" where"),
            ("x>a", "\"a\" is no whole number"),
            ("!x=a", "found \"=\" where a comma or the end was due"),
            ("-x=a", "\"-x\" can be no label's key"),
            ("X.y/z/w", "can be no label's key"),
            ("Ab/x=a", "can be no label's key"),
            ("x=a_", "\"a_\" can be no label's value"),
            ("x=ä", "can be no label's value"),
            ("x in (a))", "found \")\" where a comma or the end was due"),
        ] {
            let told = Selector::parse(text).unwrap_err().to_string();
            assert!(told.contains(said), "{text:?}: {told}");
        }
    }

    #[test]
    fn length_terms_and_values_are_bounded() {
        let long = |n: usize| Selector::parse(&"a".repeat(n));
        assert!(long(63).is_ok() && long(64).is_err());
        assert!(long(SELECTOR_MAX_BYTES + 1).unwrap_err().to_string().contains("longer than 4096 bytes"));
        let terms = |n: usize| Selector::parse(&vec!["a"; n].join(","));
        assert!(terms(TERMS_MAX).is_ok());
        assert!(terms(TERMS_MAX + 1).unwrap_err().to_string().contains("more than 64 terms"));
        let values = |n: usize| Selector::parse(&format!("a in ({})", vec!["b"; n].join(",")));
        assert!(values(VALUES_MAX).is_ok());
        assert!(values(VALUES_MAX + 1).unwrap_err().to_string().contains("more than 256 values"));
    }
}
