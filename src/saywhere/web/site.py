"""Write the page without a server: the page of ``saywhere serve``, the model, and its engine for the browser."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from saywhere import text
from saywhere.calibration import MATCH
from saywhere.engines.arrays.layers import Weights
from saywhere.engines.onnx import NEEDS_TORCH, OnnxEngine, refused_options
from saywhere.errors import UserError
from saywhere.files import write_atomically
from saywhere.models import caption_nouns, captioner, nouns
from saywhere.models.bundle import GRAPH, WEIGHTS, Bundle, GraphInfo
from saywhere.models.chunker import PLACES, Chunker
from saywhere.models.layout import JOINING
from saywhere.models.placing import STRIP_WEIGHT, STRIPS
from saywhere.text import RESERVED
from saywhere.web.runtime import NAME, VERSION, WebRuntime
from saywhere.web.weights import STEPS, Packed, compress, describe, half, pack, place_weights, rounded, single

INDEX, MANIFEST, BINARY = "index.html", "model/model.json.gz", "engine/ort.wasm.gz"
"""The page, the description of the model, and ONNX Runtime."""
EXTERNAL = "trunk.bin"
"""Name of the weights file in the graph."""
LATER = ("model/captioner", "model/chunker")
"""Files that are only fetched when a tab needs them."""
SMALL = 1 << 14
"""Maximum number of elements in a matrix that is not rounded, such as those for scores and offsets."""
FINE = ("nouns.kinds.weight", "densecap.ngrams.hidden.weight")
"""Large matrices whose inputs differ widely in magnitude."""
MOST_HYPOTHESES = 5
"""Maximum beam size: the page takes the most probable hypothesis, and more only help with reranking."""
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; base-uri 'none'; form-action 'none'"
)
"""Content security policy: the page loads only its own files."""
NOTICES = (
    (f"{NAME} {VERSION}: engine/ort.mjs and engine/ort.wasm.gz", "saywhere.web", "onnxruntime.LICENSE"),
    ("WordNet, of which model/nouns.tsv.gz is made", "saywhere.models", "nouns.LICENSE"),
)
"""Third-party content, with the package and file of its notice."""


def write_site(model: str | Path, folder: Path, runtime: Path | None = None) -> dict[str, int]:
    """Write the page for a model into a folder, each file atomically, the page itself last.

    Args:
        model: name or folder of a model with a graph and the part ``densecap``.
        folder: a new folder, or one with an earlier page.
        runtime: package of ``onnxruntime-web``; see :class:`saywhere.web.runtime.WebRuntime`.

    Returns:
        the size of each file in bytes, by its path in the folder.

    Raises:
        UserError: the model cannot run in a browser, the folder has other content, or there is no runtime.
    """
    bundle = Bundle.read(model)
    require_browser(bundle)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise UserError(f"{folder}: has other files than a page that saywhere export wrote: give another folder")
    ours = page_files() | runtime_files(WebRuntime.open(runtime))
    files = ours | model_files(bundle, len(ours[BINARY]))
    for name in sorted(files, key=lambda name: name == INDEX):
        write_atomically(folder / name, lambda stream, data=files[name]: stream.write(data))
    return {name: len(data) for name, data in files.items()}


def require_browser(bundle: Bundle) -> None:
    """Raise ``UserError`` if a model cannot run in a browser."""
    if "densecap" not in bundle.configs:
        raise UserError(f"{bundle.folder}: has no part densecap, which the page needs to find regions")
    if refused := refused_options(bundle.trunk, bundle.configs):
        raise UserError(f"{bundle.folder}: {refused[0]} {NEEDS_TORCH}")
    if bundle.trunk.tower:
        raise UserError(f"{bundle.folder}: a model with an image tower does not run in a browser: use saywhere serve")
    OnnxEngine(bundle)  # checks the graph and all shapes


def page_files() -> dict[str, bytes]:
    """Return the page's files, with the browser's engine in place of the server."""
    page = resources.files("saywhere.serve").joinpath("page")
    engine = resources.files("saywhere.web").joinpath("engine")
    files = {f"page/{file.name}": file.read_bytes() for file in page.iterdir()}
    files |= {f"engine/{file.name}": file.read_bytes() for file in engine.iterdir()}
    files["page/server.js"] = files.pop("engine/server.js")
    head = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n<title>'
    files[INDEX] = files.pop(f"page/{INDEX}").decode().replace("<title>", head, 1).encode()
    return files


def runtime_files(runtime: WebRuntime) -> dict[str, bytes]:
    """Return ONNX Runtime's files, and the notices for third-party content."""
    texts = [f"{what}\n\n{resources.files(place).joinpath(file).read_text('utf-8')}" for what, place, file in NOTICES]
    return {
        # without the reference to a source map, which is not included
        "engine/ort.mjs": runtime.script.rsplit(b"//# sourceMappingURL=", 1)[0],
        BINARY: compress(runtime.binary),
        "NOTICES.txt": "\n\n".join(texts).encode(),
    }


