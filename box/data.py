"""Token sequences for training: chats, stories and pages of the dictionary, made on the fly and packed."""

import random
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

import dictionary
import stories
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


class Chats(torch.utils.data.IterableDataset):
    """Batches [count, length + 1] and where their loss counts: `exercises` rows of chats with exact answers, `prose` rows of chats that
    ask for stories and the like, `pages` rows of such prose alone, `entries` rows of the dictionary. Seeded by worker: the stream is
    reproducible."""

    def __init__(self, seed, exercises, prose, pages, entries, length):
        self.seed, self.length = seed, length
        self.rows = ["exercises"] * exercises + ["prose"] * prose + ["pages"] * pages + ["entries"] * entries
        self.count = len(self.rows)

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        rng = random.Random(self.seed * 1000 + (info.id if info else 0))
        coder = Coder()

        def make(kind):
            if kind in ("pages", "entries"):
                ids = coder.encode((stories if kind == "pages" else dictionary).page(rng)) + [coder.end]
                return ids, [1] * len(ids)
            return coder.chat((tasks.chat if kind == "exercises" else tasks.prose_chat)(rng))

        carry = {}
        while True:
            ids = np.full((self.count, self.length + 1), coder.end, dtype=np.int64)
            mask = np.zeros((self.count, self.length + 1), dtype=np.float32)
            for row, kind in enumerate(self.rows):
                at = 0
                while True:
                    i, m = carry.pop(kind, None) or make(kind)
                    if at + len(i) > self.length + 1:
                        if len(i) <= self.length:
                            carry[kind] = (i, m)
                        break
                    ids[row, at : at + len(i)] = i
                    mask[row, at : at + len(i)] = m
                    at += len(i) + (kind not in ("pages", "entries"))
            yield torch.from_numpy(ids), torch.from_numpy(mask)
