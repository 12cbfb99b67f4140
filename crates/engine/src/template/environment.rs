//! minijinja set up to behave as jinja2 does under Hugging Face's `apply_chat_template`.

use jiff::civil::DateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior};

use super::{filters, json, methods, value};

/// What a template said with `raise_exception`, carried as the source of minijinja's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// The environment; `now` stops the clock, for tests.
pub(super) fn environment(now: Option<DateTime>) -> Environment<'static> {
    let mut env = Environment::new();
    // The defaults of the builder are jinja2's delimiters. One final newline of the source is dropped, as in jinja2.
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        env.set_syntax(syntax);
    }
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_debug(false);
    env.set_formatter(|out, _, value| out.write_str(&value::str(value)).map_err(Error::from));
    env.set_unknown_method_callback(methods::call);

    // jinja2 has no such global, and a template may use the name.
    env.remove_global("debug");
    env.add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.0));
    env.add_function("joiner", minijinja_contrib::globals::joiner);
    env.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        let message = value::str(message);
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    env.add_function("strftime_now", move |format: &str| -> Result<String, Error> {
        let now = now.unwrap_or_else(|| jiff::Zoned::now().datetime());
        jiff::fmt::strtime::format(format, now)
            .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("strftime_now({format:?}): {e}")))
    });

    env.add_filter("tojson", json::tojson);
    env.add_filter("string", |v: &Value| value::str(v));
    env.add_filter("safe", |v: &Value| value::str(v));
    env.add_filter("escape", |v: &Value| filters::escape(&value::str(v)));
    env.add_filter("e", |v: &Value| filters::escape(&value::str(v)));
    env.add_filter("upper", |v: &Value| value::str(v).to_uppercase());
    env.add_filter("lower", |v: &Value| value::str(v).to_lowercase());
    env.add_filter("trim", filters::trim);
    env.add_filter("replace", filters::replace);
    env.add_filter("length", filters::length);
    env.add_filter("count", filters::length);
    env.add_filter("items", filters::items);
    env.add_filter("dictsort", filters::dictsort);
    env.add_filter("list", filters::list);
    env.add_filter("default", filters::default);
    env.add_filter("d", filters::default);
    env.add_filter("int", filters::int);
    env.add_filter("float", filters::float);

    env.add_test("sequence", is_sequence);
    env.add_test("iterable", |v: &Value| !v.is_none() && v.try_iter().is_ok());
    env.add_test("callable", |v: &Value| v.kind() == ValueKind::Plain);
    env
}

/// jinja2 asks for a length and for indexing, which strings, mappings, slices and undefined values have as well.
fn is_sequence(v: &Value) -> bool {
    match v.kind() {
        ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined => true,
        ValueKind::Iterable => v.len().is_some(),
        _ => false,
    }
}
