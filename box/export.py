"""Writes a model as an MLX folder. Usage: python3 export.py FOLDER MASTERS.. [--scale X]

Of several files of weights the mean is taken. --scale multiplies the final norm, that is, all logits: below 1 it makes a model that is too
sure of itself less so, and changes no greedy answer.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

BOX = Path(__file__).parent


def export(state, config, folder, dtype=torch.bfloat16):
    """`state` by mlx-lm name. A_log stays f32, the rest becomes `dtype`; norm weights are stored as used."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {k: v.detach().cpu().to(torch.float32 if k.endswith("A_log") else dtype).contiguous() for k, v in state.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (BOX / "tokenizer" / name).exists():
            shutil.copy(BOX / "tokenizer" / name, folder / name)


def main():
    import model

    p = argparse.ArgumentParser()
    p.add_argument("folder")
    p.add_argument("masters", nargs="+")
    p.add_argument("--scale", type=float, default=1.0)
    a = p.parse_args()
    parts = [torch.load(f, weights_only=True) for f in a.masters]
    state = {n: sum(x[n].float() for x in parts) / len(parts) for n in parts[0]}
    state["language_model.model.norm.weight"] *= a.scale
    export(state, model.CONFIG, a.folder)


if __name__ == "__main__":
    main()
