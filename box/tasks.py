"""The instruction set: chats with exact answers, made by program from a seed.

`chat(rng)` makes a training chat; `items()` the held-out items. What is held out: for computed answers the operands or
words themselves (chosen by hash, never seen in training for any kind that computes on them), for facts the wording.

A NUL in an assistant's text splits tokens: "\\0c\\0l\\0o\\0u\\0d\\0" is written letter by letter, so that the model need not know
how the tokenizer would have merged the letters. It is no part of the text.
"""

import json
import random
import re
import zlib
from pathlib import Path

import corpus
import dictionary
import stories

BOX = Path(__file__).parent


def held(*key):
    """Whether this word or these operands belong to the held-out part (one in twelve)."""
    return zlib.crc32(repr(key).encode()) % 12 == 0


def build():
    """Writes data/facts.json (words, capitals, definitions), data/dictionary.json and the held-out text, eval/text.jsonl."""
    pages, unseen, core = dictionary.build()
    scowl = corpus.CACHE / "scowl/usr/share/dict/scowl"
    words = set()
    for size in (10, 20, 35):
        words |= set((scowl / f"english-words.{size}").read_text(encoding="latin-1").split())
    words = {w for w in words if re.fullmatch(r"[a-z]{3,9}", w)}
    entries = list(corpus.wordnet_entries())
    uses, nouns = {}, {}
    for lemmas, part, means, _, _, score in entries:
        for w in lemmas:
            uses[w] = max(uses.get(w, 0), score)
    # The index lists the senses of a word by frequency.
    base = corpus.CACHE / "wordnet-base/usr/share/wordnet"
    glosses = {line[:8]: line.partition(" | ")[2] for line in (base / "data.noun").read_text().splitlines() if line[0] != " "}
    for line in (base / "index.noun").read_text().splitlines():
        if line[0] != " ":
            fields = line.split()
            nouns[fields[0]] = glosses[fields[-int(fields[2])]]
    words = sorted(w for w in words if uses.get(w, 0) > 0)
    words = [w for w in words if not re.search(r"sex|rape|nazi|slut|damn|hell$|shit|fuck|whore|breast|naked|penis|nude|porn|fetish|corpse|kill", w)]
    # Definitions: concrete everyday nouns, the first sense's gloss, short.
    common = """apple arm bag ball banana bank barn basket bear bed bee bell bird boat book boot bottle bowl box bread bridge
    brush bus butter button cake camel camera candle car carpet castle cat chair cheese child church clock cloud coat coin
    corn cottage cow crown cup desk dog door dragon drum duck eagle ear egg elephant engine eye farm farmer feather fish
    flag flower fly forest fork fox frog garden ghost giraffe glass glove goat gold grass guitar hammer hand hat heart hill
    honey horse hospital hotel house ice insect island jacket jar jungle key king kitchen knife ladder lake lamp leaf lemon
    letter library lion magnet map market meadow milk mirror money monkey moon morning mountain mouse museum nail needle
    nest night nose oak ocean onion orange owl paper parrot pen pencil penguin piano picture pillow planet plate poem poet
    pond potato prince prison queen rabbit rain river road robot roof rope rose sailor salt sand school scissors sea sheep
    ship shirt shoe silver snake snow soap soldier song spider spoon spring star storm street sugar summer sun sword table
    teacher telescope temple theater tiger tomato tooth tower town train tree truck umbrella village violin volcano wall
    water whale wheat wheel wind window winter wolf wood wool worm year zebra""".split()
    plain = [w for w in words if uses.get(w, 0) > 3 and w in nouns and not re.search(r"(s|f|fe|o|man|ing|is|us|um|ed|ly|children|people)$", w)]
    define = {}
    for w in common:
        if w in nouns:
            means = re.sub(r"\s*\([^)]*\)", "", nouns[w]).split(";")[0].strip()
            if 8 < len(means) < 90 and means not in unseen:
                define[w] = means
    # More: every common noun whose first sense is short and plain, and what else is in the core of the dictionary.
    more = {}
    for w in plain:
        means = nouns[w].split(";")[0].strip()
        if w not in define and uses[w] > 11 and 12 < len(means) < 75 and "(" not in means and means not in unseen and not dictionary.RUDE.search(means) and w not in means.split():
            more[w] = means
    core = {w: means for w, means in core.items() if w not in define and w not in more}
    capitals, continent = {}, {}
    names = {"EU": "Europe", "AS": "Asia", "AF": "Africa", "NA": "North America", "SA": "South America", "OC": "Oceania"}
    wanted = """AF AL DZ AR AU AT BD BE BO BR BG KH CM CA CL CN CO CR HR CU CY DK EC EG EE ET FI FR DE GH GR GT HT HN HU IS IN ID
    IR IQ IE IL IT JM JP JO KE KW LA LV LB LY LT LU MG MY ML MX MN MA MZ NP NL NZ NI NE NG NO OM PK PA PY PE PH PL PT QA RO
    RU SA SN RS SG SK SI SO ES LK SD SE CH SY TH TN TR UG UA GB US UY VE VN YE ZM ZW""".split()
    table = json.loads((corpus.CACHE / "countries-list/package/countries.min.json").read_text())
    for code in wanted:
        row = table[code]
        if row["name"].isascii() and row["capital"].isascii():
            capitals[row["name"]] = row["capital"]
            continent[row["name"]] = names[row["continent"]]
    # What the stories and descriptions are about.
    rng = random.Random(1)
    known = " ".join([*(topic for _ in range(20000) for topic in rng.choice(stories.STORIES)(rng)[1]), *stories.SCENES, *stories.ANIMALS, *stories.PEOPLE])
    known = sorted(set(re.findall(r"[a-z]+", known)))
    (corpus.DATA / "facts.json").write_text(
        json.dumps({"words": words, "nouns": plain, "define": define, "more": more, "core": core, "capitals": capitals, "continent": continent, "known": known})
    )
    print(len(words), "words", len(define), "definitions", len(more) + len(core), "more", len(capitals), "capitals")
    # The program's prose is made anew all through training, from other seeds than this one.
    rng = random.Random("held out")
    held = [{"source": "dictionary", "text": text} for text in pages] + [{"source": "stories", "text": stories.page(rng)} for _ in range(110)]
    with open(BOX / "eval/text.jsonl", "w") as out:
        for row in held:
            out.write(json.dumps(row) + "\n")
    print({name: sum(len(h["text"]) for h in held if h["source"] == name) for name in ("dictionary", "stories")}, "characters held out")


