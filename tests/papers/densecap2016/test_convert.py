"""Checkpoints of the program, made up in other sizes than the golden one, and broken ones; files for its viewer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import commands
import numpy as np
import pytest
import torch
from photographs import CORNERS, noise, quarters
from PIL import Image
from refusals import refuses
from torch7_writer import WORDS, Object, View, random_checkpoint, write

import saywhere
from saywhere.images import open_image
from saywhere.networks.checkpoint import load_network
from saywhere.papers import densecap2016
from saywhere.papers.densecap2016.conventions import x1y1x2y2_to_xywh, xcycwh_to_x1y1x2y2
from saywhere.papers.densecap2016.convert import MODULES, convert, convert_to_folder, gradients, result, to_torch7
from saywhere.papers.densecap2016.trace import trace_inference as run
from saywhere.regions import Regions


def node(tree, place):
    """The object at a place of a checkpoint, as dict of its fields."""
    for part in place.replace("[", ".[").split("."):
        child = tree[int(part[1:-1]) if part.startswith("[") else part]
        tree = child.fields if isinstance(child, Object) else child
    return tree


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write(tmp_path_factory.mktemp("t7") / "made-up.t7", random_checkpoint())


def test_sizes_come_from_the_file(file):
    config = convert(file).config
    assert config.trunk.vgg_channels == (3, 4, 5, 6, 7) and config.proposals.hidden_size == 9
    assert (config.fc_size, config.embed_dim, config.word_size, config.hidden_size) == (12, 10, 6, 8)
    assert config.proposals.anchors == (((30.0, 40.0), (60.0, 20.0)),) and config.pool_size == 3
    assert (config.proposals.post_nms_top_n, config.decoding.max_words, config.rpn_box_weight) == (40, 6, 0.05)
    assert config.conventions == "original" and config.rpn_score_weight == 0.1


def test_every_weight_arrives_and_goes_back(file):
    model = convert(file)
    nets = random_checkpoint()["model"].fields["nets"]
    back = to_torch7(model.state_dict())
    assert len(back) == 2 * len(MODULES) + 3
    for place, value in back.items():
        module, name = place.rsplit(".", 1)
        assert np.array_equal(value.numpy(), node(nets, module)[name]), place
    assert all(not g.any() for g in to_torch7(gradients(model)).values())


def test_strided_views_of_one_storage_are_read(file, tmp_path):
    """As the program saves them after training: all parameters in one storage."""
    checkpoint = random_checkpoint()
    layer = node(checkpoint["model"].fields["nets"], "recog_base.modules[5]")
    weight = layer["weight"]
    storage = np.concatenate((np.zeros(5, np.float32), weight.T.ravel(), layer["bias"]))
    layer["weight"] = View(storage, weight.shape, (1, weight.shape[0]), 6)
    layer["bias"] = View(storage, layer["bias"].shape, (1,), 6 + weight.size)
    shared = convert(write(tmp_path / "shared.t7", checkpoint)).state_dict()
    for name, value in convert(file).state_dict().items():
        assert torch.equal(value, shared[name]), name


@pytest.mark.parametrize("words", [("<UNK>", *WORDS[:-1]), WORDS[:-1]], ids=["first", "missing"])
def test_the_unknown_word_may_stand_elsewhere_or_be_missing(tmp_path, words):
    model = convert(write(tmp_path / "words.t7", random_checkpoint(words=words)))
    nets = random_checkpoint(words=words)["model"].fields["nets"]
    table = node(nets, "language_model.lookup_table")["weight"]
    ours = model.decoder.words.weight
    assert list(model.vocabulary.counts) == [word for word in words if word != "<UNK>"]
    for number, word in enumerate(words):
        row = len(WORDS) - 1 if word == "<UNK>" else list(model.vocabulary.counts).index(word)
        assert torch.equal(ours[row], torch.from_numpy(table[number]))
    assert torch.equal(ours[-2:], torch.from_numpy(table[-2:]))
    said = run(model, torch.zeros(3, 64, 80)).captions
    assert len(said) > 20
    if "<UNK>" not in words:
        assert not any("<UNK>" in caption for caption in said)


def test_the_folder_loads_and_describes(file, tmp_path):
    model = convert_to_folder(file, tmp_path / "out")
    loaded = load_network(tmp_path / "out")
    assert loaded.config == model.config and loaded.vocabulary == model.vocabulary
    preprocess = model.trunk.preprocess
    assert type(loaded.trunk.preprocess) is type(preprocess) and loaded.trunk.preprocess == preprocess
    seen = [run(network, torch.from_numpy(preprocess(open_image(noise(120, 90))))) for network in (model, loaded)]
    assert torch.equal(seen[0].final_boxes, seen[1].final_boxes) and seen[0].captions == seen[1].captions
    regions = saywhere.load(tmp_path / "out", "cpu").describe(noise(120, 90))
    assert 0 < len(regions) <= len(seen[0].final_nms)
    assert "made-up.t7" in (tmp_path / "out" / "README.md").read_text()


def broken(tmp_path, change):
    checkpoint = random_checkpoint()
    change(checkpoint["model"].fields)
    return write(tmp_path / "broken.t7", checkpoint)


FIELD = "modules[3].modules[1].modules[3].modules[1].modules[1]"


def set_at(place, name, value):
    def change(model):
        node(model, place)[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["nets"].pop("recog_base"), "no checkpoint of the DenseCap program, it has no .*recog_base"),
        (lambda m: m.pop("nets"), "no checkpoint of the DenseCap program, it has no model.nets"),
        (set_at("opt", "idx_to_token", {1: "a", 2: "a"}), "idx_to_token is not a list of different words"),
        (set_at("opt", "idx_to_token", {1: "a", 2: "b"}), "2 words, but the language model has 6"),
        (set_at("opt", "final_nms_thresh", "x"), "final_nms_thresh is not a number"),
        (set_at("opt", "final_nms_thresh", 3), "final_nms is 3"),
        (set_at("nets.box_reg_branch", "bias", np.zeros(5, np.float32)), "shape .5,., but the rest wants .4,."),
        (set_at("nets.box_reg_branch", "bias", np.zeros(4, np.int64)), "box_reg_branch.bias is not a tensor of"),
        (set_at("nets.box_reg_branch", "bias", np.full(4, np.nan, np.float32)), "not finite"),
        (set_at("nets.objectness_branch", "weight", "x"), "objectness_branch.weight is not a tensor of floats"),
        (
            set_at("nets.recog_base.modules[2]", "weight", View(np.zeros(4, np.float32), (10**6, 10**6), (0, 0))),
            "has the shape .1000000, 1000000., which is no layer",
        ),
        (set_at("nets.localization_layer.nets.roi_pooling", "width", 5), "regions are not square"),
        (set_at(f"nets.localization_layer.nets.rpn.{FIELD}", "x0", 1), r"its cells stand at \[1, 8\.5, 16, 16\]"),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path, change, message):
    assert "broken.t7: " in refuses(message, convert, broken(tmp_path, change))


def test_another_torch7_file_is_no_checkpoint(tmp_path):
    other = write(tmp_path / "other.t7", {"weights": np.zeros(3, np.float32)})
    refuses(r"other\.t7: no checkpoint of the DenseCap program, it has no model", convert, other)


def test_the_missing_package_is_named(file, monkeypatch):
    monkeypatch.delitem(sys.modules, "saywhere.papers.densecap2016.torch7", raising=False)
    monkeypatch.delattr(densecap2016, "torch7", raising=False)
    monkeypatch.setitem(sys.modules, "torchfile", None)
    refuses(r"pip install 'saywhere\[convert\]'", convert, file)


def test_a_checkpoint_is_converted_and_describes_for_the_programs_viewer(tmp_path: Path) -> None:
    file = write(tmp_path / "made-up.t7", random_checkpoint())
    result = commands.run("papers", "convert", file, tmp_path / "model")
    count = sum(p.numel() for p in convert(file).parameters())
    assert f"model: {count:,} weights, 5 words" in result.output.replace("\n", "")
    noise(360, 240).save(tmp_path / "image.png")
    lines = str(tmp_path / "r.jsonl")
    arguments = ["--model", str(tmp_path / "model"), "--json", lines, "--top", "0", "--threshold", "0"]
    commands.run("describe", str(tmp_path / "image.png"), *arguments)
    commands.run("papers", "results", lines, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert set(written) == {"opt", "results"}
    (row,) = written["results"]
    assert set(row) == {"img_name", "boxes", "scores", "captions"} and row["img_name"] == "image.png"
    assert (tmp_path / "out" / "image.png").exists()
    model = convert(file)
    pixels = torch.from_numpy(model.trunk.preprocess(open_image(tmp_path / "image.png")))
    seen = run(model, pixels)
    boxes = x1y1x2y2_to_xywh(xcycwh_to_x1y1x2y2(seen.final_boxes[seen.final_nms]))
    scores = seen.objectness[seen.final_nms]
    inside = ((boxes[:, :2] >= 1) & (boxes[:, :2] + boxes[:, 2:] - 1 <= boxes.new_tensor([720, 480]))).all(dim=1)
    assert inside.any()  # those are not cut
    found = np.column_stack((row["boxes"], row["scores"]))
    for expected in torch.column_stack((boxes, scores))[inside].tolist():
        nearest = found[abs(found[:, :4] - expected[:4]).sum(axis=1).argmin()]
        assert abs(nearest - expected)[:4].max() < 0.05
        assert abs(1 / (1 + np.exp(-nearest[4])) - 1 / (1 + np.exp(-expected[4]))) < 1e-4


def test_errors_of_the_command_are_one_line_and_code_2(tmp_path: Path) -> None:
    (tmp_path / "text.t7").write_text("hello")
    for path, message in (
        (tmp_path / "text.t7", "not a Torch7 file"),
        (tmp_path / "no.t7", "no.t7: cannot be read (No such file"),
    ):
        result = commands.run("papers", "convert", path, tmp_path / "out", code=2)
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert not (tmp_path / "out").exists()


def test_small_images_are_enlarged_and_scores_stay_finite():
    row = result(Regions(72, 36, [[0, 0, 72, 36.0]] * 2, [1.0, 0.0], ("a", "b")), "a.jpg")
    assert row["boxes"] == [[1, 1, 720, 360]] * 2
    assert row["scores"] == [16, -16]


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Results of a photograph, and of one in a folder."""
    monkeypatch.chdir(tmp_path)
    Path("p").mkdir()
    found: list[Regions] = []
    for name, width, height in (("a.jpg", 1440, 960), ("p/b.webp", 100, 200)):
        quarters(width, height).save(name)
        boxes = np.array([[0, 0, width, height], [0, 0, width / 2, height]])
        found.append(Regions(width, height, boxes, np.array([0.9, 0.4]), ("a dog", "the grass"), image=name))
    Path("r.jsonl").write_text("".join(json.dumps(regions.to_dict()) + "\n" for regions in found))
    return "r.jsonl"


