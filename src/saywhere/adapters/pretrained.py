"""Third-party models by the classes of transformers, with torch."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from saywhere.adapters.adapter import Detected
from saywhere.adapters.sources import Adapted
from saywhere.errors import UserError
from saywhere.networks.checkpoint import find_device


class Pretrained:
    """A network of transformers and its processor; see :class:`saywhere.adapters.adapter.Runner`.

    Args:
        found: the model.
        kind: the family's class, which names the classes of transformers.
        device: torch device; None: the best available.
        threads: number of CPU threads; None: torch's default.
        precision: ``float32``.

    Raises:
        UserError: a file is missing or damaged, the weights do not fit the family's native class, or there is no such
            device or precision.
    """

    def __init__(self, found: Adapted, kind: Any, device: str | None, threads: int | None, precision: str) -> None:
        folder, name = found.folder, found.family.name
        if precision != "float32":
            raise UserError(f"{folder}: {name} computes in float32, not in {precision}; leave out the precision")
        if threads is not None:
            torch.set_num_threads(threads)
        self.device = find_device(device)
        self.processor, network = load_pretrained(folder, name, kind.processor_class, kind.network_class)
        self.network = network.to(self.device).eval()
        self.config, self.files = network.config.to_dict(), sorted(folder.glob("*.safetensors"))
        tokenizer = self.processor.tokenizer
        self.silent = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}

    def to(self, device: str) -> None:
        self.device = find_device(device)
        self.network.to(self.device)

    def token_ids(self, text: str) -> list[int]:
        return self.processor.tokenizer(text, add_special_tokens=False)["input_ids"]

    def tokens(self, token_ids: Sequence[int]) -> list[str]:
        return self.processor.tokenizer.convert_ids_to_tokens(token_ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.processor.tokenizer.decode(token_ids, skip_special_tokens=True)

    def prepare(self, images: Sequence[Image.Image], texts: Sequence[Any], **options: Any) -> Any:
        """Return the network's inputs for images and the text for each."""
        inputs = self.processor(images=list(images), text=list(texts), return_tensors="pt", **options)
        return inputs.to(self.device)

    @torch.inference_mode()
    def write(
        self, images: Sequence[Image.Image], prompts: Sequence[str], most_tokens: int, beam_size: int
    ) -> list[tuple[list[int], np.ndarray]]:
        inputs = self.prepare(images, prompts, padding=True)
        steps: list[Tensor] = []

        def record(_: Tensor, scores: Tensor) -> Tensor:
            steps.append(scores.float().log_softmax(dim=-1).amax(dim=-1))  # of the token that greedy decoding takes
            return scores

        sequences = self.network.generate(
            **inputs,
            max_new_tokens=most_tokens,
            num_beams=beam_size,
            do_sample=False,
            early_stopping=beam_size > 1,
            logits_processor=[record] if beam_size == 1 else [],
        )
        if beam_size > 1:
            return [(row, np.zeros(len(row), np.float32)) for row in sequences[:, 1:].tolist()]
        log_probs = torch.stack(steps, dim=1).cpu().numpy()
        return list(zip(sequences[:, -log_probs.shape[1] :].tolist(), log_probs, strict=True))

    @torch.inference_mode()
    def detect(self, images: Sequence[Image.Image], texts: Sequence[Any], length: int, **options: Any) -> Detected:
        inputs = self.prepare(images, texts, truncation=True, max_length=length, **options)
        out = self.network(**inputs)
        return Detected(out.logits.cpu().numpy(), out.pred_boxes.cpu().numpy(), inputs["input_ids"].cpu().numpy())


def load_pretrained(folder: Path, family: str, processor: str, network: str) -> tuple[Any, Any]:
    """Load a processor and a network of the named classes, only from files in the folder.

    Weights are read only from safetensors, and no code in the folder is run.

    Raises:
        UserError: a file is missing or damaged, or weights are missing.
        ImportError: transformers is not installed.
    """
    transformers: Any = importlib.import_module("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"{folder}: has no weights in safetensors, the only format that is read")
    local = {"local_files_only": True, "trust_remote_code": False}
    try:
        prepare = getattr(transformers, processor).from_pretrained(folder, **local)
        made, found = getattr(transformers, network).from_pretrained(
            folder, dtype="float32", use_safetensors=True, output_loading_info=True, **local
        )
    except Exception as error:  # damaged files can raise anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{folder}: cannot be read as a model of {family}: {reason}") from error
    if missing := sorted(found["missing_keys"]):
        raise UserError(
            f"{folder}: {len(missing)} weights are missing, such as {missing[0]}: these are not weights of the "
            f"transformers class {network}"
        )
    return prepare, made


RUNNER = Pretrained
