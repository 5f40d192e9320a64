//! Arrays of strings: a vocabulary in two allocations.
//!
//! The invariant: every end is a character boundary of the text, and ends never decrease. It is
//! established once, so that access needs no check for UTF-8.

use std::fmt;

/// Many strings in one allocation: the texts end to end, and where each one ends.
///
/// A vocabulary has up to 262,144 tokens and as many merges. One copy of their bytes is smaller
/// than a pointer to each would be, and it makes every later access a plain `&str`: text inside a
/// mapped file would have to be checked for UTF-8 each time, because the file can change.
///
/// ```
/// use fucina_gguf::Strings;
///
/// let strings: Strings = ["Emma", "", "Elinor"].into_iter().collect();
/// assert_eq!(strings.view().get(2), Some("Elinor"));
/// assert_eq!(strings.view().get(3), None);
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Strings {
    text: String,
    /// Ascending, each on a character boundary of `text`, the last one its length.
    ends: Vec<usize>,
}

impl Strings {
    /// Number of strings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no string.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// A view that can be copied and indexed.
    #[must_use]
    pub fn view(&self) -> StrArray<'_> {
        StrArray { text: &self.text, ends: &self.ends }
    }

    /// Takes texts that lie end to end. `Err` holds the index of a string that is not UTF-8.
    pub(crate) fn from_parts(text: Vec<u8>, ends: Vec<usize>) -> Result<Self, usize> {
        let text = match String::from_utf8(text) {
            Ok(text) => text,
            Err(e) => {
                let bad_byte = e.utf8_error().valid_up_to();
                return Err(ends.partition_point(|&end| end <= bad_byte));
            }
        };
        match ends.iter().position(|&end| !text.is_char_boundary(end)) {
            Some(bad) => Err(bad),
            None => Ok(Self { text, ends }),
        }
    }
}

impl fmt::Debug for Strings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut out = Self::default();
        for string in strings {
            out.text.push_str(string.as_ref());
            out.ends.push(out.text.len());
        }
        out
    }
}

/// A borrowed array of strings with access by index in constant time.
///
/// ```
/// use fucina_gguf::Strings;
///
/// let strings: Strings = ["a", "bc"].into_iter().collect();
/// let view = strings.view();
/// assert_eq!(view.iter().map(str::len).sum::<usize>(), 3);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct StrArray<'a> {
    text: &'a str,
    ends: &'a [usize],
}

impl<'a> StrArray<'a> {
    /// Number of strings.
    #[must_use]
    pub fn len(self) -> usize {
        self.ends.len()
    }

    /// Whether there is no string.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `index`.
    #[must_use]
    pub fn get(self, index: usize) -> Option<&'a str> {
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        self.text.get(start..end)
    }

    /// All strings in order.
    #[must_use]
    pub fn iter(self) -> StrIter<'a> {
        StrIter { text: self.text, ends: self.ends.iter(), start: 0 }
    }
}

impl fmt::Debug for StrArray<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> IntoIterator for StrArray<'a> {
    type Item = &'a str;
    type IntoIter = StrIter<'a>;

    fn into_iter(self) -> StrIter<'a> {
        self.iter()
    }
}

/// Iterator over a [`StrArray`].
///
/// ```
/// use fucina_gguf::Strings;
///
/// let strings: Strings = ["a", "b"].into_iter().collect();
/// let mut iter = strings.view().iter();
/// assert_eq!((iter.len(), iter.next(), iter.len()), (2, Some("a"), 1));
/// ```
#[derive(Debug, Clone)]
pub struct StrIter<'a> {
    text: &'a str,
    ends: std::slice::Iter<'a, usize>,
    start: usize,
}

impl<'a> Iterator for StrIter<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let end = *self.ends.next()?;
        let start = std::mem::replace(&mut self.start, end);
        self.text.get(start..end)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.ends.size_hint()
    }
}

impl ExactSizeIterator for StrIter<'_> {}
