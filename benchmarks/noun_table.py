"""Compile the noun table: ImageNet's classes and everyday kinds, with plain names and hypernyms.

    python benchmarks/noun_table.py --wordnet /usr/share/wordnet --text TEXT --out src/saywhere/models/nouns.tsv

``--wordnet`` is the folder of WordNet 3.0 (Debian's package wordnet-base), ``--text`` a folder of sentences
(``.txt.gz``, ``id<TAB>sentence``) whose word frequencies choose plain names. docs/nouns.md describes the table.
"""

from __future__ import annotations

import argparse
import gzip
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from saywhere.files import write_text
from saywhere.models.nouns import plural

COMMON = 20
"""A hypernym is kept if people used its name so often in the sentences."""
ALIAS = 12
"""A word below a kept node is kept as a word for it if people used it so often."""
STEP = 1.0
"""What a step up the tree costs against the logarithm of a name's frequency (Ordonez et al. 2013, section 3)."""
GROUPS = """
insect spider turtle=n01662784 whale=n02062744 dolphin=n02068974 reptile tool home_appliance=n03528263 plant=n00017222
vehicle=n04524313
"""
"""Hypernyms that are kept however rare."""
MASS = """
grass water snow sand hair mud sky broccoli hay food furniture clothing vegetation jewelry produce bread luggage
bedding art makeup corn ice_cream soup dirt liquid paper coffee wine alcohol armor armour attire cloth fabric
"""
"""Names that are used without an article."""

KINDS = """
person man woman boy girl child baby crowd=n08182379 dog cat bird horse sheep cow=n02402425 elephant bear=n02131653
zebra giraffe buffalo=n02408429 lion rhinoceros=n02391994 kangaroo raccoon=n02508021 tiger=n02129604 cheetah
deer=n02430045 crocodile=n01697178 wolf=n02114100 hippopotamus leopard=n02128385 monkey hyena fox=n02118333 antelope
donkey=n02389559 bison=n02410509 panda=n02510455 yak=n02405302 fish=n02512053 bicycle car motorcycle airplane
bus=n02924116 train=n04468005 truck boat ship kayak canoe scooter=n03791053 cart wheel tire buoy bench chair couch bed
table=n04379243 toilet=n04446521 sink=n04223580 tv=n04405907 laptop computer mouse=n03793489 remote=n04074963
keyboard=n03614007 cellphone microwave=n03761084 oven toaster=n04442312 refrigerator book=n02870526 clock vase
scissors hairdryer=n03483316 toothbrush pillow cabinet=n02933112 door window=n04587648 stairs shelf=n04190052 bookcase
mirror bathtub lamp=n03636248 picture_frame=n03931765 faucet=n04559451 curtain heater air_conditioner stove=n04330340
doll trash_can can=n02946921 bottle wine_glass=n04592099 glass=n03438257 cup=n03147509 fork knife=n03623556 spoon
bowl=n02881193 banana=n07753592 apple=n07739125 sandwich orange=n07747607 broccoli=n07714990 carrot=n07730207
hot_dog=n07697537 pizza donut=n07639069 cake=n07628870 backpack umbrella handbag=n02774152 tie=n03815615 suitcase
frisbee ski snowboard ball kite=n03621473 baseball_bat baseball_glove skateboard surfboard tennis_racket traffic_light
fire_hydrant stop_sign=n06794110 parking_meter potted_plant=n13083023 teddy shirt jacket hat shorts=n04205318
pants=n04489008 jeans=n03594734 helmet=n03513137 dress coat suit cap uniform shoe skirt=n04230808 sweater
vest=n04531873 boot
glove=n03441112 scarf sunglasses glasses=n04272054 goggles mask=n03725035 costume=n03113835 swimsuit collar=n03068181
bag=n02773037 headband bandanna grass=n12102133 water=n07935504 snow=n15043763 sand=n15019030 field=n08569998 beach
street road sidewalk path=n03899328 rock=n09416076 mountain hill ocean lake river sky wave=n07352190 tree
flower=n11669921 leaf wall building house=n03544360 fence floor=n03365592 ramp=n04051549 bridge=n02898711 railing
sign=n06793231 pole=n03976657 rope track=n04463679 park=n08615149 yard=n04610879 wood=n08438533 hand=n05564590 face
hair head=n05538625 mouth arm leg eye ear nose foot tongue=n05301072 tail=n02157557 beard toy pool=n04371225 stick
swing=n04371774 camera guitar microphone drum leash net=n03819994 flag sled basketball=n02802426 football=n03378765
soccer_ball trampoline tent fountain=n03388043 statue mud slide=n04238128 hose=n03539875 blanket=n02849154
harness=n03494706 bucket basket box=n02883344
"""
"""The everyday kinds that the classifier is taught beside ImageNet's classes: a name, and its synset where that is not
the name's first sense."""

