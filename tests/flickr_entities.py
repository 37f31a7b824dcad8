"""A Flickr8k of four images of noise, with the marked phrases and boxes of Flickr30k Entities."""

from __future__ import annotations

from pathlib import Path

from photographs import noise
from tiny_aligner import SENTENCES

XML = """<annotation><size><width>96</width><height>64</height><depth>3</depth></size>
<object><name>1</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>40</xmax><ymax>60</ymax></bndbox></object></annotation>"""


def backwards(sentence: str) -> str:
    """Another sentence, of the same words."""
    return " ".join(reversed(sentence.rstrip(".").split()))


def write_flickr(root: Path) -> Path:
    """Write it into ``root``, all of it in the dev split; each image has a sentence and the same backwards."""
    for folder in ("Images", "Entities/Annotations", "Entities/Sentences"):
        (root / folder).mkdir(parents=True)
    lines = []
    for number, sentence in enumerate(SENTENCES):
        noise(96, 64, number).save(root / "Images" / f"{number}_x.jpg")
        lines += [f"{number}_x.jpg#0\t{sentence}", f"{number}_x.jpg#1\t{backwards(sentence)}"]
        words = sentence.rstrip(".").split(" ", 3)
        marked = f"[/EN#1/people {' '.join(words[:3])}] {words[3]} .\n"
        (root / f"Entities/Sentences/{number}.txt").write_text(marked)
        (root / f"Entities/Annotations/{number}.xml").write_text(XML)
    (root / "Flickr8k.token.txt").write_text("\n".join(lines) + "\n")
    (root / "Flickr_8k.devImages.txt").write_text("".join(f"{n}_x.jpg\n" for n in range(len(SENTENCES))))
    return root
