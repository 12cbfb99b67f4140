"""Trains the box model. Usage: python3 train.py --steps N [--out DIR] (see README.md).

The model computes in bf16; f32 master weights are rounded to it before every step, in the last part through 4-bit codes, so that
gradients pass the rounding straight through.
"""

import argparse
import json
import math
import os
import time
from collections import defaultdict
from pathlib import Path

import torch
import torch.nn.functional as F

import data
import model as box

BOX = Path(__file__).parent


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=10000)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--length", type=int, default=1024)
    p.add_argument("--pages", type=float, default=0.08, help="share of sequences of stories and the like, without a request")
    p.add_argument("--entries", type=float, default=0.05, help="share of sequences of pages of the dictionary")
    p.add_argument("--prose", type=float, default=0.28, help="share of sequences of chats that ask for prose; the rest are exercises")
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--optimiser", default="muon", choices=("muon", "adamw"))
    p.add_argument("--decay", type=float, default=0.1)
    p.add_argument("--quantised", type=float, default=0.25, help="share of the steps, at the end, with 4-bit weights")
    p.add_argument("--coarse", type=float, default=0.0, help="until this part of the run, round 4-bit weights to --levels steps instead of 15")
    p.add_argument("--levels", type=int, default=9)
    p.add_argument("--seconds", type=float, default=0, help="shorten the schedule to end after this many seconds of steps")
    p.add_argument("--start", default="", help="weights to start from: a file of tensors by name")
    p.add_argument("--evals", type=int, default=6, help="how many times to measure on the way; with --seconds, every so many steps")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--workers", type=int, default=13)
    p.add_argument("--out", default=str(BOX / "out"))
    p.add_argument("--stop", type=int, default=0, help="stop after this many steps (for trials)")
    p.add_argument("--resume", action="store_true")
    p.add_argument("--device", default="cuda")
    p.add_argument("--eager", action="store_true")
    return p.parse_args()