WORDS = {
    "bike": "bicycle", "plane": "airplane", "phone": "cellphone", "kid": "child", "sofa": "couch", "television": "tv",
    "tv monitor": "tv", "monitor": "tv", "computer mouse": "mouse", "remote control": "remote",
    "cell phone": "cellphone", "sports ball": "ball", "dining table": "table", "coffee table": "table",
    "hair drier": "hairdryer", "tap": "faucet", "windowblind": "curtain", "wastecontainer": "trash can",
    "waste container": "trash can", "tin can": "can", "cabinetry": "cabinet", "gas stove": "stove",
    "face mask": "mask", "glass of beer": "glass", "sailboat": "boat", "skier": "person", "snowboarder": "person",
    "skateboarder": "person", "surfer": "person", "doughnut": "donut", "puppy": "dog", "kitten": "cat",
    "trouser": "pants", "plant": "potted plant", "bush": "tree", "motorbike": "motorcycle",
    "sea": "ocean", "sneaker": "shoe", "group": "people", "team": "people", "family": "people",
    "adult": "person", "guy": "man", "lady": "woman", "teddy bear": "teddy", "woods": "wood", "forest": "wood",
    "ground": "ground", "spectacles": "glasses", "purse": "handbag", "fridge": "refrigerator", "lady's hat": "hat",
    "black panther": "leopard", "vessel": "ship", "rhino": "rhinoceros", "hippo": "hippopotamus", "dog head": "dog",
    "cat head": "cat", "tanker": "ship", "warship": "ship", "yacht": "boat", "tug boat": "boat",
    "patrol boat": "boat", "cargo ship": "ship", "container ship": "ship", "cruise ship": "ship",
    "wine bottle": "bottle", "ceiling fan": "electric fan", "someone": "person", "somebody": "person",
    "drier": "hairdryer", "couple": "people", "bunny": "rabbit", "hydrant": "fire hydrant", "trainers": "shoe",
    "toy soldier": "toy", "tin soldier": "toy", "beanie baby": "toy", "jet fighter": "airplane",
    "window washer": "person",
}  # fmt: skip
"""Words of everyday speech, and the names of data sets, for which WordNet leads elsewhere."""

