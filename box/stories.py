"""Simple prose made by a program: stories, descriptions, animals, letters. Every text comes with the requests it answers.

A template is text with [one|or|the other] and {slots}; a slot whose value is a list draws from it anew each time, and {Slot} is
{slot} with a capital. A story is a row of beats, each drawn from several templates; what happens first decides what can follow.
"""

import random
import re

_parsed = {}


def parse(text, at=0, inside=False):
    """Nested choices: a list of parts, each a string, a ("slot", name) or a list of alternatives."""
    options, parts, now = [], [], []

    def flush():
        if now:
            parts.append("".join(now))
            now.clear()

    while at < len(text):
        c = text[at]
        if c == "[":
            flush()
            inner, at = parse(text, at + 1, True)
            parts.append(inner)
        elif c == "{":
            flush()
            end = text.index("}", at)
            parts.append(("slot", text[at + 1 : end]))
            at = end
        elif inside and c in "|]":
            flush()
            options.append(parts)
            parts = []
            if c == "]":
                return options, at
        else:
            now.append(c)
        at += 1
    flush()
    return parts, at


def expand(rng, text, slots):
    if text not in _parsed:
        _parsed[text] = parse(text)[0]
    out = []

    def walk(parts):
        for p in parts:
            if isinstance(p, str):
                out.append(p)
            elif isinstance(p, tuple):
                name = p[1]
                lower = name[0].lower() + name[1:]
                value = slots[lower]
                while not isinstance(value, str):
                    value = value[int(rng.random() * len(value))]
                if "[" in value or "{" in value:
                    value = expand(rng, value, slots)
                out.append(value[0].upper() + value[1:] if name != lower else value)
            else:
                walk(p[int(rng.random() * len(p))])

    walk(_parsed[text])
    return "".join(out)


def tidy(text):
    text = re.sub(r"\b([Aa]) (?=[aeioAEIO]|u[nmpg](?!i)|hour|honest)(?!one\b|once\b|Eu)", r"\1n ", text)
    return re.sub(r"  +", " ", text)


# noun | home | food | where it lives | adjectives
BEASTS = """fox|den|berries|in the forest|clever,red,quick,sly
bear|cave|honey|in the forest|big,brown,strong,sleepy
mouse|hole|grain|in a field|small,grey,shy,busy
owl|hollow tree|mice|in the old wood|wise,old,quiet,grey
rabbit|burrow|clover|in a meadow|white,soft,quick,shy
hedgehog|nest of leaves|beetles|in a garden|round,prickly,small,careful
crow|nest|bread|near a farm|black,proud,noisy,clever
cat|basket|milk|in a village|grey,lazy,curious,black
dog|kennel|bones|on a farm|loyal,brown,cheerful,brave
wolf|den|meat|in the mountains|grey,hungry,strong,lonely
frog|pond|flies|by a pond|green,little,jolly,proud
duck|nest|weeds|by a lake|yellow,plump,cheerful,noisy
squirrel|nest|nuts|in an oak wood|red,quick,busy,nervous
deer|thicket|grass|in the forest|gentle,shy,swift,young
goat|shed|grass|on a hill|stubborn,white,bold,old
donkey|stable|hay|on a farm|grey,patient,stubborn,old
turtle|shell|leaves|by a river|slow,old,patient,wise
hare|nest in the grass|clover|in a meadow|fast,proud,young,boastful
lion|cave|meat|on the plain|great,golden,proud,mighty
elephant|grove|leaves|in the jungle|huge,gentle,grey,wise
monkey|tree|bananas|in the jungle|clever,noisy,merry,naughty
sparrow|nest|seeds|in a village|tiny,brown,brave,cheerful
goose|pen|grain|on a farm|white,proud,noisy,foolish
hen|coop|corn|on a farm|busy,brown,careful,kind
badger|burrow|roots|in the forest|old,quiet,strong,serious
otter|bank|fish|by a river|playful,sleek,merry,quick
mole|tunnel|worms|under a meadow|blind,soft,hardworking,shy
ant|hill|crumbs|in a garden|tiny,busy,strong,patient
bee|hive|honey|in a garden|busy,small,golden,hardworking
snail|shell|leaves|in a garden|slow,small,patient,gentle
horse|stable|oats|on a farm|strong,brown,proud,gentle
sheep|fold|grass|on a hill|woolly,white,timid,gentle
pig|sty|apples|on a farm|pink,round,merry,greedy
swan|nest|weeds|on a lake|white,proud,graceful,silent
penguin|nest of stones|fish|on the ice|small,round,cheerful,brave
tiger|cave|meat|in the jungle|striped,mighty,proud,silent
dragon|cave|roast apples|in the mountains|green,old,lonely,gentle
robot|workshop|oil|at the edge of a town|small,shiny,polite,rusty""".split("\n")

# noun | gender | home | where | adjectives
FOLK = """boy|m|house|in a small village|little,curious,brave,poor
girl|f|house|in a small village|little,clever,brave,kind
farmer|m|farm|in a green valley|old,honest,poor,patient
king|m|castle|in a far country|proud,old,rich,wise
queen|f|castle|in a far country|wise,proud,young,kind
princess|f|tower|in a far country|clever,curious,young,brave
prince|m|castle|in a far country|young,proud,brave,lonely
fisherman|m|hut|by the sea|old,poor,patient,honest
miller|m|mill|by a river|stout,merry,rich,greedy
sailor|m|ship|on the wide sea|young,brave,tired,cheerful
shepherd|m|hut|in the hills|young,quiet,patient,lonely
baker|m|bakery|in a busy town|fat,merry,kind,hardworking
tailor|m|shop|in a busy town|thin,clever,poor,careful
widow|f|cottage|at the edge of the forest|old,poor,kind,wise
teacher|f|school|in a small town|patient,strict,young,clever
soldier|m|camp|on a long road|tired,old,brave,honest
gardener|m|garden|behind a great house|old,quiet,patient,kind
clockmaker|m|shop|in an old town|old,careful,clever,lonely
woodcutter|m|cottage|in the deep forest|strong,poor,honest,tired
witch|f|cottage|in the dark wood|old,strange,clever,lonely
giant|m|cave|behind the mountains|huge,clumsy,gentle,lonely
knight|m|castle|in a far country|brave,young,proud,tired
pirate|m|ship|on the wide sea|old,greedy,bold,merry""".split("\n")

HIS = ["Rufus", "Tom", "Oliver", "Jack", "Ben", "Hugo", "Felix", "Max", "Peter", "Sam", "Leo", "Otto", "Bruno", "Paul", "Toby", "Finn", "Oscar", "Henry", "Martin", "George"]
HER = ["Anna", "Mia", "Clara", "Lucy", "Emma", "Rosa", "Ida", "Nora", "Ella", "Flora", "Tilly", "Grace", "Ruby", "Daisy", "Martha", "Lily", "Alice", "Vera", "Hazel", "Molly"]


class Who:
    """A figure of a story and the slots that speak of it."""

    def __init__(self, rng, row=None, beast=None, avoid=()):
        while True:
            beast_ = beast if beast is not None else rng.random() < 0.65
            f = (row or rng.choice(BEASTS if beast_ else FOLK)).split("|")
            if f[0] not in avoid:
                break
        if len(f[1]) == 1 and f[1] in "mf":
            self.noun, gender, self.home, self.where, adjectives = f
            self.food, self.beast = "bread and cheese", False
        else:
            self.noun, self.home, self.food, self.where, adjectives = f
            gender, self.beast = "f" if self.noun in ("hen", "bee", "goose") else rng.choice("mf"), True
        self.adjective = rng.choice(adjectives.split(","))
        self.gender = gender
        self.name = rng.choice(HIS if gender == "m" else HER) if rng.random() < 0.5 else None

    def slots(self, p):
        he, him, his, self_ = ("he", "him", "his", "himself") if self.gender == "m" else ("she", "her", "her", "herself")
        the = "the " + self.noun
        full = f"a {self.adjective} {self.noun}" + (f" [named|called] {self.name}" if self.name else "")
        ref = [self.name, self.name, the] if self.name else the
        base = {"": ref, "new": full, "noun": self.noun, "adj": self.adjective, "home": self.home, "food": self.food, "where": self.where,
                "he": he, "him": him, "his": his, "self": self_, "the": the}
        return {p + k: v for k, v in base.items()}


OPEN = ["[Once upon a time|Long ago|Once|Many years ago] there [lived|was] {new} {where}.",
        "{Where} [there lived|lived|there once lived] {new}.",
        "There was once {new} who lived {where}.",
        "[Once upon a time|Long ago|Once], {where}, there lived {new}.",
        "{New} lived {where}."]
HABIT = ["{He} lived in a [small|warm|little|cosy|tidy] {home} and had [everything {he} needed|little, but it was enough|few visitors|many friends].",
         "Every [morning|evening|day] {he} [sat before|cleaned|came out of] {his} {home} and [looked at the sky|sang a little song|listened to the wind|watched the clouds go by].",
         "{He} was [known to everyone|liked by all the neighbours], because {he} was [always kind|never in a bad temper|always ready to help].",
         "{He} loved nothing more than {food}.", ""]
WHEN = ["One [cold|bright|grey|windy|warm|misty|quiet] [morning|evening|afternoon|day] in [spring|summer|autumn|winter]", "One day", "One morning", "One evening, when the sun was going down,",
        "One night, when the moon was [full|bright|high],", "Early one morning", "On the first day of [spring|summer|autumn|winter]"]
PATHS = ["through the forest", "along the river", "over the hill", "across the meadow", "down the road", "by the lake", "through the tall grass", "along the shore", "past the old mill", "over the stone bridge"]
HAPPY = ["From that day on they were [good|the best of|true] friends.", "And if they have not moved away, they live there still.", "They lived happily [ever after|for many years].",
         "That night {self} slept better than ever before.", "And {self} never forgot that day.", "From then on {self} was never lonely again.", "And that is the end of the story."]


def story(rng, slots, beats, theme=None):
    """Beats to paragraphs."""
    out = []
    for paragraph in beats:
        sentences = []
        for beat in paragraph:
            text = expand(rng, rng.choice(beat) if isinstance(beat, list) else beat, slots).strip()
            if text:
                sentences.append(text)
        out.append(" ".join(sentences))
    return tidy("\n\n".join(p for p in out if p))


def begin(rng, hero, other=None):
    slots = hero.slots("")
    slots["h"] = slots.pop("")
    slots["self"] = slots["h"]
    if other:
        o = other.slots("o")
        o["o"] = o.pop("o")
        slots.update(o)
    slots["when"] = WHEN
    slots["path"] = PATHS
    return slots


THINGS = {"key": ("little brass", "open the door"), "ring": ("golden", "remember {his} mother"), "lantern": ("small", "see in the dark"), "bell": ("silver", "call {his} friends"),
          "map": ("old", "find the way"), "hat": ("blue", "keep the rain away"), "book": ("red", "read in the evening"), "flute": ("wooden", "play music"), "coin": ("shining", "buy bread"),
          "scarf": ("warm", "keep warm in winter"), "button": ("green", "close {his} coat"), "kite": ("paper", "play in the wind"), "spoon": ("wooden", "eat soup"), "letter": ("long", "hear from {his} brother")}
SPOTS = ["under a heap of leaves", "in the hollow of an old tree", "at the bottom of the well", "behind the stove", "between two stones by the stream", "in the nest of a magpie", "under the bridge",
         "in {his} own pocket", "in the pocket of {his} old coat", "under {his} own bed"]


