import json

from PIL import Image
from refusals import refuses

from saywhere.data import guess_format, read, splits

IMAGES = [
    {"id": 9, "file_name": "000000000009.jpg", "width": 640, "height": 480},
    {"id": 25, "file_name": "000000000025.jpg", "width": 200, "height": 100},
]
CLASSES = [{"id": 1, "name": "person"}, {"id": 18, "name": "dog"}]


def instance(i, image, category, box, crowd=0):
    return {"id": i, "image_id": image, "category_id": category, "bbox": box, "iscrowd": crowd, "area": 1.0}


def write(root, instances=None, captions=None, split="train2017", images="train2017"):
    (root / "annotations").mkdir(exist_ok=True)
    (root / images).mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 48)).save(root / images / "000000000009.jpg")
    Image.new("RGB", (200, 100)).save(root / images / "000000000025.jpg")
    if instances is not None:
        content = {"images": IMAGES, "annotations": instances, "categories": CLASSES}
        (root / f"annotations/instances_{split}.json").write_text(json.dumps(content))
    if captions is not None:
        entries = [{"id": i, "image_id": image, "caption": text} for i, (image, text) in enumerate(captions)]
        content = {"images": IMAGES, "annotations": entries}
        (root / f"annotations/captions_{split}.json").write_text(json.dumps(content))


def test_instances_are_one_word_phrases_and_captions_are_sentences(tmp_path):
    boxes = [
        instance(1, 9, 18, [10.0, 20.0, 100.0, 200.0]),
        instance(2, 9, 1, [0, 0, 640, 480]),
        instance(3, 9, 1, [0, 0, 300, 100], crowd=1),
    ]
    write(tmp_path, boxes, [(25, "A street.\n"), (9, "A dog."), (9, "A man and\na dog.")])
    samples = read(tmp_path, split="train2017")
    assert [sample.image.name for sample in samples] == ["000000000009.jpg", "000000000025.jpg"]
    assert samples[0].boxes.tolist() == [[1, 2, 11, 22], [0, 0, 64, 48]]
    assert samples[0].phrases == (("dog",), ("person",))
    assert samples[0].sentences == ("A dog.", "A man and a dog.")
    assert samples[1].phrases == ()
    assert samples[1].sentences == ("A street.",)
    assert samples.report.left_out == {"boxes around a crowd": 1}
    assert samples.report.ok


def test_splits_are_the_ends_of_the_file_names_and_their_beginning_will_do(tmp_path):
    write(tmp_path, [], [])
    write(tmp_path, None, [(9, "A dog.")], split="val2017", images="images/val2017")
    assert guess_format(tmp_path) == "coco"
    assert splits(tmp_path) == ["train2017", "val2017"]
    samples = read(tmp_path, split="val")
    assert samples.split == "val2017"
    assert samples.sentences() == ["A dog."]
    assert samples[0].image.parent == tmp_path / "images/val2017"
    assert samples.report.notes == ["no instances_val2017.json: the images have no regions"]
    write(tmp_path, [], [], split="train2014")
    refuses("no split 'train'; it has train2014, train2017, val2017", read, tmp_path, split="train")


def test_missing_images_and_broken_entries_are_named(tmp_path):
    boxes = [
        instance(1, 9, 18, [0, 0, 640, 480]),
        instance(2, 9, 99, [0, 0, 640, 480]),
        instance(3, 77, 1, [0, 0, 640, 480]),
        instance(4, 9, 1, [0, 0, 640]),
    ]
    write(tmp_path, boxes, [(9, "A dog."), (77, "Nobody"), (9, " ")])
    (tmp_path / "train2017/000000000025.jpg").unlink()
    content = json.loads((tmp_path / "annotations/captions_train2017.json").read_text())
    content["images"].append({"id": 30, "file_name": "30.jpg"})
    (tmp_path / "annotations/captions_train2017.json").write_text(json.dumps(content))
    samples = read(tmp_path)
    assert samples.phrases() == ["dog"]
    assert samples.report.problems == {
        "broken region": ["annotation 2", "annotation 3", "annotation 4"],
        "broken annotation": ["image 30"],
        "broken caption": ["annotation 1", "annotation 2"],
        "missing image": ["000000000025.jpg"],
    }


def test_images_and_classes_of_one_id_are_refused(tmp_path):
    write(tmp_path, [instance(1, 9, 18, [0, 0, 9, 9])], [(9, "A dog.")])
    file = tmp_path / "annotations/captions_train2017.json"
    sound = json.loads(file.read_text())
    for other in ("b/000000000009.jpg", "000000000009.jpg"):
        file.write_text(json.dumps({**sound, "images": [*IMAGES, {**IMAGES[0], "file_name": other}]}))
        refuses(f"captions_train2017.json: {other} and .*9.jpg have the id 9", read, tmp_path)
    file.write_text(json.dumps({**sound, "images": [{**IMAGES[0], "file_name": "other.jpg"}]}))
    refuses("other.jpg and 000000000009.jpg have the id 9", read, tmp_path)
    file.write_text(json.dumps(sound))
    file = tmp_path / "annotations/instances_train2017.json"
    file.write_text(json.dumps({"images": IMAGES, "annotations": [], "categories": [*CLASSES, CLASSES[0]]}))
    refuses("two categories have the id 1", read, tmp_path)


def test_files_of_another_kind_are_user_errors(tmp_path):
    write(tmp_path, [])
    file = tmp_path / "annotations/instances_train2017.json"
    file.write_text(json.dumps({"images": IMAGES, "annotations": []}))
    refuses("it has no list of 'categories'", read, tmp_path)
    file.write_text(json.dumps({"images": IMAGES, "annotations": [], "categories": [{"id": 3}]}))
    refuses("broken categories", read, tmp_path)
    file.write_text('{"images": [],\n "images": []}')
    refuses("cannot be read as JSON: the key 'images' is there twice", read, tmp_path)
    file.write_text("no json")
    refuses("cannot be read as JSON", read, tmp_path)