_facts = {}


def facts():
    if not _facts:
        _facts.update(json.loads((BOX / "data/facts.json").read_text()))
        words = _facts["words"]
        _facts["rare"] = [w for w in words if not any(w in _facts[k] for k in ("define", "more", "core"))]
        for k in ("more", "core"):
            _facts[k + "_words"] = sorted(_facts[k])
        _facts["strange"] = sorted({w for w in _facts["nouns"] if not held(w)} - set(_facts["known"]))
        _facts["train"] = [w for w in words if not held(w)]
        _facts["held"] = [w for w in words if held(w)]
        # Pieces of the words to train with, joined at random: letter tasks then meet every token in many places.
        _facts["parts"] = [w[:n] for w in _facts["train"] for n in (2, 3, 4) if len(w) >= n]
    return _facts


def letters(word):
    return "\0" + "\0".join(word) + "\0"


def spelled(word):
    return "\0" + "\0 ".join(word) + "\0"


class Source:
    """Draws operands and wordings, from the training or the held-out part."""

    def __init__(self, rng, test=False):
        self.rng, self.test = rng, test

    def pick(self, *options):
        return self.rng.choice(options)

    def wording(self, train, test):
        return self.rng.choice(test if self.test else train)

    def word(self, low=3, high=9):
        f = facts()
        while True:
            if not self.test and self.rng.random() < 0.12:
                w = self.rng.choice(f["parts"]) + self.rng.choice(f["parts"])
                if held(w):
                    continue
            else:
                w = self.rng.choice(f["held" if self.test else "train"])
            if low <= len(w) <= high:
                return w

    def words(self, n, first=False):
        out = []
        while len(out) < n:
            # In lists one held-out word is enough to make the list new; all from that part is harder, and fair.
            w = self.word(3, 8)
            if w not in out and not (first and any(o[0] == w[0] for o in out)):
                out.append(w)
        return out

    def numbers(self, kind, make):
        while True:
            value = make(self.rng)
            if held(kind, value) == self.test:
                return value


def number(rng):
    return rng.randrange(10 ** rng.choice((1, 2, 2, 3, 3)))


def ask(s, text):
    """Small variations of how people type."""
    r = s.rng.random()
    if s.test or r < 0.7:
        return text
    if r < 0.78:
        return "Please " + text[0].lower() + text[1:]
    if r < 0.86:
        return text[0].lower() + text[1:]
    if r < 0.93:
        return text.rstrip("?. ")
    return "Tell me: " + text[0].lower() + text[1:]


def add(s):
    a, b = s.numbers("add", lambda r: (number(r), number(r)))
    form = s.pick("What is {} + {}?", "{} + {} = ?", "{} + {}", "{} plus {}", "Add {} and {}.", "What is {} plus {}?", "Calculate {} + {}.",
                  "What is the sum of {} and {}?", "How much is {} + {}?", "Compute {} + {}.")
    return form.format(a, b), str(a + b)


def subtract(s):
    a, b = s.numbers("sub", lambda r: tuple(sorted((number(r), number(r)), reverse=True)))
    form = s.pick("What is {} - {}?", "{} - {} = ?", "{} - {}", "{} minus {}", "What is {} minus {}?", "Calculate {} - {}.",
                  "How much is {} - {}?", "Compute {} - {}.")
    return form.format(a, b), str(a - b)


def multiply(s):
    forms = ("What is {} times {}?", "{} * {} = ?", "{} x {}", "{} times {}", "Multiply {} by {}.", "Calculate {} * {}.", "What is {} * {}?",
             "What is {} x {}?", "What is the product of {} and {}?", "How much is {} times {}?")
    if not s.test and s.rng.random() < 0.4:
        a, b = s.rng.randrange(13), s.rng.randrange(11)
        if a < 11:
            return s.pick(*forms).format(a, b), str(a * b)
    a, b = s.numbers("mul", lambda r: (r.randrange(11, 100), r.randrange(2, 10)))
    tens, ones = a // 10 * 10, a % 10
    return s.pick(*forms).format(a, b), f"{tens} x {b} = {tens * b}, {ones} x {b} = {ones * b}, {tens * b} + {ones * b} = {a * b}"


def divide(s):
    a, b = s.rng.randrange(1, 11), s.rng.randrange(1, 11)
    form = s.wording(("What is {} divided by {}?", "{} / {}", "{} / {} = ?", "Divide {} by {}.", "Calculate {} / {}.", "How much is {} divided by {}?"),
                     ("Compute {} / {}.", "What is {} / {}?"))
    return form.format(a * b, b), str(a)


def double(s):
    kind = s.pick("twice", "half")
    n, = s.numbers(kind, lambda r: (r.randrange(1, 200),))
    if kind == "twice":
        return s.pick("What is twice {}?", "Double {}.", "What is the double of {}?", "What is two times {}?").format(n), str(2 * n)
    return s.pick("What is half of {}?", "Halve {}.", "How much is half of {}?").format(2 * n), str(n)


def compare(s):
    a, b = s.numbers("compare", lambda r: (number(r), number(r)))
    if a == b:
        b += 1
    if s.rng.random() < 0.5:
        form = s.pick("Which is larger, {} or {}?", "Which number is bigger: {} or {}?", "What is greater, {} or {}?", "Which is more, {} or {}?",
                      "Which number is larger, {} or {}?", "Which is greater: {} or {}?")
        return form.format(a, b), str(max(a, b))
    form = s.pick("Which is smaller, {} or {}?", "Which number is smaller: {} or {}?", "What is less, {} or {}?", "Which is lower, {} or {}?",
                  "Which is less: {} or {}?")
    return form.format(a, b), str(min(a, b))


