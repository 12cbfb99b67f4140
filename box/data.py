"""Token sequences for training: windows of the corpus, and packed chats made on the fly."""

import json
import random
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

import tasks

BOX = Path(__file__).parent


class Coder:
    def __init__(self):
        self.tok = Tokenizer.from_file(str(BOX / "tokenizer/tokenizer.json"))
        self.end = self.tok.token_to_id("<|endoftext|>")
        self.stop = self.tok.token_to_id("<|im_end|>")
        self.known = {}

    def encode(self, text):
        if len(text) > 24:
            return self.tok.encode(text, add_special_tokens=False).ids
        if text not in self.known:
            if len(self.known) > 200000:
                self.known.clear()
            self.known[text] = self.tok.encode(text, add_special_tokens=False).ids
        return self.known[text]

    def chat(self, messages):
        """Ids, and 1 where the loss counts."""
        ids, mask = [], []
        for text, ours in tasks.render(messages):
            part = [i for piece in text.split("\0") if piece for i in self.encode(piece)]
            ids += part
            mask += [int(ours)] * len(part)
        return ids, mask


def tokenise():
    """data/text.npy from data/corpus.jsonl."""
    coder = Coder()
    rows = [json.loads(line)["text"] for line in open(BOX / "data/corpus.jsonl")]
    random.Random(3).shuffle(rows)
    out = []
    size = sum(len(r.encode()) for r in rows)
    for at in range(0, len(rows), 500):
        for e in coder.tok.encode_batch(rows[at : at + 500], add_special_tokens=False):
            out.append(np.array(e.ids + [coder.end], dtype=np.uint16))
    ids = np.concatenate(out)
    np.savez_compressed(BOX / "data/text.npz", ids=ids)
    print(f"{len(ids):,} tokens, {size / len(ids):.2f} bytes per token")


class Chats(torch.utils.data.IterableDataset):
    """Batches of packed chats [count, length + 1], and where their loss counts. Seeded by worker: the stream is reproducible."""

    def __init__(self, seed, count, length):
        self.seed, self.count, self.length = seed, count, length

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        rng = random.Random(self.seed * 1000 + (info.id if info else 0))
        coder = Coder()
        carry = None
        while True:
            ids = np.full((self.count, self.length + 1), coder.end, dtype=np.int64)
            mask = np.zeros((self.count, self.length + 1), dtype=np.float32)
            for row in range(self.count):
                at = 0
                while True:
                    i, m = carry or coder.chat(tasks.chat(rng))
                    carry = None
                    if at + len(i) > self.length + 1:
                        carry = (i, m) if len(i) <= self.length else None
                        break
                    ids[row, at : at + len(i)] = i
                    mask[row, at : at + len(i)] = m
                    at += len(i) + 1
            yield torch.from_numpy(ids), torch.from_numpy(mask)


if __name__ == "__main__":
    tokenise()