MISLEADING = """
african, african american, afters, airline, alcoholic, alien, american, amish, ancient, antique, asian, banks, beam,
bearer, beater, beef, begin, ben, black belt, blade, bleacher, blond, blonde, board, boards, boater, booth, brave,
bridges, broad, brownie, buddhist, bumper, bunche, calculator, camper, canadian, captive, carrier, caucasian, cereal,
chap, charger, chased, checker, chess, christian, clapper, closer, coach, coaster, colonial, colored, colors, comic,
console, contemporary, controller, conveyor, cooky, cords, counter, cover, crazy, cub, cutter, decker, deere, delicious,
derby, designer, detour, diner, disney, divider, dolphin, drunk, dry, dummy, eiffel, electric, entire, ethnic, european,
excavator, extra, fed, fields, fille, flier, foam, ford, fry, gates, gay, gear, german, gig, goer, gourmet, grapefruit,
great, grey, grill, grind, grinder, grip, gull, hammock, hanger, have, heavy, hero, hind, hip, hispanic, homeless, hood,
hooks, horn, indian, intimate, iron, italian, jack, japanese, juicer, jumper, korean, ladder, lasso, latino, lead, lid,
light, lincoln, lodge, lovely, lower, lumber, lush, ma, macaroni, machine, major, maker, mannequin, mantle, marine,
marks, maroon, married, martial, mason, match, material, messenger, metropolitan, mexican, mickey, miller, minor, miss,
mitt, mobile, modern, mohawk, more, mortal, mount, muslim, mustang, national, native, natural, needle, nestling,
neutral, nipper, ordinary, oriental, ottoman, pacific, pacifier, paddy, pall, panini, parks, patrick, paul, peach, peel,
peer, penn, petal, pick, picker, picket, ping, pitcher, planter, plier, plug, plum, pocket, polo, pop, popcorn,
preserver, prey, primitive, private, professional, protector, quad, quiche, rail line, rake, range, regular, religious,
roman, romantic, rubber, russian, rustic, same, saver, senior, shaver, shepard, shrimp, silly, sinker, slicer, small
fry, smoothie, soul, span, spot, squirt, steady, stool, straight, stroller, super, sweet, tangerine, teach, tell,
temporary, thai, thomas, tiddler, tortilla, trailer, turtle, tutu, twin, upper, upright, vanilla, vega, vegetarian,
victorian, vietnamese, virgin, waffle, walk, warmer, waters, wear, whale, wheat, wheeler, white, wind, yankee
"""
"""Words that mean something else in sentences about photographs than WordNet's first noun, which for "white" and "more"
is a person, for "ladder" stairs. They lead nowhere."""

NO_PERSON = """
arm guard, audio player, blu ray player, boot guard, cake batter, carpet runner, cd dvd player, chest guard, computer
server, cookie batter, disc player, disk player, dream catcher, dvd player, elbow guard, face guard, file server, fire
guard, fly catcher, game boy, gingerbread man, hall runner, knee guard, lazy boy, leg guard, lightning conductor, media
player, mouth guard, mp3 player, mp4 player, mud guard, music player, neck guard, palm pilot, pancake batter, rash
guard, record player, shin guard, snow man, splash guard, stair runner, sun catcher, table runner, tree guard, tv guide,
video player, vinyl player, waffle batter, web server, wrist guard
"""
"""Things that no node is for, and whose last word leads to people: nobody is in "a record player"."""