def several(s, kind, low, high, top=100):
    return s.numbers(kind, lambda r: tuple(r.sample(range(top), r.randint(low, high))))


def sort_numbers(s):
    n = several(s, "sort", 3, 5)
    shown = ", ".join(map(str, n))
    if s.rng.random() < 0.6:
        form = s.pick("Sort these numbers: {}", "Sort {} from smallest to largest.", "Put these numbers in order: {}", "Order these numbers: {}",
                      "Sort in ascending order: {}", "Sort the numbers {}.")
        return form.format(shown), ", ".join(map(str, sorted(n)))
    form = s.pick("Sort {} from largest to smallest.", "Sort in descending order: {}", "Sort these numbers from high to low: {}")
    return form.format(shown), ", ".join(map(str, sorted(n, reverse=True)))


def extreme(s):
    n = several(s, "extreme", 3, 6, 200)
    shown = ", ".join(map(str, n))
    if s.rng.random() < 0.5:
        return s.pick("What is the largest of {}?", "Which number is the largest: {}?", "Find the maximum: {}", "Biggest number: {}").format(shown), str(max(n))
    return s.pick("What is the smallest of {}?", "Which number is the smallest: {}?", "Find the minimum: {}", "Smallest number: {}").format(shown), str(min(n))


def sort_words(s):
    w = s.words(s.rng.randint(3, 4), first=True)
    form = s.pick("Sort these words: {}", "Sort these words alphabetically: {}", "Put these words in alphabetical order: {}", "Sort in alphabetical order: {}",
                  "Alphabetize: {}", "Order these words from A to Z: {}")
    return form.format(", ".join(w)), ", ".join(sorted(w))


def quoted(s, w):
    return s.pick('"{}"', "'{}'", "{}", "the word {}", 'the word "{}"').format(w)


def reverse(s):
    w = s.word(3, 8)
    form = s.pick("Reverse {}.", "Write {} backwards.", "Spell {} backwards.", "What is {} backwards?", "Reverse the letters of {}.", "What is {} reversed?",
                  "Turn {} around.")
    return form.format(quoted(s, w)), f"{spelled(w)} -> {letters(w[::-1])}"


def spell(s):
    w = s.word(3, 9)
    form = s.pick("Spell {}.", "How do you spell {}?", "Spell {} letter by letter.", "Write {} letter by letter.", "List the letters of {}.", "What are the letters of {}?")
    return form.format(quoted(s, w)), spelled(w)


def count_letter(s):
    w = s.word(3, 9)
    c = s.rng.choice(w) if s.rng.random() < (0.85 if s.test else 0.65) else s.rng.choice("abcdefghijklmnopqrstuvwxyz")
    form = s.pick('How many times does the letter {c} appear in {w}?', "How many {c}'s are in {w}?", 'Count the letter {c} in {w}.', 'How often does {c} occur in {w}?',
                  'How many times does {c} occur in {w}?', 'How many letters {c} are there in {w}?')
    return form.format(c=s.pick("{}", '"{}"', "'{}'").format(c) if "'s" not in form else c, w=quoted(s, w)), f"{spelled(w)}: {w.count(c)}"


def length(s):
    w = s.word(3, 9)
    form = s.pick("How many letters are in {}?", "How many letters does {} have?", "Count the letters in {}.", "How long is {}?", "What is the length of {}?")
    return form.format(quoted(s, w)), f"{spelled(w)}: {len(w)}"


def edge_letter(s):
    w = s.word(3, 9)
    if s.rng.random() < 0.5:
        form = s.pick("What is the first letter of {}?", "Which letter does {} start with?", "First letter of {}?", "What letter does {} begin with?", "Give the first letter of {}.")
        return form.format(quoted(s, w)), w[0]
    form = s.pick("What is the last letter of {}?", "Which letter does {} end with?", "Last letter of {}?", "What letter does {} end in?", "Give the last letter of {}.")
    return form.format(quoted(s, w)), w[-1]


def uppercase(s):
    w = s.word(3, 9)
    form = s.pick("Write {} in uppercase.", "Write {} in capital letters.", "Uppercase {}.", "Make {} uppercase.", "Convert {} to upper case.", "Put {} in capitals.")
    return form.format(quoted(s, w)), letters(w.upper())


def regular(w):
    return w[:-1] + "ies" if re.search("[^aeiou]y$", w) else w + "es" if re.search("(s|x|ch|sh)$", w) else w + "s"


def plural(s):
    odd = {"man": "men", "woman": "women", "child": "children", "foot": "feet", "tooth": "teeth", "mouse": "mice", "goose": "geese", "person": "people",
           "sheep": "sheep", "fish": "fish", "leaf": "leaves", "knife": "knives", "wife": "wives", "wolf": "wolves", "life": "lives", "ox": "oxen"}
    if not s.test and s.rng.random() < 0.25:
        w = s.rng.choice(sorted(odd))
        many = odd[w]
    else:
        base = """apple arm army baby bag ball bank basket beach bear bell bench berry bird boat book boot bottle bowl box boy branch
        bridge brother bus butterfly button cake car castle cat chair cherry church city class clock cloud coat coin country cow cup
        day desk dish doctor dog door duck eagle egg enemy engine family farm farmer fence flag flower fly forest fork fox friend frog
        garden ghost girl glass glove goat hand hat hill horse house idea island jacket jar key king lady lake lamp lemon letter lion map
        market match mirror monkey month moon mountain nail nest nose ocean onion orange owl page party pen pencil pillow plane planet
        plate poem pony prince prison queen rabbit river road robot roof room rope rose school ship shirt shoe sister snake song spider
        spoon star stone storm story street sword table teacher temple tiger tower town toy train tree truck uncle village violin wall
        watch week whale wheel window witch word worm year zebra""".split()
        base = [w for w in base if held("plural", w) == s.test]
        if not s.test and s.rng.random() < 0.6:
            base = [w for w in (s.rng.choice(facts()["nouns"]) for _ in range(4)) if not held(w) and not held("plural", w) and w not in odd] or base
        w = s.rng.choice(base)
        many = regular(w)
    form = s.pick("What is the plural of {}?", "Plural of {}?", "Give the plural of {}.", "What is the plural form of {}?", "One {}, two what?")
    return form.format(s.pick("{}", '"{}"', "'{}'").format(w)), letters(many)


