"""Models that CVAT and FiftyOne load: by CVAT's own SDK, and by FiftyOne itself or a stand-in for it."""

from __future__ import annotations

import importlib
import io
import json
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import cvat_sdk
import cvat_sdk.auto_annotation as cvataa
import cvat_sdk.core.client
import numpy as np
import pytest
import skimage
from local_server import Answers, answering
from PIL import Image
from refusals import refuses

import saywhere
from saywhere.formats.classes import label
from saywhere.integrations import cvat

PHRASE = "an orange suit"


@pytest.fixture(scope="module")
def model() -> saywhere.Model:
    return saywhere.load(threads=1)


@pytest.fixture(scope="module")
def image() -> Image.Image:
    return Image.open(Path(skimage.data_dir) / "astronaut.png").convert("RGB")


def context(least: float | None = None) -> Any:
    return SimpleNamespace(frame_name="a.png", conf_threshold=least, conv_mask_to_poly=False)


def test_cvat_gets_rectangles_of_its_labels(model: saywhere.Model, image: Image.Image) -> None:
    function = cvat.create(f"Shirt, hair,{PHRASE}")
    assert isinstance(function.spec, cvataa.DetectionFunctionSpec)
    assert [(one.name, one.id, one.type) for one in function.spec.labels] == [
        ("Shirt", 0, "rectangle"), ("hair", 1, "rectangle"), (PHRASE, 2, "rectangle")
    ]  # fmt: skip
    assert [one.attributes[0].name for one in function.spec.labels] == ["phrase"] * 3
    seen = model.encode(image)
    wanted = [
        ({"shirt": 0, "hair": 1}[label(region.caption)], region.caption, list(region.box))
        for region in model.describe(seen, threshold=0.1).at_least(0.1)
        if label(region.caption) in ("shirt", "hair")
    ]
    wanted += [(2, PHRASE, list(region.box)) for region in model.ground(seen, [PHRASE], threshold=0.1)]
    assert {number for number, _, _ in wanted} == {0, 1, 2}
    found = function.detect(context(0.1), image)
    assert all(one.type.value == "rectangle" and one.frame == 0 for one in found)
    assert [(one.label_id, one.attributes[0].value, one.points) for one in found] == wanted
    assert len(function.detect(context(0.99), image)) < len(function.detect(context(), image)) <= len(found)
    kinds = cvat.create("vehicle,Clothing").detect(context(0.1), image)  # a shirt is clothing
    assert {one.label_id for one in kinds} == {1} and "shirt" in {label(one.attributes[0].value) for one in kinds}
    plain = cvat.create("shirt", phrases=False)
    assert not plain.spec.labels[0].attributes and not plain.detect(context(), image)[0].attributes


NAMES = {30: "Shirt", 40: PHRASE, 50: "unused"}
"""Labels of the task by their numbers."""
PLACE, NOW = "http://127.0.0.1/", "2026-11-27T00:00:00Z"
SIZE = {"width": 512, "height": 512, "related_files": 0}
ATTRIBUTE = {"id": 70, "name": "phrase", "mutable": False, "input_type": "text", "default_value": "", "values": [""]}
LABEL = {"type": "rectangle", "attributes": [ATTRIBUTE], "sublabels": [], "has_parent": False, "parent_id": None}
ANSWERS: dict[str, dict[str, Any]] = {
    "/api/server/about": {
        "name": "CVAT", "description": "", "version": version("cvat-sdk"), "logo_url": PLACE, "subtitle": "",
    },
    "/api/tasks/137": {
        "id": 137, "name": "t", "organization": None, "organization_id": None, "project_id": None, "size": 1,
        "jobs": {"count": 0, "completed": 0, "validation": 0, "url": PLACE}, "labels": {"url": PLACE},
        "data_chunk_size": 1, "data_original_chunk_type": "imageset", "data_compressed_chunk_type": "imageset",
        "created_date": NOW, "updated_date": NOW,
    },
    "/api/labels": {
        "count": 3, "next": None, "previous": None,
        "results": [{"id": number, "name": name, "color": "#fff000", **LABEL} for number, name in NAMES.items()],
    },
    "/api/tasks/137/data/meta": {
        "chunks_updated_date": NOW, "chunk_size": 1, "size": 1, "image_quality": 70, "start_frame": 0, "stop_frame": 0,
        "frame_filter": "", "frames": [{"name": "a.png", **SIZE}], "deleted_frames": [], "included_frames": None,
    },
}  # fmt: skip
"""What a CVAT answers to who annotates a task of one image; it also gives the image, and takes what is found."""


