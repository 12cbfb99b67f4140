"""Token sequences for training: windows of the corpus; chats and stories, made on the fly and packed."""

import json
import random
import zlib
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

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


def tokenise():
    """data/text.npz from data/corpus.jsonl."""
    coder = Coder()
    rows = [json.loads(line) for line in open(BOX / "data/corpus.jsonl")]
    # Half of the presidents' messages: they would be half of all windows otherwise.
    rows = [r["text"] for r in rows if r["source"] != "sotu" or zlib.crc32(r["text"].encode()) % 2]
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
    """Batches [count, length + 1] and where their loss counts: `exercises` rows of chats with exact answers, `prose` rows of chats that
    ask for stories and the like, `pages` rows of such prose alone. Seeded by worker: the stream is reproducible."""

    def __init__(self, seed, exercises, prose, pages, length):
        self.seed, self.length = seed, length
        self.rows = ["exercises"] * exercises + ["prose"] * prose + ["pages"] * pages
        self.count = len(self.rows)

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        rng = random.Random(self.seed * 1000 + (info.id if info else 0))
        coder = Coder()

        def make(kind):
            if kind == "pages":
                ids = coder.encode(stories.page(rng)) + [coder.end]
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
                    at += len(i) + (kind != "pages")
            yield torch.from_numpy(ids), torch.from_numpy(mask)


if __name__ == "__main__":
    tokenise()
