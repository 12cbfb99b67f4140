"""Perplexity on eval/text.jsonl and exact answers on eval/items.jsonl, by mlx-lm in f32.

Usage: python3 evaluate.py MODEL [--bits N] [--save DIR] [--windows N] [--text-only] [--dequantise]. With --bits, the model is quantised
first, as mlx-lm quantises this family (affine, groups of 64, router and shared gate 8-bit), and with --save written as an MLX folder.

Perplexity, by source: each document alone, its first 1025 tokens, every token but the first predicted from those before it; exp of the
mean over all documents' tokens. With --windows 512 instead the convention of `pleiad eval --text`: all documents joined by empty lines,
cut into windows of 512 tokens, each window alone, every token but its first.
"""

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx_lm import load
from mlx_lm.utils import dequantize_model, quantize_model, save_model

BOX = Path(__file__).parent


def nats(model, rows, batch=24):
    """Of every token but the first of each row, summed. Rows are padded on the right, which a causal model does not see."""
    out = []
    for at in range(0, len(rows), batch):
        part = rows[at : at + batch]
        width = max(map(len, part))
        ids = mx.array([r + [0] * (width - len(r)) for r in part])
        mask = mx.array([[1.0] * (len(r) - 1) + [0.0] * (width - len(r)) for r in part])
        losses = nn.losses.cross_entropy(model(ids[:, :-1]).astype(mx.float32), ids[:, 1:]) * mask
        out += losses.sum(-1).tolist()
    return out


def documents():
    return [json.loads(line) for line in open(BOX / "eval/text.jsonl")]


def perplexity(model, tokenizer):
    """By source, and "all": (perplexity, tokens)."""
    sums = defaultdict(lambda: [0.0, 0])
    rows = [tokenizer.encode(d["text"], add_special_tokens=False)[:1025] for d in documents()]
    for d, ids, value in zip(documents(), rows, nats(model, rows)):
        for name in (d["source"], "all"):
            sums[name][0] += value
            sums[name][1] += len(ids) - 1
    return {name: (math.exp(total / count), count) for name, (total, count) in sums.items()}


def windowed(model, tokenizer, size):
    ids = tokenizer.encode("\n\n".join(d["text"] for d in documents()), add_special_tokens=False)
    windows = [w for w in (ids[at : at + size] for at in range(0, len(ids), size)) if len(w) > 1]
    count = sum(len(w) - 1 for w in windows)
    return math.exp(sum(nats(model, windows)) / count), count


def answer(model, tokenizer, item, stop, limit=112):
    prompt = tokenizer.apply_chat_template(item["messages"], tools=item.get("tools"), add_generation_prompt=True, tokenize=True, return_dict=False)
    cache = model.language_model.make_cache()
    ids, out = mx.array([prompt]), []
    while len(out) < limit:
        token = model(ids, cache=cache)[0, -1].argmax().item()
        if token in stop:
            break
        out.append(token)
        ids = mx.array([[token]])
    return tokenizer.decode(out)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--bits", type=int, default=0)
    p.add_argument("--save", default="")
    p.add_argument("--windows", type=int, default=0, help="perplexity over windows of this many tokens, as `pleiad eval --text`")
    p.add_argument("--text-only", action="store_true")
    p.add_argument("--dequantise", action="store_true", help="compute with the dequantised weights: the same numbers, faster on a CPU")
    a = p.parse_args()
    model, tokenizer, config = load(a.model, return_config=True)
    if a.bits:
        predicate = model.language_model.quant_predicate

        model, config = quantize_model(model, config, 64, a.bits, quant_predicate=predicate)
        if a.save:
            import shutil

            save_model(a.save, model)
            config["quantization_config"] = config["quantization"]
            Path(a.save, "config.json").write_text(json.dumps(config, indent=1) + "\n")
            for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
                shutil.copy(Path(a.model, name), Path(a.save, name))
    model.set_dtype(mx.float32)
    if a.dequantise:
        model = dequantize_model(model)
    if a.windows:
        value, count = windowed(model, tokenizer, a.windows)
        print(f"{a.model} bits {a.bits or 'as stored'}: perplexity {value:.4f} over {count} tokens in windows of {a.windows}", flush=True)
    else:
        for name, (value, count) in perplexity(model, tokenizer).items():
            print(f"{a.model} bits {a.bits or 'as stored'}: {name} perplexity {value:.4f} over {count} tokens", flush=True)
    if a.text_only:
        return
    stop = set(json.loads(Path(a.model, "generation_config.json").read_text())["eos_token_id"])
    right, asked = defaultdict(int), defaultdict(int)
    for line in open(BOX / "eval/items.jsonl"):
        item = json.loads(line)
        got = answer(model, tokenizer, item, stop)
        asked[item["kind"]] += 1
        if got.strip() == item["answer"].strip():
            right[item["kind"]] += 1
        else:
            print(f"  wrong {item['kind']}: {item['messages'][-1]['content']!r} wants {item['answer']!r} got {got!r}", flush=True)
    print(f"items {sum(right.values())}/{sum(asked.values())} = {sum(right.values()) / sum(asked.values()):.1%}: " + ", ".join(f"{k} {right[k]}/{asked[k]}" for k in asked))


if __name__ == "__main__":
    main()
