"""Writes floats.safetensors: what mx.quantize and mx.dequantize make of a few hard rows, in every float mode.

Run with mlx for the CPU installed (pip install "mlx[cpu]"): python make_floats.py. On a GPU, mx.quantize rounds ties and
signs of zero differently.
"""

from pathlib import Path

import mlx.core as mx
import numpy as np

COLS = 128
MODES = {"mxfp4": 32, "mxfp8": 32, "nvfp4": 16}


def rows():
    rng = np.random.default_rng(11)
    outliers = rng.standard_normal(COLS) * np.where(rng.random(COLS) < 0.05, 40, 1)
    # Constant, zero and tiny groups, one that is constant but for a single value, and subnormal values beside a normal.
    flat = np.repeat([0.37, 0.0, -1.5, 1e-9, 1e-40, 6.0, 448.0, 6.1], COLS // 8)
    flat[63], flat[64] = 2.0, -3.0
    # Eighths up to 6: ties between codes, both signs.
    ties = rng.integers(-48, 49, COLS) / 8
    ties[::16] = 6
    # Largest values just below, at and just above what a power of two makes of 6 and 448, and very large and small.
    edges = rng.standard_normal(COLS) * 1e-3
    for i, top in enumerate([6 * (1 - 2**-23), 6 * (1 + 2**-22), 448 * (1 + 2**-22), 2688]):
        edges[i * 32 : (i + 1) * 32] *= top
        edges[i * 32 + 5] = -top
    scaled = rng.standard_normal(COLS) * np.repeat([1e30, 1e-30, 1e4, 2**-10], COLS // 4)
    # In nvfp4 a value 2^25 times as large as its scale is zero in MLX on the CPU; that is no rounding to keep.
    scaled[:32] = np.clip(scaled[:32], -1e5, 1e5)
    return mx.array(np.stack([outliers, flat, ties, edges, scaled]).astype(np.float32))


def fnv1a(array):
    """64-bit FNV-1a of the bytes, to keep the file small: equality to the bit is what is tested."""
    h = 0xCBF29CE484222325
    for byte in np.array(array).tobytes():
        h = ((h ^ byte) * 0x100000001B3) % (1 << 64)
    return mx.array([h & 0xFFFFFFFF, h >> 32], dtype=mx.uint32)


def decoded(path, mode, **more):
    weight, scales = tensors[f"{path}.weight"], tensors[f"{path}.scales"]
    values = mx.dequantize(weight, scales, mode=mode, dtype=mx.float32, **more)
    tensors[f"{path}.decoded_fnv1a"] = fnv1a(values)


values = rows()
tensors = {"values": values}
rng = np.random.default_rng(13)
for mode, group in MODES.items():
    tensors[f"{mode}.weight"], tensors[f"{mode}.scales"] = mx.quantize(values, mode=mode)
    decoded(mode, mode)
    # Weights as they mostly are.
    half = values.astype(mx.bfloat16)
    tensors[f"{mode}_bf16.weight"], tensors[f"{mode}_bf16.scales"] = mx.quantize(half, mode=mode)
    decoded(f"{mode}_bf16", mode)
    # Every code under many scales; not the bytes that are no numbers, whose bits differ between machines.
    codes = np.arange(256, dtype=np.uint8)
    scales = rng.permutation(256).astype(np.uint8)[: 4 * COLS // group]
    if mode == "mxfp8":
        codes = codes % 127 + (codes & 128)
    else:
        scales = scales % 127 if mode == "nvfp4" else scales
    codes = np.tile(codes, 4)[: 4 * COLS if mode == "mxfp8" else 2 * COLS]
    scales[scales == 255] = 254
    tensors[f"{mode}_codes.weight"] = mx.array(codes.view(np.uint32).reshape(4, -1))
    tensors[f"{mode}_codes.scales"] = mx.array(scales.reshape(4, -1))
    decoded(f"{mode}_codes", mode)

# A scale over all, which need not be the largest magnitude.
for name, scale in (("one", 23.7), ("other", 0.0113)):
    path = f"nvfp4_{name}"
    scale = mx.array(scale, dtype=mx.float32)
    tensors[f"{path}.weight"], tensors[f"{path}.scales"] = mx.quantize(values, mode="nvfp4", global_scale=scale)
    tensors[f"{path}.global_scale"] = scale
    decoded(path, "nvfp4", global_scale=scale)

# Hugging Face's fp8, in f32: the product of code and scale, blocks of 128 that do not divide the sides.
codes = np.resize(np.arange(127, dtype=np.uint8), (130, 140))
codes[::2] |= 128
scale_inv = (rng.random((2, 2)) * 1e-3).astype(np.float32)
tensors["fp8.weight"] = mx.array(codes)
tensors["fp8.weight_scale_inv"] = mx.array(scale_inv)
plain = mx.from_fp8(mx.array(codes), dtype=mx.float32)
every = mx.array(np.repeat(np.repeat(scale_inv, 128, 0), 128, 1)[:130, :140])
tensors["fp8.decoded_fnv1a"] = fnv1a(plain * every)
mx.save_safetensors(str(Path(__file__).parent / "floats.safetensors"), tensors, metadata={"format": "mlx"})
