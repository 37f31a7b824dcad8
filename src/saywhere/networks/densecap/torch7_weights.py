"""Where each weight of a DenseCap lies in the checkpoints of the published program, and in which layout.

Places are written as in Lua from the model's ``nets`` on, ``conv_net1.modules[1].weight``, and count from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

CONVOLUTIONS = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)
"""Of ``vgg16_caffe``; those after the second pooling are the program's second network."""
FIRST_NETWORK = 10

RPN = "localization_layer.nets.rpn"
DECODER = "language_model"

MODULES = {
    **{
        f"trunk.backbone.body.{i}": f"conv_net1.modules[{i + 1}]"
        if i < FIRST_NETWORK
        else f"conv_net2.modules[{i + 1 - FIRST_NETWORK}]"
        for i in CONVOLUTIONS
    },
    "trunk.localization.head.conv": f"{RPN}.modules[1]",
    "trunk.localization.head.offset": f"{RPN}.modules[3].modules[1].modules[1]",
    "trunk.localization.head.score": f"{RPN}.modules[3].modules[2].modules[1]",
    "region_head.layers.1": "recog_base.modules[2]",
    "region_head.layers.4": "recog_base.modules[5]",
    "region_head.score": "objectness_branch",
    "region_head.offset": "box_reg_branch",
    "decoder.model.encode": f"{DECODER}.image_encoder.modules[1]",
    "decoder.model.output": f"{DECODER}.rnn.modules[3]",
}
"""Our modules that have a weight and a bias of the same layout, and theirs."""
WORDS = ("decoder.model.words.weight", f"{DECODER}.lookup_table.weight")
LSTM = ("decoder.model.lstm", f"{DECODER}.rnn.modules[1]")


def from_torch7(read: Callable[[str], Tensor]) -> dict[str, Tensor]:
    """Return our weights by name; ``read`` gives the program's tensor at a place."""
    ours: dict[str, Tensor] = {}
    for name, place in MODULES.items():
        ours[f"{name}.weight"], ours[f"{name}.bias"] = read(f"{place}.weight"), read(f"{place}.bias")
    ours[WORDS[0]] = read(WORDS[1])
    name, place = LSTM
    weight, bias = swap_gates(read(f"{place}.weight").T), swap_gates(read(f"{place}.bias"))
    hidden = len(bias) // 4
    inputs = weight.shape[1] - hidden
    ours[f"{name}.weight_ih_l0"], ours[f"{name}.weight_hh_l0"] = weight[:, :inputs], weight[:, inputs:]
    ours[f"{name}.bias_ih_l0"], ours[f"{name}.bias_hh_l0"] = bias, torch.zeros_like(bias)
    return ours


def to_torch7(ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the program's tensors by place: of weights by our names, or of their gradients."""
    theirs: dict[str, Tensor] = {}
    for name, place in MODULES.items():
        theirs[f"{place}.weight"], theirs[f"{place}.bias"] = ours[f"{name}.weight"], ours[f"{name}.bias"]
    theirs[WORDS[1]] = ours[WORDS[0]]
    name, place = LSTM
    both = torch.cat((ours[f"{name}.weight_ih_l0"], ours[f"{name}.weight_hh_l0"]), dim=1)
    theirs[f"{place}.weight"] = swap_gates(both).T
    theirs[f"{place}.bias"] = swap_gates(ours[f"{name}.bias_ih_l0"])
    return theirs


def swap_gates(values: Tensor) -> Tensor:
    """Return blocks i, f, o, g (theirs) along the first dimension as i, f, g, o (torch's), and back."""
    i, f, a, b = values.chunk(4)
    return torch.cat((i, f, b, a))


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return the gradients of all parameters by name, 0 where there is none, for :func:`to_torch7`."""
    named = model.named_parameters()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in named}
