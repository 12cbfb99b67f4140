//! A server without a model, for trying clients and the chat page: `cargo run -p pleiad-server --example fake -- [PORT [KEY]]`.
//!
//! It calls the first tool there is for a question about the weather, unless the answer to that is already there; writes a JSON
//! object where JSON is asked for; and else shows off what the page can draw.

#[allow(dead_code)] // Tests look at more of it.
#[path = "../tests/http/fake.rs"]
mod fake;

use std::time::Duration;

use fake::{Fake, Play};
use server::{Options, Server};

const CALL: &str = "<think>\nThe weather is a matter of looking.\n</think>\n\n<tool_call>\n<function=get_weather>\n\
    <parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>";

const SHOWN: &str = "<think>\nThe user wants to see what an answer can look like. A heading, a list, some *code*.\n</think>\n\n\
# An answer\n\nHere is **bold**, *italic*, `code` and a [link](https://example.com). <b>Markup</b> stays text.\n\n\
1. First\n2. Second, with\n   - something inside\n   - and more\n3. Third\n\n\
```rust\nfn main() {\n    println!(\"seven stars\");\n}\n```\n\n> A quotation.\n\n| star | magnitude |\n|---|---|\n| Alcyone | 2.9 |\n| Atlas | 3.6 |\n\n\
That is all.";

fn answer(prompt: &str) -> Play {
    let asked = prompt.rsplit("<|im_start|>user").next().unwrap_or_default();
    let text = if prompt.contains("get_weather")
        && asked.contains("weather")
        && !asked.contains("<tool_response>")
    {
        CALL
    } else if asked.contains("<tool_response>") {
        "It is sunny in Paris."
    } else if asked.contains("JSON") {
        "{\"name\": \"Ada\", \"age\": 36}"
    } else if asked.contains("Say hello") {
        "Hello there, friend."
    } else {
        SHOWN
    };
    let (prompt, pause) = (Duration::from_millis(300), Duration::from_millis(15));
    Play { reused: 4, prompt, pause, ..Play::text(text) }
}

fn main() -> Result<(), server::Error> {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok()).unwrap_or(8000);
    let api_key = std::env::args().nth(2);
    let options = Options { address: ([127, 0, 0, 1], port).into(), api_key, ..Options::default() };
    let fake = Fake::new(8, answer);
    let server = Server::bind(options, fake.model())?;
    println!("listening on http://{}", server.address());
    server.run()?;
    println!("{} answers were cut short", fake.cancelled());
    Ok(())
}
