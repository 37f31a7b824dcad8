"""Tiny models of transformers with random weights, written as their authors write theirs; nothing is fetched."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from made_once import made_once

from saywhere.loading import load

transformers: Any = pytest.importorskip("transformers", reason="needs the extra transformers")

transformers.utils.logging.disable_progress_bar()
SIDE = 64
"""Pixels of a side of what the networks see."""
WORDS = ["a", "cat", "dog", "the", "sky", "of", "image", "an", "red", "describe", "this", "in", "detail", "it", "is"]


def byte_words() -> dict[str, int]:
    """The words of a tokenizer that reads bytes, as GPT-2 writes them: control characters and spaces are moved up."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    letters = [chr(byte) for byte in shown] + [chr(256 + i) for i in range(len(hidden))]
    return {word: i for i, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", *letters])}


def shaken(network: Any, scale: float = 1) -> Any:
    """The network with weights large enough for images and words to matter, but not for the rounding of numbers."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in sorted(network.named_parameters()):
            if weight.dim() > 1:
                weight.copy_(torch.randn(weight.shape, generator=generator) * scale * (0.6 if "embed" in name else 0.3))
    return network.eval()


class Florence2Size(NamedTuple):
    """The size of a Florence-2.

    Attributes:
        side: pixels of a side of what it sees.
        width: of tokens, in the last stage and behind it.
        heads: of each layer.
        layers: of the encoder of text, and of the decoder.
        depths, dims, groups: of the stages of the vision tower.
        window: of its attention.
        words: entries of the vocabulary; as many as the tokenizer has if None.
    """

    side: int
    width: int
    heads: int
    layers: int
    depths: tuple[int, ...]
    dims: tuple[int, ...]
    groups: tuple[int, ...]
    window: int
    words: int | None = None


TINY = Florence2Size(SIDE, 16, 2, 1, (1, 1, 1, 1), (8, 8, 8, 8), (1, 1, 1, 1), 2)


def write_florence2(folder: Path, size: Florence2Size = TINY, scale: float = 1) -> Path:
    tokenizer = transformers.BartTokenizer(
        vocab=byte_words(), merges=[], extra_special_tokens={"image_token": "<image>"}
    )
    tokenizer.add_tokens([f"<loc_{number}>" for number in range(1000)])
    square = {"height": size.side, "width": size.side}
    pixels = transformers.CLIPImageProcessor(
        size=square, do_center_crop=False, image_seq_length=(size.side // 32) ** 2 + 1
    )
    rules = {kind: {} for kind in ("pure_text", "description_with_bboxes", "phrase_grounding")}
    processor = transformers.Florence2Processor(pixels, tokenizer, post_processor_config=rules)
    both = ("encoder", "decoder")
    text = {"model_type": "bart", "vocab_size": size.words or len(tokenizer), "d_model": size.width}
    text |= {
        f"{side}_{name}": n for side in both for name, n in (("layers", size.layers), ("attention_heads", size.heads))
    }
    text |= {f"{side}_ffn_dim": 4 * size.width if size.words else 16 for side in both}
    text["max_position_embeddings"] = 1024 if size.words else 512
    vision = {
        "depths": size.depths, "embed_dim": size.dims, "num_heads": size.groups, "num_groups": size.groups,
        "window_size": size.window, "projection_dim": size.width, "drop_path_rate": 0.0,
    }  # fmt: skip
    config = transformers.Florence2Config(
        text_config=text, vision_config=vision, image_token_id=tokenizer.image_token_id
    )
    torch.manual_seed(0)
    return save(folder, processor, transformers.Florence2ForConditionalGeneration(config), scale)


def word_pieces() -> dict[str, int]:
    return {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "?", *WORDS])}


def write_grounding_dino(folder: Path) -> Path:
    tokenizer = transformers.BertTokenizer(vocab=word_pieces(), do_lower_case=True)
    pixels = transformers.GroundingDinoImageProcessor(size={"shortest_edge": 2 * SIDE, "longest_edge": 4 * SIDE})
    backbone = {
        "model_type": "swin", "image_size": SIDE, "embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 1, 1],
        "window_size": 2, "out_indices": [2, 3, 4],
    }  # fmt: skip
    text = {
        "model_type": "bert", "vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 64,
    }  # fmt: skip
    config = transformers.GroundingDinoConfig(
        backbone_config=backbone, text_config=text, d_model=32, encoder_layers=1, decoder_layers=2, num_queries=20,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_text_len=24,
        disable_custom_kernels=True,
    )  # fmt: skip
    torch.manual_seed(0)
    network = transformers.GroundingDinoForObjectDetection(config)
    return save(folder, transformers.GroundingDinoProcessor(pixels, tokenizer), network, 0.4)


def write_owlv2(folder: Path) -> Path:
    letters = list(byte_words())[4:]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    tokenizer = transformers.CLIPTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[])
    pixels = transformers.Owlv2ImageProcessor(size={"height": SIDE, "width": SIDE})
    layer = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**layer, "vocab_size": len(tokenizer), "max_position_embeddings": 16}
    text |= {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    vision = {**layer, "image_size": SIDE, "patch_size": 16}
    config = transformers.Owlv2Config(text_config=text, vision_config=vision, projection_dim=16)
    torch.manual_seed(0)
    return save(folder, transformers.Owlv2Processor(pixels, tokenizer), transformers.Owlv2ForObjectDetection(config))


def save(folder: Path, processor: Any, network: Any, scale: float = 1) -> Path:
    shaken(network, scale).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


WRITERS: dict[str, Callable[[Path], Path]] = {
    "florence2": write_florence2,
    "grounding-dino": write_grounding_dino,
    "owlv2": write_owlv2,
}
"""By the type of model."""


def tiny_folder(kind: str) -> Path:
    """The folder of a tiny model."""
    return made_once(f"adapted-{kind}", lambda root: WRITERS[kind](root / kind)) / kind


@functools.cache
def tiny_adapted(kind: str) -> Any:
    """The tiny model as saywhere loads it, once."""
    return load(tiny_folder(kind), "cpu")