def lost(rng):
    hero, other = Who(rng), Who(rng, beast=True)
    while other.noun == hero.noun:
        other = Who(rng, beast=True)
    thing = rng.choice(sorted(THINGS))
    s = begin(rng, hero, other)
    own = rng.random() < 0.25
    spot = rng.choice(SPOTS[-3:] if own else SPOTS[:7])
    s.update(thing=thing, kind=THINGS[thing][0], use=THINGS[thing][1], spot=spot)
    end = (["[\"How silly I am!\" laughed {h}.|{H} laughed until {his} sides hurt.] {He} had looked everywhere but at home.",
            "{H} [blushed|laughed]. \"I have walked [so far|all day],\" {he} said, \"and it was with me all the time.\""] if own else
           ["{H} [danced for joy|jumped for joy|was so happy that {he} sang]. \"[Thank you|How can I thank you], {onoun}!\" {he} said.", "{H} held the {thing} tight. \"I [shall|will] take better care of it now,\" {he} said."])
    text = story(rng, s, [
        [OPEN, ["{H} had a {kind} {thing}[ that {he} loved more than anything|, and {he} never went out without it|, a gift from {his} [mother|father|grandmother]].", "The thing {he} loved best was a {kind} {thing}. {He} used it to {use}."], HABIT],
        [["{When} the {thing} was gone.", "{When} {h} [woke up and|came home and] could not find the {thing}."],
         ["{He} looked [on the table and under the bed|in every corner|behind the door and under the chair], but it was not there.", "{He} searched {his} {home} from top to bottom, but there was no {thing}."],
         ["\"[Where can it be?|I must find it!|What shall I do now?]\" {he} [cried|said].", "{He} was [very sad|close to tears], but {he} did not give up."]],
        [["So {he} went {path}[ and asked everyone {he} met|], until {he} met {onew}.", "{He} [walked|went] {path}, and there sat {onew}."],
         ["\"Have you seen my {thing}?\" asked {h}.", "\"Good day,\" said {h}. \"I have lost my {kind} {thing}. Have you seen it?\""],
         ["\"[No|I have not seen it],\" said {o}, \"but [two can search better than one.|I will help you to look for it.|let us think. Where did you have it last?]\"", "{O} [thought for a while|scratched {ohis} head]. \"When I lose something,\" {ohe} said, \"I go back the way I came.\""]],
        [["They [went back the same way|searched together] [until evening|for a long time|step by step], and at last they found it {spot}.", "Together they looked [high and low|everywhere], and there it was, {spot}!"], end, [*HAPPY, "", "Then they went home and ate {food} together.", "And that evening there was {food} for two."]]])
    return text, [hero.noun, f"{hero.noun} and a {other.noun}", f"lost {thing}", f"{hero.noun} who lost a {thing}", f"{thing}"], "friendship"


TROUBLES = [("had fallen into a [deep|narrow] hole", "let down a long branch", "climbed out"), ("was caught in a net", "bit through the ropes one by one", "slipped out"),
            ("had a thorn in {ohis} foot", "pulled out the thorn [very gently|with great care]", "could walk again"), ("was shivering in the snow", "brought a warm blanket", "stopped shivering"),
            ("was too [weak|hungry] to go on", "shared {his} {food}", "felt strong again"), ("had lost the way home", "showed {ohim} the way", "knew the path again"),
            ("was stuck in the mud", "pulled with all {his} strength", "came free")]
RETURNS = ["{h} fell into the river, and the water was fast and cold. {O} heard the cry, ran along the bank and held out a branch.", "a great storm came and broke the roof of {his} {home}. {O} came with [wood and nails|straw and clay] and helped to mend it.",
           "{h} was ill and could not leave {his} {home}. {O} came every day and brought [warm soup|bread and honey|fresh water].", "there was nothing to eat, for the winter was long. Then {o} knocked at the door with a full basket.",
           "{h} lost the way in the fog. {O} stood on the hill and called until {h} heard."]


def kindness(rng):
    hero, other = Who(rng), Who(rng, beast=True)
    while other.noun == hero.noun:
        other = Who(rng, beast=True)
    s = begin(rng, hero, other)
    t = rng.choice(TROUBLES)
    s.update(trouble=t[0], help=t[1], free=t[2], back=rng.choice(RETURNS))
    text = story(rng, s, [
        [OPEN, HABIT],
        [["{When} {h} was [walking|on {his} way home] {path} when {he} heard a [small|weak|sad] voice.", "{When} {h} went {path}. There {he} heard someone crying."], ["\"[Help me, please!|Please help me!|Is anybody there?]\" it [said|called]."],
         ["{He} [went nearer|looked around] and saw {onew} that {trouble}.", "It was {onew}. {O} {trouble}."]],
        [["[Others had passed by|Many had gone by] without stopping, but {h} [did not|could not].", "{H} did not think twice.", "{H} was a little afraid, but {he} stayed."], ["{He} {help}, and soon {o} {free}."],
         ["\"Thank you,\" said {o}. \"[One day I will help you too|I shall never forget this|You have a good heart].\"", "\"How can I thank you?\" asked {o}. \"[You need not thank me|It was nothing],\" said {h}."],
         ["{H} smiled[ and went on|], for {he} did not think that [so small a friend|a stranger] could ever help {him}.", "Then they said goodbye[ and went their ways|].", ""]],
        [["[Some time|A month|A year|Many weeks] later {back}", "But [before the year was over|when winter came|not long after] {back}"],
         ["\"You helped me once,\" said {o}. \"Now I can help you.\"", "\"I [told you|said] I would not forget,\" said {o}."], ["[So it is:|And so we see that] [a kind deed is never lost|one good turn deserves another|nobody is too small to help a friend].", "From that day on they were [good|the best of] friends.", *HAPPY]]])
    return text, [hero.noun, f"{hero.noun} and a {other.noun}", f"kind {hero.noun}", "friendship", "kindness", "helping others"], "kindness"


BOASTS = [("race to the [old oak|mill|bridge]", "was so sure of winning that {he} lay down for a nap", "walked on, step by step, and never stopped", "[slow and steady wins the race|it is no use to be fast if you sleep on the way]"),
          ("climb to the top of the [hill|mountain]", "ran ahead, took the wrong path and came to a steep wall", "asked the way, kept to the path and rested at the right time", "[who asks the way does not get lost|a good head is better than quick feet]"),
          ("build the better house before winter", "built in one day with [straw|leaves] and laughed", "carried stones for many weeks", "[good work takes time|what is done in haste does not last]"),
          ("carry the heavy [basket|sack] to the market", "took everything at once and fell in the mud", "went twice with half the load", "[little by little goes far|a wise one knows {his} own strength]"),
          ("cross the [wide|cold] river", "jumped in without looking and was carried away by the water", "looked for the shallow place and crossed with dry feet", "[look before you leap|think first and jump later]")]


def contest(rng):
    hero, other = Who(rng, beast=True), Who(rng, beast=True)
    while other.noun == hero.noun:
        other = Who(rng, beast=True)
    s = begin(rng, hero, other)
    b = rng.choice(BOASTS)
    s.update(task=b[0], fail=b[1], win=b[2], moral=b[3])
    text = story(rng, s, [
        [OPEN, ["{He} was very proud of {him}self.", "There was nobody, {he} said, who was [better|stronger|quicker] than {he}.", "All day long {he} told everyone how [strong|clever|quick] {he} was."],
         ["{His} neighbour was {onew}, who [said little|did not talk much] and worked hard.", "Near {him} lived {onew}."]],
        [["{When} {h} laughed at {o}. \"[You are so slow|Look at you|You will never be like me],\" {he} said.", "{When} they met [by the well|on the road|under a tree], and {h} began to boast."],
         ["\"Let us see who can {task},\" said {o}[ quietly|].", "\"Then let us {task},\" said {o}, \"and we shall see.\""], ["{H} laughed loudly. \"[That will be easy|I have already won]!\"", "All the [animals|neighbours] came to watch.", ""]],
        [["[So they began.|At sunrise they began.|The next day they began.]"], ["{H} {fail}.", "{H} wanted to show off, and {fail}."], ["But {o} {win}.", "{O} did not look to the left or to the right. {Ohe} {win}."]],
        [["[In the end|When evening came] it was {o} who had won, and {h} [hung {his} head|was ashamed|had nothing more to say]."], ["\"[I am sorry that I laughed|I was foolish],\" said {h}. \"[You have taught me something.|Will you forgive me?]\"", "{O} did not laugh. \"[Come and eat with me|Let us be friends],\" {ohe} said.", ""],
         ["[Since then people say|And so we learn]: {moral}.", "{Moral}, as the old people say.", "The moral is: {moral}."]]])
    return text, [hero.noun, f"{hero.noun} and a {other.noun}", f"proud {hero.noun}", f"{other.noun}", "a race" if "race" in b[0] else "pride"], "pride"


FEARS = {"dark": ("the dark", "hid under the blanket as soon as the sun went down", "the lamp went out in the middle of the night, and {o} was crying outside", "took a deep breath and stepped out into the night",
                  "the dark was full of stars, and the night was soft and quiet"),
         "water": ("the water", "would not even step over a puddle", "{o} fell into the pond and could not swim", "jumped in without thinking", "the water carried {him}, and it was cool and pleasant"),
         "thunder": ("thunder", "hid in the corner at the first sound of a storm", "a storm came while {o} was still out in the field", "ran out into the rain", "thunder was only a great noise, and a noise cannot hurt anyone"),
         "height": ("high places", "would not climb even a small ladder", "{o} was stuck high up in a tree", "began to climb, one branch after another, and did not look down", "from up there one could see the whole valley, shining in the sun"),
         "strangers": ("strangers", "hid whenever somebody knocked at the door", "{o}, tired and wet, knocked at the door", "opened the door", "a stranger is only a friend one has not met yet")}


def fear(rng):
    hero, other = Who(rng), Who(rng, beast=True)
    while other.noun == hero.noun:
        other = Who(rng, beast=True)
    s = begin(rng, hero, other)
    name = rng.choice(sorted(FEARS))
    f = FEARS[name]
    s.update(what=f[0], hide=f[1], event=f[2], act=f[3], truth=f[4])
    text = story(rng, s, [
        [OPEN, ["{He} was [afraid of|terribly afraid of] only one thing: {what}.", "{H} was afraid of {what}, and {he} told nobody about it."], ["{He} {hide}."],
         ["The neighbours [laughed at {him}|did not understand it], and that made {him} [sad|feel very small].", "\"I shall never be brave,\" {he} thought.", ""]],
        [["{He} had a friend, {onew}. ", "{His} only friend was {onew}. "], ["[Then one day|One evening|But one day] {event}."], ["[There was nobody else to help.|Nobody else was near.|There was no time to call for help.]", ""]],
        [["{H} [trembled|shook] from head to foot. Then {he} {act}.", "{His} heart beat [fast|like a drum], but {he} {act}."], ["And what do you think? {Truth}.", "Then {he} saw that {truth}."],
         ["Soon {o} was safe[ and warm|].", "In a little while {o} was safe in {his} {home}."]],
        [["\"You are the bravest {noun} I know,\" said {o}.", "\"Were you not afraid?\" asked {o}."], ["\"I was afraid,\" said {h}, \"but [you needed me|I did it all the same].\"", "{H} smiled. \"[To be brave is to be afraid and to go on|One can be afraid and brave together],\" {he} said."], [*HAPPY, "And {he} was never afraid of {what} again."]]])
    return text, [hero.noun, f"{hero.noun} who was afraid of {f[0]}", f"brave {hero.noun}", "courage", "being brave", f"{hero.noun} and a {other.noun}"], "courage"


GOALS = [("the sea", "the waves came in, one after another, blue and white, and there was no end to the water"), ("the great city", "there were a thousand windows, and every window had a light"), ("the top of the mountain", "the whole world lay below, small and green and silent"),
         ("the place where the sun goes down", "the sky was red and gold, and the sun went down behind another hill"), ("the snow in the north", "everything was white and still, and the stars were very near"), ("the big forest", "the trees were as high as towers, and the light was green"),
         ("the end of the rainbow", "there was no gold, but a meadow full of flowers in every colour")]
BARS = ["came to a wide river. There was no bridge, so {he} [built a raft from old wood|waited until a boat came by|followed the bank until the water was shallow].", "was caught in a storm. {He} [hid under a rock|crept into a hollow tree] and waited until the rain was over.",
        "lost the way in the fog. {He} [sat down and waited|listened to the bells of a village] until {he} knew where to go.", "had nothing left to eat. An old woman gave {him} [bread and cheese|a bowl of soup|three apples], and {he} carried water for her.",
        "met a traveller who said, \"[Turn back|It is too far for you].\" But {h} shook {his} head and went on."]


def journey(rng):
    hero = Who(rng)
    s = begin(rng, hero)
    goal, sight = rng.choice(GOALS)
    one, two = rng.sample(BARS, 2)
    s.update(goal=goal, sight=sight, one=one, two=two)
    text = story(rng, s, [
        [OPEN, ["{He} had never been far from {his} {home}.", "All {his} life {he} had [wondered about|dreamed of] {goal}.", HABIT[0]], ["More than anything {he} wanted to see {goal}.", "[A bird|An old sailor|{His} grandmother] had told {him} about {goal}, and {he} could not forget it."]],
        [["{When} {he} [packed|took] [some {food}|a piece of bread] and a blanket, locked the door and set out.", "\"If I do not go now,\" {he} said, \"I shall never go.\" So {he} took a [small bag|stick and a bag] and set out."], ["{He} went {path} and sang as {he} went.", "The road was long, but {his} heart was light.", ""]],
        [["On the [first|second] day {he} {one}", "After some time {he} {one}"], ["On the [third|fourth] day {he} {two}", "Then {he} {two}", "A week later {he} {two}"]],
        [["At last {he} [was there|came to the place|reached {goal}]. {Sight}.", "And then, one [morning|evening], {he} was there: {sight}."], ["{H} [stood still and looked|sat down and looked for a long time|did not say a word].", "\"It was worth every step,\" said {h}."]],
        [["When {he} came home again, [everybody wanted to hear about it|{he} told the story to {his} friends|the neighbours gathered around {him}].", "After [a week|some days] {he} turned back, for {he} missed {his} {home}."],
         ["\"[What was the best of it?|What did you bring us?]\" they asked. \"[The way there|The story|The wish to go again],\" said {h}.", "And the {home} that had seemed so small now seemed [the best place in the world|just large enough].", *HAPPY]]])
    return text, [hero.noun, f"{hero.noun} who wanted to see {goal}", "a journey", "a long journey", f"{goal}"], "journey"