NO_NODE = """
advertisement, airport, aisle, aquarium, arcade, archway, arena, artwork, attic, auditorium, autumn, awning, badge,
balcony, bar, basement, basketball court, bathroom, baton, bay, bazaar, bead, bedroom, beer, belt, billboard,
blackboard, blouse, boardwalk, bouquet, bracelet, branch, briefcase, brochure, bulb, cabin, campsite, canal, candy,
canopy, cape, cardboard, ceiling, cemetery, chalk, chalkboard, champagne, cheese, chicken, chin, cigar, cigarette, city,
cityscape, classroom, clipboard, clothesline, cloud, concert, conference room, confetti, container, cord, corridor,
counter, countryside, courtyard, crayon, creek, crown, cubicle, curb, dawn, decoration, desert, dining room, dinner,
doorstep, doorway, downtown, drawer, drill, driver, dumpster, dune, dusk, earphone, earring, elevator, embankment,
entrance, escalator, evening, factory, farm, farmland, festival, fireman, fireplace, fireworks, flame, fog, fur,
garbage, garden, gift, glacier, goalie, golf course, graffiti, gravel, grill, guardrail, gym, gymnasium, gymnast,
hairnet, hall, hallway, hammock, harbor, harbour, headdress, headphone, headset, helicopter, herb, hillside, hoop,
horizon, hotel room, hurdle, hut, intersection, island, jumpsuit, jungle, kiosk, kitchen, knee, laboratory, ladder,
landscape, laundromat, laundry, laundry room, leggings, lens, leotard, letter, lettering, lip, living room, lobby, logo,
lunch, machinery, mall, mannequin, map, marketplace, mattress, meadow, meal, meat, medal, megaphone, merchandise, milk,
mist, mixer, money, moon, morning, mound, mountainside, mural, neck, neighborhood, newspaper, night, nightclub,
nighttime, noodle, nut, obstacle, office, onion, orchard, orchestra, ornament, paint, painting, pamphlet, parade,
parking lot, party, pasture, pathway, pencil, pepper, photograph, picnic, pie, pillar, pipe, pitcher, plank, platter,
playground, plaza, podium, popcorn, porch, pottery, puddle, pumpkin, puppet, puzzle, pyramid, racetrack, rack, raft,
rain, rainbow, rainforest, razor, reflection, restroom, ribbon, rice, riverbank, roadside, rod, rooftop, room, rose,
rubble, ruin, saddle, salad, sausage, savannah, scaffolding, seafood, seat, shack, shade, shadow, shawl, shore,
shoreline, shotgun, shoulder, shower, shrub, silhouette, skatepark, skull, skyline, slope, smock, smoke, snack,
snowball, snowman, snowstorm, snowsuit, soap, soda, spark, spear, sponge, sprinkler, stadium, stairwell, stall, station,
steak, sticker, stool, storefront, storm, stream, stroller, stump, suburb, subway, summer, sun, sunlight, sunrise,
sunset, suspenders, swamp, sweat, sword, tablecloth, tape, tarp, tattoo, teeth, tennis court, terrain, thumb, ticket,
tile, toast, toe, town, traffic, trailer, trash, treadmill, trophy, tunnel, tuxedo, typewriter, undershirt, underwear,
utensil, van, veil, village, vine, vineyard, visor, waffle, waiting room, warehouse, waterfall, waterfront, watermelon,
waterway, wedding, weed, wilderness, windowsill, windshield, winter, wire, workshop, wristband, yarn, zoo
"""
"""Other things and places that no node is for: by them a list such as "kitchen, oven" is cut (models/chunker.py)."""

BELOW = {
    "coffee mug": "cup", "n07930864": "cup", "goblet": "wine glass", "studio couch": "couch", "monitor": "tv",
    "screen": "tv", "n04404412": "tv", "n03991062": "potted plant", "notebook": "laptop",
    "dining table": "table",
}  # fmt: skip
"""Classes that people's kinds hold and WordNet's do not, such as a mug among the cups."""

ABSTRACT = """
entity object thing unit whole matter substance artifact part piece stuff material group collection device way cause
agent set kind body line point place area side top block section division system means creation product region
location space surface measure state act event relation communication content message work layer covering article
commodity being organism living_thing causal_agent physical_object instrumentality natural_object fabric structure
construction facility implement container equipment machine mechanism female male support setup accessory attire
barrier basin bin blower brace art decoration dispenser drill dryer electronic_device electronic_equipment factory
fixture garment headdress lens lock mat medium signal happening entree feed condiment gathering shore stream adult
peer participant player herb seed cover upright ware wrapping organ limb platform rod rack pump tube shelter transport
art utensil clothes bedding pc rig trap piece_of_cloth contestant monument facial_hair toiletry small_boat
kitchen_appliance
"""
"""Names of hypernyms that say nothing in a phrase."""


@dataclass
class Synset:
    """A noun synset of WordNet: its lemmas, and the synsets above it."""

    lemmas: list[str]
    above: list[str]
    below: list[str] = field(default_factory=list)


