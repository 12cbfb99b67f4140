"""Writes affine.safetensors: what mx.quantize and mx.dequantize make of a few hard rows, in every affine layout.

Run with mlx installed (pip install "mlx[cpu]"): python make_affine.py
"""

from pathlib import Path

import mlx.core as mx
import numpy as np

COLS = 128


def rows():
    rng = np.random.default_rng(7)
    outliers = rng.standard_normal(COLS) * np.where(rng.random(COLS) < 0.03, 30, 1)
    # Constant, zero and tiny groups, and one that is constant but for a single value.
    flat = np.repeat([0.37, 0.0, -1.5, 1e-9], COLS // 4)
    flat[-1] = 2.0
    # Halves and quarters: ties between two codes.
    ties = rng.integers(-30, 31, COLS) / 4
    ties[0], ties[COLS // 2] = 15, -15
    one_sided = np.abs(rng.standard_normal(COLS)) + np.repeat([0.0, -9.0], COLS // 2)
    return mx.array(np.stack([outliers, flat, ties, one_sided]).astype(np.float32))


def fnv1a(array):
    """64-bit FNV-1a of the bytes, to keep the file small: equality to the bit is what is tested."""
    h = 0xCBF29CE484222325
    for byte in np.array(array).tobytes():
        h = ((h ^ byte) * 0x100000001B3) % (1 << 64)
    return mx.array([h & 0xFFFFFFFF, h >> 32], dtype=mx.uint32)


values = rows()
tensors = {"values": values}
for bits in (1, 2, 3, 4, 5, 6, 8):
    for group in (32, 64, 128):
        path = f"b{bits}g{group}"
        weight, scales, biases = mx.quantize(values, group_size=group, bits=bits)
        tensors[f"{path}.weight"] = weight
        tensors[f"{path}.scales"] = scales
        tensors[f"{path}.biases"] = biases
        decoded = mx.dequantize(weight, scales, biases, group_size=group, bits=bits)
        tensors[f"{path}.decoded_fnv1a"] = fnv1a(decoded)
mx.save_safetensors(str(Path(__file__).parent / "affine.safetensors"), tensors, metadata={"format": "mlx"})
