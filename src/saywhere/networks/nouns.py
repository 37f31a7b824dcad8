"""The region classifier: ImageNet's on the trunk's last layer, and one trained on boxes of everyday kinds."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from saywhere.configs.nouns import NounsConfig
from saywhere.configs.parts import LAST_CHANNELS, places
from saywhere.networks.vision.region_features import ImageMaps, feature_size
from saywhere.networks.vision.trunk import Trunk
from saywhere.text import RESERVED, Vocabulary

IMAGENET = 1000
"""Number of classes of the published classifier."""
BESIDE = 2
"""Extra classes besides the kinds: another ImageNet class, and nothing with a name here."""


class Nouns(nn.Module):
    """Classify regions by the averages of a trunk's maps over them.

    Args:
        trunk: must have its last layer before the classifier.

    Attributes:
        imagenet: from the averages of the last layer to the 1,000 classes.
        kinds: from all features to the kinds and the extra classes.

    Raises:
        UserError: the trunk has no such layer.
    """

    def __init__(self, config: NounsConfig, vocabulary: Vocabulary, trunk: Trunk):
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        trunk.require_parts(False, True)
        self.trunk = trunk
        self.imagenet = nn.Linear(LAST_CHANNELS, IMAGENET)
        self.kinds = nn.Linear(
            feature_size(trunk, config.levels, config.layout), len(vocabulary) - len(RESERVED) + BESIDE
        )

    def forward(
        self, images: Sequence[ImageMaps], boxes: Sequence[Tensor], embeddings: Sequence[Tensor] | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """Return the logits ``(N, 1000)`` of ImageNet's classes and ``(N, G + 2)`` of kinds, for each image's boxes.

        Arguments are those of :meth:`saywhere.engines.engine.Nouns.classify`.
        """
        given = embeddings or [rows.new_zeros(len(rows), 0) for rows in boxes]
        found: list[tuple[Tensor, Tensor]] = []
        for each in zip(images, boxes, given, strict=True):
            features = self.features(*each)
            last = places(self.config.layout, features.shape[1])["head"]
            found.append((self.imagenet(features[:, last]), self.kinds(features)))
        return found

    def features(self, image: ImageMaps, boxes: Tensor, embeddings: Tensor) -> Tensor:
        """Return the classifier's input ``(N, D)`` for an image's boxes."""
        return image.class_features(boxes, self.config, embeddings)
