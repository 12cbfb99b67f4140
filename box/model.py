"""The box model in PyTorch: qwen3_5_moe as mlx-lm computes it, in a form that trains fast.

Gated DeltaNet runs chunkwise; every expert is computed for every token, which at this size is cheaper than sorting, and the router's
weights, zero outside the top k, select. Parameters carry mlx-lm's names and layouts.
"""

import json
import math

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = {
    "model_type": "qwen3_5_moe",
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "tie_word_embeddings": True,
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 256,
        "num_hidden_layers": 8,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rms_norm_eps": 1e-6,
        "vocab_size": 4096,
        "max_position_embeddings": 4096,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "num_experts": 24,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 128,
        "norm_topk_prob": True,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "rope_parameters": {"type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    },
}
CHUNK = 64


def rms(x, weight=None, eps=1e-6):
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.float()).to(x.dtype)


def weight(*shape, std):
    return nn.Parameter(torch.randn(*shape) * std)


class Linear(nn.Module):
    def __init__(self, n, m, std):
        super().__init__()
        self.weight = weight(m, n, std=std)

    def forward(self, x):
        return F.linear(x, self.weight)


class Norm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return rms(x, self.weight)


def solve_blocks(a):
    """(I + A)^-1 for strictly lower triangular A, by doubling the solved blocks; as stable as forward substitution."""
    n = a.shape[-1]
    inverse = torch.eye(n, device=a.device, dtype=a.dtype).expand_as(a).clone()
    size = 1
    while size < n:
        count = n // (2 * size)
        shape = (*a.shape[:-2], count, 2, size, count, 2, size)

        def block(m, i, j):
            return m.view(shape)[..., :, i, :, :, j, :].diagonal(dim1=-4, dim2=-2).movedim(-1, -3)

        block(inverse, 1, 0).copy_(-(block(inverse, 1, 1) @ block(a, 1, 0) @ block(inverse, 0, 0)))
        size *= 2
    return inverse


try:
    import triton
    import triton.language as tl

    @triton.jit
    def solve_rows(a_ptr, out_ptr, N: tl.constexpr):
        """Forward substitution, one program per matrix."""
        at = tl.program_id(0).to(tl.int64) * N * N
        i = tl.arange(0, N)
        inverse = (i[:, None] == i[None, :]).to(tl.float32)
        for r in range(1, N):
            row = tl.load(a_ptr + at + r * N + i)
            step = tl.sum(row[:, None] * inverse, 0)
            inverse = tl.where((i == r)[:, None], inverse - step[None, :], inverse)
        tl.store(out_ptr + at + i[:, None] * N + i[None, :], inverse)
except ImportError:
    triton = None


