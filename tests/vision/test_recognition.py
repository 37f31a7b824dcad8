from __future__ import annotations

import torch

from saywhere.vision.recognition import Recognition


def test_the_context_of_each_picture_is_added_to_the_codes_of_its_regions_only() -> None:
    torch.manual_seed(0)
    recognition = Recognition(2, 3, code_size=4, dropout=0.0, context=True).double().eval()
    features, wholes = torch.randn(5, 2, 3, 3).double(), torch.randn(3, 2, 3, 3).double()
    without = recognition(features)
    untrained = recognition(features, wholes, [2, 0, 3])
    torch.testing.assert_close(untrained.codes, without.codes, atol=0, rtol=0)
    assert recognition.context is not None
    with torch.no_grad():
        recognition.context.weight.normal_()
        recognition.context.bias.normal_()
    knowing = recognition(features, wholes, [2, 0, 3])
    added = recognition.layers(wholes) @ recognition.context.weight.T + recognition.context.bias
    torch.testing.assert_close(knowing.codes - without.codes, added[[0, 0, 2, 2, 2]])
    torch.testing.assert_close(knowing.logits, without.logits)
    torch.testing.assert_close(knowing.offsets, without.offsets)