class WordNet:
    """Nouns of WordNet 3.0; a synset is named as in ImageNet: n and its place in the file."""

    def __init__(self, folder: Path) -> None:
        self.synsets: dict[str, Synset] = {}
        for line in _lines(folder / "data.noun"):
            parts = line.split("|")[0].split()
            count = int(parts[3], 16)
            lemmas = [parts[4 + 2 * i].lower() for i in range(count)]
            rest = parts[5 + 2 * count :]
            above = ["n" + rest[i + 1] for i in range(0, len(rest) - 3, 4) if rest[i] in ("@", "@i")]
            self.synsets["n" + parts[0]] = Synset(lemmas, above)
        self._ancestors: dict[str, dict[str, int]] = {}
        self.senses: dict[str, list[str]] = {}
        for line in _lines(folder / "index.noun"):
            parts = line.split()
            self.senses[parts[0]] = ["n" + offset for offset in parts[-int(parts[2]) :]]
        self.plurals: dict[str, list[str]] = {}
        for line in _lines(folder / "noun.exc"):
            plural, *singular = line.split()
            for word in singular:
                self.plurals.setdefault(word, []).append(plural)

    def find(self, entry: str) -> tuple[str, str]:
        """Return the name and the synset of ``name`` or ``name=synset``."""
        name, _, synset = entry.partition("=")
        return name, synset or self.senses[name][0]

    def ancestors(self, synset: str) -> dict[str, int]:
        """Return all synsets at or above one, with the number of steps."""
        if synset not in self._ancestors:
            steps, todo = {synset: 0}, [synset]
            for one in todo:
                for above in self.synsets[one].above:
                    if above not in steps:
                        steps[above] = steps[one] + 1
                        todo.append(above)
            self._ancestors[synset] = steps
        return self._ancestors[synset]


def _lines(path: Path) -> Iterator[str]:
    with open(path, encoding="utf-8") as file:
        yield from (line for line in file if not line.startswith("  "))


class Speech:
    """Frequencies of words and short names in the sentences of a folder.

    Args:
        folder: of ``.txt.gz`` files.
        names: names to count, in the singular and the plural.
    """

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self.counts: Counter[str] = Counter()
        wanted = {form for name in names if name.count(" ") < 3 for form in (name, plural(name))}
        for path in sorted(folder.glob("*.txt.gz")):
            with gzip.open(path, "rt", encoding="utf-8") as file:
                for line in file:
                    words = re.findall("[a-z0-9']+", re.sub(r"\[/EN\S+", " ", line.split("\t", 1)[-1]).lower())
                    for length in (1, 2, 3):
                        for i in range(len(words) - length + 1):
                            name = " ".join(words[i : i + length])
                            if name in wanted:
                                self.counts[name] += 1

    def uses(self, name: str) -> int:
        """Return how often a name was used, in the singular or the plural."""
        return self.counts[name] + self.counts[plural(name)]


def compile_table(wordnet: WordNet, speech: Speech, classes: list[str]) -> list[str]:
    """Return the lines of the table, as :class:`saywhere.models.nouns.NounTree` reads them."""
    kinds = {synset: name.replace("_", " ") for name, synset in map(wordnet.find, KINDS.split())}
    names = {name: synset for synset, name in kinds.items()}
    lemmas = {s: [lemma.replace("_", " ") for lemma in wordnet.synsets[s].lemmas] for s in wordnet.synsets}
    by_lemma = {lemma: synset for synset in reversed(classes) for lemma in lemmas[synset]}
    for below, above in BELOW.items():
        wordnet.synsets[below if below in wordnet.synsets else by_lemma[below]].above.insert(0, names[above])

    def plain(synset: str) -> str:
        """Return the most frequent lemma whose first sense is the synset; the first lemma if there is none."""
        own = [x for x in lemmas[synset] if wordnet.senses[x.replace(" ", "_")][0] == synset]
        return max(own, key=speech.uses, default=lemmas[synset][0])

    def common(synset: str) -> bool:
        word = plain(synset)
        first = wordnet.senses[word.replace(" ", "_")][0] == synset
        return (
            first
            and word.replace(" ", "_") not in ABSTRACT.split()
            and word not in WORDS
            and speech.uses(word) >= COMMON
        )

    leaves = [*classes, *(synset for synset in kinds if synset not in classes)]
    above = {synset for leaf in leaves for synset in wordnet.ancestors(leaf)} - set(leaves)
    forced = {synset: name.replace("_", " ") for name, synset in map(wordnet.find, GROUPS.split())}
    kept = [*leaves, *sorted(synset for synset in above if common(synset) or synset in forced)]
    keep = set(kept)
    given = kinds | forced
    name = {synset: given.get(synset) or plain(synset) for synset in kept}

    def nearest(synset: str) -> list[str]:
        """Return the nearest kept synsets above one."""
        found: dict[str, None] = {}
        for up in wordnet.synsets[synset].above:
            found |= dict.fromkeys([up] if up in keep else nearest(up))
        return [one for one in found if not any(one in wordnet.ancestors(x) for x in found if x != one)]

    def entry(leaf: str) -> str:
        """Return the everyday node of a leaf: the nearest kind, or the best trade-off of frequency and distance."""
        up = {synset: steps for synset, steps in wordnet.ancestors(leaf).items() if synset in keep}
        if near := [synset for synset in up if synset in kinds]:
            return min(near, key=lambda synset: up[synset])
        return max(up, key=lambda synset: math.log(speech.uses(name[synset]) + 1) - STEP * up[synset])

    entries = {leaf: entry(leaf) for leaf in classes}
    said = set(entries.values()) | set(kinds)
    said |= {s for s in keep - set(leaves) if not any(up in kinds for up in wordnet.ancestors(s))}
    words = _words(wordnet, speech, kept, name, names, lemmas, {*kinds, *classes})
    sorts = dict.fromkeys(kept, "group") | dict.fromkeys(kinds, "kind") | dict.fromkeys(classes, "class")
    uses = {synset: _use(name[synset]) if synset in said else "" for synset in kept}
    ends = {synset: (", ".join(words[synset]), " ".join(nearest(synset))) for synset in kept}
    return ["\t".join((synset, sorts[synset], name[synset], uses[synset], *ends[synset])) for synset in kept]