FINDS = [("a tree full of ripe [apples|pears|cherries]", "fruit"), ("a [great|large] heap of nuts", "nuts"), ("a pot of gold", "gold"), ("a field of sweet berries", "berries"), ("a well of clear water", "water"), ("a large cheese", "cheese")]


def greed(rng):
    hero, other = Who(rng), Who(rng, beast=True)
    while other.noun == hero.noun:
        other = Who(rng, beast=True)
    s = begin(rng, hero, other)
    find, food = rng.choice(FINDS)
    s.update(find=find, stuff=food)
    text = story(rng, s, [
        [OPEN, HABIT, ["{When} {he} found {find}.", "{When} {h} was walking {path} and found {find}."]],
        [["\"This is all mine,\" said {h}. \"I [shall|will] tell nobody.\"", "\"Now I am rich,\" thought {h}, and {he} told no one."], ["Soon {onew} came by. \"[May I have a little?|May I have some of the {stuff}?]\" asked {o}.", "Then came {onew}, who was [hungry|poor|thirsty]. \"Will you share with me?\" {ohe} asked."],
         ["\"No,\" said {h}. \"I found it, and I keep it.\"", "\"Go away,\" said {h}. \"There is not enough for two.\""], ["{O} went away sadly.", "{O} said nothing and went away."]],
        [["{H} sat there day and night and watched over the {stuff}. {He} did not sleep, and {he} had nobody to talk to.", "But {he} had more {stuff} than {he} could use. {He} could not [carry it home|guard it alone], and {he} was tired and alone."],
         ["[Then a storm came, and half of it was lost.|One night thieves came and took the greater part.|Little by little the joy went out of it.]"], ["\"What is the good of it,\" {he} thought, \"if I am alone?\"", "{He} remembered the sad face of {o}."]],
        [["So {he} went to {o} and said, \"[I was wrong|I am sorry]. Come and share with me.\"", "The next morning {he} called {o} and gave {ohim} half of the {stuff} that was left."], ["They sat together and [laughed|talked] until evening, and {h} was happier than before.", "And it was strange: half of it made {him} happier than the whole."],
         ["[A joy that is shared is a double joy.|What we share is never lost.|Sharing makes a little into much.]", *HAPPY]]])
    return text, [hero.noun, f"greedy {hero.noun}", "sharing", "greed", f"{hero.noun} and a {other.noun}"], "sharing"


MAKES = [("boat", "wood", "sank at once", "put tar between the boards", "floated like a swan", "sailed it across the lake"), ("kite", "paper and string", "fell down like a stone", "gave it a long tail", "rose above the trees", "flew it every windy day"),
         ("bridge", "stones", "fell into the stream", "laid the big stones first and the small ones on top", "stood firm", "crossed it every morning"), ("house", "branches", "fell down in the first wind", "dug a deep place for the posts", "stood against the storm", "lived in it for many years"),
         ("garden", "seeds", "did not grow", "carried water every day and pulled out the weeds", "was full of flowers", "gave flowers to all the neighbours"), ("clock", "wheels and springs", "went backwards", "turned the smallest wheel around", "struck twelve at noon", "heard it strike every hour"),
         ("cake", "flour and eggs", "burned black", "made a smaller fire and waited", "was golden and sweet", "gave a piece to every guest")]


def making(rng):
    hero, other = Who(rng), Who(rng)
    while other.noun == hero.noun:
        other = Who(rng)
    s = begin(rng, hero, other)
    m = rng.choice(MAKES)
    s.update(thing=m[0], stuff=m[1], fail=m[2], fix=m[3], good=m[4], then=m[5])
    text = story(rng, s, [
        [OPEN, ["{He} [wanted to make|dreamed of making] a {thing}.", "All winter long {he} thought of one thing: {he} wanted to make a {thing} with {his} own hands."]],
        [["{When} {he} [gathered|fetched] {stuff} and began to work.", "So {he} took {stuff} and went to work."], ["{He} worked [from morning till night|for three days], but the {thing} {fail}.", "It looked fine, but the {thing} {fail}."],
         ["\"I cannot do it,\" {he} said, and sat down [sadly|on the ground].", "{He} tried again, and again the {thing} {fail}.", "The neighbours laughed and shook their heads."]],
        [["Just then {onew} came by.", "Now {onew} had been watching from the fence."], ["\"[Why are you so sad?|What is the matter?]\" asked {o}. \"The {thing} is no good,\" said {h}.", "\"[You are doing well|Do not give up],\" said {o}. \"Nobody does it right the first time.\""],
         ["They thought about it together, and then they {fix}.", "{O} knew what to do. Together they {fix}."]],
        [["This time the {thing} {good}.", "And look: the {thing} {good}!"], ["\"[We have done it!|Now it is right!]\" cried {h}.", "{H} was so happy that {he} [threw {his} hat into the air|danced around it]."], ["From then on {he} {then}.", "{He} {then}, and {o} was always welcome."],
         ["[Those who try again will win in the end.|Two heads are better than one.|Mistakes are good teachers.]", ""]]])
    return text, [hero.noun, f"{hero.noun} who made a {m[0]}", f"{m[0]}", "not giving up", f"{hero.noun} and a {other.noun}"], "patience"


def trick(rng):
    hunter = Who(rng, row=rng.choice([r for r in BEASTS if r.split("|")[0] in ("fox", "wolf", "lion", "tiger", "bear", "cat", "dragon")]))
    small = Who(rng, row=rng.choice([r for r in BEASTS if r.split("|")[0] in ("mouse", "rabbit", "hare", "sparrow", "hen", "goose", "frog", "duck", "squirrel", "goat", "sheep", "monkey", "hedgehog")]))
    s = begin(rng, small, hunter)
    plan = rng.choice([
        ("\"I am so thin,\" said {h}. \"Let me eat for a week, and I shall be fat.\"", "{O} thought that a fat {noun} was better than a thin one, and let {him} go. {H} ran home and shut the door."),
        ("\"Before you eat me,\" said {h}, \"let me hear you sing. Everybody praises your voice.\"", "{O} opened {ohis} mouth wide to sing, and {h} [slipped away|was gone in a moment]."),
        ("\"There is another {onoun} in the well,\" said {h}, \"and he says that he is stronger than you.\"", "{O} looked into the well and saw {ohis} own face in the water. {Ohe} roared and jumped in, and {h} walked home."),
        ("\"You may eat me,\" said {h}, \"but you should wash your face first, as fine people do.\"", "{O} began to wash {ohis} face, and {h} [slipped away|was gone in a moment]."),
        ("\"My brother is twice as big as I am,\" said {h}. \"He is coming down the road now.\"", "{O} turned {ohis} head to look, and {h} jumped into the thick bushes where nobody could follow.")])
    s.update(plan=plan[0], out=plan[1])
    text = story(rng, s, [
        [OPEN, ["{He} was [small|not strong], but {he} had a good head.", "{He} was not strong, but {he} was never without a plan."]],
        [["{When} {h} was looking for {food} {path}, and {he} did not see that somebody was coming.", "{When} {h} went {path} to look for {food}."], ["Suddenly {onew} [stood before {him}|jumped out from behind a bush|blocked the way]."],
         ["\"[Now I have you|You shall be my dinner|I have not eaten for two days],\" said {o}.", "\"Good morning,\" said {o}. \"I am hungry, and you come just in time.\""]],
        [["{H} was [very much afraid|frightened], but {he} did not show it.", "{H} could not run, for {o} was too fast. So {he} thought quickly."], plan[0], plan[1]],
        [["When {o} [saw|understood] what had happened, it was too late.", "{O} was very angry, but what could {ohe} do?"], ["[A good head is better than strong teeth.|The small must be clever.|Think before you believe what you are told.]", "That evening {h} told the story to {his} friends, and they laughed until midnight."]]])
    return text, [small.noun, f"{small.noun} and a {hunter.noun}", f"{hunter.noun} and a {small.noun}", f"clever {small.noun}", hunter.noun], "cleverness"


def truth(rng):
    hero = Who(rng)
    elder = Who(rng, row=rng.choice([r for r in FOLK if r.split("|")[0] in ("widow", "farmer", "teacher", "gardener", "baker", "clockmaker", "king", "queen")]))
    while elder.noun == hero.noun:
        hero = Who(rng)
    s = begin(rng, hero, elder)
    s.update(broken=rng.choice(["blue jug", "window", "old clock", "glass lamp", "white plate", "garden gate", "mirror"]))
    text = story(rng, s, [
        [OPEN, ["Near {him} lived {onew}, and {h} often came to visit.", "{He} often played near the house of {onew}."]],
        [["{When} {h} was [playing|running about] and broke the {broken}.", "{When} {h} was not careful, and the {broken} broke into pieces."], ["Nobody had seen it.", "{He} looked around. There was nobody there."], ["{He} ran home and [hid|said nothing].", "{He} hid the pieces and went home."]],
        [["In the evening {o} asked, \"Who has broken the {broken}?\" \"It was the wind,\" said {h}.", "The next day {o} asked who had done it. \"I do not know,\" said {h}."], ["But that night {he} could not sleep. {His} heart was heavy like a stone.", "{He} could not eat, and {he} could not play. The lie sat in {his} throat."]],
        [["At [sunrise|first light] {he} went to {o}. \"It was I,\" {he} said. \"I broke the {broken}, and I told a lie. I am sorry.\"", "\"I must tell you something,\" {he} said at last. \"I broke the {broken}. It was not right to lie.\""],
         ["{O} looked at {him} for a long time. \"A {broken} can be mended,\" {ohe} said. \"[I am glad that you told me the truth|It is harder to mend a lie].\"", "\"I knew it,\" said {o}, \"and I waited for you to tell me. Now it is good again.\""],
         ["Together they mended the {broken}, and [nobody could see where it had been broken|it was almost as good as new].", "{H} worked in the garden for a week to pay for it, and {he} whistled while {he} worked."], ["[The truth makes the heart light.|It takes courage to tell the truth.]", "And from that day on {h} always told the truth."]]])
    return text, [hero.noun, f"{hero.noun} who told a lie", f"{hero.noun} and a {elder.noun}", "telling the truth", "a lie", "honesty"], "honesty"


def wish(rng):
    hero = Who(rng, beast=False)
    giver = rng.choice(["golden fish", "old man with a white beard", "small grey bird", "white deer", "star that had fallen from the sky", "tiny woman in a green coat"])
    s = begin(rng, hero)
    bad = rng.choice([("for a house full of gold", "There was gold on the floor and gold on the table, but the bread was gold too, and one cannot eat gold.", "plain bread again"),
                      ("to be as great as a king", "{He} sat on a throne and had a hundred servants, but everybody wanted something, and nobody was {his} friend.", "{his} old life again"),
                      ("that it should always be summer", "The sun shone day after day, and soon the wells were dry and the flowers died.", "rain and snow again"),
                      ("never to work again", "{He} sat in a chair all day, and every day was longer than the day before.", "{his} work again")])
    s.update(giver=giver, want=bad[0], result=bad[1], back=bad[2])
    text = story(rng, s, [
        [OPEN, ["{He} worked hard, but {he} was never content.", "\"If only I had a little more,\" {he} used to say."]],
        [["{When} {he} met a {giver} [by the river|in the forest|on the shore|at the crossroads], and it could speak.", "{When} {h} was out late and helped a {giver} that was in trouble."], ["\"You have been kind,\" it said. \"You may have two wishes, but think well.\"", "\"I will give you two wishes,\" it said. \"Use them wisely.\""]],
        ["{H} did not think long. {He} wished {want}, and at once it was so.",
         ["At first {he} was [full of joy|very happy].", "The first day was wonderful."], "{result}"],
        [["After a [week|month] {he} went back. \"I have one wish left,\" {he} said. \"I want {back}.\"", "Then {h} understood. {He} called out, \"I want {back}!\""], ["\"That was wise,\" said the {giver}, and it was never seen again.", "And so it was."],
         ["From that day on {h} was content with what {he} had.", "{He} went home, lit the fire and ate {his} supper, and it had never tasted so good.", "[To be content is to be rich.|We do not always know what is good for us.]"]]])
    short = giver.split(" with ")[0].split(" that ")[0].split(" in ")[0]
    return text, [hero.noun, f"{hero.noun} and a {short}", "two wishes", "a wish", f"{short}"], "wishes"


