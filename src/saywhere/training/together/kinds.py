"""What kinds of things regions show, as a task for the end of the backbone, which is to forget no class of ImageNet."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere import boxes as geometry
from saywhere.configs.parts import PLACE
from saywhere.data.sample import Sample
from saywhere.models.class_evidence import ClassEvidence
from saywhere.models.nouns import noun_tree
from saywhere.networks.classes import RegionClassifier
from saywhere.networks.vision.image_maps import ImageMaps, Source
from saywhere.networks.vision.region_features import mean_features
from saywhere.training.classes import PublishedEvidence, allowed_groups, noun_of
from saywhere.training.together.backbone import BackboneEnd
from saywhere.training.together.tasks import View

DROPOUT = 0.2
SOFT = 2.0
"""Temperature of the probabilities that are compared with those of the published network."""
KEEP = 0.1
"""Weight of that comparison."""


class KindsTask:
    """Name true boxes by a linear layer on the maps, and keep what the published classifier says of them.

    The layer is thrown away: ``saywhere train-classes`` learns a better one when the backbone is done.

    Args:
        classifier: of the model; its kinds are named, its ImageNet layer is not changed.
        end: of the backbone, as it is before training: it is copied.
        samples: images with boxes and phrases.
    """

    name = "classes"

    def __init__(self, classifier: RegionClassifier, end: BackboneEnd, samples: Sequence[Sample]):
        tree = noun_tree()
        evidence = ClassEvidence(PublishedEvidence(classifier))
        self.samples = {sample.image: sample for sample in samples if len(sample.boxes)}
        self._imagenet = classifier.imagenet.requires_grad_(False)
        self._nouns = {path: [noun_of(tree, p) for p in sample.phrases] for path, sample in self.samples.items()}
        device = self._imagenet.weight.device
        self._allowed = torch.from_numpy(allowed_groups(tree, evidence.kinds, evidence.groups)).to(device)
        rows = np.array([row for nouns in self._nouns.values() for row in nouns])
        counts = np.bincount(rows + 1, minlength=len(self._allowed) + 1)
        weights = np.maximum(counts, 1) ** -0.5
        self._weights = torch.from_numpy((weights / weights[rows + 1].mean()).astype(np.float32)).to(device)
        assert end.trunk.head is not None
        self._stages = copy.deepcopy(end.stages).requires_grad_(False)
        self._head = copy.deepcopy(end.trunk.head).requires_grad_(False)
        size = end.trunk.backbone.channels[-2] + 2 * self._imagenet.in_features
        self.layer = nn.Linear(size, self._allowed.shape[1], device=device)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def parameters(self) -> list[nn.Parameter]:
        """See :class:`saywhere.training.together.tasks.Task`."""
        return list(self.layer.parameters())

    def losses(
        self,
        images: Sequence[ImageMaps],
        views: Sequence[View],
        random: np.random.Generator,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """See :class:`saywhere.training.together.tasks.Task`."""
        features, last, published = [], [], []
        for image, view in zip(images, views, strict=True):
            boxes = self._boxes(view)
            head = _means(image, boxes, (image.head, image.trunk.backbone.strides[-1]))
            level = (image.maps[-2], image.trunk.backbone.strides[-2])
            features.append(torch.cat((_means(image, boxes, level), head, head[:1].expand(len(boxes), -1)), dim=1)[1:])
            last.append(head)
            published.append(_means(image, boxes, (self._published(image), level[1] * 2)))
        rows = torch.tensor([row for view in views for row in self._nouns[view.image]], device=self._weights.device)
        logits = self.layer(functional.dropout(torch.cat(features), DROPOUT, self.layer.training))
        logs = logits.log_softmax(dim=1).masked_fill(~self._allowed[rows], -torch.inf).logsumexp(dim=1)
        now, before = (self._imagenet(torch.cat(means)) / SOFT for means in (last, published))
        kept = functional.kl_div(now.log_softmax(dim=1), before.softmax(dim=1), reduction="batchmean")
        return {"kinds": -(logs * self._weights[rows + 1]).mean(), "imagenet": KEEP * SOFT**2 * kept}

    def _boxes(self, view: View) -> Tensor:
        """The whole image and the true boxes, in pixels of the input."""
        sample, (width, height) = self.samples[view.image], view.size
        boxes = geometry.scale(sample.boxes, width / sample.width, height / sample.height)
        boxes = geometry.flip(boxes, width) if view.flipped else boxes
        whole = np.array([[0, 0, width, height]], np.float32)
        return torch.from_numpy(np.concatenate((whole, np.asarray(boxes, np.float32)))).to(self._weights.device)

    @torch.no_grad()
    def _published(self, image: ImageMaps) -> Tensor:
        """The map of the last layer as it was before training."""
        return self._head(self._stages(image.maps[-2][None])[0])


def _means(image: ImageMaps, boxes: Tensor, source: Source) -> Tensor:
    return mean_features([source], boxes, *image.size)[:, :-PLACE]