class Optimiser:
    """Muon (orthogonalised momentum, update size as AdamW's) for the matrices inside layers, AdamW for the rest."""

    def __init__(self, masters, args):
        self.args, self.masters, self.step_no = args, masters, 0
        small = ("embed_tokens", "conv1d", "mlp.gate.", "shared_expert_gate", "in_proj_a", "in_proj_b")
        self.by_shape = defaultdict(list)
        rest, vectors = [], []
        for name, p in masters.items():
            if args.optimiser == "muon" and p.ndim >= 2 and not any(s in name for s in small):
                self.by_shape[tuple(p.shape)].append(p)
            else:
                (vectors if p.ndim < 2 or "conv1d" in name else rest).append(p)
        self.momentum = {shape: torch.zeros(len(ps), *shape, device=ps[0].device) for shape, ps in self.by_shape.items()}
        fused = args.device == "cuda"
        self.adam = torch.optim.AdamW(
            [{"params": rest, "weight_decay": args.decay}, {"params": vectors, "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.95), fused=fused
        )
        self.orthogonal = torch.compile(orthogonal, dynamic=False) if not args.eager else orthogonal

    def step(self, lr):
        for group in self.adam.param_groups:
            group["lr"] = lr * 0.75
        self.adam.step()
        for shape, ps in self.by_shape.items():
            grad = torch.stack([p.grad for p in ps])
            m = self.momentum[shape]
            m.lerp_(grad, 0.05)
            update = self.orthogonal(grad.lerp(m, 0.95).reshape(-1, *shape[-2:])).reshape(m.shape)
            scale = 0.2 * math.sqrt(max(shape[-2:]))
            torch._foreach_mul_(ps, 1 - lr * self.args.decay)
            torch._foreach_add_(ps, list(update.float().unbind(0)), alpha=-lr * scale)

    def state(self):
        return {"adam": self.adam.state_dict(), "momentum": self.momentum}

    def load(self, state):
        self.adam.load_state_dict(state["adam"])
        self.momentum = state["momentum"]


def orthogonal(g):
    """Newton-Schulz towards the nearest orthogonal matrix, for each matrix of a batch."""
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if tall else x


class Trainer:
    def __init__(self, args):
        self.args = args
        torch.manual_seed(args.seed)
        torch.set_float32_matmul_precision("high")
        dev = args.device
        self.model = box.Model().to(dev)
        self.masters = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        if args.start:
            for n, p in torch.load(args.start, map_location=dev, weights_only=True).items():
                self.masters[n].copy_(p)
        for name, p in self.model.named_parameters():
            if p.ndim >= 2 and dev == "cuda":
                p.data = p.data.bfloat16()
        self.params = dict(self.model.named_parameters())
        self.optimiser = Optimiser(self.masters, args)
        self.coder = data.Coder()
        self.log_file = open(Path(args.out) / "train.log", "a")
        self.start = time.time()
        self.held = [json.loads(x) for x in open(BOX / "eval/text.jsonl")]
        self.items = [json.loads(x) for x in open(BOX / "eval/items.jsonl")]

    def log(self, text):
        line = f"{time.time() - self.start:7.1f}s {text}"
        print(line, flush=True)
        self.log_file.write(line + "\n")
        self.log_file.flush()

    @torch.no_grad()
    def load_weights(self, bits, levels=None):
        """Rounds the masters into the model: bits 0 for bf16, 4 for the shipped mix of 4 and 8 bits."""
        if not hasattr(self, "_round"):
            self._round = {b: torch.compile(box.quantise, dynamic=False) if not self.args.eager else box.quantise for b in (4, 8)}
            self._groups = defaultdict(list)
            for n, p in self.masters.items():
                self._groups[box.quantised_bits(n, p.shape)].append(n)
        for b, names in self._groups.items():
            if bits and b:
                flat = torch.cat([self.masters[n].reshape(-1) for n in names])
                parts = self._round[b](flat, b, 64, levels if b == 4 else None).split([self.masters[n].numel() for n in names])
                torch._foreach_copy_([self.params[n].data for n in names], [x.view_as(self.masters[n]) for x, n in zip(parts, names)])
            else:
                torch._foreach_copy_([self.params[n].data for n in names], [self.masters[n] for n in names])

    def loss(self, ids, mask):
        hidden, balance, z, shares = self.model(ids[:, :-1])
        ce = self.cross_entropy(hidden, self.model.language_model.model.embed_tokens.weight, ids[:, 1:], mask[:, 1:])
        return ce, ce.detach(), balance, z, shares

    def train(self):
        a = self.args
        step = 0
        if a.resume and (Path(a.out) / "state.pt").exists():
            state = torch.load(Path(a.out) / "state.pt", map_location=a.device, weights_only=True)
            step = state["step"]
            for n, p in self.masters.items():
                p.copy_(state["masters"][n])
            self.optimiser.load(state["optimiser"])
            self.log(f"resumed at step {step}")
        count, size = box.sizes(self.model)
        self.log(f"{count:,} parameters, {size:,} bytes at 4 bits; {vars(a)}")
        if not a.eager:
            self.model.compile()

        def cross_entropy(hidden, weight, want, mask):
            logits = F.linear(hidden, weight).float()
            ce = F.cross_entropy(logits.flatten(0, 1), want.flatten(), reduction="none")
            return (ce * mask.flatten()).sum() / mask.sum()

        self.cross_entropy = cross_entropy if a.eager else torch.compile(cross_entropy, dynamic=False)
        pages, entries, prose = (round(a.batch * x) for x in (a.pages, a.entries, a.prose))
        loader = iter(torch.utils.data.DataLoader(
            data.Chats(a.seed + step, a.batch - pages - entries - prose, prose, pages, entries, a.length), batch_size=None, num_workers=a.workers, pin_memory=a.device == "cuda", prefetch_factor=8 if a.workers else None
        ))
        names = list(self.masters)
        until = a.stop or a.steps
        evals = {round(a.steps * (i + 1) / a.evals) for i in range(a.evals - 1)} if a.evals and not a.seconds else set()
        marks, total, seen = time.time(), torch.zeros(4, device=a.device), 0
        usage = 0
        waited = 0.0
        while step < until:
            if step == 1:
                begun = time.time()
            at = step / a.steps
            if a.seconds and step:
                at = max(at, (time.time() - begun) / a.seconds)
                if at >= 1:
                    break
            lr = a.lr * min((step + 1) / 200, 1, max((1 - at) / 0.65, 0.01))
            bits = 4 if at >= 1 - a.quantised else 0
            t0 = time.time()
            chat, mask = next(loader)
            waited += time.time() - t0
            ids, mask = chat.to(a.device, non_blocking=True), mask.to(a.device, non_blocking=True)
            self.load_weights(bits, a.levels if at < a.coarse else None)
            loss, ce, balance, z, shares = self.loss(ids, mask)
            (loss + 0.01 * balance + 1e-4 * z).backward()
            for n in names:
                self.masters[n].grad = self.params[n].grad.float()
                self.params[n].grad = None
            norm = torch.nn.utils.clip_grad_norm_(list(self.masters.values()), 1.0, foreach=True)
            self.optimiser.step(lr)
            total += torch.stack([ce.float(), balance.detach().float(), z.detach().float(), norm.float()])
            usage = usage + shares
            seen += 1
            step += 1
            if step % 200 == 0 or step == until or step in (1, 20):
                n = (total / seen).tolist()
                u = usage / seen * self.model.config["text_config"]["num_experts"]
                now = time.time()
                rate = seen * a.batch * a.length / (now - marks)
                self.log(f"step {step:6} loss {n[0]:.4f} balance {n[1]:.3f} z {n[2]:.2f} norm {n[3]:.2f} lr {lr:.1e} bits {bits or 16} "
                         f"usage {u.min():.2f}..{u.max():.2f} {rate / 1e3:.0f}k tok/s waited {waited:.1f}s")
                marks, seen, usage, waited = now, 0, 0, 0.0
                total.zero_()
            if step in evals or a.seconds and a.evals and step % a.evals == 0:
                self.evaluate(bits, f"step {step}", items=False)
                marks = time.time()
            if a.seconds and step % 2000 == 0:
                torch.save({n: p.cpu() for n, p in self.masters.items()}, Path(a.out) / "masters-now.pt")
                os.replace(Path(a.out) / "masters-now.pt", Path(a.out) / "masters-last.pt")
            if not a.seconds and (step % 2000 == 0 or step == until):
                torch.save({"step": step, "masters": self.masters, "optimiser": self.optimiser.state()}, Path(a.out) / "state.pt")
        torch.save({n: p.cpu() for n, p in self.masters.items()}, Path(a.out) / "masters.pt")
        if until == a.steps:
            self.log(f"ended at step {step}")
            self.evaluate(0, "final bf16")
            self.evaluate(4, "final 4-bit", verbose=True)
            self.report_usage()

    @torch.no_grad()
    def report_usage(self):
        u = self.text_shares * self.model.config["text_config"]["num_experts"]
        for i, row in enumerate(u.tolist()):
            self.log(f"layer {i} share of each expert, held-out text, 1 = even: " + " ".join(f"{x:.2f}" for x in row))

    @torch.no_grad()
    def evaluate(self, bits, title, verbose=False, items=True):
        t0 = time.time()
        self.load_weights(bits)
        dev = self.args.device
        sums = defaultdict(lambda: [0.0, 0])
        rows = [self.coder.encode(t["text"])[:1025] for t in self.held]
        for at in range(0, len(rows), 16):
            part = rows[at : at + 16]
            ids = torch.full((len(part), 1025), self.coder.end, dtype=torch.long)
            mask = torch.zeros(len(part), 1024)
            for i, r in enumerate(part):
                ids[i, : len(r)] = torch.tensor(r)
                mask[i, : len(r) - 1] = 1
            ids, mask = ids.to(dev), mask.to(dev)
            hidden = self.model(ids[:, :-1], compiled=False)[0]
            ce = F.cross_entropy(self.model.logits(hidden).float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
            for t, nats, n in zip(self.held[at : at + 16], (ce.view(mask.shape) * mask).sum(1).tolist(), mask.sum(1).tolist()):
                for name in (t["source"], "all"):
                    sums[name][0] += nats
                    sums[name][1] += int(n)
        means = {name: math.exp(total / count) for name, (total, count) in sums.items()}
        parts = ", ".join(f"{name} {value:.2f}" for name, value in means.items() if name != "all")
        measured = f"{title}: bits {bits or 16} held-out perplexity {means['all']:.3f} ({sums['all'][1]} tokens; {parts})"
        if not items:
            self.log(measured + f" [{time.time() - t0:.1f}s]")
            return
        # Expert shares over the text itself: padding goes to a few experts and would look like a preference.
        flat = torch.tensor([t for r in rows for t in r])
        flat = flat[: len(flat) // 1024 * 1024].view(-1, 1024).to(dev)
        self.text_shares = torch.stack([self.model(part, compiled=False)[3] * len(part) for part in flat.split(16)]).sum(0) / len(flat)
        right, asked, wrong = defaultdict(int), defaultdict(int), []
        for item, answer in zip(self.items, self.answers()):
            asked[item["kind"]] += 1
            good = answer.strip() == item["answer"].strip()
            right[item["kind"]] += good
            if not good:
                wrong.append((item, answer))
        score = sum(right.values()) / len(self.items)
        self.log(f"{measured} items {score:.1%} "
                 + " ".join(f"{k} {right[k]}/{asked[k]}" for k in asked) + f" [{time.time() - t0:.1f}s]")
        for item, answer in wrong[: 80 if verbose else 12]:
            self.log(f"  wrong {item['kind']}: {item['messages'][-1]['content']!r} wants {item['answer']!r} got {answer!r}")

    @torch.no_grad()
    def answers(self, limit=112):
        """Greedy answers to all items, by computing the whole sequence again for every token: simple, and fast enough here."""
        dev = self.args.device
        prompts = []
        for item in self.items:
            messages = [dict(m) for m in item["messages"]]
            if "tools" in item:
                messages[0]["tools"] = item["tools"]
            prompts.append(self.coder.chat(messages)[0] + self.coder.encode("<|im_start|>assistant\n"))
        out = [""] * len(prompts)
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        groups = [[i for i in order if len(prompts[i]) <= 80], [i for i in order if len(prompts[i]) > 80]]
        for group in groups:
            if not group:
                continue
            width = max(len(prompts[i]) for i in group) + limit
            width += -width % box.CHUNK
            ids = torch.full((len(group), width), self.coder.end, dtype=torch.long, device=dev)
            ends = torch.tensor([len(prompts[i]) for i in group], device=dev)
            for row, i in enumerate(group):
                ids[row, : len(prompts[i])] = torch.tensor(prompts[i], device=dev)
            done = torch.zeros(len(group), dtype=torch.bool, device=dev)
            rows = torch.arange(len(group), device=dev)
            for _ in range(limit):
                use = int(ends.max())
                use += -use % box.CHUNK
                active = (~done).nonzero()[:, 0]
                hidden = self.model(ids[active, :use], compiled=False)[0]
                last = hidden[torch.arange(len(active), device=dev), ends[active] - 1]
                new = self.model.logits(last).float().argmax(-1)
                ids[active, ends[active]] = new
                ends[active] += 1
                done[active] = (new == self.coder.stop) | (new == self.coder.end)
                if bool(done.all()):
                    break
            for row, i in enumerate(group):
                got = ids[row, len(prompts[i]) : int(ends[row])].tolist()
                got = [t for t in got if t not in (self.coder.stop, self.coder.end)]
                out[i] = self.coder.tok.decode(got, skip_special_tokens=False)
        return out


if __name__ == "__main__":
    args = arguments()
    Path(args.out).mkdir(parents=True, exist_ok=True)
    Trainer(args).train()
