from __future__ import annotations

import numpy as np
import pytest
from photographs import quarters

from saywhere.data.flickr import count_phrases, read_entities, read_marked
from saywhere.errors import UserError
from saywhere.report import Report
from saywhere.text import tokenize

LINE = "[/EN#1/people A man 's friend] in [/EN#2/clothing a red T-shirt] rides [/EN#3/other/animals a horse] [ now ] ."
XML = """<annotation><size><width>200</width><height>100</height><depth>3</depth></size>
<object><name>1</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>20</xmax><ymax>50</ymax></bndbox></object>
<object><name>1</name><bndbox><xmin>61</xmin><ymin>11</ymin><xmax>100</xmax><ymax>40</ymax></bndbox></object>
<object><name>3</name><scene>1</scene><nobndbox>1</nobndbox></object></annotation>"""


def write(root, name="12_ab"):
    for folder in ("Images", "Entities/Annotations", "Entities/Sentences"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    quarters(100, 50).save(root / "Images" / f"{name}.jpg")
    key = name.split("_")[0]
    (root / "Entities/Annotations" / f"{key}.xml").write_text(XML)
    (root / "Entities/Sentences" / f"{key}.txt").write_text(LINE + "\n[/EN#1/people Two] jump .\n")
    (root / "Flickr8k.token.txt").write_text(f"{name}.jpg#0\tA man .\n")
    (root / "Flickr_8k.devImages.txt").write_text(f"{name}.jpg\n")
    return root


def test_phrases_are_spans_of_the_words_that_the_sentence_has():
    box = np.array([1, 2, 3, 4], np.float32)
    sentence = read_marked(LINE, {"2": box})
    assert sentence.words == ("a", "man's", "friend", "in", "a", "red", "t", "shirt", "rides", "a", "horse", "now")
    assert tuple(tokenize(sentence.text)) == sentence.words
    spans = [(" ".join(sentence.words[p.start : p.stop]), p.entity, p.types) for p in sentence.phrases]
    assert spans == [
        ("a man's friend", "1", ("people",)),
        ("a red t shirt", "2", ("clothing",)),
        ("a horse", "3", ("other", "animals")),
    ]
    assert [p.box is not None for p in sentence.phrases] == [False, True, False]


def test_a_split_is_read_with_boxes_in_pixels_on_disk(tmp_path):
    (image,) = read_entities(write(tmp_path), "dev")
    assert (image.width, image.height, len(image.sentences)) == (100, 50, 2)
    first, second = image.sentences[0].phrases[0], image.sentences[1].phrases[0]
    # the union (0, 0, 100, 50) of the two boxes, at half the size of the image that was annotated
    assert first.box is not None and first.box.dtype == np.float32 and first.box.tolist() == [0, 0, 50, 25]
    assert second.box is not None and second.box.tolist() == [0, 0, 50, 25]
    assert image.sentences[0].phrases[2].box is None
    assert count_phrases([image]) == 2


def test_what_is_missing_or_broken_is_named(tmp_path):
    root = write(tmp_path)
    (root / "Flickr_8k.devImages.txt").write_text("12_ab.jpg\n13_cd.jpg\n14_ef.jpg\n")
    quarters(100, 50).save(root / "Images" / "14_ef.jpg")
    report = Report()
    assert len(read_entities(root, "dev", report)) == 1
    assert report.listed == 3
    assert report.problems["image that cannot be read"] == ["13_cd.jpg"]
    assert report.problems["missing or broken annotation"][0].startswith("14_ef")


def test_user_fixable_errors_are_reported(tmp_path):
    root = write(tmp_path / "data")
    with pytest.raises(UserError, match="no split 'test'; it has dev"):
        read_entities(root, "test")
    with pytest.raises(UserError, match="not Flickr8k or Flickr30k"):
        read_entities(tmp_path, "dev")
    (root / "Entities/Annotations/12.xml").write_text("<annotation")
    with pytest.raises(UserError, match="no image with Entities that can be read"):
        read_entities(root, "dev")
    for path in sorted((root / "Entities").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(UserError, match="no Entities/Annotations"):
        read_entities(root, "dev")