def alphabet(s):
    abc = "abcdefghijklmnopqrstuvwxyz"
    i = s.rng.randrange(25)
    if s.rng.random() < 0.6:
        form = s.wording(("Which letter comes after {}?", "What letter comes after {}?", "What comes after {} in the alphabet?", "Which letter follows {}?", "Next letter after {}?",
                          "What is the letter after {}?"),
                         ("Which letter comes right after {}?", "What is the next letter after {}?"))
        return form.format(abc[i]), abc[i + 1]
    form = s.wording(("Which letter comes before {}?", "What letter comes before {}?", "What comes before {} in the alphabet?", "Which letter precedes {}?", "What is the letter before {}?"),
                     ("Which letter comes right before {}?", "Which letter comes before {} in the alphabet?"))
    return form.format(abc[i + 1]), abc[i]


def sequence(s):
    a, d, n, down = s.numbers("sequence", lambda r: (r.randrange(60), r.randrange(1, 13), r.randint(4, 5), r.random() < 0.25))
    row = [a + d * i for i in range(n + 1)]
    if down:
        row.reverse()
    form = s.pick("What comes next: {}?", "What is the next number: {}", "Continue the sequence: {}", "Which number comes next? {}", "What number follows: {}?", "Next number: {}")
    return form.format(", ".join(map(str, row[:-1]))), str(row[-1])


DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
LENGTHS = dict(zip(MONTHS, (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)))


def calendar(s):
    kind = s.rng.randrange(4)
    if kind == 3:
        m = s.rng.choice(MONTHS)
        form = s.wording(("How many days are in {}?", "How many days does {} have?", "{} has how many days?", "How long is {}?", "Number of days in {}?"),
                         ("How many days are there in {}?", "How many days has {}?"))
        return form.format(m), str(LENGTHS[m])
    names, what = (DAYS, "day") if kind == 0 else (MONTHS, "month")
    i = s.rng.randrange(len(names))
    if s.rng.random() < 0.5:
        form = s.wording(("What {} comes after {}?", "Which {} comes after {}?", "What {} is after {}?", "Which {} follows {}?", "What is the next {} after {}?", "What is the {} after {}?"),
                         ("Which {} is after {}?", "What {} follows {}?"))
        return form.format(what, names[i]), names[(i + 1) % len(names)]
    form = s.wording(("What {} comes before {}?", "Which {} comes before {}?", "What {} is before {}?", "Which {} precedes {}?", "What is the {} before {}?"),
                     ("Which {} is before {}?", "What {} comes just before {}?"))
    return form.format(what, names[i]), names[i - 1]


def capital(s):
    f = facts()
    country = s.rng.choice(sorted(f["capitals"]))
    city = f["capitals"][country]
    kind = s.rng.random()
    if kind < 0.6:
        form = s.wording(("What is the capital of {}?", "Capital of {}?", "Which city is the capital of {}?", "Name the capital of {}.", "What's the capital of {}?",
                          "What is {}'s capital?", "Give me the capital of {}.", "What is the capital city of {}?", "Do you know the capital of {}?", "The capital of {} is",
                          "What city is the capital of {}?"),
                         ("Can you name the capital of {}?", "Which city is the capital city of {}?", "Tell me the capital of {}."))
        return form.format(country), city
    if kind < 0.85:
        form = s.wording(("{} is the capital of which country?", "Which country has the capital {}?", "Of which country is {} the capital?", "What country is {} the capital of?",
                          "Which country's capital is {}?", "{} is the capital of"),
                         ("Name the country whose capital is {}.", "{} is the capital of what country?"))
        # Several cities share no country here, so the answer is one.
        return form.format(city), country
    form = s.wording(("On which continent is {}?", "Which continent is {} on?", "What continent is {} in?", "In which continent does {} lie?", "Where is {}?"),
                     ("On what continent is {}?", "Which continent is {} in?"))
    return form.format(country), f["continent"][country]


def definition(s):
    f = facts()
    w = s.rng.choice(sorted(f["define"]))
    article = "an" if w[0] in "aeiou" else "a"
    form = s.wording(("What is {a} {w}?", "Define {w}.", "What does {w} mean?", 'Define "{w}".', 'What does the word "{w}" mean?', "What's {a} {w}?", "Explain the word {w}.",
                      "Give a definition of {w}.", "What is the definition of {w}?", 'What is the meaning of "{w}"?', "Can you define {w}?", "What is {w}?"),
                     ("What is the meaning of {w}?", "Give me a definition of {w}.", 'Explain the word "{w}".'))
    return form.format(a=article, w=w), f["define"][w]


def meaning(s):
    """As `definition`, for many more words, and for some that it does not know; no items."""
    f = facts()
    kind = s.rng.choices(("more", "core", "rare"), (50, 35, 15))[0]
    w = s.rng.choice(f["rare" if kind == "rare" else kind + "_words"])
    article = "an" if w[0] in "aeiou" else "a"
    form = s.pick("What is {a} {w}?", "Define {w}.", "What does {w} mean?", 'Define "{w}".', 'What does the word "{w}" mean?', "What's {a} {w}?", "Explain the word {w}.",
                      "Give a definition of {w}.", "What is the definition of {w}?", 'What is the meaning of "{w}"?', "Can you define {w}?", "What is {w}?")
    return form.format(a=article, w=w), f"I do not know the word {w}." if kind == "rare" else f[kind][w]


