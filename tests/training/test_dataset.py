from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from photographs import quarters
from refusals import refuses

from saywhere.data import Sample
from saywhere.data.sample import evenly
from saywhere.images import Preprocess
from saywhere.text import Vocabulary
from saywhere.training.dataset import ImageDataset, epoch_batches, mirror_phrase
from saywhere.training.densecap import DenseCapSystem, PhraseTargets, usable
from saywhere.training.run import build_vocabulary

SYSTEM = DenseCapSystem()
PREPROCESS = Preprocess(64, 16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def make_sample(folder: Path, name: str = "a.png", phrases: tuple[tuple[str, ...], ...] | None = None) -> Sample:
    quarters(128, 64).save(folder / name)
    phrases = phrases or (("left dog", "hound"), ("sky",))
    boxes = np.array([[10.0, 20, 50, 60], [100, 0, 128, 64]])[: len(phrases)]
    return Sample(folder / name, 128, 64, boxes, phrases)


def words(samples: list[Sample]) -> Vocabulary:
    return build_vocabulary(SYSTEM, samples, 1)


def test_left_and_right_change_places_in_whole_words_only() -> None:
    assert mirror_phrase("the Left hand of the rightmost man") == "the right hand of the leftmost man"
    assert mirror_phrase("a bright light leftover") == "a bright light leftover"


def test_boxes_pixels_and_words_follow_the_flip_together(tmp_path: Path) -> None:
    sample = make_sample(tmp_path, phrases=(("left dog",), ("sky",)))
    vocabulary = Vocabulary.build(["left right dog sky"])
    data = ImageDataset([sample], PhraseTargets(vocabulary), PREPROCESS, seed=0, flip=True)
    seen: Counter[str] = Counter()
    for epoch in range(30):
        item = data[epoch, 0]
        phrases = [vocabulary.decode(row) for row in item.target.token_ids.tolist()]
        red_is_left = bool(item.inputs[0][0, 2, 2] > item.inputs[0][1, 2, 2])
        assert (item.target.width, item.target.height) == (64, 32)
        if red_is_left:
            assert phrases == ["left dog", "sky"]
            torch.testing.assert_close(item.target.boxes, torch.tensor([[5.0, 10, 25, 30], [50, 0, 64, 32]]))
        else:
            assert phrases == ["right dog", "sky"]
            torch.testing.assert_close(item.target.boxes, torch.tensor([[39.0, 10, 59, 30], [0, 0, 14, 32]]))
        seen[phrases[0]] += 1
    assert 8 <= seen["left dog"] <= 22


def test_choices_depend_on_seed_epoch_and_number_alone(tmp_path: Path) -> None:
    samples = [make_sample(tmp_path, f"{i}.png") for i in range(6)]
    vocabulary = words(samples)

    def picks(seed: int, epoch: int, **options: bool) -> list[list[list[int]]]:
        data = ImageDataset(samples, PhraseTargets(vocabulary), PREPROCESS, seed, flip=True, **options)
        return [data[epoch, i].target.token_ids.tolist() for i in (3, 0, 5, 1, 2, 4)]

    assert picks(1, 2) == picks(1, 2)
    assert len({str(picks(seed, epoch)) for seed in (1, 2) for epoch in range(3)}) == 6
    assert picks(1, 0, fixed=True) == picks(1, 7, fixed=True)


def test_every_reference_is_picked(tmp_path: Path) -> None:
    sample = make_sample(tmp_path)
    data = ImageDataset([sample], PhraseTargets(words([sample])), PREPROCESS, seed=0, fixed=False)
    picked = {words([sample]).decode(data[epoch, 0].target.token_ids[0].tolist()) for epoch in range(12)}
    assert picked == {"left dog", "hound"}


def test_wordless_phrases_boxes_and_images_are_left_out(tmp_path: Path) -> None:
    worded = make_sample(tmp_path, "a.png", (("?!", "dog"), ("...",)))
    wordless = make_sample(tmp_path, "b.png", (("-",),))
    kept = usable([worded, wordless])
    assert [s.phrases for s in kept] == [(("dog",),)]
    assert kept[0].boxes.tolist() == [[10, 20, 50, 60]]


def test_phrases_that_the_model_can_never_produce_are_left_out(tmp_path: Path) -> None:
    sample = make_sample(tmp_path, "a.png", (("a dog on the left", "a dog!"), ("the blue, blue sky",)))
    assert [s.phrases for s in usable([sample], longest=4)] == [(("a dog!",), ("the blue, blue sky",))]
    assert [s.phrases for s in usable([sample], longest=3)] == [(("a dog!",),)]
    assert usable([sample], longest=1) == []


def test_a_limit_takes_images_at_even_distances(tmp_path: Path) -> None:
    samples = [make_sample(tmp_path, f"{i}.png") for i in range(6)]
    assert [s.image.stem for s in evenly(samples, 3)] == ["0", "2", "4"]
    assert evenly(samples, None) == samples
    assert evenly(samples, 9) == samples


def test_rare_words_are_unknown_and_no_word_at_all_is_an_error(tmp_path: Path) -> None:
    samples = [make_sample(tmp_path, "a.png"), make_sample(tmp_path, "b.png", (("sky",),))]
    assert build_vocabulary(SYSTEM, samples, 2).counts == {"sky": 2}
    refuses("min_count", build_vocabulary, SYSTEM, samples, 3)


def test_a_damaged_image_gives_way_to_the_next_and_is_named(tmp_path: Path) -> None:
    samples = [make_sample(tmp_path, f"{i}.png") for i in range(3)]
    samples[1].image.write_bytes(b"no image")
    data = ImageDataset(samples, PhraseTargets(words(samples)), PREPROCESS, seed=0)
    batch = data.__getitems__([(0, 0), (0, 1)])
    (reason,) = batch.skipped
    assert "1.png" in reason
    assert [image.stem for image in batch.images] == ["0", "2"]
    assert batch.pixels is not None
    assert [tuple(p.shape) for p in batch.pixels] == [(3, 32, 64)] * 2


class Stored:
    def read(self, index: int, flipped: bool) -> tuple[torch.Tensor, ...]:
        return (torch.full((2, 3, 4), index + 10.0 * flipped, dtype=torch.float16),)


def test_features_serve_the_frozen_epochs_and_pixels_the_later_ones(tmp_path: Path) -> None:
    sample = make_sample(tmp_path)
    data = ImageDataset([sample], PhraseTargets(words([sample])), PREPROCESS, 0, Stored(), cached_epochs=2)
    early, late = data.__getitems__([(1, 0)]), data.__getitems__([(2, 0)])
    assert early.pixels is None
    assert early.features is not None
    assert late.features is None
    assert late.pixels is not None
    moved = early.to(torch.device("cpu"))
    assert moved.features[0][0].dtype == torch.float32


def test_an_epoch_has_every_image_once_in_an_order_of_its_own() -> None:
    first = epoch_batches(10, 4, seed=1, epoch=0)
    assert [len(batch) for batch in first] == [4, 4, 2]
    assert sorted(chain(*first)) == [(0, i) for i in range(10)]
    assert epoch_batches(10, 4, seed=1, epoch=0) == first != epoch_batches(10, 4, seed=2, epoch=0)
    second = epoch_batches(10, 4, seed=1, epoch=1)
    assert sorted(chain(*second)) == [(1, i) for i in range(10)]
    assert [i for _, i in chain(*second)] != [i for _, i in chain(*first)]
    assert epoch_batches(3, 2, seed=1, epoch=1, shuffle=False) == [[(1, 0), (1, 1)], [(1, 2)]]