def model_files(bundle: Bundle, runtime_bytes: int = 0) -> dict[str, bytes]:
    """Return the files of the model parts that the browser runs; ``runtime_bytes`` adds to the download's size."""
    weights = Weights.open(bundle.folder / WEIGHTS)
    densecap = _densecap(weights, bundle.configs["densecap"].pool_size ** 2)
    parts = {"trunk": trunk_weights(bundle, weights.below("trunk")), "densecap": densecap}
    parts |= {part: _part(weights, part) for part in ("nouns", "captioner") if _runs(bundle, part)}
    table = Chunker.load().weights.astype(np.float16)
    parts["chunker"] = {"weights": half(table.reshape(1, -1))}
    files = {f"model/{part}.bin.gz": pack(arrays) for part, arrays in parts.items()}
    files["model/trunk.onnx.gz"] = compress(_graph(bundle, parts["trunk"]))
    files["model/nouns.tsv.gz"] = compress(nouns.TABLE.read_bytes())
    info = _facts(bundle, [part for part in ("densecap", "captioner") if part in parts])
    info["arrays"] = {part: describe(arrays) for part, arrays in parts.items()}
    first = [name for name in files if not name.startswith(LATER)]
    info["bytes"] = runtime_bytes + sum(len(files[name]) for name in first)
    files[MANIFEST] = compress(json.dumps(info, separators=(",", ":")).encode())
    return files


def _runs(bundle: Bundle, part: str) -> bool:
    """Return whether the browser runs a part; of captioners only those that attend to a grid."""
    config = bundle.configs.get(part)
    return config is not None and (part != "captioner" or (config.decoder, config.attend_to) == ("attention", "grid"))


def trunk_weights(bundle: Bundle, weights: Weights) -> dict[str, Packed]:
    """Return the trunk's weights by their names in the graph: half precision, with normalisation in the row factors."""
    arrays: dict[str, Packed] = {}
    for name, source in GraphInfo.read(bundle.folder).weights.items():
        layer = weights.below(source.layer)
        scale = shift = None
        if source.normalisation is not None:
            norm = weights.below(source.normalisation)
            scale = norm["weight"] / np.sqrt(norm["running_var"] + np.float32(source.eps))
            shift = norm["bias"] - norm["running_mean"] * scale
        stored = layer.stored(source.kind) if layer.has(source.kind) else np.zeros(0, np.float16)
        if source.kind == "weight" and stored.ndim > 1:
            arrays[name] = half(stored, scale)
        elif scale is not None and shift is not None:
            arrays[name] = single(stored.astype(np.float32) * scale + shift if len(stored) else shift)
        else:
            arrays[name] = single(stored)
    return arrays


def _graph(bundle: Bundle, arrays: Mapping[str, Packed]) -> bytes:
    places: dict[str, tuple[int, int]] = {}
    start = 0
    for name, array in arrays.items():
        length = 4 * int(np.prod(array.shape))
        places[name] = (start, length)
        start += length
    return place_weights((bundle.folder / GRAPH).read_bytes(), EXTERNAL, places)


def _densecap(weights: Weights, points: int) -> dict[str, Packed]:
    """Return the dense captioner's weights, its first layer ordered by sampling point, its normalisation folded in."""
    arrays = _part(weights, "densecap")
    head = "densecap.region_head.layers.1.weight"
    first = weights[head]
    by_point = first.reshape(len(first), -1, points).transpose(0, 2, 1)
    arrays[head] = rounded(np.ascontiguousarray(by_point).reshape(len(first), -1))
    for layers in ("densecap", "densecap.start"):
        if weights.has(f"{layers}.decoder.encode.0.weight"):
            _fold(arrays, weights, layers)
    return arrays


def _fold(arrays: dict[str, Packed], weights: Weights, layers: str) -> None:
    """Fold the normalisation of the layers that write phrases into the layer before it."""
    decoder = f"{layers}.decoder.encode"
    norm = weights.below(f"{decoder}.1")
    scale = norm["weight"] / np.sqrt(norm["running_var"] + np.float32(1e-5))
    shift = norm["bias"] - norm["running_mean"] * scale
    for name in [name for name in arrays if name.startswith(f"{decoder}.")]:
        del arrays[name]
    arrays[f"{decoder}.weight"] = rounded(weights[f"{decoder}.0.weight"] * scale[:, None])
    arrays[f"{decoder}.bias"] = single(weights[f"{decoder}.0.bias"] * scale + shift)
    phrase = f"{layers}.phrase_head"
    if weights.has(f"{phrase}.2.weight"):
        norm = weights.below(f"{phrase}.0")
        scale = 1 / np.sqrt(norm["running_var"] + np.float32(1e-5))
        for name in [name for name in arrays if name.startswith(f"{phrase}.0.")]:
            del arrays[name]
        arrays[f"{phrase}.scale"], arrays[f"{phrase}.shift"] = single(scale), single(-norm["running_mean"] * scale)


