"""Flickr8k and Flickr30k with the boxes and phrases of Flickr30k Entities."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from photographs import quarters
from PIL import Image
from refusals import refuses

from saywhere.data import PhraseOptions, read, splits
from saywhere.data.flickr import count_phrases, read_boxes, read_entities, read_marked, tidy
from saywhere.report import Report
from saywhere.text import tokenize

OBJECT = "<object>{names}<bndbox><xmin>{0}</xmin><ymin>{1}</ymin><xmax>{2}</xmax><ymax>{3}</ymax></bndbox></object>"
SCENE = "<object><name>{}</name><scene>1</scene><nobndbox>1</nobndbox></object>"


def frame(entities, x1, y1, x2, y2):
    return OBJECT.format(x1, y1, x2, y2, names="".join(f"<name>{e}</name>" for e in entities.split()))


def xml(*objects, width=400, height=200):
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return f"<annotation><filename>x.jpg</filename>{size}{''.join(objects)}</annotation>"


def write(root: Path, name: str, objects: str, marked: str, size=(400, 200), exif=None):
    """One image of Flickr8k, with its two Entities files and two captions."""
    for folder in ("Images", "Entities/Annotations", "Entities/Sentences"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, "green")
    if exif is None:
        image.save(root / "Images" / name)
    else:
        tags = Image.Exif()
        tags[0x0112] = exif
        image.save(root / "Images" / name, exif=tags)
    key = name.split("_")[0].removesuffix(".jpg")
    (root / f"Entities/Annotations/{key}.xml").write_text(objects)
    (root / f"Entities/Sentences/{key}.txt").write_text(marked)
    with (root / "Flickr8k.token.txt").open("a") as file:
        file.write(f"{name}#0\tA dog at the water 's edge .\n{name}#1\tA beach\n")
    with (root / "Flickr_8k.trainImages.txt").open("a") as file:
        file.write(f"{name}\n")


def test_boxes_count_from_one_and_include_both_ends(tmp_path):
    write(tmp_path, "12_ab.jpg", xml(frame("7", 1, 11, 400, 200)), "[/EN#7/animals A dog] runs .")
    (sample,) = read(tmp_path)
    assert sample.boxes.tolist() == [[0, 10, 400, 200]]
    assert sample.phrases == (("A dog",),)
    assert sample.sentences == ("A dog at the water's edge .", "A beach")
    assert (sample.image.name, sample.width, sample.height) == ("12_ab.jpg", 400, 200)


def test_boxes_are_scaled_to_a_copy_of_another_size_and_shape(tmp_path):
    write(tmp_path, "12_ab.jpg", xml(frame("7", 41, 21, 200, 100)), "[/EN#7/animals A dog]", size=(100, 100))
    (sample,) = read(tmp_path)
    assert sample.boxes.tolist() == [[10, 10, 50, 50]]


def test_a_repeated_phrase_counts_once_and_other_phrases_become_references(tmp_path):
    marked = "[/EN#7/animals A dog] runs\n[/EN#7/animals a  dog] sits\n[/EN#7/animals A brown dog] .\n"
    write(tmp_path, "12_ab.jpg", xml(frame("7", 1, 1, 40, 40)), marked)
    (sample,) = read(tmp_path)
    assert sample.phrases == (("A dog", "A brown dog"),)


def test_an_entity_with_two_boxes_gives_its_phrase_to_their_union(tmp_path):
    objects = xml(frame("7 8", 1, 11, 50, 60), frame("7", 101, 1, 150, 50))
    write(tmp_path, "12_ab.jpg", objects, "[/EN#7/animals Two dogs] , [/EN#8/animals one brown]")
    (sample,) = read(tmp_path)
    assert sample.boxes.tolist() == [[0, 0, 150, 60], [0, 10, 50, 60]]
    assert sample.phrases == (("Two dogs",), ("one brown",))


def test_scenes_and_what_is_not_visible_have_no_region(tmp_path):
    marked = "[/EN#9/scene a beach] [/EN#0/notvisual one] [/EN#7/people/clothing a man] [/EN#5/other gone]"
    write(tmp_path, "12_ab.jpg", xml(SCENE.format(9), frame("7", 1, 1, 40, 40)), marked)
    samples = read(tmp_path)
    assert samples.phrases() == ["a man"]
    assert samples.report.left_out == {"phrases without a box (scenes, not visible)": 3}
    assert samples.report.ok


def test_an_image_of_scenes_only_is_kept_without_regions(tmp_path):
    write(tmp_path, "12_ab.jpg", xml(SCENE.format(9)), "[/EN#9/scene a beach]")
    (sample,) = read(tmp_path)
    assert sample.boxes.shape == (0, 4)
    assert sample.phrases == ()
    assert len(sample.sentences) == 2


AS_STORED, AS_SHOWN = ((200, 100), (11, 21, 40, 60)), ((400, 800), (5, 9, 40, 80))
"""The size that an annotator saw, and the box that he drew."""


@pytest.mark.parametrize(
    ("annotated", "exif", "box"),
    [
        (AS_STORED, 5, [20, 10, 60, 40]), (AS_STORED, 6, [40, 10, 80, 40]), (AS_STORED, 7, [40, 160, 80, 190]),
        (AS_STORED, 8, [20, 160, 60, 190]), (AS_SHOWN, 6, [1, 2, 10, 20]),
    ],
)  # fmt: skip
def test_boxes_of_an_image_that_exif_turns_are_as_a_viewer_shows_it(tmp_path, annotated, exif, box):
    """Stored 200 x 100, shown 100 x 200."""
    (width, height), corners = annotated
    objects = xml(frame("7", *corners), width=width, height=height)
    write(tmp_path, "12_ab.jpg", objects, "[/EN#7/animals A dog]", size=(200, 100), exif=exif)
    (sample,) = read(tmp_path)
    assert (sample.width, sample.height) == (100, 200)
    assert sample.boxes.tolist() == [box]


def test_missing_and_broken_parts_are_named_and_the_rest_is_read(tmp_path):
    marked, objects = "[/EN#7/animals A dog]", xml(frame("7", 1, 1, 40, 40))
    for key in range(1, 8):
        write(tmp_path, f"{key}_a.jpg", objects, marked)
    (tmp_path / "Images/1_a.jpg").unlink()
    (tmp_path / "Images/2_a.jpg").write_bytes(b"not an image")
    (tmp_path / "Entities/Annotations/3.xml").write_text(objects[:80])
    (tmp_path / "Entities/Annotations/4.xml").unlink()
    (tmp_path / "Entities/Sentences/5.txt").unlink()
    (tmp_path / "Entities/Annotations/6.xml").write_text(objects.replace("<xmin>1<", "<xmin>one<"))
    samples = read(tmp_path)
    assert [sample.image.name for sample in samples] == ["7_a.jpg"]
    problems = samples.report.problems
    assert problems["missing image"] == ["1_a.jpg"]
    assert problems["image that cannot be read"] == ["2_a.jpg: not an image in a known format"]
    assert problems["missing annotation"] == ["4.xml", "5.txt"]
    assert [name.split()[0] for name in problems["broken annotation"]] == ["3", "6"]
    assert samples.report.listed == 7
    assert not samples.report.ok


def test_an_image_without_captions_is_named(tmp_path):
    write(tmp_path, "1_a.jpg", xml(), "")
    (tmp_path / "Flickr8k.token.txt").write_text("other.jpg#0\tA dog\n")
    samples = read(tmp_path)
    assert samples[0].sentences == ()
    assert samples.report.problems == {"image without sentences": ["1_a.jpg"]}


def test_a_box_outside_the_image_is_dropped_and_one_across_the_border_is_cut(tmp_path):
    objects = xml(frame("7", 401, 1, 480, 40), frame("8", 381, 1, 480, 40))
    write(tmp_path, "1_a.jpg", objects, "[/EN#7/other gone] [/EN#8/other half]")
    samples = read(tmp_path)
    assert samples[0].boxes.tolist() == [[380, 0, 400, 40]]
    assert samples[0].phrases == (("half",),)
    assert samples.report.problems == {"box without area or outside the image": ["1_a.jpg"]}
    assert samples.report.left_out["boxes cut at the border of the image"] == 2


def test_captions_alone_are_read_with_a_note(tmp_path):
    write(tmp_path, "1_a.jpg", xml(), "")
    (tmp_path / "Entities").rename(tmp_path / "elsewhere")
    samples = read(tmp_path)
    assert len(samples.sentences()) == 2
    assert "Entities" in samples.report.notes[0]


def test_flickr30k_has_other_names(tmp_path):
    write(tmp_path, "36979.jpg", xml(frame("7", 1, 1, 40, 40)), "[/EN#7/people A man]")
    (tmp_path / "Images").rename(tmp_path / "flickr30k-images")
    (tmp_path / "Flickr8k.token.txt").rename(tmp_path / "results_20130124.token")
    (tmp_path / "Flickr_8k.trainImages.txt").unlink()
    (tmp_path / "val.txt").write_text("36979\n")
    assert splits(tmp_path) == ["val"]
    (sample,) = read(tmp_path, split="val")
    assert sample.phrases == (("A man",),)
    assert len(sample.sentences) == 2


def test_a_folder_without_images_and_a_text_file_that_is_no_text_are_user_errors(tmp_path):
    write(tmp_path, "1_a.jpg", xml(), "")
    (tmp_path / "Images").rename(tmp_path / "Photos")
    refuses("no folder of images", read, tmp_path)
    (tmp_path / "Photos").rename(tmp_path / "Images")
    (tmp_path / "Flickr8k.token.txt").write_bytes(b"1_a.jpg#0\t\xff\xfe dog")
    refuses(r"Flickr8k\.token\.txt is not a UTF-8 text file", read, tmp_path)


def test_read_boxes_names_what_is_missing(tmp_path):
    path = tmp_path / "1.xml"
    path.write_text(xml(frame("7", 1, 1, 2, 2)).replace("xmax", "xmaximum"))
    with pytest.raises(ValueError, match="no <xmax>"):
        read_boxes(path)
    path.write_text('<?xml version="1.0" encoding="klingon"?><annotation/>')
    with pytest.raises(ValueError, match="unknown encoding: klingon"):
        read_boxes(path)
    path.write_text(xml(width=0))
    with pytest.raises(ValueError, match="size 0 x 200"):
        read_boxes(path)


def test_tidy_puts_apostrophes_back():
    assert tidy(" the water 's edge ") == "the water's edge"
    assert tidy("dogs they do n't see 'em") == "dogs they don't see 'em"


def test_merging_pools_the_references_of_close_boxes(tmp_path):
    objects = xml(frame("7", 1, 1, 100, 100), frame("8", 1, 1, 100, 80), frame("9", 201, 1, 300, 100))
    marked = "[/EN#7/animals A dog] [/EN#8/animals A brown dog] [/EN#8/animals a dog] [/EN#9/other a ball]"
    write(tmp_path, "1_a.jpg", objects, marked)
    (apart,) = read(tmp_path)
    assert apart.phrases == (("A dog",), ("A brown dog", "a dog"), ("a ball",))
    (merged,) = read(tmp_path, options=PhraseOptions(merge=0.7))
    assert merged.phrases == (("A dog", "A brown dog"), ("a ball",))
    assert merged.boxes[0].tolist() == pytest.approx([0, 0, 100, (100 + 80 + 80) / 3])
    (strict,) = read(tmp_path, options=PhraseOptions(merge=0.9))
    assert sorted(strict.phrases) == sorted(apart.phrases)


LINE = "[/EN#1/people A man 's friend] in [/EN#2/clothing a red T-shirt] rides [/EN#3/other/animals a horse] [ now ] ."


def write_entities(root):
    objects = xml(frame("1", 1, 1, 20, 50), frame("1", 61, 11, 100, 40), SCENE.format(3), width=200, height=100)
    write(root, "12_ab.jpg", objects, f"{LINE}\n[/EN#1/people Two] jump .\n", size=(100, 50))
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
    (image,) = read_entities(write_entities(tmp_path), "train")
    assert (image.width, image.height, len(image.sentences)) == (100, 50, 2)
    first, second = image.sentences[0].phrases[0], image.sentences[1].phrases[0]
    # the union (0, 0, 100, 50) of the two boxes, at half the size of the image that was annotated
    assert first.box is not None and first.box.dtype == np.float32 and first.box.tolist() == [0, 0, 50, 25]
    assert second.box is not None and second.box.tolist() == [0, 0, 50, 25]
    assert image.sentences[0].phrases[2].box is None
    assert count_phrases([image]) == 2


def test_what_is_missing_or_broken_is_named(tmp_path):
    root = write_entities(tmp_path)
    (root / "Flickr_8k.trainImages.txt").write_text("12_ab.jpg\n13_cd.jpg\n14_ef.jpg\n")
    quarters(100, 50).save(root / "Images" / "14_ef.jpg")
    report = Report()
    assert len(read_entities(root, "train", report)) == 1
    assert report.listed == 3
    assert report.problems["image that cannot be read"] == ["13_cd.jpg"]
    assert report.problems["missing or broken annotation"][0].startswith("14_ef")


def test_user_fixable_errors_are_reported(tmp_path):
    root = write_entities(tmp_path / "data")
    refuses("no split 'test'; it has train", read_entities, root, "test")
    refuses("not Flickr8k or Flickr30k", read_entities, tmp_path, "train")
    (root / "Entities/Annotations/12.xml").write_text("<annotation")
    refuses("no image with Entities that can be read", read_entities, root, "train")
    for path in sorted((root / "Entities").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    refuses("no Entities/Annotations", read_entities, root, "train")