def test_the_files_for_the_viewer(lines: str) -> None:
    assert commands.run("papers", "results", lines, "vis").stdout == "written: vis/results.json\n"
    written = json.loads(Path("vis/results.json").read_text())
    assert set(written) == {"opt", "results"} and written["opt"]["image_size"] == 720
    first, second = written["results"]
    assert (first["img_name"], second["img_name"]) == ("a.jpg", "p/b.webp.jpg")
    assert first["boxes"] == [[1, 1, 720, 480], [1, 1, 360, 480]]
    assert second["boxes"] == [[1, 1, 360, 720], [1, 1, 180, 720]]
    assert first["scores"] == pytest.approx([2.19722, -0.40547], abs=1e-4)
    assert first["captions"] == ["a dog", "the grass"]
    for row, size in ((first, (720, 480)), (second, (360, 720))):
        with Image.open(Path("vis") / row["img_name"]) as shown:
            assert shown.size == size
            assert np.abs(np.array(shown.getpixel((0, 0))) - CORNERS[0]).max() < 20, "nothing drawn on it"


def test_wrong_lines_or_images_are_errors_and_originals_are_not_written_over(lines: str) -> None:
    def error(folder: str) -> str:
        return commands.error_of(commands.run("papers", "results", lines, folder, code=2))

    assert error(".").endswith("give another --out\n")
    quarters(960, 1440).save("a.jpg")
    assert "a.jpg: is not the image in r.jsonl" in error("vis")
    Path("a.jpg").unlink()
    assert "a.jpg: no such file" in error("vis")
    assert not Path("vis/results.json").exists()
    rows = Path(lines).read_text()
    Path(lines).write_text(rows.replace('"image"', '"name"'))
    assert "an image without a name: no such file" in error("vis")
    Path(lines).write_text("{}\n" + rows)
    assert "r.jsonl: broken line: 1 (line 1" in error("vis")
    Path(lines).write_text(rows.replace('"scores"', '"other"'))
    assert "r.jsonl: a.jpg has boxes without scores, by which the viewer orders them" in error("vis")
    Path("vis").mkdir(exist_ok=True)
    Path("vis/results.json").write_text("kept")
    assert "vis/results.json: already exists; give another folder" in error("vis")