def _words(
    wordnet: WordNet, speech: Speech, kept: list[str], name: dict[str, str], names: dict[str, str],
    lemmas: dict[str, list[str]], close: set[str],
) -> dict[str, list[str]]:  # fmt: skip
    """Return the words of each node; each word belongs to one node."""
    leads: dict[str, str] = {}
    for synset in reversed(kept):
        leads[name[synset]] = synset
    leads |= names
    keep = set(kept)
    for word, target in WORDS.items():
        if target in leads:
            leads[word] = leads[target]
    pairs = [(lemma, number, synset) for number, synset in enumerate(kept) for lemma in lemmas[synset]]
    ranked = sorted((wordnet.senses[x.replace(" ", "_")].index(s), number, x, s) for x, number, s in pairs)
    for _, _, lemma, synset in ranked:
        leads.setdefault(lemma, synset)
    for lemma, senses in wordnet.senses.items():
        word = lemma.replace("_", " ")
        if word not in leads and speech.uses(word) >= ALIAS and word.rpartition(" ")[2] not in leads:
            up = {s: steps for s, steps in wordnet.ancestors(senses[0]).items() if s in keep}
            if up and (best := min(up, key=lambda s: up[s])) in close:
                leads[word] = best
    for word in MISLEADING.replace("\n", " ").split(","):
        if name.get(leads.get(word.strip(), "")) != word.strip():
            leads.pop(word.strip(), None)
    found: dict[str, list[str]] = {synset: [] for synset in kept}
    for word, synset in sorted(leads.items()):
        found[synset].append(word)
    return found


def _use(name: str) -> str:
    if name.replace(" ", "_") in MASS.split():
        return "mass"
    return "plural" if name.endswith("s") and name == plural(name) else "count"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wordnet", type=Path, required=True, help="folder of WordNet 3.0")
    parser.add_argument("--text", type=Path, required=True, help="folder of sentences")
    parser.add_argument("--out", type=Path, required=True, help="the table")
    asked = parser.parse_args()
    from timm.data.imagenet_info import ImageNetInfo

    classes = ImageNetInfo().label_names()
    wordnet = WordNet(asked.wordnet)
    speech = Speech(asked.text, [lemma.replace("_", " ") for lemma in wordnet.senses] + KINDS.replace("_", " ").split())
    lines = compile_table(wordnet, speech, list(classes))
    nowhere = f"\tgroup\t\t\t{' '.join(NO_PERSON.split())}, {' '.join(NO_NODE.split())}\t"
    write_text(asked.out, "\n".join([*lines, nowhere]) + "\n")
    print(f"{asked.out}: {len(lines)} nouns, {asked.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
