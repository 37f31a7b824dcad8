"""Learning: eight images in the layout of Flickr8k and Flickr30k Entities, until every phrase comes out exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from tiny_densecap import tiny_config

from saywhere import boxes as geometry
from saywhere.data import read
from saywhere.engines.torch import TorchEngine
from saywhere.images import open_image
from saywhere.models.model import Model
from saywhere.networks.densecap.loss import DenseCapCriterion
from saywhere.networks.densecap.network import DenseCap, Target
from saywhere.text import Vocabulary, pad

COLOURS = {"red": "A red block", "blue": "the blue one", "lime": "something green", "white": "two white sheets"}
PLACES = [(6, 6, 42, 58), (52, 8, 94, 48)]
BOX = "<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox>"


def write_flickr(root: Path) -> None:
    """Eight images of two coloured blocks each."""
    for folder in ("Images", "Entities/Annotations", "Entities/Sentences"):
        (root / folder).mkdir(parents=True)
    names, tokens = [], []
    pairs = [(a, b) for a in COLOURS for b in COLOURS if a != b][:8]
    for i, pair in enumerate(pairs):
        image, objects, marked = Image.new("RGB", (96, 64), "black"), "", []
        for k, (colour, place) in enumerate(zip(pair, PLACES, strict=True)):
            ImageDraw.Draw(image).rectangle((place[0], place[1], place[2] - 1, place[3] - 1), fill=colour)
            box = BOX.format(place[0] + 1, place[1] + 1, place[2], place[3])
            objects += f"<object><name>{k}</name>{box}</object>"
            marked.append(f"[/EN#{k}/other {COLOURS[colour]}]")
        image.save(root / "Images" / f"{i}_x.png.jpg", format="PNG")
        size = "<size><width>96</width><height>64</height><depth>3</depth></size>"
        (root / f"Entities/Annotations/{i}.xml").write_text(f"<annotation>{size}{objects}</annotation>")
        (root / f"Entities/Sentences/{i}.txt").write_text(" and ".join(marked) + " .\n")
        names.append(f"{i}_x.png.jpg")
        tokens.append(f"{i}_x.png.jpg#0\t{' and '.join(COLOURS[c] for c in pair)} .")
    (root / "Flickr8k.token.txt").write_text("\n".join(tokens) + "\n")
    (root / "Flickr_8k.trainImages.txt").write_text("\n".join(names) + "\n")


def test_eight_images_are_learnt_until_their_phrases_come_out_exactly(tmp_path):
    write_flickr(tmp_path)
    samples = read(tmp_path, "flickr8k", "train")
    assert len(samples) == 8
    vocabulary = Vocabulary.build(p for s in samples for references in s.phrases for p in references)
    torch.manual_seed(0)
    parts = {"trunk": {"backbone": "efficientnet_lite0"}, "proposals": {"pyramid_channels": 32}}
    config = tiny_config(embed_dim=64, hidden_size=48, batch=32, positive_share=0.75, caption_weight=1.0, **parts)
    model = DenseCap(config, vocabulary).train()
    with torch.no_grad():
        pixels = [torch.from_numpy(model.preprocess(open_image(s.image))) for s in samples]
        features = model.trunk.backbone(pixels)
    targets = [
        Target(96, 64, torch.as_tensor(s.boxes), torch.from_numpy(pad([vocabulary.encode(p[0]) for p in s.phrases])))
        for s in samples
    ]
    criterion, generator = DenseCapCriterion(config), torch.Generator().manual_seed(0)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, 2e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, 160)
    for _ in range(160):
        loss = torch.stack(list(criterion(model(features, targets, generator)).values())).sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 5.0)
        optimizer.step()
        schedule.step()
    trained = Model(TorchEngine({"densecap": model}))
    for sample in samples:
        truth = [references[0].lower() for references in sample.phrases]
        assert list(trained.describe(sample.image, sample.boxes).captions or ()) == truth
        found = trained.describe(sample.image, top=2)
        overlap = geometry.iou(found.boxes, np.asarray(sample.boxes))
        which = overlap.argmax(axis=1)
        assert sorted(which.tolist()) == [0, 1] and (overlap.max(axis=1) > 0.7).all()
        assert list(found.captions or ()) == [truth[i] for i in which.tolist()]
