"""The trunk of networks that do not learn to propose regions: that of a trained DenseCap."""

from __future__ import annotations

from saywhere.networks import checkpoint
from saywhere.networks.aligner.network import Aligner
from saywhere.networks.captioner.network import Captioner


def take_localizer(network: Aligner | Captioner, pretrained: bool) -> None:
    """Give a network the trunk's weights of the DenseCap that its option ``localizer`` names.

    A DenseCap has no head, the last layer before the classifier: its published weights are loaded if ``pretrained``.

    Raises:
        UserError: there is no such model, it has no dense captioner, its trunk does not fit, or there are no published
            weights.
    """
    config, trunk = network.config, network.trunk
    trunk.take_from(checkpoint.load_network(config.localizer, "densecap").trunk)
    if pretrained and trunk.head is not None:
        trunk.head.load_published(config.trunk.backbone)
