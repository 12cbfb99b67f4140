//! What a template's source needs before minijinja can parse it.

/// Brings line ends to `\n`, as jinja2's lexer does, and replaces Hugging Face's `{% generation %}` block, which marks
/// the assistant's text for training and changes nothing in the output, by a `{% with %}` block, which has the same
/// scope.
pub(super) fn prepare(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(at) = rest.find("{%").into_iter().chain(rest.find("{{")).chain(rest.find("{#")).min() {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = match &rest[..2] {
            "{#" => rest.find("#}").map_or(rest.len(), |end| end + 2),
            "{{" => tag_end(rest, "}}"),
            _ => tag_end(rest, "%}"),
        };
        let tag = &rest[..end];
        rest = &rest[end..];
        match tag.starts_with("{%").then(|| word(tag)).flatten() {
            Some(name @ "generation") => out.push_str(&tag.replacen(name, "with", 1)),
            Some(name @ "endgeneration") => out.push_str(&tag.replacen(name, "endwith", 1)),
            Some("raw") => {
                // What stands between raw and endraw is text, whatever it looks like.
                let end = end_of_raw(rest);
                out.push_str(tag);
                out.push_str(&rest[..end]);
                rest = &rest[end..];
            }
            _ => out.push_str(tag),
        }
    }
    out.push_str(rest);
    out
}

/// Offset just behind the tag that `text` begins with; a closing mark inside a string literal does not count.
fn tag_end(text: &str, close: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 2;
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'"' | b'\'') => {
                at += 1;
                while at < bytes.len() && bytes[at] != quote {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            _ if bytes[at..].starts_with(close.as_bytes()) => return at + 2,
            _ => at += 1,
        }
    }
    text.len()
}

/// The only word of a block tag, where it has only one.
fn word(tag: &str) -> Option<&str> {
    let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    let inner = inner.strip_suffix(['-', '+']).unwrap_or(inner).trim();
    inner.chars().all(|c| c.is_ascii_alphanumeric() || c == '_').then_some(inner)
}

/// Offset of the `{% endraw %}` tag.
fn end_of_raw(text: &str) -> usize {
    text.match_indices("{%")
        .map(|(at, _)| at)
        .find(|&at| {
            let end = text[at..].find("%}").map_or(text.len(), |end| at + end + 2);
            word(&text[at..end]) == Some("endraw")
        })
        .unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::prepare;

    #[test]
    fn generation_tags_become_with() {
        let cases = [
            ("a{% generation %}b{% endgeneration %}c", "a{% with %}b{% endwith %}c"),
            ("{%- generation -%}b{%+ endgeneration %}", "{%- with -%}b{%+ endwith %}"),
            ("{%generation%}{%endgeneration%}", "{%with%}{%endwith%}"),
            ("{{ '{% generation %}' }}", "{{ '{% generation %}' }}"),
            ("{% set x = \"%} {% generation %}\" %}", "{% set x = \"%} {% generation %}\" %}"),
            (r"{{ 'it\'s }} {% generation %}' }}", r"{{ 'it\'s }} {% generation %}' }}"),
            ("{# {% generation %} #}", "{# {% generation %} #}"),
            ("{% raw %}{% generation %}{% endraw %}", "{% raw %}{% generation %}{% endraw %}"),
            ("{% if generation %}{% endif %}", "{% if generation %}{% endif %}"),
            ("{{ generation }} %} }}", "{{ generation }} %} }}"),
            ("a\r\nb\rc", "a\nb\nc"),
            ("{% unfinished", "{% unfinished"),
            ("{{ 'unfinished", "{{ 'unfinished"),
            ("{# unfinished é", "{# unfinished é"),
            ("{% raw %} é", "{% raw %} é"),
        ];
        for (source, expected) in cases {
            assert_eq!(prepare(source), expected);
        }
    }
}
