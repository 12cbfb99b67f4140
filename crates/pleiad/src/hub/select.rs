//! Which files of a repository a model needs.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::repo::is_inside;

/// What says which tensor is in which file.
pub const INDEX: &str = "model.safetensors.index.json";
const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const WEIGHTS: &str = ".safetensors";

/// Everything but the weights. What is not here, like images, other formats and texts about the model, stays on the hub.
const SMALL: [&str; 14] = [
    CONFIG,
    INDEX,
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "tiktoken.model",
];

/// Whether a model needs the file beside its weights.
pub fn is_small(name: &str) -> bool {
    SMALL.contains(&name)
}

/// Whether files of these names can be a model; if not, why.
pub fn check_model(names: &[&str]) -> Result<(), String> {
    if !names.contains(&CONFIG) {
        return Err(format!("it has no {CONFIG}"));
    }
    if !names.iter().any(|name| name.ends_with(WEIGHTS)) {
        let other =
            [".gguf", ".bin", ".pt", ".npz"].into_iter().find(|end| names.iter().any(|n| n.ends_with(end)));
        let only = other.map_or(String::new(), |end| format!(", only *{end}"));
        return Err(format!("it has no *{WEIGHTS} file{only}"));
    }
    Ok(())
}

/// The files with the weights among `names`, by the rules for opening a model: the files of the index; `model.safetensors`
/// alone where the index does not know it; without an index whatever safetensors files there are. Files that the index
/// names but the repository does not have are an error, said in words.
pub fn weights(names: &[&str], index: Option<&str>) -> Result<Vec<String>, String> {
    let has = |name: &str| names.contains(&name);
    if let Some(index) = index {
        let shards = shards(index)?;
        if !has(SINGLE) || shards.contains(SINGLE) {
            return match shards.iter().find(|shard| !has(shard)) {
                Some(missing) => Err(format!("{INDEX} names `{missing}`, which is not there")),
                None => Ok(shards.into_iter().collect()),
            };
        }
    }
    if has(SINGLE) {
        return Ok(vec![SINGLE.into()]);
    }
    let mut all: Vec<&str> =
        names.iter().copied().filter(|n| n.ends_with(WEIGHTS) && !n.contains('/')).collect();
    // Adapters often lie beside the model.
    if all.iter().any(|name| name.starts_with("model")) {
        all.retain(|name| name.starts_with("model"));
    }
    match all.iter().find_map(|name| missing_sibling(name, &all)) {
        Some(missing) => Err(format!("`{missing}` is not there")),
        None if all.is_empty() => Err(format!("it has no *{WEIGHTS} file")),
        None => Ok(all.into_iter().map(str::to_owned).collect()),
    }
}

/// Of `x-00001-of-00003.safetensors`, the first of the three that is not among `all`.
fn missing_sibling(name: &str, all: &[&str]) -> Option<String> {
    let (front, total) = name.strip_suffix(WEIGHTS)?.rsplit_once("-of-")?;
    let (front, number) = front.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    if !is_number(number) || !is_number(total) {
        return None;
    }
    let sibling = |n: u32| format!("{front}-{n:05}-of-{total}{WEIGHTS}");
    (1..=total.parse().ok()?).map(sibling).find(|sibling| !all.contains(&sibling.as_str()))
}

fn shards(index: &str) -> Result<BTreeSet<String>, String> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }

    let index: Index = serde_json::from_str(index).map_err(|error| format!("{INDEX}: {error}"))?;
    let shards: BTreeSet<String> = index.weight_map.into_values().collect();
    match shards.iter().find(|shard| !is_inside(shard)) {
        Some(shard) => Err(format!("{INDEX} names `{shard}`, which is not a file of the model")),
        None if shards.is_empty() => Err(format!("{INDEX} names no file")),
        None => Ok(shards),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(shards: &[&str]) -> String {
        let map: BTreeMap<String, &str> =
            shards.iter().enumerate().map(|(i, s)| (i.to_string(), *s)).collect();
        serde_json::json!({ "weight_map": map }).to_string()
    }

    #[test]
    fn what_a_model_needs() {
        for name in ["config.json", "tokenizer.json", "chat_template.jinja", "merges.txt", INDEX] {
            assert!(is_small(name), "{name}");
        }
        for name in ["README.md", "pytorch_model.bin", "original/config.json", "x.png", "modeling.py"] {
            assert!(!is_small(name), "{name}");
        }
        assert!(check_model(&["config.json", "a.safetensors"]).is_ok());
        assert!(check_model(&["config.json", "a.gguf"]).is_err_and(|e| e.contains("only *.gguf")));
        assert!(check_model(&["a.safetensors"]).is_err_and(|e| e.contains("config.json")));
    }

    #[test]
    fn weights_as_they_are_opened() {
        let (one, two) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
        let all = [one, two, "consolidated.safetensors", "config.json", "original/x.safetensors"];
        assert_eq!(weights(&all, Some(&index(&[one, two]))).unwrap(), [one, two]);
        assert_eq!(weights(&all, None).unwrap(), [one, two]);
        assert_eq!(weights(&[SINGLE, "adapter.safetensors"], None).unwrap(), [SINGLE]);
        // An index that does not know the file beside it is a leftover.
        assert_eq!(weights(&[SINGLE], Some(&index(&[one, two]))).unwrap(), [SINGLE]);
        assert_eq!(weights(&["a.safetensors"], None).unwrap(), ["a.safetensors"]);
        assert!(weights(&[one], None).is_err_and(|e| e.contains(two)));
        assert!(weights(&[one], Some(&index(&[one, two]))).is_err_and(|e| e.contains(two)));
        assert!(weights(&["x/a.safetensors"], None).is_err());
        for bad in ["", "{}", "[]", "{\"weight_map\": 1}", &index(&[]), &index(&["../evil"]), &index(&["/x"])]
        {
            assert!(weights(&[one, two], Some(bad)).is_err(), "{bad}");
        }
    }
}
