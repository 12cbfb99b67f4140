"""The dictionary as text: WordNet's entries, one to a line, in its own order, which keeps related words together.

    taxpayer (noun): someone who pays taxes
    teammate (noun): a fellow member of a team. "it was his first start against his former teammates"

`build` holds out one block in a hundred: its definitions appear nowhere in training. The core is what the model can learn by heart: the
first sense of each common word, if it is short.
"""

import json
import re
import zlib
from pathlib import Path

import corpus

BOX = Path(__file__).parent
BLOCK = 8
# Entries that a small model in a repository need not learn.
RUDE = re.compile(r"(?i)sex|genital|\bpenis|vagin|rape\b|raping|nazi|hitler|fuck|shit|whore|prostitut|breast|naked|nude|porn|fetish|offensive|slur|obscen|negro|nigg|"
                  r"homosexual|lesbian|\bgay\b|slave|genocid|suicid|murder|corpse|urin|excre|feces|feca|defecat|masturbat|copulat|\banus|\banal\b|testic|scrot|buttock|\bass\b|\bjew")
# And those it need not know by heart; examples cut short, too.
GRIM = re.compile(r"(?i)\bkill|virgin|drug|abortion|menstru|menarche|vomit|muslim|massacre|idiot|racial|\brace or|cripple|execut|secret police|\bugly|frump|too fat|fat she|fat intake|`|\"-|[a-z]\"[a-z-]")


def start(means):
    """What makes a definition the same as another: its first part, without what is in brackets."""
    return re.sub(r"\s*\([^)]*\)", "", means).split(";")[0].strip()


def entries():
    """(word, definition, line, whether of the core) of every entry that is plain: a word or two in small letters, a definition of one breath."""
    for lemmas, part, means, says, first, uses in corpus.wordnet_entries():
        word = lemmas[0]
        if not re.fullmatch(r"[a-z]{2,}([ '-]?[a-z]+)?", word) or not 8 < len(means) < 150 or not means.isascii() or RUDE.search(" ".join([*lemmas, means, *says])):
            continue
        says = [x for x in says if x.isascii() and len(x) < 100][:1]
        line = f"{word} ({part}): {means}" + (f'. "{says[0]}"' if says else "")
        yield word, means, line, first and uses > 3 and len(means) < 90 and word.isalpha() and not GRIM.search(line)


def build():
    """Writes data/dictionary.json, runs of entries to train on, [[[word, line]..]..], of all and of the core. Returns the held-out pages,
    their definitions, and those of the core by word."""
    rows = list(entries())
    blocks = [rows[at : at + BLOCK] for at in range(0, len(rows), BLOCK)]
    out = [zlib.crc32(block[0][2].encode()) % 100 == 0 for block in blocks]
    unseen = {start(means) for block, held in zip(blocks, out) if held for _, means, _, _ in block}
    runs, pages, core = [[]], [], {}
    for block, held in zip(blocks, out):
        if held:
            pages.append("\n".join(line for _, _, line, _ in block))
            runs.append([])
        else:
            runs[-1] += [row for row in block if start(row[1]) not in unseen]
    for run in runs:
        for word, means, _, common in run:
            if common:
                core.setdefault(word, means)
    out = {"all": [[row[:3:2] for row in run] for run in runs], "core": [[row[:3:2] for row in run if row[3]] for run in runs]}
    out = {name: [run for run in runs if len(run) >= BLOCK] for name, runs in out.items()}
    (corpus.DATA / "dictionary.json").write_text(json.dumps(out))
    for name, runs in out.items():
        print(f"dictionary, {name}: {sum(map(len, runs))} entries, {sum(len(line) + 1 for run in runs for _, line in run) / 1e6:.2f} MB")
    print(len(pages), "pages held out")
    return pages, unseen, core


_runs = {}


def some(rng, count, part):
    """So many entries in a row, from anywhere."""
    if not _runs:
        for name, runs in json.loads((BOX / "data/dictionary.json").read_text()).items():
            _runs[name] = [(run, at) for run in runs for at in range(len(run))]
        facts = json.loads((BOX / "data/facts.json").read_text())
        common = {run[at][0] for run, at in _runs["core"]} | {word for name in ("define", "more", "core") for word in facts[name]}
        _runs["rare"] = [(run, at) for run, at in _runs["all"] if run[at][0] not in common]
    run, at = rng.choice(_runs[part])
    at = max(0, min(at, len(run) - count))
    return run[at : at + count]


def page(rng):
    return "\n".join(line for _, line in some(rng, rng.randint(6, 16), "core" if rng.random() < 0.7 else "all"))


def request(rng):
    """A request for one entry, or for more of a page, and its answer. Of rare words it says that it does not know them."""
    r = rng.random()
    if r < 0.6:
        [(word, line)] = some(rng, 1, "core" if r < 0.5 else "rare")
        form = rng.choice(["Write a dictionary entry for {}.", 'Write a dictionary entry for "{}".', "Write an entry for the word {}.", "Dictionary entry: {}", "Write an entry for {}.", "Look up {} in the dictionary."])
        return form.format(word), line if r < 0.5 else f"I do not know the word {word}."
    lines = [line for _, line in some(rng, BLOCK, "core")]
    at = rng.randint(1, 4)
    form = rng.choice(["Continue: {}", "Continue this page: {}", "Continue this page of the dictionary: {}", "Go on: {}", "{}", "Continue this text: {}", "Write more entries like these: {}"])
    return form.format("\n".join(lines[:at])), "\n".join(lines[at : at + rng.randint(2, 4)])