def _part(weights: Weights, part: str) -> dict[str, Packed]:
    """Return the weights of a part that the browser reads, by their full names; of the n-grams only unigrams."""
    below = weights.below(part)
    unread = ("ngrams.lengths", "ngrams.rarity", "num_batches_tracked")
    stored = {f"{part}.{name}": below.stored(name) for name in below.names() if not name.endswith(unread)}
    if below.has("ngrams.lengths"):
        lengths = below.stored("ngrams.lengths").astype(np.int64)
        words, ends = lengths == 1, np.cumsum(lengths)
        for name, kept in (("keys", words), ("offsets", words), ("token_ids", ends[words] - 1)):
            stored[f"{part}.ngrams.{name}"] = stored[f"{part}.ngrams.{name}"][kept]
    return {
        name: single(a) if a.ndim < 2 else half(a) if a.size <= SMALL else shrunk(name, a) for name, a in stored.items()
    }


def shrunk(name: str, values: np.ndarray) -> Packed:
    """Return a large matrix in rounded form, with finer steps if its features differ widely in magnitude."""
    return rounded(values, 8 * STEPS if name in FINE else STEPS)


def _facts(bundle: Bundle, parts: list[str]) -> dict[str, Any]:
    """Return what the browser must know about the model besides its weights."""
    configs, vocabularies, trunk = bundle.configs, bundle.vocabularies, bundle.trunk
    facts: dict[str, Any] = {"name": bundle.folder.name, "parts": parts}
    facts["preprocess"] = {
        "long_side": trunk.long_side, "multiple": trunk.multiple, "mean": bundle.mean, "std": bundle.std,
        "strides": trunk.strides,
    }  # fmt: skip
    for part in parts:
        facts[part] = {"config": configs[part].to_dict(), "vocabulary": vocabularies[part].tokens}
    for part in parts:
        decoding = facts[part]["config"]["decoding"]
        decoding["beam_size"] = min(decoding["beam_size"], MOST_HYPOTHESES)
    if "nouns" in configs:
        kinds = vocabularies["nouns"].tokens[len(RESERVED) :]
        facts["nouns"] = {"config": configs["nouns"].to_dict(), "kinds": kinds}
    facts["calibration"] = bundle.calibration.to_dict()
    facts["grounding"] = _grounding(bundle)
    facts["noun_tree"] = {
        "irregular": nouns.IRREGULAR, "compounds": nouns.COMPOUNDS,
        "after": sorted(nouns.AFTER), "articles": sorted(nouns.ARTICLES),
        "amounts": sorted(nouns.AMOUNTS), "participles": sorted(nouns.PARTICIPLES),
        "neutral_determiners": sorted(nouns.NEUTRAL_DETERMINERS),
        "narrower": nouns.NARROWER, "somebody": sorted(nouns.SOMEBODY),
        "longest": nouns.LONGEST, "starts": sorted(nouns.STARTS), "singular": sorted(nouns.SINGULAR),
        "before_nouns": sorted(nouns.BEFORE_NOUNS), "function_words": sorted(nouns.FUNCTION_WORDS),
        "colours": sorted(nouns.COLOURS),
        "places": sorted(PLACES), "joining": sorted(JOINING), "others": sorted(nouns.OTHERS),
        "sides": sorted(nouns.SIDES), "loose": sorted(nouns.LOOSE),
        "inside": sorted(text.INSIDE), "upon": sorted(text.UPON), "seated": sorted(text.SEATED),
        "uncounted": sorted(text.UNCOUNTED), "counting": sorted(text.COUNTING), "afloat": sorted(text.AFLOAT),
        "looking": sorted(text.LOOKING), "phrase_ends": sorted(text.PHRASE_ENDS),
        "determined": nouns.DETERMINED, "article": text.ARTICLE.pattern, "stutter": text.STUTTER.pattern,
    }  # fmt: skip
    facts["caption_nouns"] = {
        "regions": caption_nouns.REGIONS, "least_region": caption_nouns.LEAST_REGION, "unseen": caption_nouns.UNSEEN,
        "sure": caption_nouns.SURE, "listed": caption_nouns.LISTED,
        "thin": nouns.THIN, "of_people": caption_nouns.OF_PEOPLE,
        "monochrome": captioner.MONOCHROME.pattern, "spread": captioner.SPREAD, "coloured": captioner.COLOURED,
    }  # fmt: skip
    return facts


def _grounding(bundle: Bundle) -> dict[str, Any]:
    """Return the options for placing phrases, and the words that are known."""
    from saywhere.configs.aligner import GroundingConfig

    aligner = bundle.configs.get("aligner")
    config = GroundingConfig() if aligner is None else aligner.grounding
    words = [*bundle.vocabularies["densecap" if aligner is None else "aligner"].counts]
    options = {name: getattr(config, name) for name in ("nms_iou", "score_weight", "kind_weight", "bare_kind_share")}
    return options | {"words": words, "strips": STRIPS, "strip_weight": STRIP_WEIGHT, "match": MATCH}
