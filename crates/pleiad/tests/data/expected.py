"""What mlx-lm makes of the fixtures, for tests/quantize.rs and tests/eval.rs: writes expected.json beside this file.

Made with mlx-lm 0.32.2 and mlx 0.32.4 on the CPU: `python crates/pleiad/tests/data/expected.py`.
"""

import hashlib
import importlib
import json
import math
import struct
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map_with_path
from mlx_lm.utils import load_model, quantize_model, save_model

convert = importlib.import_module("mlx_lm.convert")

HERE = Path(__file__).parent
FIXTURES = HERE.parents[3] / "fixtures"

# Fixture, bits, group, mode, recipe.
QUANTIZE = [
    ("qwen3_5_moe-bf16", 4, 64, "affine", None),
    ("qwen3_5_moe-bf16-hf", 8, 64, "affine", None),
    ("qwen3_5_moe-bf16-hf", 4, 64, "affine", "mixed_3_6"),
    ("qwen3_5_moe-bf16", 4, 16, "nvfp4", None),
    ("qwen3_moe-bf16-hf", 5, 64, "affine", None),
    ("qwen3_next-bf16-hf", 4, 32, "affine", None),
    ("qwen3-yarn-f16", 3, 32, "affine", None),
    ("qwen3-yarn-f16", 8, 32, "mxfp8", None),
    ("qwen3_moe-bf16-hf", 1, 64, "affine", None),
    ("qwen3-yarn-f16", 1, 32, "affine", None),
    ("deepseek_v3-plain-bf16-hf", 4, 64, "affine", None),
    ("deepseek_v3-plain-bf16-hf", 4, 32, "mxfp4", None),
    ("deepseek_v3-fp8-hf", 6, 32, "affine", None),
    ("gemma4-dense-bf16", 4, 32, "affine", None),
    ("gemma4-moe-bf16-hf", 4, 32, "mxfp4", None),
]

# Fixture, the reference to compare it with, tokens, tokens of a window.
EVAL = [
    ("qwen3_5_moe-4bit", "qwen3_5_moe-mixed", 100, 32),
    ("qwen3_moe-6bit", None, 70, 512),
    ("deepseek_v3-plain-bf16", None, 65, 16),
    ("gemma4-dense-bf16", None, 90, 41),
]


def quantized(source, bits, group, mode, recipe):
    """`mlx_lm.convert` without a tokenizer."""
    model, config = load_model(source, lazy=True)
    predicate = convert.mixed_quant_predicate_builder(recipe, model, group) if recipe else None
    dtype = config.get("torch_dtype") or config.get("text_config", {}).get("dtype")
    if dtype in convert.MODEL_CONVERSION_DTYPES:
        keeps = getattr(model, "cast_predicate", lambda _: True)
        cast = lambda k, v: v.astype(getattr(mx, dtype)) if keeps(k) and mx.issubdtype(v.dtype, mx.floating) else v
        model.update(tree_map_with_path(cast, model.parameters()))
    return quantize_model(model, config, group, bits, mode=mode, quant_predicate=predicate)


def digest(folder):
    """Of every tensor's name, type, shape and bytes, in the order of names."""
    tensors = {}
    for file in folder.glob("model*.safetensors"):
        data = file.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            shape = ",".join(map(str, entry["shape"]))
            tensors[name] = f"{name} {entry['dtype']} {shape}\n".encode() + data[start:end]
    return hashlib.sha256(b"".join(tensors[name] for name in sorted(tensors))).hexdigest()


def log_softmax(model, window):
    logits = np.array(model(mx.array(window[None, :-1])))[0].astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def load_f32(name):
    model, _ = load_model(FIXTURES / name)
    model.set_dtype(mx.float32)
    return model


def evaluated(name, reference, count, context):
    models = [load_f32(n) for n in (name, reference) if n]
    vocabulary = models[0](mx.array([[1]])).shape[-1]
    ids = np.array([(i * i * 7919 + i * 31) % vocabulary for i in range(count)])
    losses, kl, same = [[] for _ in models], [], []
    for start in range(0, count, context):
        window = ids[start : start + context]
        if len(window) < 2:
            continue
        logs = [log_softmax(model, window) for model in models]
        for loss, log in zip(losses, logs):
            loss.extend(-log[np.arange(len(window) - 1), window[1:]])
        if reference:
            kl.extend((np.exp(logs[1]) * (logs[1] - logs[0])).sum(axis=-1))
            same.extend(logs[0].argmax(axis=-1) == logs[1].argmax(axis=-1))
    result = {"fixture": name, "ids": ids.tolist(), "context": context, "tokens_scored": len(losses[0])}
    result["perplexity"] = math.exp(np.mean(losses[0]))
    if reference:
        result["against"] = reference
        result["reference_perplexity"] = math.exp(np.mean(losses[1]))
        result.update(kl_mean=np.mean(kl), kl_max=np.max(kl), top1_agreement=np.mean(same))
    return result


def main():
    conversions = []
    for name, bits, group, mode, recipe in QUANTIZE:
        model, config = quantized(FIXTURES / name, bits, group, mode, recipe)
        with tempfile.TemporaryDirectory() as folder:
            save_model(folder, model)
            conversion = {"fixture": name, "bits": bits, "group": group, "mode": mode, "recipe": recipe}
            conversion |= {"digest": digest(Path(folder)), "quantization": config["quantization"]}
            conversions.append(conversion)
    lines = {"quantize": conversions, "eval": [evaluated(*case) for case in EVAL]}
    with open(HERE / "expected.json", "w") as file:
        parts = [f'"{key}": [\n' + ",\n".join(json.dumps(v) for v in values) + "\n]" for key, values in lines.items()]
        file.write("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    main()
