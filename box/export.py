"""Writes a model as an MLX folder. Usage: python3 export.py FOLDER MASTERS"""

import json
import shutil
import sys
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


if __name__ == "__main__":
    import model

    export(torch.load(sys.argv[2], weights_only=True), model.CONFIG, sys.argv[1])