def saving(rng):
    hero = Who(rng)
    s = begin(rng, hero)
    d = rng.choice([("water was coming through the old wall of the dam", "the whole valley would be under water by morning", "put {his} arm into the hole and called for help", "dam"),
                    ("there was smoke above the roof of the mill", "the fire would soon reach the houses", "ran to the church and rang the great bell", "fire"),
                    ("the lamp of the lighthouse had gone out", "the ships would be lost on the rocks", "climbed the long stairs and lit the lamp again", "lighthouse"),
                    ("the bridge had been broken by the flood", "the night coach would soon come down the road", "stood in the middle of the road and swung a lantern", "bridge")])
    s.update(danger=d[0], worse=d[1], act=d[2])
    text = story(rng, s, [
        [OPEN, ["Nobody [took much notice of {him}|thought that {he} was good for anything].", "{He} was so quiet that [people often forgot {him}|nobody knew {his} voice]."]],
        [["{When} {h} could not sleep and went out.", "{When} {h} was on {his} way home, later than the others."], ["There {he} saw that {danger}.", "Suddenly {he} stopped, for {danger}."],
         ["{He} knew that {worse}.", "If nobody did anything, {worse}."]],
        [["{He} was [afraid|cold and tired], but there was no time to lose.", "There was nobody near, and {he} had to be quick."], ["{He} {act}."], ["{He} did not stop until the others came.", "It [was hard|hurt], but {he} held out until help came.", "One by one the lights went on in the houses, and people came running."]],
        [["\"You have saved us all,\" they said.", "In the morning everyone knew what {h} had done."], ["\"[Anybody would have done it|I was only the first to see it],\" said {h}[, and went to bed|].", "{H} blushed and did not know what to say."],
         ["[Even the smallest can do great things.|It is not the loud ones who are brave.]", "They gave {him} [a warm coat|a silver medal|a feast with music], but the best of it was that now everybody knew {his} name.", ""]]])
    return text, [hero.noun, f"brave {hero.noun}", f"{d[3]}", "courage", f"{hero.noun} who saved the village"], "courage"


GIFTS = [("gold chain", "a chain of flowers"), ("silk dress", "a shawl that {he} had knitted {selfr}"), ("big feast", "a bowl of warm soup"), ("fine picture", "a small picture of their house"), ("silver cup", "a cup of clay that {he} had made"), ("golden ring", "a ring of grass")]


def gift(rng):
    hero = Who(rng)
    s = begin(rng, hero)
    wanted, made = rng.choice(GIFTS)
    s.update(selfr="himself" if hero.gender == "m" else "herself", wanted=wanted, made=made, dear=rng.choice(["mother", "grandmother", "father", "old teacher", "sister", "best friend"]))
    text = story(rng, s, [
        [OPEN, ["[Soon|In three days|On Sunday] it would be the birthday of {his} {dear}, and {he} had no present yet.", "{He} wanted to find a present for the birthday of {his} {dear}."]],
        [["{When} {he} went to the market. There was a {wanted}, but it cost more than {h} had.", "In the market {he} saw a {wanted}. \"How much is it?\" {he} asked. It was far too much."], ["{He} counted {his} coins: there were only [three|four|five].", "{He} turned {his} pockets inside out, but there was no money in them."], ["Sadly {he} went home.", "{He} walked home {path} and thought."]],
        [["On the way {he} [had an idea|sat down on a stone and thought]. \"If I cannot buy something,\" {he} said, \"I [will|shall] make something.\"", "Then {he} remembered what {his} {dear} had once said: the best things cannot be bought."], ["{He} worked [all night|for two days] by the light of a candle.", "{He} worked until {his} fingers were sore."]],
        [["When the day came, {he} brought {made}. \"It is not much,\" {he} said.", "On the birthday {he} gave {his} {dear} {made}, and {his} heart beat fast."], ["\"Nobody has ever given me anything so beautiful,\" came the answer.", "\"You made this for me?\" said the {dear}. \"It is worth more than a {wanted}.\""],
         ["[The best present is made with love.|What is made with love has no price.]", "And nobody was happier that day than {h}.", ""]]])
    return text, [hero.noun, "a present", "a birthday", f"{hero.noun} who had no money", "a birthday present"], "love"


def seed(rng):
    hero, other = Who(rng), Who(rng)
    while other.noun == hero.noun:
        other = Who(rng)
    s = begin(rng, hero, other)
    s.update(plant=rng.choice(["apple tree", "rose bush", "pear tree", "sunflower", "oak", "cherry tree"]))
    text = story(rng, s, [
        [OPEN, ["{When} {h} found a [small brown|tiny black|strange] seed on the road.", "{When} {onew} gave {him} a small seed."], ["\"What will it be?\" {he} [asked|wondered].", "{He} put it into {his} pocket and carried it home."]],
        [["{He} planted it before {his} {home} and watered it every day.", "{He} made a hole in the ground, laid the seed in it and covered it with earth."], ["The first day nothing happened. The second day nothing happened either.", "A week went by, and there was only brown earth."],
         ["\"It is dead,\" said the neighbours. \"[Throw it away|You are wasting your water].\" But {h} only smiled and went on.", "{He} wanted to dig it up and look. \"Wait,\" said an old friend. \"Good things need time.\""]],
        [["Then, one [warm|bright] morning, there was a small green [leaf|point].", "At last, after a night of rain, something green looked out of the earth."], ["{H} [danced for joy|called everyone to come and see].", "It grew slowly, a little every day."], ["In winter {he} covered it with straw, and in summer {he} gave it water.", "Summer came and went, and {h} never forgot to water it."]],
        [["Years later it was a great {plant}.", "After some years a fine {plant} stood there."], ["Children played under it, and [birds sang in it|travellers rested beside it].", "All the neighbours came to look at it, and nobody laughed any more."], ["\"How did you do it?\" they asked. \"I waited,\" said {h}.", "[Patience brings the sweetest fruit.|Great things begin small.]"]]])
    return text, [hero.noun, "a seed", f"{hero.noun} who planted a seed", "patience", f"{s['plant']}", "a tree"], "patience"


RIDDLES = [("What grows when you give it away?", "gold", "a sword", "a smile"), ("What is stronger than a wall of stone?", "a wall of iron", "a hundred soldiers", "true friendship"), ("What is the sweetest thing in the world?", "honey", "sugar", "sleep after a day of work"),
           ("What runs all day and never grows tired?", "a horse", "a deer", "a river"), ("What can fill a whole room and yet weighs nothing?", "straw", "feathers", "light"), ("What does everybody have and nobody can hold?", "money", "wind", "a shadow"), ("What is richer than a king?", "another king", "a merchant", "one who is content")]


def riddle(rng):
    hero = Who(rng, row=rng.choice([r for r in FOLK if r.split("|")[0] in ("boy", "girl", "shepherd", "tailor", "fisherman", "baker", "soldier", "gardener", "woodcutter", "widow", "farmer", "miller")]))
    ruler = Who(rng, row=rng.choice([r for r in FOLK if r.split("|")[0] in ("king", "queen", "princess")]))
    s = begin(rng, hero, ruler)
    q, one, two, right = rng.choice(RIDDLES)
    s.update(q=q, one=one, two=two, right=right)
    text = story(rng, s, [
        [["[Once upon a time|Long ago|Many years ago] there was {onew} who loved riddles.", "In a far country there lived {onew}, and there was nothing {ohe} loved more than riddles."], ["{When} {ohe} let it be known: whoever could answer {ohis} question should have [a bag of gold|half of the treasure|a fine horse and a house].", "One day {ohe} sent messengers through the whole land. \"Whoever answers my question,\" {ohe} said, \"shall be rich.\""]],
        [["The question was this: \"{q}\"", "And this was the question: \"{q}\""], ["First came a rich merchant. \"It is {one},\" he said. {O} shook {ohis} head.", "A proud knight came first and said, \"That is easy. It is {one}.\" But it was wrong."], ["Then came a learned man with many books. \"It is {two},\" he said. That was wrong too.", "A wise man from the city thought for three days and said, \"It is {two}.\" {O} only laughed."]],
        [["Last of all came {new}.", "At the end of the line stood {new}."], ["The servants laughed at the old coat and the dusty shoes.", "\"What does someone like you know?\" asked the servants.", ""], ["{H} [bowed|thought for a moment] and said, \"It is {right}.\"", "\"I think that it is {right},\" said {h} quietly."]],
        [["It was so still in the hall that one could hear the clock. Then {o} smiled. \"That is the answer,\" {ohe} said.", "{O} stood up. \"How did you know?\" {ohe} asked. \"I have seen it every day,\" said {h}."], ["{H} took the reward and shared it with the whole village.", "So {h} became rich, but {he} stayed as {he} was.", "From then on {o} often asked {him} for advice."], ["[Wisdom does not need fine clothes.|The simple often see what the great do not.]", ""]]])
    return text, [ruler.noun, f"{ruler.noun} and a {hero.noun}", "a riddle", f"{ruler.noun} who loved riddles", hero.noun, f"clever {hero.noun}"], "cleverness"


def winter(rng):
    hero, other = Who(rng, beast=True), Who(rng, beast=True)
    while other.noun == hero.noun:
        other = Who(rng, beast=True)
    s = begin(rng, hero, other)
    text = story(rng, s, [
        [OPEN, ["{His} neighbour was {onew}.", "Not far away lived {onew}."], ["It was summer, and the days were long and warm.", "All summer the sun shone, and there was plenty to eat."]],
        [["Every day {h} gathered {food} and carried it home.", "{H} worked from morning till evening and filled {his} {home} with {food}."], ["{O} lay in the grass and [sang|slept|looked at the clouds]. \"Why do you work so hard?\" {ohe} asked. \"Come and play!\"", "\"You are a fool,\" said {o}, who was lying in the sun. \"Summer is for playing.\""],
         ["\"Winter is coming,\" said {h}. \"You should gather something too.\"", "\"First the work and then the play,\" said {h}[, and went on|]."], ["But {o} only laughed.", "\"Winter is far away,\" said {o}, and went to sleep again."]],
        [["Then the leaves fell, and one morning the ground was white.", "But summer does not last. The wind turned cold, and snow fell for three days."], ["{O} looked for something to eat and found nothing.", "Now {o} was cold and hungry, and {ohis} {ohome} was empty."], ["At last {ohe} knocked at the door of {h}. \"[Please help me|I was wrong],\" {ohe} said." , "One evening there was a weak knock at the door, and there stood {o}, thin and shivering."]],
        [["{H} could have sent {ohim} away, but {he} did not. \"Come in,\" {he} said. \"There is enough for two.\"", "\"Sit down by the fire and eat,\" said {h}."], ["In the long evenings {o} [sang|told stories], and the winter was not dull.", "{O} was ashamed. \"Next summer I will work with you,\" {ohe} said."], ["And when summer came, they worked together, and in the evenings they played.", "And {ohe} kept {ohis} word.", "[There is a time to work and a time to play.|Think of the winter while it is summer.]"]]])
    return text, [hero.noun, f"{hero.noun} and a {other.noun}", "winter", f"hardworking {hero.noun}", f"lazy {other.noun}", "hard work"], "work"


def stranger(rng):
    hero, other = Who(rng), Who(rng)
    while other.noun == hero.noun:
        other = Who(rng)
    s = begin(rng, hero, other)
    s.update(odd=rng.choice(["made a strange noise at night", "never came to the well", "had a light in the window until morning", "wore a red coat and spoke to nobody", "came from a far country"]),
             secret=rng.choice(["was building a [telescope|music box] in the night", "was only shy", "could not sleep for loneliness", "was painting pictures of everyone", "had a sick bird and cared for it day and night"]))
    text = story(rng, s, [
        [OPEN, ["{When} {onew} moved into the empty house next door.", "In the house beside {him} nobody had lived for years. Then {onew} moved in."], ["The new neighbour {odd}."]],
        [["People began to talk. \"[Do not go there|There is something wrong with that one],\" they said.", "\"I do not like it,\" said one neighbour. \"Who knows what goes on in there?\""], ["{H} was [curious|a little afraid], but {he} thought, \"I have never spoken to {ohim}. How can I know?\"", "But {h} thought that one should see first before one speaks."]],
        [["So {he} baked a cake and knocked at the door.", "The next day {he} took a basket of apples and went over."], ["Slowly the door opened. {O} looked surprised.", "\"Nobody has visited me before,\" said {o}."],
         ["They sat down at the table and talked, and {h} learned that {o} {secret}.", "Soon they were laughing together. {O} {secret}, and that was the whole secret."]],
        [["{H} told the others, and one after another they came to say good day.", "After that {h} came every week, and soon the others came too."], ["\"I was afraid of you all,\" said {o}, and everybody laughed.", "\"And we were afraid of you,\" said the neighbours."], ["[Do not judge before you know.|A stranger is a friend you have not met yet.]", *HAPPY]]])
    return text, [hero.noun, "a new neighbour", f"{hero.noun} and a {other.noun}", "a stranger", f"lonely {other.noun}", f"{other.noun} who wanted a friend", "friendship"], "friendship"


