"""Train the network that predicts colour words from pixels, ``src/saywhere/models/colours.npz``.

    python benchmarks/colour_table.py --data DATA

DATA has ``flickr8k`` and ``everyday``. It is trained on boxes of training images whose phrases name a
colour, and on slightly shifted copies. The tenth of these images that calibration holds out measures its accuracy.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from saywhere import data
from saywhere.boxes import scale
from saywhere.data.sample import is_held_out
from saywhere.images import Preprocess, open_image
from saywhere.models import phrases
from saywhere.models.encoding import STEP
from saywhere.models.nouns import COLOUR_NAMES, colour_of, noun_of
from saywhere.models.phrases import COLOUR_TABLE
from saywhere.text import tokenize
from saywhere.training.progress import track

SETS = (("flickr8k", "flickr8k"), ("everyday", "jsonl"))
PIXELS = Preprocess(416, 32, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
TYPICAL, HIDDEN, VECTOR, LEAST, MOVED, MOVES = 32, 64, 16, 8, 0.1, 2
EPOCHS, BATCH, RATE, DECAY, UNNAMED = 10, 256, 4e-3, (0.02, 0.1), 0.1
DROPPED, HIDDEN_DROPPED = 0.3, 0.4


class Boxes:
    """Boxes with a colour: sampled pixels of them and their image, nouns, colours, and whether they are held out."""

    def __init__(self, folder: Path) -> None:
        random = np.random.default_rng(0)
        self.samples: list[tuple[np.ndarray, np.ndarray]] = []
        self.nouns, self.names, self.rows, self.held_out = list[str](), list[int](), list[int](), list[bool]()
        samples = [one for name, kind in SETS for one in data.read(folder / name, kind, split="train")]
        with track("boxes with colours", len(samples)) as progress:
            for one in samples:
                progress.advance(1)
                texts = [[tokenize(phrase) for phrase in own] for own in one.phrases]
                said = [[(w, at) for w in words for at in range(len(w)) if colour_of(w, at)] for words in texts]
                if not any(said):
                    continue
                image = open_image(one.image, PIXELS.long_side)
                size = PIXELS.size(image.width, image.height)
                resized = image.pixels.resize(size, Image.Resampling.BILINEAR, reducing_gap=3.0)
                pixels = np.ascontiguousarray(np.asarray(resized)[::STEP, ::STEP])
                height, width, _ = pixels.shape
                held_out = is_held_out(Path(one.image))
                for box, places in zip(scale(one.boxes, width / one.width, height / one.height), said, strict=True):
                    if not places:
                        continue
                    for move in range(1 if held_out else 1 + MOVES):
                        sides = np.tile(box[2:] - box[:2], 2)
                        moved = box + (move > 0) * random.uniform(-MOVED, MOVED, 4) * sides
                        self.samples.append((pixels, moved))
                        for words, place in places:
                            self.nouns.append(noun_of(words, place))
                            self.names.append(COLOUR_NAMES.index(str(colour_of(words, place))))
                            self.rows.append(len(self.samples) - 1)
                            self.held_out.append(held_out)


def typical_colours(boxes: Boxes) -> np.ndarray:
    """Return the k-means centres ``(K, 3)`` of pixels."""
    random = np.random.default_rng(0)
    some = random.choice(len(boxes.samples), min(len(boxes.samples), 4000), replace=False)
    pixels = np.concatenate(
        [
            phrases.to_lab(phrases.sample(boxes.samples[row][0], boxes.samples[row][1][None], 3)).reshape(-1, 3)
            for row in some
        ]
    )
    means = pixels[random.choice(len(pixels), TYPICAL, replace=False)]
    for _ in range(25):
        nearest = np.square(pixels[:, None] - means).sum(axis=2).argmin(axis=1)
        means = np.stack(
            [pixels[nearest == k].mean(axis=0) if (nearest == k).any() else means[k] for k in range(TYPICAL)]
        )
    return means


class Network(nn.Module):
    """As :class:`saywhere.models.phrases.ColourNames`."""

    def __init__(self, inputs: int, nouns: int) -> None:
        super().__init__()
        self.vectors, self.biases = nn.Embedding(nouns, VECTOR), nn.Embedding(nouns, len(COLOUR_NAMES))
        nn.init.zeros_(self.biases.weight)
        self.hidden, self.out = nn.Linear(inputs + VECTOR, HIDDEN), nn.Linear(HIDDEN, len(COLOUR_NAMES))
        self.dropout, self.hidden_dropout = nn.Dropout(DROPPED), nn.Dropout(HIDDEN_DROPPED)

    def forward(self, features: torch.Tensor, nouns: torch.Tensor) -> torch.Tensor:
        """Return the logits ``(N, 15)`` of features ``(N, F)`` and the numbers of nouns ``(N,)``."""
        hidden = self.hidden(torch.cat([self.dropout(features), self.vectors(nouns)], dim=1)).relu()
        return self.out(self.hidden_dropout(hidden)) + self.biases(nouns)


def main() -> None:
    """Train, print the accuracy of the likeliest colour, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=COLOUR_TABLE)
    options = parser.parse_args()
    torch.manual_seed(0)
    boxes = Boxes(options.data)
    typical = typical_colours(boxes).astype(np.float16).astype(np.float32)
    seen = torch.from_numpy(
        np.concatenate([phrases.features(one, box[None], typical) for one, box in boxes.samples])
    ).float()
    rows, names = torch.tensor(boxes.rows), torch.tensor(boxes.names)
    held_out = torch.tensor(boxes.held_out)
    counts = Counter(noun for noun, held in zip(boxes.nouns, boxes.held_out, strict=True) if noun and not held)
    nouns = ["", *sorted(noun for noun, count in counts.items() if count >= LEAST * (1 + MOVES))]
    numbers = {noun: number for number, noun in enumerate(nouns)}
    noun = torch.tensor([numbers.get(one, 0) for one in boxes.nouns])
    network = Network(seen.shape[1], len(nouns))
    biases = list(network.biases.parameters())
    others = [value for name, value in network.named_parameters() if not name.startswith("biases")]
    groups = [{"params": others, "weight_decay": DECAY[0]}, {"params": biases, "weight_decay": DECAY[1]}]
    teaching = torch.nonzero(~held_out)[:, 0]
    optimizer = torch.optim.AdamW(groups, RATE)
    steps = EPOCHS * -(-len(teaching) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps + 1)
    with track("colours", steps) as progress:
        for _ in range(EPOCHS):
            for batch in teaching[torch.randperm(len(teaching))].split(BATCH):
                unnamed = torch.rand(len(batch)) < UNNAMED  # teaches what is said of a noun that is not in the table
                logits = network(seen[rows[batch]], noun[batch].masked_fill(unnamed, 0))
                loss = nn.functional.cross_entropy(logits, names[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                progress.advance(1)
    network.eval()
    with torch.no_grad():
        right = (network(seen[rows[held_out]], noun[held_out]).argmax(dim=1) == names[held_out]).float().mean()
    print(f"{len(teaching):,} colours of boxes; of {int(held_out.sum()):,} others {float(right):.3f} are the likeliest")
    arrays = {"typical": typical, "vectors": network.vectors.weight, "biases": network.biases.weight}
    arrays |= {"hidden": network.hidden.weight.T, "hidden_bias": network.hidden.bias}
    arrays |= {"out": network.out.weight.T, "out_bias": network.out.bias}
    stored = {name: np.asarray(torch.as_tensor(values).detach(), np.float16) for name, values in arrays.items()}
    np.savez_compressed(options.out, nouns=np.array(nouns), **stored)


if __name__ == "__main__":
    main()
