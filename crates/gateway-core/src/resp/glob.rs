//! Patterns of SCAN and CONFIG GET: `*`, `?`, `[a-c]`, `[^x]`, `\` before a
//! byte that is meant itself.

/// Whether the pattern describes all of the text.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    matches_counting(pattern, text, &mut 0)
}

/// The same, with the bytes that are compared added to `work`: at most about the product
/// of the lengths, because only the last star is ever tried again.
pub(super) fn matches_counting(pattern: &[u8], text: &[u8], work: &mut u64) -> bool {
    let (mut p, mut t) = (0, 0);
    // After the last star, and where in the text it stopped taking bytes.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        *work += 1;
        if pattern.get(p) == Some(&b'*') {
            star = Some((p + 1, t));
            p += 1;
        } else if let Some(used) = one(&pattern[p..], text[t], work) {
            p += used;
            t += 1;
        } else if let Some((after, taken)) = star {
            star = Some((after, taken + 1));
            p = after;
            t = taken + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

/// If the pattern's first element takes this byte: the element's length.
fn one(pattern: &[u8], byte: u8, work: &mut u64) -> Option<usize> {
    match *pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', ref class @ ..] => {
            let (is_in, used) = in_class(class, byte);
            *work += used as u64;
            is_in.then_some(1 + used)
        }
        [b'\\', literal, ..] => (literal == byte).then_some(2),
        [literal, ..] => (literal == byte).then_some(1),
    }
}

/// Whether a class, which begins after its bracket, has this byte; its length
/// with the closing bracket. A class without one ends with the pattern.
fn in_class(class: &[u8], byte: u8) -> (bool, usize) {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut found = false;
    loop {
        let used = match class[at..] {
            [] => break,
            [b'\\', literal, ..] => {
                found |= literal == byte;
                2
            }
            [b']', ..] => {
                at += 1;
                break;
            }
            [from, b'-', to, ..] => {
                found |= (from.min(to)..=from.max(to)).contains(&byte);
                3
            }
            [literal, ..] => {
                found |= literal == byte;
                1
            }
        };
        at += used;
    }
    (found != negated, at)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns() {
        let cases = [
            ("*", "abc", true),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("a*c", "ac", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxyyc", false),
            ("*ab", "aab", true),
            ("?b?", "abc", true),
            ("??", "abc", false),
            ("a[bx]c", "abc", true),
            ("a[^bx]c", "abc", false),
            ("a[a-c]c", "abc", true),
            ("a[c-a]c", "abc", true),
            ("a[d-f]c", "abc", false),
            ("a[b", "ab", true),
            ("a\\*c", "a*c", true),
            ("a\\*c", "abc", false),
            ("a[\\]]c", "a]c", true),
            ("abc**", "abc", true),
            ("abc?", "abc", false),
            ("", "a", false),
        ];
        for (pattern, text, expected) in cases {
            let found = matches(pattern.as_bytes(), text.as_bytes());
            assert_eq!(found, expected, "{pattern} on {text}");
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        let pattern = [b"*a".repeat(1000), b"b".to_vec()].concat();
        assert!(!matches(&pattern, &b"a".repeat(20_000)));
    }
}