STORIES = [lost, kindness, contest, fear, journey, greed, making, trick, truth, wish, saving, gift, seed, riddle, winter, stranger]


# Descriptions: for each subject, sentences by what they speak of, in the order in which they may follow.
SCENES = {
    "the sea": ["The sea is never still.|The sea lies before us, wide and [blue|grey|green].|Seen from the shore, the sea has no end.|All day long the waves roll in from the sea.",
                "[The waves|One wave after another] [rise, turn white and break|come in and run back again] [on the sand|over the stones].|In the morning it is grey, at noon it is blue, and in the evening it shines like gold.|Far out a [white sail|ship|fishing boat] moves slowly along the horizon.",
                "Gulls cry above the water, and the wind tastes of salt.|The air smells of salt and fish, and gulls hang in the wind.|Children look for shells along the edge of the water.",
                "Fishermen know it well: they go out before dawn and come back with the tide.|When a storm comes, the water turns black and the waves rise as high as houses.|Under the surface there is another world, dark and silent, where fish move among the weeds.",
                "At night one can hear it breathing in the dark.|Whoever has lived by the sea will always miss its sound.|It was there before us, and it will be there after us."],
    "the forest": ["In the forest it is [cool|quiet|green] and [dim|still].|The forest begins behind the last houses of the village.|A narrow path leads into the forest.",
                   "Tall [oaks|pines|beeches] stand close together, and their branches meet overhead.|Sunlight falls through the leaves and makes bright spots on the ground.|The ground is soft with moss and old leaves.",
                   "A woodpecker knocks somewhere, and then it is silent again.|Birds sing in the high branches, though one can hardly see them.|Now and then a twig breaks, and a deer lifts its head.",
                   "Mushrooms grow beside the roots, and ferns stand along the stream.|It smells of earth and resin after the rain.|Squirrels run up and down the trunks and hide their nuts for the winter.",
                   "In the evening the shadows grow long, and the owls wake up.|It is easy to lose the way here, but hard to be sad.|Those who walk slowly see the most."],
    "the mountains": ["The mountains rise behind the valley like a wall.|From far away the mountains look blue.|High mountains stand around the village.",
                      "Their tops are white with snow, even in summer.|Steep paths lead up between rocks and small, bent trees.|Clouds hang on the peaks and hide them for days.",
                      "The air is thin and clear, and one can see very far.|Streams of cold water fall over the stones into the valley.|Goats climb where no man can follow.",
                      "Shepherds bring their sheep up in spring and down again before the first snow.|In winter the paths are closed, and it is silent up there.|At sunset the rocks turn red, then purple, then grey.",
                      "On the top one feels small, but also free.|It takes a whole day to climb up, and nobody who has done it is sorry."],
    "the river": ["The river comes down from the hills and runs through the middle of the town.|A river never stays the same, and yet it is always there.|The river is wide here, and it moves slowly.",
                  "Willows bend over the water and touch it with their leaves.|In the shallow places one can see stones and small fish.|An old stone bridge crosses it, and a boat is tied to the bank.",
                  "Ducks swim along the reeds, and a heron stands without moving.|Boys sit on the bank with their fishing rods and talk little.|The water turns the wheel of the mill, day and night.",
                  "In spring it is brown and loud with melted snow.|In summer people come to swim and to sit in the shade.|In the evening mist rises from the water and covers the fields.",
                  "Where it goes, it does not say, but in the end it finds the sea.|All rivers run to the sea, and the sea is never full."],
    "a village": ["The village lies in a [green|quiet|narrow] valley, between fields and woods.|It is a small village with one street and a church.|There are about thirty houses in the village.",
                  "The roofs are red, and smoke rises from the chimneys.|In the middle there is a square with a well and an old lime tree.|Every house has a garden with beans, roses and a few apple trees.",
                  "Everybody knows everybody else, and news travels fast.|In the morning the baker opens his shop, and the smell of bread fills the street.|Hens walk across the road, and a dog sleeps in the sun.",
                  "On Sundays the bell rings, and people stand before the church and talk.|In the evening the old people sit on the benches and watch the children play.|Once a year there is a feast with music and dancing.",
                  "Not much happens there, and that is what people like about it.|Those who leave it come back sooner or later."],
    "a city at night": ["At night the city [looks like another place|does not sleep].|When the sun goes down, the city lights its lamps.",
                        "Thousands of windows shine, yellow and white, one above the other.|The streets are wet from the rain, and the lights lie on them like gold.|Cars move along the streets like a slow river of light.",
                        "Music comes from an open door, and people laugh somewhere.|A late train crosses the bridge, and its windows are bright.|In a small kitchen a cook washes the last plates.",
                        "A cat walks along a wall and belongs to nobody.|Above the roofs one can see only a few stars.|A policeman walks slowly past the closed shops.",
                        "Toward morning it grows quiet, and the first birds begin to sing.|Then the bakers go to work, and a new day begins."],
    "a market": ["The market is held every [Saturday|Friday|Wednesday] in the square.|Early in the morning the farmers bring their goods to the market.",
                 "There are baskets of apples, heaps of cabbages and jars of honey.|On the tables lie cheese, eggs, fresh bread and bunches of flowers.|Fish lie on ice, silver and grey, with open mouths.",
                 "\"Fresh pears!\" cries a woman. \"Sweet as sugar!\"|People push and talk and ask for the price of everything.|A man plays the violin, and a few coins lie in his hat.",
                 "Children get a plum or a piece of cheese to taste.|An old lady looks at every apple before she buys three.|Dogs wait beside the butcher, full of hope.",
                 "By noon the best things are gone.|When the clock strikes one, the tables are folded up and the square is empty again."],
    "a garden": ["Behind the house there is a [small|large|old] garden.|The garden is small, but it is full of life.|A low wall runs around the garden.",
                 "Roses climb along the wall, and beans climb up their poles.|There are beds of lettuce, carrots and strawberries, neat as a page of writing.|In the middle stands an old apple tree with a bench under it.",
                 "Bees go from flower to flower, and butterflies rest on the warm stones.|A blackbird pulls a worm out of the wet grass.|It smells of mint and warm earth.",
                 "In the evening somebody goes from bed to bed with a watering can.|In spring everything is green, and in autumn the ground is red with apples.|There is always something to do: to dig, to sow, to water, to wait.",
                 "A garden teaches patience.|It is the best place to sit and do nothing."],
    "winter": ["In winter the days are short and the nights are long.|Winter comes quietly, with frost on the windows.|One morning everything is white: winter has come.",
               "Snow lies on the roofs and on the branches, and every sound is soft.|The lake is frozen, and children skate on it with red faces.|The trees are bare, and crows sit in them like black fruit.",
               "Inside, a fire burns in the stove, and it smells of baked apples.|People walk quickly, with their hands deep in their pockets.|Birds come to the window and look for crumbs.",
               "At four o'clock it is already dark, and lamps are lit.|The bear sleeps in its cave, and the hedgehog sleeps under the leaves.|In the clear nights the stars are bright and near.",
               "Then, one day, water drips from the roof, and spring is not far.|It is a good time for stories."],
    "spring": ["In spring the snow melts, and the streams are loud.|Spring comes with warm wind and soft rain.|After the long winter, spring comes almost in one night.",
               "The first flowers come up through the wet leaves.|The trees turn green, and the cherry trees are white with blossoms.|The birds come back from the south and build their nests.",
               "Windows are opened, and carpets are beaten in the yards.|Farmers plough the fields, and gulls follow the plough.|Lambs jump about in the meadows and do not know why.",
               "In the morning it may snow, and at noon the sun is warm.|The evenings grow longer, and children play outside until they are called.",
               "Everybody feels a little younger in spring.|It is the time when everything begins again."],
    "summer": ["In summer the days are long and the grass is high.|Summer is the loud and golden time of the year.",
               "The sun stands high, and the air trembles above the road.|Wheat ripens in the fields, yellow and heavy.|Everything is green, and the shade under the trees is dark and cool.",
               "Children run to the river and jump into the water.|Bees hum in the lime trees, and crickets sing until late.|People sit before their houses and eat cherries.",
               "Sometimes clouds pile up, and there is thunder in the evening.|The farmers bring in the hay before the rain comes.|The nights are so warm that nobody wants to go to bed.",
               "One wishes that it would never end.|Then one morning there is dew on the grass, and one knows that autumn is coming."],
    "autumn": ["In autumn the leaves turn red, yellow and brown.|Autumn comes with cool mornings and golden light.",
               "The wind takes the leaves from the trees and chases them down the road.|Apples and pears are picked, and the cellar fills with jars.|Mist lies over the fields until noon.",
               "The swallows gather on the roofs, and one day they are gone.|Squirrels run about and hide their nuts.|Children collect chestnuts and fly their kites.",
               "It smells of wet leaves and smoke.|The evenings come early, and one lights the lamp again.|The fields are empty, and crows walk over them.",
               "It is a quiet season, and a rich one.|The year grows tired and makes itself ready to sleep."],
    "the morning": ["In the early morning the world is quiet.|Before sunrise the sky is grey, then pink, then gold.",
                    "Dew lies on the grass, and every drop shines.|A cock crows on the farm, and another one answers.|Mist hangs over the river and slowly disappears.",
                    "The first birds sing before anyone is awake.|Somewhere a door opens, and a bucket is set down.|The smell of coffee and fresh bread comes from the kitchen.",
                    "Then the sun comes over the hill, and the windows begin to shine.|People go to work, and children go to school.", "Everything seems possible in the morning.|A new day lies there like a clean page."],
    "the night": ["At night everything is different.|When night comes, the colours go away.|The night comes slowly, first to the valley and then to the hills.",
                  "The moon rises behind the trees and makes long shadows.|Stars come out, one by one, until the sky is full of them.|The houses are dark, except for one small window.",
                  "An owl calls in the wood, and a dog barks far away.|One can hear the clock in the hall and the wind in the chimney.|Hedgehogs and foxes are awake now.",
                  "Children dream in their beds, and the old people lie awake and think.|The night watchman goes through the streets with his lantern.", "Then a pale light shows in the east, and the night is over.|The night is long for those who wait, and short for those who sleep."],
    "the moon": ["The moon rises [behind the hill|above the roofs], round and yellow.|The moon is our neighbour in the sky.",
                 "It goes around the earth once in about a month.|It has no light of its own; it shines because the sun shines on it.|When it is full, one can walk through the fields without a lamp.",
                 "Some people see a face in it, and others see a hare.|It pulls at the sea and makes the tides.|Its ground is grey dust and stone, and there is no wind there.",
                 "Dogs bark at it, and poets write about it.|Children think that it follows them home.", "Each night it looks a little different, and yet it is always the same moon.|A few people have walked on it, and their footprints are still there."],
    "the stars": ["On a clear night the sky is full of stars.|The stars are suns, but they are very far away.",
                  "They look small only because the distance is so great.|Some are blue, some are white, and some are red.|The light of some stars has been on its way for thousands of years.",
                  "In old times sailors used them to find their way across the sea.|People saw pictures in them: a bear, a hunter, a swan.|Seven of them stand close together and are called the Pleiades.",
                  "They are there by day too, but the sun is too bright.|Now and then one seems to fall, and people make a wish.", "Whoever looks up for a long time forgets small troubles.|They are silent, and perhaps that is why we like to look at them."],
    "the rain": ["It has been raining since morning.|First there are a few drops, and then it rains in earnest.",
                 "Rain runs down the windows and drums on the roof.|The street is empty, and water flows along the gutters.|Everything is grey: the sky, the houses and the road.",
                 "A woman hurries by under a black umbrella.|Ducks and frogs are the only ones who are pleased.|Children jump into the puddles with both feet.",
                 "The farmers are glad, because the fields were dry.|The trees drip, and the grass is greener than before.|In the house it is warm, and somebody is reading a book.", "When it stops, the air smells fresh, and there may be a rainbow.|Every rain comes to an end."],
    "a storm": ["Before the storm the air was heavy and still.|The storm came up from the west in the late afternoon.",
                "Black clouds rolled over the hills, and it grew dark as night.|Then the wind came and bent the trees to the ground.|The first lightning cut the sky in two.",
                "Thunder followed, so loud that the windows shook.|The rain fell like a wall, and the road became a river.|Doors slammed, and a chair flew across the garden.",
                "People sat in their kitchens and counted the seconds between lightning and thunder.|The animals stood close together in the barn.|A branch broke from the old oak and fell on the fence.",
                "After an hour it was over, and the air was clean and cool.|In the morning the sun shone as if nothing had happened."],
    "the snow": ["It snowed all night, and in the morning the world was white.|The first snow of the year fell on a [Sunday|Monday] evening.",
                 "The flakes came down slowly, large and soft.|Fences wore white caps, and the path was gone.|Every branch carried a line of white.",
                 "There was no sound, as if the whole village were wrapped in wool.|A hare had crossed the garden and left its tracks.|Children made a snowman with a carrot for a nose.",
                 "Men came out with shovels and made narrow paths from door to door.|The cat put one paw into it and went back to the stove.", "When the sun came out, everything glittered.|By evening their faces were red, and their gloves were wet, and they were happy."],
    "an island": ["The island lies an hour from the coast, and one can walk around it in a day.|It is a small island with a white lighthouse.",
                  "There are rocks on one side and a long beach on the other.|A few houses stand close together, with their backs to the wind.|The trees are low and bent, because the wind never stops.",
                  "Goats walk about freely, and gulls nest on the cliffs.|People live from fishing, and every house has a boat.|Once a week a ship brings letters, flour and news.",
                  "In winter, when the sea is rough, nobody can come or go.|At night one sees the light of the lighthouse turn, again and again.", "It is lonely there, but nobody who was born there wants to leave.|The sea is everywhere, and one hears it even in sleep."],
    "a lighthouse": ["The lighthouse stands on the last rock before the open sea.|A white lighthouse with a red top stands at the end of the land.",
                     "A hundred and twenty steps lead up to the lamp.|Its walls are thick, and its windows are small.|Waves break against its foot and throw their foam high up.",
                     "Every evening the keeper climbs the stairs and lights the lamp.|Its beam goes round in the dark and can be seen for twenty miles.|Sailors look for it when the night is black.",
                     "In fog a great horn sounds every minute.|The keeper writes down the wind and the weather in a thick book.", "It says only one thing, and it says it every night: here is land, take care.|It is a lonely house, but a useful one."],
    "a farm": ["The farm lies at the end of a long road, among fields.|It is a small farm with a red barn.",
               "There are six cows, two horses, a pig and many hens.|The barn smells of hay, and swallows fly in and out.|Behind the house are fields of wheat and potatoes.",
               "The farmer gets up at five and milks the cows.|The dog runs around the yard and keeps everything in order.|A cat lies in the sun and pretends to sleep.",
               "In summer the hay must be brought in before the rain.|In winter there are tools to mend and animals to feed.|The children gather eggs and carry water.", "The work never ends, but nobody there would like to live in a city.|In the evening everyone sits around the big table and eats soup."],
    "a library": ["The library is the quietest house in the town.|It is an old library with high windows.",
                  "Shelves full of books reach up to the ceiling, and a ladder leans against them.|There are green lamps on the long tables.|It smells of paper, dust and wood.",
                  "People turn the pages softly and speak in whispers.|An old man reads the newspaper with a magnifying glass.|A girl sits on the floor between two shelves and has forgotten the time.",
                  "In every book somebody is waiting to speak.|One can travel to any country here without leaving the chair.", "When the bell rings at six, everybody looks up in surprise.|Nobody is ever alone in a library."],
    "a castle": ["The castle stands on a hill above the river.|An old castle looks down on the valley.",
                 "Its walls are thick and grey, and ivy grows over them.|Four towers rise into the sky, and one of them is broken.|A wooden bridge leads over the ditch to the gate.",
                 "In the great hall there is a fireplace as large as a room.|Long ago knights rode out of this gate with flags and drums.|The stairs are worn by many feet.",
                 "Now jackdaws live in the towers, and bats hang in the cellar.|People say that a lady in white walks there at midnight.", "From the highest window one can see seven villages.|The kings are gone, but the stones remember."],
    "an old house": ["The old house stands at the end of the street, behind tall trees.|Nobody has lived in the old house for many years.",
                     "The paint has come off the door, and some windows are broken.|Grass grows between the stones of the path.|The stairs creak, and the wind sings in the chimney.",
                     "In the kitchen there is still a table with two chairs.|A clock hangs on the wall and has stopped at ten past four.|Dust lies on everything like grey snow.",
                     "Children dare each other to knock at the door.|Swallows have built their nests under the roof, and they do not mind.", "It looks as if it were waiting for someone.|Perhaps one day somebody will light a fire there again."],
    "a train": ["The train leaves the station at [six|seven|nine] in the morning.|With a long whistle the train begins to move.",
                "Houses and gardens pass by, and then come fields and woods.|The wheels beat their steady song on the rails.|It crosses a bridge, and far below shines a river.",
                "An old woman unpacks her bread and offers some to everybody.|A child presses its nose against the window.|Some people read, some sleep, and some look out without a word.",
                "At every station people get off and others get on.|In the tunnel it is dark for a minute, and everyone is silent.", "In the evening the lights of the city come nearer, and people take down their bags.|It is pleasant to sit still and to travel at the same time."],
    "a ship": ["The ship lies in the harbour with furled sails.|It is an old ship with three masts.",
               "Her sides are black, and her name is written in gold.|Ropes and ladders go up into the sky.|Barrels, boxes and sacks are carried on board.",
               "The captain stands on deck and looks at the clouds.|The sailors sing while they pull up the anchor.|A boy says goodbye to his mother and tries not to cry.",
               "Then the wind fills the sails, and she moves out to sea.|For weeks there will be nothing but water and sky.", "Slowly the land grows small and disappears.|Everyone on board thinks of home, and everyone looks ahead."],
    "a lake": ["The lake lies between the hills like a mirror.|It is a deep, quiet lake with reeds along the shore.",
               "On calm days one can see the mountains in it, upside down.|The water is clear and cold, even in July.|A small wooden pier leads out into the water.",
               "Swans swim in pairs, and coots call from the reeds.|A fisherman sits in his boat and does not move.|Dragonflies dance above the water.",
               "In winter it freezes, and the whole village comes to skate.|In the evening it turns pink, and then it is dark.", "It keeps its secrets well.|One can sit there for hours and not be bored."],
    "a desert": ["The desert begins where the last palm trees stand.|There is nothing but sand and sky in the desert.",
                 "The wind builds hills of sand and takes them away again.|By day it is hot as an oven, and at night it is cold.|It rains only once in many years, and then the ground is full of flowers.",
                 "A line of camels moves slowly along the horizon.|Lizards and snakes hide under the stones.|Far apart there are wells, and every traveller knows their names.",
                 "At noon the air trembles, and one sees lakes that are not there.|At night the stars are so bright that they throw shadows.", "It is silent there, more silent than anywhere else.|Whoever crosses it learns the worth of water."],
    "a school": ["The school is a yellow house next to the church.|At eight o'clock the bell rings, and the school is full of noise.",
                 "There are two rooms, a blackboard and a map of the world.|Thirty children sit on wooden benches.|Coats and hats hang in a row in the hall.",
                 "They learn to read, to write and to count.|The teacher writes a long word on the board, and everybody tries to spell it.|Somebody laughs, and somebody looks out of the window.",
                 "At noon they run out into the yard and shout.|On the window stand beans in glasses, and each day they are a little taller.", "What one learns there, one keeps for life.|In summer the rooms are empty, and even the teacher misses the noise."],
    "a bridge": ["An old stone bridge crosses the river at this place.|The bridge is three hundred years old.",
                 "It has five arches, and grass grows between its stones.|Under it the water is dark and fast.|Carts and coaches have worn deep tracks into it.",
                 "Fishermen lean over the wall and wait.|In the evening young people meet there and look at the water.|Swallows have their nests under the arches.",
                 "Once a flood came up to the top, but the bridge stood firm.|Soldiers, kings and sheep have walked over it.", "It joins two villages that would otherwise be strangers.|A bridge is a kind of friendship made of stone."],
    "a fire": ["In the evening we lit a fire in the stove.|A fire burns in the middle of the camp.",
               "First there was smoke, and then small yellow flames.|The wood cracks, and sparks fly up.|The flames dance, red and blue and gold.",
               "Everyone sits around it and holds out cold hands.|The cat lies as near to it as possible.|Faces are bright, and behind them is the dark.",
               "Somebody tells a story, and nobody interrupts.|Potatoes lie in the ashes and begin to smell good.", "When it has burned down, the ashes glow for a long time.|A fire is good company on a cold night."],
}