def test_cvats_own_sdk_asks_and_sends_what_is_found(model: saywhere.Model, image: Image.Image, tmp_path: Path) -> None:
    """``annotate_task``, by which ``cvat-cli task auto-annotate`` works, with a server that answers as CVAT does."""
    sent: list[tuple[str, Any]] = []

    class Server(Answers):
        def do_GET(self) -> None:
            path = urlsplit(self.path).path.rstrip("/")
            if path != "/api/tasks/137/data":
                self.answer(json.dumps(ANSWERS[path]).encode(), Content_Type="application/json")
                return
            with zipfile.ZipFile(stream := io.BytesIO(), "w") as chunk:
                chunk.write(Path(skimage.data_dir) / "astronaut.png", "000000.png")
            self.answer(stream.getvalue(), Content_Type="application/zip")

        def do_PATCH(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            sent.append((self.path, json.loads(body)))
            self.answer(body, Content_Type="application/json")

    with answering(Server) as url:
        client = cvat_sdk.Client(url, config=cvat_sdk.Config(cache_dir=tmp_path))
        client.login(cvat_sdk.core.client.AccessTokenCredentials("x"))
        cvataa.annotate_task(client, 137, cvat.Annotator(model, ["Shirt", PHRASE]), conf_threshold=0.3)
    ((path, given),) = sent
    shapes = given["shapes"]
    assert path == "/api/tasks/137/annotations/?action=create" and {shape["label_id"] for shape in shapes} == {30, 40}
    found = [(shape["frame"], shape["source"], shape["attributes"][0]["spec_id"]) for shape in shapes]
    assert found == [(0, "auto", 70)] * len(shapes)
    (suit,) = (shape for shape in shapes if shape["label_id"] == 40)
    assert suit["points"] == list(next(iter(model.ground(image, [PHRASE]))).box)
    assert suit["attributes"][0]["value"] == PHRASE


@pytest.mark.parametrize("given", [{"labels": " ,"}, {"labels": 3}, {"labels": "dog", "phrases": "false"}])
def test_wrong_parameters_of_cvat_are_one_line(given: dict[str, Any]) -> None:
    refuses("labels must be names with commas", cvat.create, **given)


REASON = "FiftyOne is large, and brings another OpenCV: see CONTRIBUTING.md"


@pytest.fixture(params=["stand-in", "package"])
def fiftyone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with what it uses of FiftyOne: the base class of models, and labels that take any attribute."""
    monkeypatch.delitem(sys.modules, "saywhere.integrations.fiftyone", raising=False)
    if request.param == "package":
        pytest.importorskip("fiftyone", reason=REASON)
        return importlib.import_module("saywhere.integrations.fiftyone")

    class Label(SimpleNamespace):
        pass

    class Base:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

    package, models = ModuleType("fiftyone"), ModuleType("fiftyone.core.models")
    package.__dict__.update(Detection=Label, Detections=Label, __path__=[])
    core = ModuleType("fiftyone.core")
    core.__dict__.update(__path__=[])
    models.__dict__.update(Model=Base)
    for one in (package, core, models):
        monkeypatch.setitem(sys.modules, one.__name__, one)
    return importlib.import_module("saywhere.integrations.fiftyone")


def test_fiftyone_gets_detections_in_shares_of_the_image(
    fiftyone: ModuleType, model: saywhere.Model, image: Image.Image
) -> None:
    describer = fiftyone.Describer(model, threshold=0.2)
    assert (describer.media_type, describer.ragged_batches, describer.transforms) == ("image", False, None)
    small = np.asarray(image)[:300]
    with describer as entered:
        whole, part = entered.predict_all([np.asarray(image), small])
    alone = describer.predict(small)
    assert [one.phrase for one in alone.detections] == [one.phrase for one in part.detections]
    every = model.describe(np.asarray(image), threshold=0.2)
    regions = every.at_least(0.2)[:20]
    assert len(regions) < len(every)
    assert [one.phrase for one in whole.detections] == list(regions.captions or ()) and len(regions) > 1
    assert [one.label for one in whole.detections] == [label(caption) for caption in regions.captions or ()]
    for one, (box, score, _) in zip(whole.detections, regions, strict=True):
        x1, y1, x2, y2 = box
        assert one.bounding_box == pytest.approx([x1 / 512, y1 / 512, (x2 - x1) / 512, (y2 - y1) / 512], abs=1e-6)
        assert one.confidence == pytest.approx(score)
    (suit,) = fiftyone.Describer(model, [PHRASE], threshold=0).predict(np.asarray(image)).detections
    assert suit.phrase == PHRASE and suit.label == label(PHRASE)


def test_fiftyone_applies_the_model_itself(model: saywhere.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """On samples of its own, with a collection that is none of its database."""
    fo = pytest.importorskip("fiftyone", reason=REASON)
    collections = importlib.import_module("fiftyone.core.collections")
    dataset = SimpleNamespace(_is_frames=False, _sample_collection=None, _frame_collection=None)
    monkeypatch.delitem(sys.modules, "saywhere.integrations.fiftyone", raising=False)
    describer = importlib.import_module("saywhere.integrations.fiftyone").Describer(model, top=5)
    asked: list[int] = []
    whole = describer.predict_all
    monkeypatch.setattr(describer, "predict_all", lambda images: asked.append(len(images)) or whole(images))

    class Sample(fo.Sample):
        def _save(self, deferred: bool = False) -> Any:
            return [], []

    samples = [Sample(str(Path(skimage.data_dir) / name)) for name in ("astronaut.png", "chelsea.png")]

    class Collection(collections.SampleCollection):
        media_type, _is_generated, _dataset = "image", False, dataset

        def __init__(self) -> None:
            pass

        def __iter__(self) -> Any:
            return iter(samples)

        def __len__(self) -> int:
            return len(samples)

        def select_fields(self, *_: Any, **__: Any) -> Any:
            return self

        iter_samples = __iter__

    apply = importlib.import_module("fiftyone.core.models").apply_model
    for options in ({}, {"batch_size": 2}, {"confidence_thresh": 0.6}):
        apply(Collection(), describer, "regions", skip_failures=False, progress=False, **options)
        for sample in samples:
            found = model.describe(sample.filepath).at_least()[:5]
            found = found[found.scores >= options.get("confidence_thresh", 0)]
            assert [one.phrase for one in sample.regions.detections] == list(found.captions or ()) and len(found)
            assert [one.confidence for one in sample.regions.detections] == pytest.approx(found.scores)
    assert asked == [1, 1, 2, 1, 1]


def test_without_fiftyone_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fiftyone", None)
    monkeypatch.delitem(sys.modules, "saywhere.integrations.fiftyone", raising=False)
    refuses("pip install fiftyone", importlib.import_module, "saywhere.integrations.fiftyone")
