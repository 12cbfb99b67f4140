"""Checks the PyTorch model, the quantiser and the chat renderer against mlx-lm, mlx and the chat template. Needs torch and mlx-lm."""

import json
import random
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from mlx_lm.utils import load_model

import export
import model as box
import tasks


def test_logits():
    torch.manual_seed(3)
    m = box.Model()
    with torch.no_grad():
        for name, p in m.named_parameters():
            if p.ndim == 1 and "A_log" not in name:
                p.add_(torch.randn_like(p) * 0.3)
    ids = torch.randint(0, 4096, (2, 192))
    with tempfile.TemporaryDirectory() as folder:
        export.export(m.state_dict(), box.CONFIG, folder, torch.float32)
        reference, _ = load_model(Path(folder))
        want = np.array(reference(mx.array(ids.numpy())))
    with torch.no_grad():
        got = m.logits(m(ids)[0]).numpy()
    error = np.abs(got - want).max() / np.abs(want).max()
    print(f"logits: {error:.1e} of {np.abs(want).max():.2f}")
    assert error < 1e-4


def test_gradient():
    """The chunkwise form against the plain recurrence, values and gradients, in f64."""
    torch.manual_seed(4)
    b, h, t, d = 1, 2, 128, 8
    q, k, v = (torch.randn(b, h, t, d, dtype=torch.float64) for _ in range(3))
    q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
    g, beta = -torch.rand(b, h, t, dtype=torch.float64), torch.rand(b, h, t, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (q, k, v, g, beta)]

    def plain(q, k, v, g, beta):
        s, out = torch.zeros(b, h, d, d, dtype=torch.float64), []
        for i in range(t):
            s = s * g[:, :, i, None, None].exp()
            u = (v[:, :, i] - (s * k[:, :, i, :, None]).sum(-2)) * beta[:, :, i, None]
            s = s + k[:, :, i, :, None] * u[:, :, None]
            out.append((s * q[:, :, i, :, None]).sum(-2))
        return torch.stack(out, 2)

    one, two = box.gated_delta(*inputs), plain(*inputs)
    assert torch.allclose(one, two, atol=1e-10)
    seed = torch.randn_like(one)
    for x, y in zip(torch.autograd.grad(one, inputs, seed), torch.autograd.grad(two, inputs, seed)):
        assert torch.allclose(x, y, atol=1e-9), (x - y).abs().max()
    print("gated delta rule: values and gradients agree")


def test_quantise():
    torch.manual_seed(5)
    w = (torch.randn(96, 256) * 0.05).bfloat16()
    w[3, :64] = 0
    w[4, :64] = 0.5
    for bits in (4, 8):
        parts = mx.quantize(mx.array(w.float().numpy()).astype(mx.bfloat16), group_size=64, bits=bits)
        want = np.array(mx.dequantize(*(p.astype(mx.float32) if i else p for i, p in enumerate(parts)), group_size=64, bits=bits))
        assert np.abs(box.quantise(w.float(), bits).numpy() - want).max() < 1e-6, bits
    print("quantise: as mx.quantize")


def test_render():
    from transformers import AutoTokenizer

    tok = AutoTokenizer.from_pretrained(export.BOX / "tokenizer")
    rng = random.Random(9)
    for _ in range(300):
        messages = tasks.chat(rng)
        tools = next((m["tools"] for m in messages if "tools" in m), None)
        got = "".join(text for text, _ in tasks.render(messages))
        clean = [{k: v for k, v in m.items() if k != "tools"} for m in messages]
        want = tok.apply_chat_template(clean, tools=tools, tokenize=False)
        assert got == want, (got, want)
    print("render: as the template")


if __name__ == "__main__":
    test_gradient()
    test_quantise()
    test_render()
    test_logits()