ANIMALS = """fox|foxes|a red coat and a bushy tail|in woods, fields and even in towns|mice, birds, insects and berries|hunts mostly at dusk and at night|cubs|is known for being clever
bear|bears|thick fur and strong claws|in forests and mountains|berries, roots, fish and honey|sleeps through most of the winter|cubs|can climb trees and swim well
owl|owls|large eyes and soft feathers|in woods and old buildings|mice and other small animals|hunts at night and flies without a sound|chicks|can turn its head almost all the way around
cat|cats|soft fur, whiskers and sharp claws|near people, in houses and on farms|mice, birds and fish|sleeps for most of the day|kittens|can see well in the dark
dog|dogs|a good nose and a tail that wags|with people all over the world|meat, bones and bread|guards the house and likes to play|puppies|is often called man's best friend
wolf|wolves|grey fur and strong teeth|in forests and on cold plains|deer, sheep and smaller animals|lives and hunts in a pack|pups|howls to call the others
horse|horses|long legs, a mane and a tail|on farms and grassy plains|grass, hay and oats|can sleep standing up|foals|has carried people for thousands of years
cow|cows|a large body, horns and a rough tongue|on farms|grass and hay|chews its food twice|calves|gives us milk
sheep|sheep|thick wool|on hills and meadows|grass and herbs|likes to stay with the flock|lambs|gives us wool and milk
elephant|elephants|a long trunk, big ears and two tusks|in Africa and Asia|grass, leaves and fruit|lives in a family led by an old female|calves|is the largest animal on land
lion|lions|golden fur, and the male has a mane|on the plains of Africa|zebras, antelopes and other animals|rests for most of the day|cubs|is called the king of beasts
tiger|tigers|orange fur with black stripes|in the forests of Asia|deer and wild pigs|hunts alone and swims well|cubs|is the largest of the cats
whale|whales|a huge smooth body and a broad tail|in all the seas of the world|small fish and tiny sea animals|must come up to breathe|calves|is not a fish, although it looks like one
penguin|penguins|black and white feathers and short wings|on cold coasts in the south|fish|cannot fly, but swims very well|chicks|walks in a funny way
eagle|eagles|broad wings and a hooked beak|in mountains and near lakes|fish, hares and birds|builds its nest on high rocks|chicks|can see a mouse from high in the air
frog|frogs|smooth wet skin and long back legs|near ponds and streams|flies, worms and beetles|sleeps in the mud in winter|tadpoles|can live in water and on land
bee|bees|a small hairy body, four wings and a sting|in hives and hollow trees|nectar and pollen|flies from flower to flower|larvae|makes honey and wax
ant|ants|six legs and a strong jaw|in nests under the ground|seeds, insects and sweet things|works together with thousands of others|larvae|can carry many times its own weight
spider|spiders|eight legs and often eight eyes|in gardens, houses and woods|flies and other insects|spins a web and waits|spiderlings|is not an insect
snake|snakes|a long body without legs|in warm countries, on land and in water|mice, frogs and eggs|sheds its skin from time to time|young snakes|smells with its tongue
rabbit|rabbits|long ears and a short white tail|in burrows under meadows|grass, clover and carrots|runs in zigzags when it is chased|kittens|can see behind itself without turning its head
squirrel|squirrels|a bushy tail and sharp little teeth|in trees|nuts, seeds and mushrooms|hides food for the winter|young squirrels|often forgets where it has hidden its nuts
hedgehog|hedgehogs|a coat of sharp spines|in gardens and at the edge of woods|beetles, worms and snails|rolls up into a ball when it is afraid|hoglets|sleeps all winter under leaves
mouse|mice|small ears, whiskers and a long thin tail|in fields and houses|grain, seeds and crumbs|comes out mostly at night|pups|can squeeze through very small holes
camel|camels|long legs and one or two humps|in dry and hot countries|dry grass and thorny plants|can go for many days without water|calves|is called the ship of the desert
giraffe|giraffes|a very long neck and brown spots|on the plains of Africa|leaves from high trees|sleeps very little|calves|is the tallest animal in the world
monkey|monkeys|long arms and clever hands|in warm forests|fruit, leaves and insects|climbs and jumps from tree to tree|infants|likes to live in groups
parrot|parrots|bright feathers and a curved beak|in warm forests|nuts, seeds and fruit|lives in noisy flocks|chicks|can learn to speak a few words
duck|ducks|a flat beak and webbed feet|on ponds, lakes and rivers|water plants, snails and seeds|puts its head under water to find food|ducklings|has feathers that keep the water out
goose|geese|a long neck and strong wings|on lakes and meadows|grass and grain|flies south in winter in the shape of a V|goslings|can guard a house like a dog
deer|deer|slender legs, and the male has antlers|in forests and meadows|grass, leaves and buds|comes out at dusk to feed|fawns|can run very fast
turtle|turtles|a hard shell|in seas, rivers and ponds|plants, fish and snails|draws in its head when there is danger|hatchlings|can live for more than a hundred years
dolphin|dolphins|a smooth grey body and a long snout|in warm seas|fish and squid|lives in groups and jumps out of the water|calves|is one of the cleverest animals
snail|snails|a soft body and a round shell|in gardens and damp places|leaves and other parts of plants|moves very slowly on one foot|young snails|carries its house on its back
crow|crows|shiny black feathers and a strong beak|in fields, woods and towns|seeds, insects, fruit and scraps|lives in pairs or flocks|chicks|can use sticks as tools
butterfly|butterflies|four coloured wings|in gardens and meadows|nectar from flowers|sleeps at night under leaves|caterpillars|begins its life as a caterpillar
bat|bats|wings of skin and large ears|in caves, barns and old trees|moths and other insects|flies at night and sleeps hanging upside down|pups|finds its way by listening to echoes
zebra|zebras|black and white stripes|on the plains of Africa|grass|lives in herds|foals|has stripes that are different on every animal
goat|goats|two horns and a beard|on farms and in mountains|grass, leaves and almost everything else|climbs where no other farm animal can go|kids|gives us milk and cheese
pig|pigs|a round body, a flat nose and a curly tail|on farms|roots, apples and kitchen scraps|rolls in the mud to stay cool|piglets|is much cleverer than people think""".split("\n")


