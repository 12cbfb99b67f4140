//! How probable tokens were, in the shapes of both kinds of completions.

use engine::Tokenizer;
use serde_json::{Map, Value as Json, json};

use crate::answer::TokenInfo;

/// Stands for minus infinity, which JSON does not have; OpenAI uses the same.
const IMPOSSIBLE: f32 = -9999.0;

fn number(logprob: f32) -> Json {
    f64::from(logprob.max(IMPOSSIBLE)).into()
}

fn token_text(tokenizer: &Tokenizer, id: u32) -> (String, Vec<u8>) {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    (String::from_utf8_lossy(&bytes).into_owned(), bytes)
}

/// For chats: a list of tokens with their bytes; null where nobody asked.
pub fn chat(tokenizer: &Tokenizer, tokens: &[TokenInfo]) -> Json {
    if tokens.is_empty() {
        return Json::Null;
    }
    let entry = |id: u32, logprob: f32| {
        let (token, bytes) = token_text(tokenizer, id);
        json!({"token": token, "logprob": number(logprob), "bytes": bytes})
    };
    let content: Vec<Json> = (tokens.iter())
        .map(|token| {
            let mut json = entry(token.id, token.logprob);
            json["top_logprobs"] = token.top.iter().map(|&(id, logprob)| entry(id, logprob)).collect();
            json
        })
        .collect();
    json!({"content": content, "refusal": null})
}

/// For completions: lists side by side. `offset` is the number of characters before the first token, and is moved on.
pub fn completion(tokenizer: &Tokenizer, tokens: &[TokenInfo], offset: &mut usize) -> Json {
    if tokens.is_empty() {
        return Json::Null;
    }
    let (mut texts, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for token in tokens {
        let (text, _) = token_text(tokenizer, token.id);
        offsets.push(*offset);
        *offset += text.chars().count();
        texts.push(text);
        logprobs.push(number(token.logprob));
        let top: Map<String, Json> =
            token.top.iter().map(|&(id, logprob)| (token_text(tokenizer, id).0, number(logprob))).collect();
        tops.push(Json::Object(top));
    }
    json!({"tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::tests::tokenizer;

    #[test]
    fn shapes() {
        let id = tokenizer().encode("a", false).unwrap()[0];
        let tokens = [TokenInfo { id, logprob: -0.5, top: vec![(id, -0.5), (id + 1, f32::NEG_INFINITY)] }];
        let said = chat(tokenizer(), &tokens);
        assert_eq!(said["content"][0]["token"], "a");
        assert_eq!(said["content"][0]["bytes"], json!([97]));
        assert_eq!(said["content"][0]["top_logprobs"][1]["logprob"], -9999.0);
        let mut offset = 4;
        let said = completion(tokenizer(), &tokens, &mut offset);
        assert_eq!((said["text_offset"][0].as_u64(), offset), (Some(4), 5));
        assert_eq!(said["top_logprobs"][0]["a"], -0.5);
        assert!(chat(tokenizer(), &[]).is_null());
    }
}
