//! From valid JSON to something else.

use serde_json::{Map, Value as Json, json};

use crate::random::Random;

/// Stands in a string for text that is not JSON, or not what the JSON library would write.
const RAW: &str = "@raw@";

const RAW_VALUES: [&str; 22] = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1e999",
    "1e-999",
    "0x10",
    "01",
    "+1",
    ".5",
    "1.",
    "-",
    "undefined",
    "18446744073709551616",
    "-9223372036854775809",
    "99999999999999999999999999999999",
    "\"\\ud800\"",
    "\"\\u0000\"",
    "\"\\x41\"",
    "'single'",
    "tru",
    "\"\t\"",
];

const NUMBERS: [f64; 14] =
    [0.0, -0.0, -1.0, 0.5, 1.0, 1.5, 2.0, 65.0, 101.0, 4294967296.0, 1e15, 1e300, -1e300, 5e-324];

/// Changes one to three things of a body.
pub fn mutated(random: &mut Random, mut body: Json) -> String {
    for _ in 0..random.between(1, 3) {
        let places = count(&body);
        let place = random.below(places);
        change(&mut body, &mut { place }, random);
    }
    if random.percent(10) {
        return duplicated(random, &body);
    }
    unraw(&body.to_string())
}

/// Values of a tree that can be changed: all of them.
fn count(json: &Json) -> u64 {
    match json {
        Json::Array(items) => 1 + items.iter().map(count).sum::<u64>(),
        Json::Object(map) => 1 + map.values().map(count).sum::<u64>(),
        _ => 1,
    }
}

/// Changes the value at a place, counted in the order of the text.
fn change(json: &mut Json, place: &mut u64, random: &mut Random) -> bool {
    if *place == 0 {
        *json = changed(json.take(), random);
        return true;
    }
    *place -= 1;
    match json {
        Json::Array(items) => items.iter_mut().any(|item| change(item, place, random)),
        Json::Object(map) => map.values_mut().any(|item| change(item, place, random)),
        _ => false,
    }
}

fn changed(json: Json, random: &mut Random) -> Json {
    match json {
        Json::Object(map) if random.percent(60) => changed_object(map, random),
        Json::Array(mut items) if random.percent(50) => {
            match (random.below(4), items.first().cloned()) {
                (0, _) => items.clear(),
                (1, Some(first)) => items = vec![first; random.between(2, 300) as usize],
                (2, Some(first)) => items.insert(0, json!([first])),
                _ => items.push(other(random)),
            }
            items.into()
        }
        Json::String(text) if random.percent(30) => match random.below(4) {
            0 => text.repeat(random.between(2, 40) as usize).into(),
            1 => format!("{text}\u{0}\u{FEFF}\u{202E}🦊").into(),
            2 => text.to_uppercase().into(),
            _ => json!([text]),
        },
        _ => other(random),
    }
}

fn changed_object(mut map: Map<String, Json>, random: &mut Random) -> Json {
    let keys: Vec<String> = map.keys().cloned().collect();
    let Some(key) = (!keys.is_empty()).then(|| keys[random.below(keys.len() as u64) as usize].clone()) else {
        return other(random);
    };
    match random.below(5) {
        0 | 1 => drop(map.remove(&key)),
        2 => {
            let value = map.remove(&key).unwrap_or_default();
            map.insert(format!("{key}_"), value);
        }
        3 => {
            let value = other(random);
            map.insert("additional".into(), value);
        }
        _ => {
            let from = keys[random.below(keys.len() as u64) as usize].clone();
            let value = map.get(&from).cloned().unwrap_or_default();
            map.insert(key, value);
        }
    }
    map.into()
}

/// A value of some other type.
fn other(random: &mut Random) -> Json {
    match random.below(14) {
        0 => Json::Null,
        1 => true.into(),
        2 => false.into(),
        3 => "".into(),
        4 => "text".into(),
        5 | 6 => json!(NUMBERS[random.below(NUMBERS.len() as u64) as usize]),
        7 => json!([]),
        8 => json!({}),
        9 => json!([null]),
        10 => json!({"type": "text", "text": "x", "$ref": "#", "pattern": "(a+)+$", "enum": []}),
        11 => nested(random),
        12 if random.percent(20) => "long ".repeat(1 << random.between(8, 18)).into(),
        _ => format!("{RAW}{}", random.pick(&RAW_VALUES)).into(),
    }
}

/// Lists or objects within each other, deeper than anyone would write.
fn nested(random: &mut Random) -> Json {
    let depth = [10, 100, 127, 128, 1000, 100_000][random.below(6) as usize];
    let (open, close) = if random.percent(50) { ("[", "]") } else { ("{\"a\":", "}") };
    // Too deep for a value of the JSON library, hence as text.
    format!("{RAW}{}1{}", open.repeat(depth), close.repeat(depth)).into()
}

/// Replaces strings that stand for raw text by that text.
fn unraw(text: &str) -> String {
    let mark = format!("\"{RAW}");
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(&mark) {
        out.push_str(before);
        // The string ends at the first quote that no backslash stands before.
        let mut escaped = false;
        let end = after.find(|c| {
            let found = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            found
        });
        let end = end.unwrap_or(after.len());
        let quoted = format!("\"{}\"", &after[..end]);
        out.push_str(&serde_json::from_str::<String>(&quoted).unwrap_or_default());
        rest = after.get(end + 1..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

/// The body with a field given twice, with another value before or after it.
fn duplicated(random: &mut Random, body: &Json) -> String {
    let text = unraw(&body.to_string());
    let keys: Vec<&String> = body.as_object().into_iter().flat_map(|map| map.keys()).collect();
    let Some(inner) =
        text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).filter(|_| !keys.is_empty())
    else {
        return text;
    };
    let key = keys[random.below(keys.len() as u64) as usize];
    let twice = unraw(&json!({ key: other(random) }).to_string());
    let twice = &twice[1..twice.len() - 1];
    if random.percent(50) { format!("{{{twice},{inner}}}") } else { format!("{{{inner},{twice}}}") }
}

/// Spoils the bytes of a body. Also says whether it surely is no request any more.
pub fn break_bytes(random: &mut Random, mut bytes: Vec<u8>) -> (Vec<u8>, bool) {
    let place = random.below(bytes.len() as u64) as usize;
    match random.below(11) {
        0 | 1 => {
            bytes.truncate(place);
            (bytes, true)
        }
        2 => {
            bytes[place] ^= 1 << random.below(8);
            (bytes, false)
        }
        3 => {
            let end = (place + random.between(1, 20) as usize).min(bytes.len());
            bytes.drain(place..end);
            (bytes, false)
        }
        4 => {
            for wrong in [0xFF, 0xC0, 0x80, 0xED, 0xA0] {
                bytes.insert(place, wrong);
            }
            (bytes, true)
        }
        5 => {
            for _ in 0..random.between(1, 30) {
                bytes.insert(place, random.next() as u8);
            }
            (bytes, false)
        }
        6 => ([b"\xEF\xBB\xBF", &bytes[..]].concat(), true),
        7 => ([&bytes[..], b"}"].concat(), true),
        8 => (bytes.iter().flat_map(|byte| [*byte, 0]).collect(), true),
        9 => ((0..random.below(500)).map(|_| random.next() as u8).collect(), true),
        _ => {
            let swap = random.below(bytes.len() as u64) as usize;
            bytes.swap(place, swap);
            (bytes, false)
        }
    }
}