def animal(rng):
    one, many, looks, where, food, does, young, fact = rng.choice(ANIMALS).split("|")
    s = {"one": one, "many": many, "looks": looks, "where": where, "food": food, "does": does, "young": young, "fact": fact}
    text = [["The {one} is an animal with {looks}.", "A {one} has {looks}.", "One knows a {one} at once: it has {looks}."],
            ["It lives {where}.", "{Many} live {where}."], ["It eats {food}.", "{Many} eat {food}.", "Its food is {food}."], ["It {does}.", "A {one} {does}."],
            ["Its young are called {young}.", "The young of a {one} are called {young}.", ""], ["A {one} {fact}.", "The {one} {fact}.", "It {fact}."]]
    if rng.random() < 0.4:
        text[2], text[3] = text[3], text[2]
    text = tidy(" ".join(x for x in (expand(rng, rng.choice(t), s) for t in text) if x))
    form = rng.choice(["Tell me about {many}.", "Describe a {one}.", "Write a few sentences about the {one}.", "Write about {many}.", "Tell me something about the {one}.", "What do you know about {many}?", "Tell me about the {one}.",
                       "Write a short text about a {one}.", "Describe the {one}.", "Write a paragraph about {many}."])
    return tidy(expand(rng, form, s)), text


def scene(rng):
    name = rng.choice(sorted(SCENES))
    parts = []
    for i, row in enumerate(SCENES[name]):
        options = split(row)
        n = 1 if i in (0, len(SCENES[name]) - 1) else rng.choice((1, 1, 2))
        for o in sorted(rng.sample(range(len(options)), min(n, len(options)))):
            parts.append(tidy(expand(rng, options[o], {})))
    if len(parts) > 5 and rng.random() < 0.5:
        cut = rng.randrange(2, 4)
        text = " ".join(parts[:cut]) + "\n\n" + " ".join(parts[cut:])
    else:
        text = " ".join(parts)
    bare = re.sub(r"^(a|an) ", "", name)
    form = rng.choice(["Describe {x}.", "Write a few sentences about {x}.", "Write about {x}.", "Write a short text about {x}.", "Tell me about {x}.", "Write a description of {x}.", "Write a paragraph about {x}.", "Say something about {x}.",
                       "Write a few lines about {x}."])
    return form.replace("{x}", name if rng.random() < 0.9 else bare), text


_split = {}


def split(row):
    """At the bars outside of brackets."""
    if row not in _split:
        out, depth, now = [], 0, ""
        for c in row:
            depth += (c == "[") - (c == "]")
            if c == "|" and not depth:
                out.append(now)
                now = ""
            else:
                now += c
        _split[row] = out + [now]
    return _split[row]


NEWS = ["{Place} is [larger|quieter|more beautiful] than I thought.", "Yesterday we walked [to the harbour|up the hill|through the old streets] and sat in the sun.", "I have a small room with a window to the [garden|sea|street].", "The people here are kind, and the bread is very good.",
        "It has rained for [two|three] days, so I have read a whole book.", "In the morning I drink my coffee by the window and watch the [boats|people|birds].", "I have made a new friend. Her name is {friend}, and she knows every story of the place.",
        "Last night there was a storm, and we told stories by the light of a candle.", "On [Saturday|Sunday] there was a feast with music, and I danced until my feet hurt.", "I have bought a [small|blue|funny] present for you, but I will not say what it is.",
        "The cat of the house sleeps on my bed every night.", "I am learning to [swim|fish|bake bread|ride], and everybody laughs at me.", "There is an old man here who mends clocks, and he has shown me how it is done.", "I often think of you when I see the [sea|mountains|stars]."]
ASKS = ["How are you, and how is the [garden|dog|baby|new house]?", "Is your [mother|brother|sister] well again?", "Have the apples been picked?", "Has it snowed yet at home?", "Do you still play the [piano|violin|flute]?", "Please write to me soon and tell me everything."]


def letter(rng):
    who = rng.choice(HIS + HER)
    me = rng.choice([n for n in HIS + HER if n != who])
    kind = rng.choice(["friend", "travel", "thanks", "invite", "sorry"])
    place = rng.choice(["the sea", "the mountains", "the city", "the island", "the village", "the farm", "the lake"])
    s = {"who": who, "me": me, "place": place, "friend": rng.choice([n for n in HER if n not in (who, me)]), "thing": rng.choice(["book", "scarf", "cake", "picture", "lamp", "kite", "hat", "box of apples"])}
    hello = "[Dear|My dear|Dear] {who},"
    bye = "[With love|Yours|Your friend|Many greetings|With best wishes],\n{me}"
    news = rng.sample(NEWS, 3)
    if kind in ("friend", "travel"):
        body = ["[I hope you are well.|How are you?|It is a long time since I wrote to you.|Thank you for your letter.] I am writing to you from {place}.", " ".join(news), rng.choice(ASKS) + " [I shall be home in [a week|two weeks|spring].|I miss you.|I wish you were here.]"]
        form = rng.choice(["Write a letter to a friend.", f"Write a letter from {place}.", f"Write a letter to {who}.", f"Write a letter to {who} from {place}.", "Write a short letter to a friend.", f"Write a letter about {place}."])
    elif kind == "thanks":
        body = ["[Thank you very much|Many thanks|Thank you so much] for the {thing}[ that you sent me| which came this morning|].", "[It is just what I wanted.|I was so happy when I opened it.|It is beautiful, and everybody here likes it.] [I think of you whenever I look at it.|You are very kind.|How did you know?]", rng.choice(ASKS)]
        form = rng.choice(["Write a letter to say thank you.", f"Write a letter to {who} to say thank you for the {s['thing']}.", "Write a thank-you letter.", f"Thank {who} for the {s['thing']} in a letter."])
    elif kind == "invite":
        body = ["[Next [Saturday|Sunday|Friday] is my birthday|We are having a small feast on [Saturday|Sunday]|The garden is in bloom], and I should like you to come.", "[There will be cake, music and games.|We will eat under the apple tree, if the weather is good.|{Friend} will be there too.] [Come at three o'clock and bring a good appetite.|You can stay the night, if you like.]", "[Please tell me soon whether you can come.|I hope very much that you can come.]"]
        form = rng.choice(["Write an invitation to a party.", f"Invite {who} to my birthday.", "Write an invitation.", f"Write a letter to invite {who}."])
    else:
        body = ["I am sorry that I [did not come on Sunday|forgot your birthday|have not written for so long|was so rude to you].", "[It was my fault, and there is no excuse.|I had so much to do that I forgot the time.|I was tired and did not think.] [You were right to be angry.|You are a good friend, and I do not want to lose you.]", "[Can you forgive me?|May I come and see you on Saturday?|Let me bring you a cake to make it good.]"]
        form = rng.choice(["Write a letter to say sorry.", f"Write a letter to {who} to say sorry.", "Write an apology to a friend.", f"Apologise to {who} in a letter."])
    return form, tidy(expand(rng, hello + "\n\n" + "\n\n".join(body) + "\n\n" + bye, s))


WHY = [("Why does it rain?|Where does rain come from?|How does rain form?", "The sun warms the sea and the lakes, and water rises into the air as vapour.|Water from seas and lakes rises into the air.", "High up it is cold, and the vapour turns into tiny drops that form clouds.", "When the drops grow too heavy, they fall down as rain."),
       ("Why are there seasons?|What causes the seasons?|Why do we have winter and summer?", "The earth goes around the sun once a year, and its axis is tilted.", "In summer our half of the earth leans toward the sun, so the days are long and warm.", "In winter it leans away, and the days are short and cold."),
       ("Why is there day and night?|What causes day and night?|Why does the sun go down?", "The earth turns around itself once in twenty-four hours.", "The side that faces the sun has day, and the other side has night.", "So it is not the sun that moves, although it looks like it."),
       ("Why is the sea salty?|Where does the salt in the sea come from?", "Rivers carry a little salt from the rocks into the sea.", "When water rises from the sea into the air, the salt stays behind.", "Over millions of years the sea has become salty."),
       ("Why do leaves fall in autumn?|Why do trees lose their leaves?", "In winter there is little light, and the ground may be frozen.", "A tree would lose too much water through its leaves, so it lets them fall.", "In spring new leaves grow from the buds."),
       ("Why do birds fly south?|Why do birds leave in winter?", "In winter there are few insects and seeds to eat in cold countries.", "So many birds fly to warmer countries, where they find food.", "In spring they come back to build their nests."),
       ("What causes the tides?|Why are there tides?|Why does the sea go up and down?", "The moon pulls at the water of the sea.", "As the earth turns, the water rises and falls, about twice a day.", "When sun and moon pull together, the tides are especially high."),
       ("How do plants grow?|What do plants need?|How does a seed grow?", "A plant needs light, water, air and earth.", "First the seed takes in water and sends a root down and a shoot up.", "With the light of the sun the leaves make sugar from air and water, and so the plant grows."),
       ("How do bees make honey?|Where does honey come from?", "Bees collect nectar, a sweet juice, from flowers.", "In the hive they pass it from one to another and put it into small cells of wax.", "There the water dries up, and the nectar becomes honey."),
       ("How do you make bread?|How is bread made?|How can I bake bread?", "Mix flour, water, yeast and a little salt, and work the dough well with your hands.", "Let it rest in a warm place for an hour, until it has doubled in size.", "Then form a loaf and bake it in a hot oven until it is brown."),
       ("How do you make tea?|How do I make tea?|How is tea made?", "First boil fresh water.", "Put the tea into a warm pot and pour the hot water over it.", "Wait for about four minutes, then pour it into a cup."),
       ("How do you make soup?|How can I make a soup?|How do I cook soup?", "Cut an onion, two carrots and some potatoes into small pieces.", "Put them into a pot with water and a little salt, and let them boil for half an hour.", "Add herbs and pepper, and eat it hot with bread."),
       ("How does a rainbow form?|Why is there a rainbow?", "A rainbow appears when the sun shines while it is raining.", "The drops bend the light and split it into its colours: red, orange, yellow, green, blue and violet.", "To see it, you must have the sun behind you."),
       ("How does a volcano work?|Why do volcanoes erupt?", "Deep in the earth it is so hot that rock melts.", "A volcano is a mountain where this melted rock can come out.", "Then there is fire, smoke and ash, and hot lava flows down its sides."),
       ("Why do we sleep?|Why must people sleep?", "While we sleep, the body rests and repairs itself.", "The brain puts in order what we have learned during the day.", "Without enough sleep we become tired, slow and cross."),
       ("What is the sun?|Tell me about the sun.", "The sun is a star, a great ball of hot gas.", "It gives us light and warmth, and without it nothing could live on the earth.", "It is so large that a million earths would fit into it.")]


def explain(rng):
    asks, *answer = rng.choice(WHY)
    return rng.choice(asks.split("|")), " ".join(rng.choice(a.split("|")) for a in answer)


