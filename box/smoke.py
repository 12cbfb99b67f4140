"""Checks on the GPU what the tests check on the CPU: the triton solver, and the compiled bf16 model against plain f32."""

import torch

import model as box

torch.manual_seed(0)
torch.set_float32_matmul_precision("highest")
k = torch.nn.functional.normalize(torch.randn(64, 8, 4, 64, 32, device="cuda"), dim=-1)
a = (k @ k.mT * 0.9).tril(-1).contiguous()
one, two = box.unit_lower_inverse(a), box.solve_blocks(a.double())
print("solver", ((one - two).norm() / two.norm()).item())
m = box.Model().cuda()
ids = torch.randint(0, 4096, (4, 1024), device="cuda")
with torch.no_grad():
    want = m.logits(m(ids)[0])
    cpu = m.cpu().double()
    exact = cpu.logits(cpu(ids[:1, :256].cpu())[0]).cuda()
    m.float().cuda()
    print("f32 gpu against f64 cpu", ((want[:1, :256] - exact).norm() / exact.norm()).item())
    torch.set_float32_matmul_precision("high")
    m.compile()
    for p in m.parameters():
        if p.ndim >= 2:
            p.data = p.data.bfloat16()
    got = m.logits(m(ids)[0]).float()
    print("compiled bf16 against f32", ((got - want).norm() / want.norm()).item())