OPPOSITES = """hot cold|big small|up down|left right|day night|good bad|fast slow|open closed|full empty|young old|happy sad|rich poor|strong weak|hard soft|wet dry|early
late|high low|long short|wide narrow|thick thin|heavy light|clean dirty|loud quiet|true false|near far|first last|begin end|buy sell|give take|win lose|push pull|love hate|black
white|inside outside|above below|before after|always never|easy difficult|cheap expensive|brave afraid|awake asleep|alive dead|friend enemy|war peace|question answer|north
south|east west|winter summer|man woman|king queen|more less|yes no|come go|start stop|remember forget|laugh cry|sweet sour|smooth rough|deep shallow|sharp blunt"""


def opposite(s):
    pairs = [p.split() for p in OPPOSITES.replace("\n", " ").split("|")]
    a, b = s.rng.choice(pairs)
    if s.rng.random() < 0.5:
        a, b = b, a
    form = s.wording(('What is the opposite of {}?', 'Opposite of {}?', 'What is the antonym of {}?', 'Give the opposite of {}.', 'Name the opposite of "{}".', 'The opposite of {} is',
                      'What word means the opposite of {}?'),
                     ('What is the opposite of "{}"?', 'Give me the opposite of {}.'))
    return form.format(a), b


ELEMENTS = """hydrogen H 1|helium He 2|lithium Li 3|carbon C 6|nitrogen N 7|oxygen O 8|fluorine F 9|neon Ne 10|sodium Na 11|magnesium Mg 12|aluminium Al 13|silicon Si 14|phosphorus P
15|sulfur S 16|chlorine Cl 17|argon Ar 18|potassium K 19|calcium Ca 20|iron Fe 26|nickel Ni 28|copper Cu 29|zinc Zn 30|silver Ag 47|tin Sn 50|iodine I 53|tungsten W 74|platinum Pt
78|gold Au 79|mercury Hg 80|lead Pb 82|uranium U 92"""


def element(s):
    name, symbol, count = s.rng.choice([e.split() for e in ELEMENTS.replace("\n", " ").split("|")])
    kind = s.rng.randrange(3)
    if kind == 0:
        form = s.wording(("What is the chemical symbol of {}?", "What is the symbol for {}?", "Chemical symbol of {}?", "What is the chemical symbol for {}?", "Give the symbol of {}."),
                         ("What is the symbol of {}?", "Give the chemical symbol of {}."))
        return form.format(name), symbol
    if kind == 1:
        form = s.wording(("Which element has the symbol {}?", "What element is {}?", "{} is the symbol of which element?", "Which chemical element is {}?"),
                         ("What element has the symbol {}?", "Which element is {}?"))
        return form.format(symbol), name
    form = s.wording(("What is the atomic number of {}?", "Atomic number of {}?", "Which atomic number does {} have?", "Give the atomic number of {}."),
                     ("What atomic number does {} have?", "Tell me the atomic number of {}."))
    return form.format(name), count