RHYMES = """The moon is high, the night is clear,|The sound of waves is soft and near.
The wind goes singing through the trees|And tells the grass about the seas.
A little bird sits on the wall|And hears the early morning call.
The snow lies deep, the lake is white,|The stars are burning in the night.
The rain comes down on roof and street|And washes clean my tired feet.
The sea is wide, the sky is blue,|The ship sails out, and I sail too.
The sun goes down behind the hill,|The birds are quiet, the fields are still.
The fire is warm, the door is tight,|We tell old stories half the night.
The river runs, it does not rest,|It travels ever to the west.
A rose is red, a leaf is green,|The finest day I've ever seen.
The autumn leaves are red and gold,|The days are short, the nights are cold.
In spring the fields are fresh and new,|The grass is wet with morning dew.
The mountains stand so grey and tall,|And we below are very small.
The clouds go by like sheep at play,|They wander west and fade away.
A star looks down on land and sea|And sends its little light to me.
The owl is calling from the wood,|The night is dark, the night is good.
The bees are busy, one by one,|They gather honey in the sun.
Oh, take my hand and walk with me|Along the path beside the sea.
The road is long, the road is white,|It leads us home before the night.
Sleep well, my child, and close your eyes,|The moon is walking through the skies.
The old clock ticks upon the wall,|The evening shadows softly fall.
The cat lies sleeping by the door|And dreams of mice upon the floor.
The fox goes out on quiet feet|To see what he may find to eat.
The garden sleeps, the roses too,|Their heads are heavy with the dew.
The summer comes with golden days,|With fields of wheat and dusty ways.
The frost has drawn upon the pane|A silver wood, a silver lane.
The harbour lights are far away,|The gulls are crying in the bay.
When I am old, I'll think of this:|The wind, the sun, the water's kiss.""".split("\n")


def poem(rng):
    words = {"the sea": "sea ship wave water harbour", "the moon": "moon night star", "winter": "snow frost white cold", "the night": "night star moon dark owl", "spring": "spring dew rose green", "the rain": "rain", "autumn": "autumn leaves cold", "summer": "sun summer bees gold",
             "the wind": "wind cloud trees", "the stars": "star night moon", "a river": "river runs water", "home": "fire door home road clock", "a garden": "garden rose bees", "a bird": "bird owl wood gulls", "a cat": "cat", "a fox": "fox wood"}
    name = rng.choice(sorted(words) + [None])
    rows = [r for r in RHYMES if name and re.search(r"\b(" + words[name].replace(" ", "|") + r")", r)] or rng.sample(RHYMES, 4)
    rng.shuffle(rows)
    if name:
        # What the poem is about comes first.
        rows.sort(key=lambda r: words[name].split()[0] not in r)
    n = rng.choice((2, 4, 4))
    rest = [r for r in RHYMES if r not in rows]
    rows = (rows + rng.sample(rest, 4))[:n]
    rows = ["\n".join(r.split("|")) for r in rows]
    text = "\n".join(rows[:2]) + ("\n\n" + "\n".join(rows[2:]) if n > 2 else "")
    if name:
        return rng.choice(["Write a poem about {}.", "Write a short poem about {}.", "Tell me a poem about {}.", "A poem about {}, please.", "Write some verses about {}."]).format(name), text
    return rng.choice(["Write a poem.", "Tell me a poem.", "Write a short poem.", "Do you know a poem?"]), text


# Scenes with people, as a novel may open: where and when, what was seen or heard, what it was, how it ended.
PEOPLE = ["the old man|m", "the old woman|f", "the boy|m", "the girl|f", "the captain|m", "the doctor|m", "the woman|f", "the young man|m", "the traveller|m", "the mother|f", "the father|m", "the teacher|f", "the keeper of the lighthouse|m", "the little boy|m",
          "the little girl|f", "my grandmother|f", "my uncle|m", "my sister|f", "the stranger|m", "the sailor|m"]
MOMENTS = [
    # (opening, what came, what it was, the end)
    ("{Who} [opened the door and looked out into|stood at the window and looked into|woke up in the middle of] the [night|dark].|It was [late|past midnight], and {who} was still awake.|{Who} could not sleep that night.",
     "The wind [had grown stronger|moved in the trees], and rain was falling.|There was no moon, and the street was empty.|Somewhere a dog barked, and then it was quiet again.",
     "Then {he} heard a [knock|soft knock] at the gate.|Then {he} saw a small light that came nearer and nearer.|Then {he} heard steps on the path.",
     "It was only the neighbour, who had lost his way in the dark. \"Come in,\" said {who}. \"You are wet to the skin.\"|It was a boy with a lantern. \"Please come,\" he said. \"My mother is ill.\" {Who} took a coat and followed him without a word.|It was a small grey dog, wet and hungry. {Who} let it in, and it lay down before the stove as if it had always lived there.",
     "They sat by the fire and talked until morning.|When {he} went to bed at last, the rain had stopped.|In the morning the sun shone, and the night seemed like a dream."),
    ("{Who} stood on the [deck|shore|rocks] and watched the [sea|waves].|{Who} had lived by the sea for [many years|a whole life].|The ship had been at sea for [ten|twenty|thirty] days.",
     "The sky in the west was black, and the gulls flew toward the land.|The water was [smooth as glass|grey and cold], and there was no wind.|Far out a white sail showed against the sky.",
     "\"There will be a storm,\" said {who}.|Suddenly something dark rose out of the water.|Then the wind came, all at once, and the waves began to rise.",
     "Everyone ran to take in the sails. For three hours they fought against the wind, and nobody spoke.|It was a whale, as large as a house. It blew a white cloud into the air, looked at them with one small eye, and went down again.|A boat was coming in, half full of water, and two men were rowing with all their strength. They pulled it up on the sand.",
     "In the evening the sea was calm again, and the stars came out.|\"I have seen many things,\" said {who}, \"but I shall not forget this day.\"|Later they drank hot tea and laughed, as people do when they have been afraid."),
    ("{Who} came to the town on a [cold|rainy|warm] [evening|morning] in [March|May|October|November].|On a [cold|warm|grey] [morning|evening] in [spring|autumn] {who} arrived at the station.|{Who} had not seen the town for [ten|twenty] years.",
     "The streets were [narrow and quiet|wet and empty], and nobody knew {him}.|Everything seemed smaller than it had been.|There was a light in only one window.",
     "{He} carried a small bag and a letter.|{He} asked a woman for the way to the [mill|church|harbour].|{He} stopped before an old house with a green door.",
     "\"Who are you looking for?\" asked a voice. It was an old woman with a basket. \"My brother,\" said {who}. \"He used to live here.\"|The door was opened by a child. \"Father,\" it called, \"there is somebody here!\"|Nobody answered when {he} knocked. {He} sat down on the steps and waited.",
     "Then somebody came down the stairs, stopped and said {his} name, and everything was good.|That night {he} slept in {his} old room, and heard the same clock strike.|\"You are late,\" said a voice behind {him}, \"but supper is still warm.\""),
    ("In the [attic|cellar|garden] {who} found an old [box|chest|book|letter].|{Who} was cleaning the [attic|cupboard|cellar] when {he} found an old [box|chest].|Behind the wall there was a small box, and {who} found it.",
     "It was covered with dust, and nobody had opened it for years.|It was small and brown, and it smelled of dust.|{He} carried it to the window, where the light was better.",
     "Inside lay a key, a faded picture and a letter.|Inside there was a map, drawn by hand, with a red cross in the middle.|Inside was a little music box, and it still played.",
     "The letter had been written [fifty|a hundred] years ago. \"Whoever finds this,\" it said, \"should be happy in this house, as I was.\"|{He} looked at it for a long time. Then {he} understood that it was [the garden behind the house|the hill above the village].|It had belonged to {his} grandmother, who had never spoken of it.",
     "{He} put everything back and closed the lid, for some things should be kept.|That evening {he} told the others about it, and they sat together for a long time.|The next morning {he} went out with a spade, and the whole family came with {him}."),
    ("{Who} [walked|went] slowly through the [forest|fields|park].|It was [a fine day|early in the morning], and {who} went for a walk.|{Who} took the path that leads along the river.",
     "The leaves were [yellow|wet|new and green], and the air was [cool|mild].|A bird sang, and the grass was wet with dew.|Nobody else was on the path.",
     "At the bend of the path sat [a child|an old man|a woman with a basket] and cried.|Under a tree there was something that shone.|After a while {he} heard music.",
     "\"What is the matter?\" asked {who}. \"I have lost my way,\" was the answer. \"Then we will look for it together,\" said {who}.|It was only a piece of glass, but the light in it was so beautiful that {he} picked it up and took it home.|A man sat on a fence and played the violin. He nodded and went on playing, and {who} stood still and listened.",
     "On the way home {he} felt lighter than before.|When the bells rang for noon, {he} was home again.|It was a small thing, but {he} often thought of it."),
    ("The kitchen was warm, and {who} was [baking bread|making soup|peeling apples].|Every [Sunday|Saturday] {who} made [soup|a cake] for the whole family.|{Who} sat at the kitchen table and [wrote a letter|drank tea|counted the coins].",
     "Outside it was snowing.|The clock on the wall ticked, and the cat slept on the chair.|It smelled of bread and apples.",
     "Then the door opened, and the children ran in with red faces.|Then there was a knock at the window.|\"Is there anything to eat?\" called somebody from the hall.",
     "\"Wash your hands first,\" said {who}, and everybody laughed.|It was the postman with a letter from far away. {Who} read it twice and smiled.|There was not much, but {who} cut the bread into equal pieces, and each of them got one.",
     "They sat close together around the table, and nobody wanted to be anywhere else.|Later, when all was quiet, {he} put out the lamp.|It was an evening like many others, and a good one."),
]


def moment(rng):
    who, gender = rng.choice(PEOPLE).split("|")
    he, him, his = ("he", "him", "his") if gender == "m" else ("she", "her", "her")
    s = {"who": who, "he": he, "him": him, "his": his}
    rows = [split(row) for row in rng.choice(MOMENTS)]
    # What comes and what it was belong together.
    at = rng.randrange(len(rows[2]))
    picks = [rows[2][at] if i == 2 else rows[3][at] if i == 3 else rng.choice(row) for i, row in enumerate(rows)]
    parts = [tidy(expand(rng, p, s)) for p in picks]
    cut = rng.choice((2, 3))
    text = " ".join(parts[:cut]) + "\n\n" + " ".join(parts[cut:])
    about = re.sub(r"^(the|my) ", "", who)
    form = rng.choice(["Write a short scene about {}.", "Write a scene with {}.", "Tell me a short story about {}.", "Write a few lines about {}.", "Begin a novel about {}."])
    return form.format(tidy("a " + about) if who.startswith("the") else who), text


BARE = {"patience", "winter", "hard work", "friendship", "kindness", "helping others", "pride", "courage", "being brave", "sharing", "greed", "not giving up", "telling the truth", "honesty", "two wishes"}


def article(topic):
    if topic in BARE or topic.startswith(("a ", "the ")):
        return topic
    return tidy("a " + topic)


def tale(rng):
    text, topics, _ = rng.choice(STORIES)(rng)
    topic = article(topics[0] if rng.random() < 0.45 else rng.choice(topics))
    if rng.random() < 0.1:
        return rng.choice(["Tell me a story.", "Tell me a fairy tale.", "Write a short story.", "Tell me a bedtime story.", "Tell me a fable.", "Do you know a story?"]), text
    form = rng.choice(["Tell me a story about {}.", "Tell me a story about {}.", "Write a story about {}.", "Write a short story about {}.", "Tell me a fairy tale about {}.", "Write a fable about {}.", "Tell me a bedtime story about {}.", "A story about {}, please.",
                       "I would like a story about {}.", "Can you tell me a story about {}?", "Story about {}", "Do you know a story about {}?", "Make up a story about {}."])
    return form.format(topic), text


def carry_on(rng, text):
    """The start of a text and how it goes on: (request, answer), or None where it is too short."""
    ends = [m.end() for m in re.finditer(r"[.!?][\"']?(?=\s)", text)]
    ends = [e for e in ends if 30 < e < min(0.6 * len(text), 400)]
    if not ends:
        return None
    at = rng.choice(ends[:4])
    if rng.random() < 0.3:
        # In the middle of a sentence.
        at = rng.choice([m.start() for m in re.finditer(" ", text[: ends[-1]])][4:] or [at])
    form = rng.choice(["Continue: {}", "Continue this text: {}", "Go on: {}", "Continue the story: {}", "How does it go on? {}", "What happens next? {}", "Continue: {}", "{}"])
    return form.format(text[:at].strip()), text[at:].strip()


def prose(rng):
    """A request and its answer."""
    r = rng.random()
    question, text = tale(rng) if r < 0.5 else moment(rng) if r < 0.6 else scene(rng) if r < 0.76 else animal(rng) if r < 0.87 else letter(rng) if r < 0.93 else explain(rng) if r < 0.965 else poem(rng)
    if r < 0.76 and rng.random() < (0.7 if 0.5 <= r < 0.6 else 0.25):
        return carry_on(rng, text) or (question, text)
    return question, text


def page(rng):
    """A plain text, without a request."""
    r = rng.random()
    return tale(rng)[1] if r < 0.55 else moment(rng)[1] if r < 0.65 else scene(rng)[1] if r < 0.82 else letter(rng)[1] if r < 0.88 else animal(rng)[1]
