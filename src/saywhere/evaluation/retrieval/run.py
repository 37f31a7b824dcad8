"""Retrieval of the images of a data set by phrases of their regions.

On disk are the regions of each image with their features, and for each image the best region of each phrase; a run that
was stopped goes on from there.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from saywhere.evaluation.region_store import REGIONS, RegionStore
from saywhere.evaluation.retrieval.best_regions import Asked, BestRegions, answers, score_images
from saywhere.evaluation.retrieval.metric import (
    Protocol,
    RetrievalResult,
    evaluate_retrieval,
    image_scores,
    sample_queries,
    source_ranks,
)
from saywhere.evaluation.retrieval.report import write_retrieval_examples, write_retrieval_report
from saywhere.evaluation.session import Session
from saywhere.files import write_text
from saywhere.models.model import Model
from saywhere.models.phrase_scores import unknown_words


def run(
    model: Model, session: Session, regions: int = 20, queries: int = 100, seed: int = 0, protocol: Protocol = "clean"
) -> RetrievalResult:
    """Find images by four phrases of their regions, and the regions in them (DenseCap, section 4.2).

    Args:
        model: with a dense captioner.
        session: the data and the results.
        regions: at most so many regions of an image, the best.
        queries: how many are drawn.
        seed: of the draw.
        protocol: the mean over phrases is of ``log P`` (``clean``) or of ``P`` (``original``).

    Raises:
        UserError: the model has no dense captioner, no image can be read, or none has four phrases.
    """
    detector = model.require("densecap", "score phrases of regions")
    samples = session.read()
    sources = session.sources(samples)
    settings = {"model": model.digest(), "data": samples.name, "split": samples.split, "regions": regions}
    session.resume(settings, REGIONS)
    store = RegionStore(session.out / REGIONS)
    seen = session.each(
        lambda images, _: model.describe(images, top=regions), sources, store, store.save, long_side=model.long_side
    )
    names = {source.path: source.name for source in seen}
    pairs = [(sample, names[sample.image]) for sample in samples if sample.image in names]
    drawn = sample_queries([sample for sample, _ in pairs], [name for _, name in pairs], queries, seed)
    asked = Asked(tuple(drawn), tuple(dict.fromkeys(name for _, name in pairs)))
    best = BestRegions(session.out, asked)
    with session.steps("scoring", len(asked.names), best.done) as advance:
        score_images(detector.decoder, detector.vocabulary, store, best, advance)
    facts = {"regions": regions, "seed": seed, "phrases": len(asked.phrases)}
    facts["phrases_with_unknown_words"] = sum(bool(unknown_words(detector.vocabulary, p)) for p in asked.phrases)
    return _report(session, samples.name, asked, best, store, protocol, facts)


def _report(
    session: Session, data: str, asked: Asked, best: BestRegions, store: RegionStore, protocol: Protocol,
    facts: dict[str, int],
) -> RetrievalResult:  # fmt: skip
    log_probs, found, sources, truths = answers(asked, best, store)
    result = evaluate_retrieval(log_probs, found, sources, truths, protocol)
    scores = image_scores(log_probs, protocol)
    ranks: list[int] = source_ranks(scores, sources).tolist()
    rows = [asdict(query) | {"rank": rank} for query, rank in zip(asked.queries, ranks, strict=True)]
    write_text(session.out / "queries.json", json.dumps(rows, indent=2) + "\n")
    write_retrieval_examples(session.out, asked, scores, ranks, best, [session.folder])
    write_retrieval_report(session.out, result, session.known(data, **facts))
    return result
