import json

from PIL import Image
from refusals import refuses

from saywhere.data import read, splits


def region(i, x, y, width, height, phrase="a thing"):
    return {"region_id": i, "image_id": 1, "phrase": phrase, "x": x, "y": y, "width": width, "height": height}


def write(root, regions, sizes=None, folder="VG_100K", disk=(80, 60)):
    """``regions``: by image id. ``sizes``: of the originals, by image id; written to image_data.json if given."""
    (root / folder).mkdir(exist_ok=True)
    for key in regions:
        Image.new("RGB", disk).save(root / folder / f"{key}.jpg")
    entries = [{"id": key, "regions": found} for key, found in regions.items()]
    (root / "region_descriptions.json").write_text(json.dumps(entries))
    if sizes is not None:
        data = [{"image_id": key, "width": w, "height": h, "url": "", "coco_id": None} for key, (w, h) in sizes.items()]
        (root / "image_data.json").write_text(json.dumps(data))


def test_regions_are_scaled_from_the_size_in_image_data(tmp_path):
    write(tmp_path, {1: [region(5, 40, 50, 200, 100, "the clock is green ")]}, {1: (800, 600)})
    samples = read(tmp_path)
    assert samples[0].boxes.tolist() == [[4, 5, 24, 15]]
    assert samples[0].phrases == (("the clock is green",),)
    assert samples.report.ok
    assert samples.report.notes == []


def test_images_lie_in_several_folders_and_missing_ones_are_named(tmp_path):
    some = [region(5, 0, 0, 20, 10)]
    write(tmp_path, {1: some}, {1: (80, 60)}, folder="VG_100K_2")
    write(tmp_path, {1: some, 2: some, 3: some}, {1: (80, 60), 2: (80, 60), 3: (80, 60)})
    (tmp_path / "VG_100K/1.jpg").unlink()
    (tmp_path / "VG_100K/3.jpg").unlink()
    samples = read(tmp_path)
    assert [sample.image.relative_to(tmp_path).as_posix() for sample in samples] == ["VG_100K_2/1.jpg", "VG_100K/2.jpg"]
    assert samples.report.problems == {"missing image": ["3.jpg"]}
    assert samples.report.listed == 3


def test_the_split_file_of_densecap(tmp_path):
    some = [region(5, 0, 0, 20, 10)]
    write(tmp_path, {1: some, 2: some, 3: some}, {1: (80, 60), 2: (80, 60), 3: (80, 60)})
    assert splits(tmp_path) == ["train"]
    assert len(read(tmp_path)) == 3
    (tmp_path / "densecap_splits.json").write_text(json.dumps({"train": [3, 9], "val": [1], "test": [2]}))
    assert splits(tmp_path) == ["train", "val", "test"]
    train, val = read(tmp_path), read(tmp_path, split="val")
    assert [sample.image.name for sample in train] == ["3.jpg"]
    assert [sample.image.name for sample in val] == ["1.jpg"]
    assert train.report.problems == {"missing annotation": ["9"]}
    assert train.report.listed == 2
    assert val.report.ok
    (tmp_path / "densecap_splits.json").write_text(json.dumps({"train": "all"}))
    refuses("is not a list of image ids", read, tmp_path)


def test_broken_regions_and_entries_are_named(tmp_path):
    bad = [
        region(5, 0, 0, 20, 10),
        region(6, 0, 0, "wide", 10),
        region(7, 0, 0, -3, 10),
        region(8, 5, 5, 0, 10),
        region(9, 0, 0, 20, 10, None),
        region(10, 0, 0, 20, 11, " ... "),
    ]
    del bad[4]["phrase"]
    write(tmp_path, {1: bad, 2: []}, {1: (80, 60), 2: (80, 60)})
    entries = json.loads((tmp_path / "region_descriptions.json").read_text())
    entries[1]["regions"] = None
    (tmp_path / "region_descriptions.json").write_text(json.dumps([*entries, {"regions": []}, "text"]))
    samples = read(tmp_path)
    assert samples[0].boxes.tolist() == [[0, 0, 20, 10]]
    assert samples.report.problems == {
        "broken region": ["1: region 6", "1: region 7", "1: region 9"],
        "box without area or outside the image": ["1.jpg"],
        "phrase without a word": ["1.jpg"],
        "broken annotation": ["2 (no list of regions)", *["an entry without an id in region_descriptions.json"] * 2],
        "image left out with all its regions": ["2.jpg"],
    }


def test_broken_sizes_are_named(tmp_path):
    write(tmp_path, {key: [region(5, 0, 0, 20, 10)] for key in (1, 2, 4)}, {1: (80, 60)})
    data = [{"image_id": 1, "width": 80, "height": 60}, {"image_id": 2, "width": 0, "height": 3}, {"image_id": 3}]
    (tmp_path / "image_data.json").write_text(json.dumps(data))
    samples = read(tmp_path)
    assert len(samples) == 1
    assert samples.report.problems == {
        "broken entry in image_data.json": ["2", "3"], "no size in image_data.json": ["2", "4"]
    }  # fmt: skip
    assert samples.report.listed == 3
    (tmp_path / "image_data.json").unlink()
    refuses(r"image_data\.json: is missing; it has the sizes of the images", read, tmp_path)


def test_files_that_are_not_json_are_user_errors(tmp_path):
    write(tmp_path, {1: []}, {1: (80, 60)})
    (tmp_path / "region_descriptions.json").write_text('[{"id": 1, "regi')
    refuses(r"region_descriptions\.json cannot be read as JSON", read, tmp_path)
    (tmp_path / "region_descriptions.json").write_text("{}")
    refuses("must be a JSON list, not dict", read, tmp_path)
    (tmp_path / "VG_100K/1.jpg").unlink()
    (tmp_path / "VG_100K").rmdir()
    refuses("no folder of images", read, tmp_path)