SMALL = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_words(n):
    if n < 20:
        return SMALL[n]
    if n < 100:
        return TENS[n // 10] + ("-" + SMALL[n % 10] if n % 10 else "")
    return SMALL[n // 100] + " hundred" + (" and " + in_words(n % 100) if n % 100 else "")


def number_words(s):
    # Up to twenty they are words of their own, and trained; above, they are made of those.
    n, = s.numbers("words", lambda r: (r.randrange(20, 1000) if s.test else number(r),))
    if not s.test and s.rng.random() < 0.15:
        n = s.rng.randrange(20)
    if s.rng.random() < 0.5:
        return s.pick("Write {} in words.", "How do you write {} in words?", "Spell out the number {}.", "{} in words", "Write the number {} as words.").format(n), in_words(n)
    return s.pick("Write {} in digits.", "Write {} as a number.", "What number is {}?", "{} in digits", "How do you write {} in digits?").format(in_words(n)), str(n)


def parity(s):
    n, = s.numbers("parity", lambda r: (number(r),))
    even = n % 2 == 0
    kind = s.rng.randrange(3)
    if kind == 0:
        return s.pick("Is {} even or odd?", "Is {} odd or even?", "Is the number {} even or odd?").format(n), "even" if even else "odd"
    if kind == 1:
        return s.pick("Is {} even?", "Is {} an even number?", "Is the number {} even?").format(n), "Yes." if even else "No."
    return s.pick("Is {} odd?", "Is {} an odd number?", "Is the number {} odd?").format(n), "No." if even else "Yes."


def yes_no(s):
    kind = s.rng.randrange(4)
    if kind == 0:
        a, b = s.numbers("yes", lambda r: (number(r), number(r)))
        return s.pick("Is {} greater than {}?", "Is {} larger than {}?", "Is {} bigger than {}?", "Is {} more than {}?").format(a, b), "Yes." if a > b else "No."
    if kind == 1:
        a, b = s.numbers("yes", lambda r: (number(r), number(r)))
        return s.pick("Is {} less than {}?", "Is {} smaller than {}?").format(a, b), "Yes." if a < b else "No."
    if kind == 2:
        f = facts()["capitals"]
        country = s.rng.choice(sorted(f))
        city = f[country] if s.rng.random() < 0.5 else s.rng.choice(sorted(f.values()))
        form = s.wording(("Is {} the capital of {}?", "Is {} the capital city of {}?", "Is the capital of {1} {0}?", "Is it true that {} is the capital of {}?"),
                         ("Is {} {}'s capital?", "True or not: {} is the capital of {}?"))
        return form.format(city, country), "Yes." if f[country] == city else "No."
    w = s.word(3, 7)
    c = s.rng.choice(w) if s.rng.random() < 0.5 else s.rng.choice("abcdefghijklmnoprstuvwy")
    form = s.pick("Does {w} contain the letter {c}?", "Is the letter {c} in {w}?", "Is there {a} {c} in {w}?")
    return form.format(w=quoted(s, w), c=c, a="an" if c in "aefhilmnorsx" else "a"), f"{spelled(w)}: {'yes' if c in w else 'no'}"


def repeat(s):
    w = s.words(s.rng.randint(1, 6))
    form = s.pick("Repeat after me: {}", "Say: {}", "Repeat: {}", "Copy this: {}", "Repeat these words: {}")
    text = " ".join(w)
    return form.format(text), text


def nth_word(s):
    w = s.words(s.rng.randint(3, 6))
    names = ("first", "second", "third", "fourth", "fifth")
    if s.rng.random() < 0.3:
        which, at = "last", -1
    else:
        at = s.rng.randrange(min(len(w), 5))
        which = names[at]
    form = s.pick("What is the {} word in this list: {}", "Which word is {}: {}", "Give the {} word of: {}", "What is the {} word of {}?", "The {} word of this list: {}")
    return form.format(which, ", ".join(w)), w[at]


def count_words(s):
    w = s.words(s.rng.randint(2, 8))
    sep = s.pick(", ", " ")
    form = s.pick("How many words are in this list: {}", "Count the words: {}", "How many words are there: {}", "Count these words: {}")
    return form.format(sep.join(w)), str(len(w))


TALK = [
    ("Hello! How can I help you?", ["Hello", "Hi", "Hello!", "Hi there", "Hey", "Good morning", "Good evening", "hello", "hi"], ["Hi!"]),
    ("I am well, thank you. What can I do for you?", ["How are you?", "How are you doing?", "how are you", "How do you do?", "Are you well?"], ["How are you today?"]),
    ("You are welcome.", ["Thanks", "Thank you", "Thank you!", "thanks!", "Thanks a lot", "Thank you very much"], ["Many thanks"]),
    ("Goodbye!", ["Bye", "Goodbye", "See you", "bye", "Good night"], ["Bye!"]),
    ("I am the model in the box: a small mixture-of-experts language model that comes with Pleiad.",
     ["Who are you?", "What are you?", "Tell me about yourself.", "What model are you?", "Introduce yourself.", "Which model is this?"], ["Which model are you?"]),
    ("I have no name of my own. People call me the model in the box.", ["What is your name?", "What's your name?", "Do you have a name?", "How should I call you?"], ["Your name?"]),
    ("The authors of Pleiad trained me on a dictionary, and on stories and exercises made by a program.",
     ["Who made you?", "Who trained you?", "Who created you?", "How were you trained?", "What were you trained on?", "Who built you?"], ["Who are your makers?"]),
    ("Pleiad is an engine, written in Rust, that runs mixture-of-experts language models from folders in MLX format.",
     ["What is Pleiad?", "Tell me about Pleiad.", "What does Pleiad do?", "Explain Pleiad.", "What is Pleiad for?", "what is pleiad"], ["What is Pleiad about?"]),
    ("Pleiad is written in Rust.", ["What is Pleiad written in?", "Which language is Pleiad written in?", "In which language is Pleiad written?", "What programming language does Pleiad use?"],
     ["Which programming language is Pleiad written in?"]),
    ("Pleiad runs mixture-of-experts models such as Qwen3.5, Qwen3-Next and Qwen3 in MLX format.",
     ["Which models do you run?", "Which models does Pleiad run?", "What models does Pleiad support?", "What models can I run?", "Which models are supported?", "Which models can Pleiad run?"],
     ["What models can Pleiad run?"]),
    ("Run: pleiad run MODEL \"your question\"", ["How do I run a model?", "How do I use Pleiad?", "How can I run a model with Pleiad?", "How do I ask a model a question?", "How do I start Pleiad?"],
     ["How can I run a model?"]),
    ("Run: pleiad serve MODEL", ["How do I start a server?", "How do I start the server?", "How can I serve a model?", "How do I run Pleiad as a server?", "How do I serve a model?"],
     ["How can I start a server?"]),
    ("Run: pleiad inspect MODEL", ["How do I inspect a model?", "How do I see what is in a model?", "How can I look into a model?", "How do I see the shapes of a model?"],
     ["How can I inspect a model?"]),
    ("MODEL is a folder with config.json, safetensors files and tokenizer.json.", ["What is MODEL?", "What does a model folder contain?", "What is in a model folder?", "Which files does a model need?"],
     ["What files does a model need?"]),
    ("Only a few of the experts work on each token: a router picks the best ones, so a large model costs as little as a small one.",
     ["What is a mixture of experts?", "How does a mixture of experts work?", "What does mixture-of-experts mean?", "Explain mixture of experts."], ["What is mixture of experts?"]),
    ("I have 24 small experts in every layer; a router picks four of them for each token.", ["How many experts do you have?", "How many experts do you use?", "How many experts are in you?"],
     ["How many experts have you got?"]),
    ("I have about thirteen million parameters, which is very small.", ["How big are you?", "How large are you?", "How many parameters do you have?", "What size are you?"], ["How small are you?"]),
    ("A linear attention with a gated memory: each token decays the memory a little and corrects what it holds.",
     ["What is Gated DeltaNet?", "Explain Gated DeltaNet.", "What is a Gated DeltaNet layer?", "How does Gated DeltaNet work?"], ["What does Gated DeltaNet do?"]),
    ("Storing weights with few bits, for example four, so that a model takes less memory.", ["What is quantization?", "What is quantisation?", "What does quantized mean?", "Explain quantization."],
     ["What does quantization mean?"]),
    ("I can tell short stories, describe places and animals, write letters, calculate with small numbers, sort, spell and count, name capitals and define words.",
     ["What can you do?", "What are you good at?", "How can you help me?", "Help", "What do you know?", "help me"], ["What are you able to do?"]),
    ("No. I am a very small model and I make mistakes.", ["Are you always right?", "Do you make mistakes?", "Can I trust you?", "Are you perfect?"], ["Are you ever wrong?"]),
    ("No, I am a program.", ["Are you human?", "Are you a person?", "Are you alive?", "Are you real?"], ["Are you a human?"]),
    ("The Pleiades are a cluster of stars, also called the seven sisters.", ["What are the Pleiades?", "What does the name Pleiad mean?", "Where does the name Pleiad come from?", "Why is it called Pleiad?"],
     ["What does Pleiad mean?"]),
    ("Because air scatters blue light more than red light.", ["Why is the sky blue?", "why is the sky blue", "What makes the sky blue?", "Explain why the sky is blue."], ["Why does the sky look blue?"]),
    ("Blue, on a clear day.", ["What color is the sky?", "What colour is the sky?", "Which color does the sky have?"], ["Which color is the sky?"]),
    ("There are seven days in a week.", ["How many days are in a week?", "How many days does a week have?", "How many days in a week?"], ["How many days are there in a week?"]),
    ("There are twelve months in a year.", ["How many months are in a year?", "How many months does a year have?", "How many months in a year?"], ["How many months are there in a year?"]),
    ("A token met a router and asked for help. The router said: I know an expert for that.", ["Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Say something funny."], ["Tell me a joke!"]),
    ("I do not know. I am a very small model.", ["Who will win the election?", "What is the weather like?", "What time is it?", "What happened today?", "Where do I live?", "What is my name?", "How old am I?",
                                               "Write a program for me.", "What is the meaning of life?", "Who is the president?"], ["What is today's weather?"]),
]


def talk(s):
    answer, train, test = s.rng.choice(TALK)
    return s.rng.choice(test if s.test else train), answer


# kind: (maker, share of training, held-out items)
KINDS = {
    "add": (add, 5, 25), "subtract": (subtract, 5, 25), "multiply": (multiply, 5, 25), "divide": (divide, 1, 10), "double": (double, 1.5, 15),
    "compare": (compare, 2, 20), "sort_numbers": (sort_numbers, 3, 25), "extreme": (extreme, 2, 15), "sort_words": (sort_words, 4, 25),
    "reverse": (reverse, 5, 25), "spell": (spell, 4, 20), "count_letter": (count_letter, 4.5, 25), "length": (length, 3, 20), "edge_letter": (edge_letter, 2.5, 20),
    "uppercase": (uppercase, 2, 15), "plural": (plural, 3, 15), "alphabet": (alphabet, 1, 15), "sequence": (sequence, 4, 25), "calendar": (calendar, 1.5, 15),
    "capital": (capital, 5, 35), "definition": (definition, 6, 35), "meaning": (meaning, 8, 0), "opposite": (opposite, 1.5, 15), "element": (element, 2, 15), "number_words": (number_words, 2, 20),
    "parity": (parity, 1, 10), "yes_no": (yes_no, 4, 20), "repeat": (repeat, 1.5, 10), "nth_word": (nth_word, 2, 15), "count_words": (count_words, 1.5, 10),
    "talk": (talk, 4, 29),
}
NAMES = list(KINDS)
WEIGHTS = [KINDS[k][1] for k in NAMES]

SYSTEMS = ["You are a helpful assistant.", "You are a helpful assistant.", "Answer briefly.", "You are the model in the box of Pleiad.", "Answer with the result only.",
           "You are a small and honest assistant.", "Be concise.", "You are Pleiad."]


def tool(name, description, /, **parameters):
    properties = {p: {"type": t, "description": d} for p, (t, d) in parameters.items()}
    return {"type": "function", "function": {"name": name, "description": description,
            "parameters": {"type": "object", "properties": properties, "required": list(properties)}}}


TOOLS = {
    "get_weather": tool("get_weather", "Get the weather in a city", city=("string", "The city")),
    "get_time": tool("get_time", "Get the local time in a city", city=("string", "The city")),
    "search": tool("search", "Search the web", query=("string", "What to search for")),
    "read_file": tool("read_file", "Read a file", path=("string", "The path of the file")),
    "calculate": tool("calculate", "Evaluate an expression", expression=("string", "The expression")),
    "set_timer": tool("set_timer", "Set a timer", minutes=("integer", "Minutes")),
    "send_message": tool("send_message", "Send a message to a person", name=("string", "The person"), text=("string", "The text")),
}
PEOPLE = "Anna Ben Clara David Emma Frank Grace Henry Ida Jack Kate Leo Mary Nina Oscar Paul Rose Sam Tom Vera".split()


def call_text(name, /, **arguments):
    inner = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def tool_chat(s):
    """(tools, messages): a question, the call, its response, the answer."""
    city = s.rng.choice(sorted(facts()["capitals"].values()))
    word = s.word(4, 8)
    name = s.rng.choice(sorted(TOOLS))
    if name == "get_weather":
        sky, t = s.pick("sunny", "cloudy", "rainy", "windy", "snowy"), s.rng.randrange(-5, 36)
        q = s.pick("What is the weather in {}?", "How is the weather in {}?", "Weather in {}?", "What's the weather like in {}?").format(city)
        a, back, said = {"city": city}, f'{{"sky": "{sky}", "temperature": {t}}}', f"It is {sky} in {city}, {t} degrees."
    elif name == "get_time":
        h, m = s.rng.randrange(24), s.rng.randrange(60)
        q = s.pick("What time is it in {}?", "What is the time in {}?", "Tell me the time in {}.").format(city)
        a, back, said = {"city": city}, f"{h:02}:{m:02}", f"It is {h:02}:{m:02} in {city}."
    elif name == "search":
        q = s.pick("Search for {}.", "Search the web for {}.", "Look up {} on the web.").format(word)
        a, back, said = {"query": word}, f"3 results for {word}", f"I found 3 results for {word}."
    elif name == "read_file":
        path = word + s.pick(".txt", ".md", ".json", ".rs")
        q = s.pick("Read the file {}.", "Open {}.", "What is in {}?", "Show me {}.").format(path)
        other = s.word(4, 8)
        a, back, said = {"path": path}, other, f"The file says: {other}"
    elif name == "calculate":
        x, y = s.rng.randrange(1000, 10000), s.rng.randrange(100, 1000)
        op = s.pick("+", "-", "*")
        q = s.pick("What is {} {} {}?", "Calculate {} {} {}.").format(x, op, y)
        z = {"+": x + y, "-": x - y, "*": x * y}[op]
        a, back, said = {"expression": f"{x} {op} {y}"}, str(z), f"{x} {op} {y} = {z}"
    elif name == "set_timer":
        n = s.rng.randrange(1, 90)
        q = s.pick("Set a timer for {} minutes.", "Timer for {} minutes.", "Start a timer of {} minutes.").format(n)
        a, back, said = {"minutes": n}, "ok", f"The timer is set for {n} minutes."
    else:
        who = s.rng.choice(PEOPLE)
        q = s.pick("Send {} to {}.", "Tell {1} {0}.", "Send the message {} to {}.").format(word, who)
        a, back, said = {"name": who, "text": word}, "sent", f"I sent the message to {who}."
    names = s.rng.sample(sorted(TOOLS), s.rng.randint(0, 2))
    names = s.rng.sample(sorted({*names, name}), len({*names, name}))
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": name, "arguments": a}}]}
    messages = [{"role": "user", "content": q}, call, {"role": "tool", "content": back}, {"role": "assistant", "content": said}]
    return [TOOLS[n] for n in names], messages


def chat(rng):
    """A training chat: messages; the first may carry "tools"."""
    s = Source(rng)
    if rng.random() < 0.025:
        tools, messages = tool_chat(s)
        messages[0]["tools"] = tools
        if rng.random() < 0.2:
            # A question that needs none of the tools.
            q, a = KINDS[rng.choices(NAMES, WEIGHTS)[0]][0](s)
            messages = [{"role": "user", "content": q, "tools": tools}, {"role": "assistant", "content": a}]
        return messages
    messages = []
    if rng.random() < 0.2:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    turns = rng.choices((1, 2, 3, 4), (70, 15, 10, 5))[0]
    for kind in rng.choices(NAMES, WEIGHTS, k=turns):
        question, answer = KINDS[kind][0](s)
        messages += [{"role": "user", "content": ask(s, question)}, {"role": "assistant", "content": answer}]
    return messages


def strange(s):
    """A request for prose about something the stories do not know."""
    f = facts()
    w = s.rng.choice(f["strange"])
    thing = s.pick("{a} {w}", "{a} {w}", "the {w}", "{w}", "{many}", "two {many}").format(a="an" if w[0] in "aeiou" else "a", w=w, many=regular(w))
    if s.rng.random() < 0.6:
        asked, text = stories.tale(s.rng)
        if " about " not in asked:
            return asked, text
        before, topic = asked.split(" about ", 1)
        topic = re.sub(r"[.?]$|, please\.$", "", topic)
        return f"{before} about {asked[len(before) + 7 :].replace(topic, thing)}", f"I know no story about {thing}. Here is one about {topic}.\n\n{text}"
    form = s.pick("Describe {}.", "Tell me about {}.", "Write a few sentences about {}.", "Write about {}.", "Write a paragraph about {}.", "Write a poem about {}.", "What do you know about {}?", "Write a short text about {}.")
    means = f["more"].get(w) or f["core"].get(w)
    return form.format(thing), f"I cannot write about {thing}. " + (f"I only know what the word {w} means: {means}" if means else "I know too little.")


def prose_chat(rng):
    """A training chat that asks for prose: stories and the like, the dictionary, and now and then something unknown."""
    s = Source(rng)
    messages = []
    if rng.random() < 0.1:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    for _ in range(rng.choices((1, 2, 3), (75, 20, 5))[0]):
        r = rng.random()
        if messages and messages[-1]["role"] == "assistant" and r < 0.4:
            question, answer = KINDS[rng.choices(NAMES, WEIGHTS)[0]][0](s)
        elif r > 0.94:
            question, answer = strange(s)
        elif r > 0.84:
            question, answer = dictionary.request(rng)
        else:
            question, answer = stories.prose(rng)
        if rng.random() < 0.12 and question[0].isupper() and len(question) < 80:
            question = question[0].lower() + question[1:].rstrip(".")
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return messages


def render(messages):
    """[(text, is the assistant's)] as the chat template renders it."""
    out = []
    tools = next((m["tools"] for m in messages if "tools" in m), None)
    first = messages[0]["content"] if messages[0]["role"] == "system" else None
    if tools:
        text = "<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>"
        text += "".join("\n" + json.dumps(t) for t in tools)
        text += "\n</tools>\n\nTo call a function, reply with:\n<tool_call>\n<function=name>\n<parameter=parameter>\nvalue\n</parameter>\n</function>\n</tool_call>"
        out.append((text + ("\n\n" + first if first else "") + "<|im_end|>\n", False))
    elif first:
        out.append((f"<|im_start|>system\n{first}<|im_end|>\n", False))
    for m in messages:
        if m["role"] == "user":
            out.append((f"<|im_start|>user\n{m['content']}<|im_end|>\n", False))
        elif m["role"] == "tool":
            out.append((f"<|im_start|>user\n<tool_response>\n{m['content']}\n</tool_response><|im_end|>\n", False))
        elif m["role"] == "assistant":
            out.append(("<|im_start|>assistant\n", False))
            text = m["content"]
            for c in m.get("tool_calls", []):
                text += call_text(c["function"]["name"], **c["function"]["arguments"])
            out.append((text + "<|im_end|>", True))
            out.append(("\n", False))
    return out


def items():
    """The held-out items: {"kind", "messages", "answer"}, with "tools" where the item has any."""
    s = Source(random.Random(2024), test=True)
    out = []
    for kind, (make, _, count) in KINDS.items():
        seen = set()
        tries = 0
        while len(seen) < count and tries < 3000:
            tries += 1
            question, answer = make(s)
            if question not in seen:
                seen.add(question)
                messages = [{"role": "user", "content": question}]
                out.append({"kind": kind, "messages": messages, "answer": answer.replace("\0", "")})
    for i in range(20):
        tools, messages = tool_chat(s)
        if i % 2:
            out.append({"kind": "tool_answer", "tools": tools, "messages": messages[:3], "answer": messages[3]["content"]})
        else:
            call = messages[1]["tool_calls"][0]["function"]
            out.append({"kind": "tool_call", "tools": tools, "messages": messages[:1], "answer": call_text(call["name"], **call["arguments"])})
    return out


def main():
    build()
    rows = items()
    with open(BOX / "eval/items.jsonl", "w") as f:
        for row in rows:
            f.write(json.dumps(row) + "\n")
    print(len(rows), "items")


if __name__ == "__main__":
    main()
