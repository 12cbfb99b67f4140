"""Trains the tokenizer on samples of the dictionary, of stories and of chats: tokenizer/."""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

BOX = Path(__file__).parent
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
SIZE = 4096

# Qwen's: contractions, words with one leading character, single digits, punctuation, line ends, spaces.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n\\nYou have access to the following functions:\\n\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools>\\n\\nTo call a function, reply with:\\n<tool_call>\\n<function=name>\\n<parameter=parameter>\\nvalue\\n</parameter>\\n</function>\\n</tool_call>' }}
    {%- if messages[0].role == 'system' %}
        {{- '\\n\\n' + messages[0].content | trim }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content | trim + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content | trim %}
    {%- elif message.content is iterable and message.content is not mapping %}
        {%- set parts = namespace(text='') %}
        {%- for part in message.content %}
            {%- if part.text is defined %}
                {%- set parts.text = parts.text + part.text %}
            {%- endif %}
        {%- endfor %}
        {%- set content = parts.text | trim %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == 'system' %}
        {%- if not loop.first %}
            {{- raise_exception('System message must be at the beginning.') }}
        {%- endif %}
    {%- elif message.role == 'user' %}
        {{- '<|im_start|>user\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {%- if content or not loop.first %}
                {{- '\\n' }}
            {%- endif %}
            {{- '<tool_call>\\n<function=' + tool_call.name + '>\\n' }}
            {%- for name, value in (tool_call.arguments or {}) | items %}
                {{- '<parameter=' + name + '>\\n' }}
                {{- value if value is string else value | tojson }}
                {{- '\\n</parameter>\\n' }}
            {%- endfor %}
            {{- '</function>\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- raise_exception('Unexpected message role.') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""


def texts():
    import random

    import dictionary
    import stories
    import tasks

    rng = random.Random(5)
    for _ in range(8000):
        yield dictionary.page(rng)
    for _ in range(8000):
        yield stories.page(rng)
    for _ in range(30000):
        for message in tasks.chat(rng):
            if message["role"] in ("user", "assistant"):
                yield message["content"].replace("\0", " ")


def main():
    import tasks

    tok = Tokenizer(models.BPE(byte_fallback=False))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tok.decoder = decoders.ByteLevel()
    # <parameter= and the like are common enough to find their own merges. Every byte is an entry: nothing is unknown.
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - len(SPECIAL) - len(MARKERS), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tok.train_from_iterator(texts(), trainer)
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tok.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKERS])
    assert tok.get_vocab_size() == SIZE
    out = BOX / "tokenizer"
    out.mkdir(exist_ok=True)
    state = json.loads(tok.to_str())
    (out / "tokenizer.json").write_text(json.dumps(state, ensure_ascii=False, separators=(",", ":")))
    ids = {t: tok.token_to_id(t) for t in SPECIAL + MARKERS}
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": 4096,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {"do_sample": True, "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]], "pad_token_id": ids["<|endoftext|>"], "min_p": 0.1, "temperature": 0.6, "top_k": 40, "top_p": 0.95}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    print(ids, {f.name: f.stat().st_size for f in out.iterdir()})


if __name__ == "__main__":
    main()