@torch.library.custom_op("box::unit_lower_inverse", mutates_args=())
def unit_lower_inverse(a: torch.Tensor) -> torch.Tensor:
    a = a.contiguous()
    if not a.is_cuda or triton is None:
        return solve_blocks(a)
    out = torch.empty_like(a)
    solve_rows[(a.numel() // a.shape[-1] ** 2,)](a, out, a.shape[-1], num_warps=2)
    return out


@unit_lower_inverse.register_fake
def _(a):
    return torch.empty_like(a, memory_format=torch.contiguous_format)


def _save(ctx, inputs, output):
    ctx.save_for_backward(output)


def _backward(ctx, grad):
    (inverse,) = ctx.saved_tensors
    t = inverse.mT
    return -(t @ grad @ t).tril(-1)


unit_lower_inverse.register_autograd(_backward, setup_context=_save)


def gated_delta(q, k, v, log_g, beta):
    """The gated delta rule over whole sequences. q, k: [B, H, T, dk]; v: [B, H, T, dv]; log_g, beta: [B, H, T]; all f32."""
    b, h, t, dk = q.shape
    n = t // CHUNK
    q, k, v = (x.reshape(b, h, n, CHUNK, -1) for x in (q, k, v))
    total = log_g.reshape(b, h, n, CHUNK).cumsum(-1)
    beta = beta.reshape(b, h, n, CHUNK, 1)
    decay = total.exp().unsqueeze(-1)
    lower = torch.ones(CHUNK, CHUNK, device=q.device, dtype=torch.bool).tril()
    ratio = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~lower, -math.inf).exp()
    a = ((k * beta) @ k.mT * ratio).tril(-1)
    solve = unit_lower_inverse(a)
    u = solve @ (v * beta)
    w = solve @ (k * (beta * decay))
    inner = (q @ k.mT) * ratio
    q = q * decay
    last = total[..., -1:]
    keys = k * (last - total).exp().unsqueeze(-1)
    last = last.exp().unsqueeze(-1)
    state = q.new_zeros(b, h, dk, v.shape[-1])
    states = []
    news = []
    for i in range(n):
        states.append(state)
        new = u[:, :, i] - w[:, :, i] @ state
        news.append(new)
        state = state * last[:, :, i] + keys[:, :, i].mT @ new
    out = q @ torch.stack(states, 2) + inner @ torch.stack(news, 2)
    return out.reshape(b, h, t, -1)


class GatedDeltaNet(nn.Module):
    def __init__(self, c, std, out_std):
        super().__init__()
        d, self.hk, self.hv = c["hidden_size"], c["linear_num_key_heads"], c["linear_num_value_heads"]
        self.dk, self.dv = c["linear_key_head_dim"], c["linear_value_head_dim"]
        self.width = c["linear_conv_kernel_dim"]
        channels = 2 * self.hk * self.dk + self.hv * self.dv
        self.in_proj_qkv = Linear(d, channels, std)
        self.in_proj_z = Linear(d, self.hv * self.dv, std)
        self.in_proj_b = Linear(d, self.hv, std)
        self.in_proj_a = Linear(d, self.hv, std)
        self.conv1d = nn.Module()
        self.conv1d.weight = weight(channels, self.width, 1, std=self.width**-0.5)
        self.A_log = nn.Parameter(torch.empty(self.hv).uniform_(1, 16).log())
        step = torch.exp(torch.rand(self.hv) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.norm = Norm(self.dv)
        self.out_proj = Linear(self.hv * self.dv, d, out_std)

    def forward(self, x):
        b, t, _ = x.shape
        qkv = self.in_proj_qkv(x)
        padded = F.pad(qkv, (0, 0, self.width - 1, 0))
        taps = self.conv1d.weight[:, :, 0]
        qkv = F.silu(sum(padded[:, i : i + t] * taps[:, i] for i in range(self.width)))
        key = self.hk * self.dk
        q, k, v = qkv.float().split([key, key, self.hv * self.dv], -1)
        q, k = (y.reshape(b, t, self.hk, self.dk) for y in (q, k))
        eps = 1e-6 / self.dk
        q, k = rms(q, eps=eps) / self.dk, rms(k, eps=eps) * self.dk**-0.5
        q, k = (y.repeat_interleave(self.hv // self.hk, 2).transpose(1, 2) for y in (q, k))
        v = v.reshape(b, t, self.hv, self.dv).transpose(1, 2)
        a, beta = self.in_proj_a(x).float(), self.in_proj_b(x).float().sigmoid()
        log_g = -self.A_log.float().exp() * F.softplus(a + self.dt_bias.float())
        y = gated_delta(q, k, v, log_g.transpose(1, 2), beta.transpose(1, 2)).transpose(1, 2)
        z = self.in_proj_z(x).float().reshape(b, t, self.hv, self.dv)
        y = rms(y, self.norm.weight) * F.silu(z)
        return self.out_proj(y.reshape(b, t, -1).to(x.dtype))


class Attention(nn.Module):
    def __init__(self, c, std, out_std):
        super().__init__()
        d, self.h, self.kv, self.dim = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.rotary = int(self.dim * c["rope_parameters"]["partial_rotary_factor"])
        self.theta = c["rope_parameters"]["rope_theta"]
        self.q_proj = Linear(d, 2 * self.h * self.dim, std)
        self.k_proj = Linear(d, self.kv * self.dim, std)
        self.v_proj = Linear(d, self.kv * self.dim, std)
        self.o_proj = Linear(self.h * self.dim, d, out_std)
        self.q_norm, self.k_norm = Norm(self.dim), Norm(self.dim)

    def rope(self, x):
        half = self.rotary // 2
        t = torch.arange(x.shape[2], device=x.device, dtype=torch.float32)
        f = self.theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
        cos, sin = (t[:, None] * f).cos(), (t[:, None] * f).sin()
        a, b, rest = x.float().split([half, half, self.dim - self.rotary], -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).to(x.dtype)

    def forward(self, x):
        b, t, _ = x.shape
        q, gate = self.q_proj(x).reshape(b, t, self.h, 2 * self.dim).split(self.dim, -1)
        k = self.k_proj(x).reshape(b, t, self.kv, self.dim)
        v = self.v_proj(x).reshape(b, t, self.kv, self.dim)
        q, k = self.rope(self.q_norm(q).transpose(1, 2)), self.rope(self.k_norm(k).transpose(1, 2))
        k, v = (y.repeat_interleave(self.h // self.kv, 1) for y in (k, v.transpose(1, 2)))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1)
        return self.o_proj(y * gate.reshape(b, t, -1).sigmoid())


class Experts(nn.Module):
    def __init__(self, e, d, i, std, out_std):
        super().__init__()
        for name, shape, s in (("gate_proj", (e, i, d), std), ("up_proj", (e, i, d), std), ("down_proj", (e, d, i), out_std)):
            part = nn.Module()
            part.weight = weight(*shape, std=s)
            setattr(self, name, part)

    def forward(self, x, weights):
        e, i, d = self.gate_proj.weight.shape
        y = F.silu(F.linear(x, self.gate_proj.weight.reshape(e * i, d))) * F.linear(x, self.up_proj.weight.reshape(e * i, d))
        y = (y.unflatten(-1, (e, i)) * weights.to(x.dtype).unsqueeze(-1)).flatten(-2)
        return F.linear(y, self.down_proj.weight.transpose(0, 1).reshape(d, e * i))


class Mlp(nn.Module):
    def __init__(self, d, i, std, out_std):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = Linear(d, i, std), Linear(d, i, std), Linear(i, d, out_std)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Moe(nn.Module):
    def __init__(self, c, std, out_std):
        super().__init__()
        d, self.experts, self.k = c["hidden_size"], c["num_experts"], c["num_experts_per_tok"]
        self.gate = Linear(d, self.experts, std)
        self.switch_mlp = Experts(self.experts, d, c["moe_intermediate_size"], std, out_std)
        self.shared_expert = Mlp(d, c["shared_expert_intermediate_size"], std, out_std)
        self.shared_expert_gate = Linear(d, 1, std)

    def forward(self, x):
        logits = F.linear(x.float(), self.gate.weight.float())
        p = logits.softmax(-1)
        # The k largest: fewer than k others are larger.
        chosen = ((p.unsqueeze(-2) > p.unsqueeze(-1)).sum(-1) < self.k).float()
        weights = p * chosen
        weights = weights / weights.sum(-1, keepdim=True)
        share = chosen.mean((0, 1)) / self.k
        balance = self.experts * (share * p.mean((0, 1))).sum()
        z = logits.logsumexp(-1).square().mean()
        y = self.switch_mlp(x, weights) + self.shared_expert_gate(x).sigmoid() * self.shared_expert(x)
        return y, balance, z, share.detach()


class Layer(nn.Module):
    def __init__(self, c, index, std, out_std):
        super().__init__()
        if (index + 1) % c["full_attention_interval"]:
            self.linear_attn = GatedDeltaNet(c, std, out_std)
        else:
            self.self_attn = Attention(c, std, out_std)
        self.mlp = Moe(c, std, out_std)
        self.input_layernorm, self.post_attention_layernorm = Norm(c["hidden_size"]), Norm(c["hidden_size"])

    def forward(self, x):
        mixer = self.linear_attn if hasattr(self, "linear_attn") else self.self_attn
        x = x + mixer(self.input_layernorm(x))
        y, balance, z, share = self.mlp(self.post_attention_layernorm(x))
        return x + y, balance, z, share


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        std = c["hidden_size"] ** -0.5 * 0.6
        out_std = std / math.sqrt(2 * c["num_hidden_layers"])
        self.embed_tokens = nn.Module()
        self.embed_tokens.weight = weight(c["vocab_size"], c["hidden_size"], std=0.03)
        self.layers = nn.ModuleList(Layer(c, i, std, out_std) for i in range(c["num_hidden_layers"]))
        self.norm = Norm(c["hidden_size"])


class Model(nn.Module):
    """`language_model.model.*`, as mlx-lm names it."""

    def __init__(self, config=CONFIG):
        super().__init__()
        self.config = config
        self.language_model = nn.Module()
        self.language_model.model = Body(config["text_config"])
        self.run = [layer.forward for layer in self.language_model.model.layers]

    def compile(self):
        self.run = [torch.compile(layer, dynamic=False) for layer in self.language_model.model.layers]

    def forward(self, ids, compiled=True):
        """Final hidden states of ids [B, T]; T a multiple of the chunk. Also: balance loss, z loss, share of each expert by layer."""
        body = self.language_model.model
        x = F.embedding(ids, body.embed_tokens.weight)
        balance = z = 0
        shares = []
        for run, layer in zip(self.run, body.layers):
            x, b, zz, share = (run if compiled else layer.forward)(x)
            balance, z = balance + b, z + zz
            shares.append(share)
        n = len(shares)
        return body.norm(x), balance / n, z / n, torch.stack(shares)

    def logits(self, hidden):
        return F.linear(hidden, self.language_model.model.embed_tokens.weight)


def quantised_bits(name, shape):
    """How many bits the shipped checkpoint gives this tensor; 0: it stays bf16."""
    if len(shape) < 2 or "conv1d" in name:
        return 0
    return 8 if name.endswith(("mlp.gate.weight", "shared_expert_gate.weight")) else 4


@torch.no_grad()
def quantise(w, bits, group=64, top=None):
    """w rounded to MLX's affine codes and back (scales and biases in bf16); as crates/checkpoint's quantize_affine."""
    x = w.to(torch.bfloat16).float().reshape(-1, group)
    top = top or 2**bits - 1
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    width = ((high - low) / top).clamp_min(1e-7)
    below = low.abs() > high.abs()
    edge, scale = torch.where(below, low, high), torch.where(below, width, -width)
    steps = (edge / scale).round()
    zero = steps == 0
    scale = torch.where(zero, scale, edge / torch.where(zero, torch.ones_like(steps), steps))
    bias = torch.where(zero, torch.zeros_like(edge), edge)
    codes = ((x - bias) / scale).round().clamp(0, top)
    return (codes * scale.bfloat16().float() + bias.bfloat16().float()).reshape(w.shape)


def sizes(model):
    """(parameters, bytes of the 4-bit checkpoint's tensors)."""
    count = size = 0
    for name, p in model.named_parameters():
        bits = quantised_bits(name, p.shape)
        count += p.numel()
        size += p.numel() * bits // 8 + p.numel() // 64 * 4 if bits else p.numel() * (4 if "A_log" in name else 2)
    return count, size


if __name__ == "__main__":
    count, size = sizes(Model())
    print(f"{count:,} parameters, {size:,} bytes at 4 bits")
    print(json.dumps(CONFIG, indent=1))
