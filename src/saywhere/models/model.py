"""The model: one network that answers many questions about images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, get_args, overload

import numpy as np
from numpy.typing import ArrayLike

from saywhere.errors import UserError
from saywhere.images import ImageError, ImageLike, LoadedImage, open_image
from saywhere.models.encoding import NOT_PICKLED, STEP, Encoding, answer, is_one, no_image
from saywhere.models.nouns import NounEvidence
from saywhere.options import require_ints, require_numbers, require_probabilities, require_texts

if TYPE_CHECKING:  # each method imports what it needs
    from saywhere.engines.engine import Aligner, Captioner, DenseCap, Engine
    from saywhere.models.aligner import Alignment, ImageVectors, TextVectors
    from saywhere.models.captioner import Caption
    from saywhere.models.phrase_scores import PhraseScores
    from saywhere.models.phrases import PhraseWriter
    from saywhere.models.placing import Placer
    from saywhere.regions import Regions

One = ImageLike | LoadedImage | Encoding
"""One image: a path, a PIL image, an array ``(H, W)`` or ``(H, W, 3)``, an opened image, or an encoding."""
Part = Literal["densecap", "aligner", "captioner", "nouns"]


class Model:
    """Answer questions about images; returned by :func:`saywhere.load`.

    Every method returns one result for one image, a list for a list of images, and an iterator for an iterator. An
    image can also be an :class:`Encoding`, made once by :meth:`encode` and reused for several questions.

    Attributes:
        nouns: the part nouns with the noun tree; None if the model lacks it.
        calibration: logistic regressions fitted after training.
        origin: what it was loaded from, as runs note it; None if that is not known, or if its weights can change.

    Example:
        >>> model = saywhere.load()
        >>> seen = model.encode("photo.jpg")
        >>> [f"{score:.2f}  {caption}" for box, score, caption in model.describe(seen, top=5)]  # doctest: +SKIP
        ['0.93  a woman', '0.71  the flag', ...]
        >>> model.caption(seen).image
        'photo.jpg'
    """

    origin: Mapping[str, Any] | None = None

    def __init__(self, engine: Engine, name: str = "model") -> None:
        self.engine, self.name, self.calibration = engine, name, engine.calibration
        self._read_parts()

    def _read_parts(self) -> None:
        engine = self.engine
        self.nouns = None if engine.nouns is None else NounEvidence(engine.nouns, engine.densecap)

    @property
    def densecap(self) -> DenseCap | None:
        """The dense captioner, or None."""
        return self.engine.densecap

    @property
    def aligner(self) -> Aligner | None:
        """The aligner, or None."""
        return self.engine.aligner

    @property
    def captioner(self) -> Captioner | None:
        """The captioner, or None."""
        return self.engine.captioner

    @cached_property
    def phrase_writer(self) -> PhraseWriter | None:
        """Writer of region phrases that uses all suitable parts; None without a dense captioner."""
        from saywhere.models.phrases import PhraseWriter

        engine = self.engine  # a reference to self would keep an unused model until Python looks for cycles
        return None if self.densecap is None else PhraseWriter(self.densecap, lambda: engine.aligner, self.nouns)

    def __reduce__(self) -> NoReturn:
        raise UserError(NOT_PICKLED)

    def __repr__(self) -> str:
        return f"Model({self.name!r}: {', '.join(self.parts)})"

    @property
    def parts(self) -> tuple[Part, ...]:
        """Names of the parts that the model has."""
        return tuple(name for name in get_args(Part) if getattr(self, name) is not None)

    @property
    def device(self) -> str:
        """Device of the model, such as ``cpu`` or ``cuda:0``."""
        return str(self.engine.device)

    def to(self, device: str) -> Self:
        """Move the model to a device and return it; existing encodings cannot be used on another device.

        Args:
            device: a name such as ``cpu`` or ``cuda``, see :func:`saywhere.load`.

        Raises:
            UserError: there is no such device, or the engine does not support it.

        Example:
            >>> model.to("cpu").device
            'cpu'
        """
        self.engine.to(device)
        self._read_parts()
        return self

    @property
    def long_side(self) -> int:
        """Long side of the network input in pixels; images should be decoded to at least this size."""
        return self.engine.trunk.preprocess.long_side

    def digest(self) -> str:
        """Return a hash of weights and configuration; models with equal hashes give equal answers.

        Example:
            >>> model.digest() == saywhere.load().digest()
            True
        """
        return self.engine.digest()

    def check(self, part: Part, what: str) -> None:
        """Raise a ``UserError`` if the model lacks a part and therefore cannot do ``what``.

        Example:
            >>> model.check("captioner", "caption images")
        """
        if getattr(self, part, None) is None:
            have = ", ".join(self.parts)
            raise UserError(f"{self.name} cannot {what}: that needs a model with the part {part}; this one has {have}")

    def require(self, part: Part, what: str) -> Any:
        """Return a part; errors as :meth:`check`.

        Example:
            >>> model.require("captioner", "caption images") is model.captioner
            True
        """
        self.check(part, what)
        return getattr(self, part)

    # Seeing

    @overload
    def encode(self, images: One) -> Encoding: ...
    @overload
    def encode(self, images: Sequence[One], *, batch: int | None = None, progress: bool = False) -> list[Encoding]: ...
    @overload
    def encode(
        self, images: Iterator[One], *, batch: int | None = None, progress: bool = False
    ) -> Iterator[Encoding]: ...
    def encode(
        self, images: One | Sequence[One] | Iterator[One], *, batch: int | None = None, progress: bool = False
    ) -> Encoding | list[Encoding] | Iterator[Encoding]:
        """Pass images through the network once, to ask several questions about them.

        The feature maps of all encodings stay in memory: about 5 MB per image with the bundled model.

        Args:
            images: one or many.
            batch: number of images per pass; default 16. All methods for many images have this option.
            progress: show a progress bar on a terminal for many images; an option of the same methods.

        Raises:
            ImageError: an image cannot be read.

        Example:
            >>> model.encode("photo.jpg")
            Encoding('photo.jpg', 512 x 512)
            >>> tuple(seen.image for seen in model.encode(["photo.jpg", "photos/beach.jpg"], batch=1))
            ('photo.jpg', 'photos/beach.jpg')
        """
        return self._answer(lambda encodings: encodings, batch, progress, images)

    def _answer(self, ask: Callable[..., Sequence[Any]], batch: int | None, progress: bool, *given: Any) -> Any:
        """Ask about one image or many, with further values per image; see :func:`saywhere.models.encoding.answer`."""
        return answer(ask, self._encode, *given, batch=batch, progress=progress)

    def _encode(self, images: Sequence[One]) -> list[Encoding]:
        """Encode those images that are not encodings yet, in one batch; return all in order."""
        trunk = self.engine.trunk
        fresh: list[LoadedImage] = []
        for place, image in enumerate(images):
            try:
                if not is_one(image):
                    raise no_image(image)
                if not isinstance(image, Encoding):
                    fresh.append(open_image(image, self.long_side))
                elif image.trunk is not trunk:
                    raise UserError(
                        f"the encoding of {image.image} was made by another model; encode the image with this one"
                    )
            except UserError as error:
                error.place = place
                raise
        preprocess = trunk.preprocess
        pixels = [preprocess(image) for image in fresh]
        maps = trunk.encode(pixels) if pixels else []
        shown = [preprocess.restore(p[:, ::STEP, ::STEP]) for p in pixels]
        made = iter(
            Encoding(m, image.width, image.height, p.shape[2], p.shape[1], image.name, trunk, small)
            for m, image, p, small in zip(maps, fresh, pixels, shown, strict=True)
        )
        return [image if isinstance(image, Encoding) else next(made) for image in images]

    # Regions with phrases (DenseCap)

    @overload
    def describe(
        self, images: One, boxes: ArrayLike | None = None, *, top: int | None = None, threshold: float | None = None
    ) -> Regions: ...
    @overload
    def describe(
        self, images: Sequence[One], boxes: Sequence[ArrayLike] | None = None, *, top: int | None = None,
        threshold: float | None = None, batch: int | None = None, progress: bool = False,
    ) -> list[Regions]: ...  # fmt: skip
    @overload
    def describe(
        self, images: Iterator[One], boxes: Iterator[ArrayLike] | None = None, *, top: int | None = None,
        threshold: float | None = None, batch: int | None = None, progress: bool = False,
    ) -> Iterator[Regions]: ...  # fmt: skip
    def describe(
        self, images: One | Sequence[One] | Iterator[One],
        boxes: ArrayLike | Sequence[ArrayLike] | Iterator[ArrayLike] | None = None, *, top: int | None = None,
        threshold: float | None = None, batch: int | None = None, progress: bool = False,
    ) -> Regions | list[Regions] | Iterator[Regions]:  # fmt: skip
        """Find the regions of an image and describe each with a phrase.

        Of overlapping regions with the same caption only the best is kept. All others are returned whatever their
        score, so that the caller can select. The command line and :func:`saywhere.describe`, which show results to
        people, use ``top=10`` and :meth:`saywhere.Regions.at_least`.

        Args:
            images: one or many.
            boxes: ``(N, 4)`` in pixels of the image, one array per image; describe exactly these, in this order. A
                model with only a captioner can also describe given boxes, without scores.
            top: maximum number of regions, best first; 0 or None: all.
            threshold: minimum score. Default: none.

        Returns:
            :class:`Regions` with scores (probability that the box is right), captions and features.

        Raises:
            ImageError: an image cannot be read.
            UserError: boxes have a wrong shape, leave their image, or come with ``top`` or ``threshold``.

        Example:
            >>> regions = model.describe("photo.jpg", top=3)
            >>> len(regions), len(regions.captions), regions[0].score == regions.scores.max().item()
            (3, 3, True)
            >>> tuple(len(each) for each in model.describe(iter(["photo.jpg", "photos/beach.jpg"]), top=2))
            (2, 2)
        """
        from saywhere.models.densecap import describe

        require_ints(top=top)
        require_probabilities(threshold=threshold)
        if isinstance(images, (str, Path)) and os.path.isdir(images):
            raise ImageError(f"{images}: is a folder, not an image; saywhere.describe takes folders")
        if self.densecap is None and self.captioner is not None and boxes is not None:
            if top is not None or threshold is not None:
                raise UserError("given boxes are all described: top and threshold cannot choose among them")
            from saywhere.models.captioner import describe_boxes

            captioner = self.captioner
            return self._answer(lambda e, b: describe_boxes(captioner, e, b), batch, progress, images, boxes)
        detector = self.require("densecap", "find regions")

        def ask(encodings: list[Encoding], given: list[Any] | None) -> list[Regions]:
            return describe(detector, encodings, given, top, threshold, self.phrase_writer, None, self.calibration)

        return self._answer(ask, batch, progress, images, boxes)

    @overload
    def score(self, images: One, phrases: Sequence[str], boxes: ArrayLike | None = None) -> PhraseScores: ...
    @overload
    def score(
        self, images: Sequence[One], phrases: Sequence[str], boxes: Sequence[ArrayLike] | None = None, *,
        batch: int | None = None, progress: bool = False
    ) -> list[PhraseScores]: ...  # fmt: skip
    @overload
    def score(
        self, images: Iterator[One], phrases: Sequence[str], boxes: Iterator[ArrayLike] | None = None, *,
        batch: int | None = None, progress: bool = False
    ) -> Iterator[PhraseScores]: ...  # fmt: skip
    def score(
        self, images: One | Sequence[One] | Iterator[One], phrases: Sequence[str],
        boxes: ArrayLike | Sequence[ArrayLike] | Iterator[ArrayLike] | None = None, *, batch: int | None = None,
        progress: bool = False,
    ) -> PhraseScores | list[PhraseScores] | Iterator[PhraseScores]:  # fmt: skip
        """Return the log-probability of each phrase for each region: open-world detection (DenseCap, section 4.2).

        If the model has the part ``nouns`` and ``densecap.nouns`` is set, the result also has the log-probability of
        each phrase's kind of thing.

        Args:
            images: one or many.
            phrases: texts of at least one word; the same for all images.
            boxes: ``(R, 4)`` in pixels of the image, one array per image. Default: the regions that :meth:`describe`
                finds.
            batch, progress: see :meth:`encode`.

        Raises:
            UserError: a phrase has no words; and as :meth:`describe`.

        Example:
            >>> scores = model.score("photo.jpg", ["a cat", "a dog"])
            >>> scores.best().captions
            ('a cat', 'a dog')
        """
        from saywhere.models.phrase_scores import score_image

        detector = self.require("densecap", "score phrases of regions")
        require_texts(False, phrases=phrases)

        def ask(encodings: list[Encoding], given: list[Any] | None) -> list[PhraseScores]:
            found = self.describe(encodings, given)
            return [score_image(detector, self.nouns, e, r, phrases) for e, r in zip(encodings, found, strict=True)]

        return self._answer(ask, batch, progress, images, boxes)

    # Words and regions (Deep Visual-Semantic Alignments)

    @overload
    def ground(
        self, images: One, text: str | Sequence[str], boxes: ArrayLike | None = None, *, part: Part | None = None,
        regions: int | None = None, threshold: float | None = None,
    ) -> Regions: ...  # fmt: skip
    @overload
    def ground(
        self, images: Sequence[One], text: Sequence[str | Sequence[str]], boxes: Sequence[ArrayLike] | None = None, *,
        part: Part | None = None, regions: int | None = None, threshold: float | None = None,
        batch: int | None = None, progress: bool = False,
    ) -> list[Regions]: ...  # fmt: skip
    @overload
    def ground(
        self, images: Iterator[One], text: Iterator[str | Sequence[str]], boxes: Iterator[ArrayLike] | None = None, *,
        part: Part | None = None, regions: int | None = None, threshold: float | None = None,
        batch: int | None = None, progress: bool = False,
    ) -> Iterator[Regions]: ...  # fmt: skip
    def ground(
        self, images: One | Sequence[One] | Iterator[One],
        text: str | Sequence[str] | Sequence[str | Sequence[str]] | Iterator[str | Sequence[str]],
        boxes: ArrayLike | Sequence[ArrayLike] | Iterator[ArrayLike] | None = None, *, part: Part | None = None,
        regions: int | None = None, threshold: float | None = None, batch: int | None = None,
        progress: bool = False,
    ) -> Regions | list[Regions] | Iterator[Regions]:  # fmt: skip
        """Find the region of each phrase of a text, if the image shows it.

        Args:
            images: one or many.
            text: a sentence, which is cut into its noun phrases, or a list of phrases; for many images, one each, or
                one sentence for all.
            boxes: ``(N, 4)`` in pixels of the image, one array per image; choose among these boxes, and with the
                aligner also the whole image.
            part: ``densecap`` or ``aligner``, the part that chooses the region. Default: the dense captioner, if there
                is one.
            regions: maximum number of regions to choose among.
            threshold: minimum probability that the image shows a phrase; 0 finds all. Default: 0.5 unless configured.

        Returns:
            :class:`Regions` with the found phrases as captions, in their order, the other phrases in ``not_found``, and
            the words that the model does not know in ``unknown``, and those judged as their kind in ``judged_as``. Of
            a text in another language all words are in ``unknown`` and, unless ``threshold`` is 0, all phrases in
            ``not_found``. For ``scores`` and ``similarities`` see :meth:`saywhere.models.placing.Placer.find`.

        Raises:
            ImageError: an image cannot be read.
            UserError: a text has no words, the part is not available, or it does not have the option.

        Example:
            >>> regions = model.ground("photo.jpg", ["a woman", "a smile"], threshold=0)
            >>> regions.captions
            ('a woman', 'a smile')
        """
        if text is None:  # pyright: ignore[reportUnnecessaryComparison]
            require_texts(text=text)
        return self._answer(
            lambda e, t, b: self._ground(e, t, b, part, regions, threshold), batch, progress, images, text, boxes
        )

    def _ground(
        self, encodings: list[Encoding], texts: list[Any], boxes: list[Any] | None, part: Part | None,
        limit: int | None, threshold: float | None,
    ) -> list[Regions]:  # fmt: skip
        require_ints(1, regions=limit)
        require_numbers(threshold=threshold)
        for text in texts:
            require_texts(text=text)
        placer, given = self.placer(part), [None] * len(encodings) if boxes is None else boxes
        asked = [placer.read(text) if isinstance(text, str) else text for text in texts]
        rows = zip(encodings, asked, given, strict=True)
        found = [placer.ground(e, text, own, limit, threshold) for e, text, own in rows]
        phrases = [(*(one.captions or ()), *one.not_found) for one in found]
        return [
            replace(one, unknown=tuple(placer.lexicon.unknown(of)), judged_as=placer.lexicon.judged_as(of))
            for one, of in zip(found, phrases, strict=True)
        ]

    def placer(self, part: Part | None = None) -> Placer:
        """Return the placer of phrases for a part; default: the dense captioner if there is one, else the aligner.

        Raises:
            UserError: the model lacks the part, or the part cannot place phrases.

        Example:
            >>> model.placer().by
            'densecap'
        """
        from saywhere.models.placing import Placer

        chosen = part or ("aligner" if self.densecap is None else "densecap")
        if chosen not in ("aligner", "densecap"):
            raise UserError(f"part must be aligner or densecap, not {part!r}")
        self.require(chosen, "ground phrases" if chosen == "aligner" else "ground phrases by the dense captioner")
        return Placer(self.densecap, self.aligner, self.nouns, chosen, self.calibration)

    @overload
    def align(
        self, images: One, sentences: str, boxes: ArrayLike | None = None, *, beta: float | None = None,
        regions: int | None = None,
    ) -> Alignment: ...  # fmt: skip
    @overload
    def align(
        self, images: Sequence[One], sentences: Sequence[str], boxes: Sequence[ArrayLike] | None = None, *,
        beta: float | None = None, regions: int | None = None, batch: int | None = None, progress: bool = False,
    ) -> list[Alignment]: ...  # fmt: skip
    @overload
    def align(
        self, images: Iterator[One], sentences: Iterator[str], boxes: Iterator[ArrayLike] | None = None, *,
        beta: float | None = None, regions: int | None = None, batch: int | None = None, progress: bool = False,
    ) -> Iterator[Alignment]: ...  # fmt: skip
    def align(
        self, images: One | Sequence[One] | Iterator[One], sentences: str | Sequence[str] | Iterator[str],
        boxes: ArrayLike | Sequence[ArrayLike] | Iterator[ArrayLike] | None = None, *, beta: float | None = None,
        regions: int | None = None, batch: int | None = None, progress: bool = False,
    ) -> Alignment | list[Alignment] | Iterator[Alignment]:  # fmt: skip
        """Align the words of a sentence with the regions of an image (section 3.1.4); the result has all products.

        Args:
            images, boxes, regions: see :meth:`ground`.
            sentences: one sentence per image.
            beta: affinity of neighbouring words to the same region (Eqs. 10 to 12); 0 is word by word. Default: that of
                the configuration.

        Example:
            >>> model.align("photo.jpg", "a woman in a suit", regions=5)
            Alignment('a woman in a suit' with 6 regions of photo.jpg)
        """
        from saywhere.models.aligner import align, embed_images

        require_numbers(beta=beta)
        require_ints(regions=regions)
        aligner = self.require("aligner", "align words with regions")

        def ask(encodings: list[Encoding], texts: list[str], given: list[Any] | None) -> list[Alignment]:
            require_texts(False, sentences=texts)
            embedded = embed_images(aligner, encodings, given, regions, placing=True, plain=True)
            return [align(aligner, image, text, beta) for image, text in zip(embedded, texts, strict=True)]

        return self._answer(ask, batch, progress, images, sentences, boxes)

    # Vectors for search

    @overload
    def embed(self, images: One, boxes: ArrayLike | None = None, *, regions: int | None = None) -> ImageVectors: ...
    @overload
    def embed(
        self, images: Sequence[One], boxes: Sequence[ArrayLike] | None = None, *, regions: int | None = None,
        batch: int | None = None, progress: bool = False,
    ) -> list[ImageVectors]: ...  # fmt: skip
    @overload
    def embed(
        self, images: Iterator[One], boxes: Iterator[ArrayLike] | None = None, *, regions: int | None = None,
        batch: int | None = None, progress: bool = False,
    ) -> Iterator[ImageVectors]: ...  # fmt: skip
    def embed(
        self, images: One | Sequence[One] | Iterator[One],
        boxes: ArrayLike | Sequence[ArrayLike] | Iterator[ArrayLike] | None = None, *, regions: int | None = None,
        batch: int | None = None, progress: bool = False,
    ) -> ImageVectors | list[ImageVectors] | Iterator[ImageVectors]:  # fmt: skip
        """Embed the regions of images in the space shared with words; :meth:`similarity` compares them with texts.

        Args:
            images, boxes, regions: see :meth:`ground`; the first region is always the whole image.

        Raises:
            ImageError: an image does not exist or cannot be read. (For texts use :meth:`embed_text`.)

        Example:
            >>> model.embed("photo.jpg", regions=5)
            ImageVectors('photo.jpg', 6 regions)
        """
        from saywhere.models.aligner import embed_images

        require_ints(regions=regions)
        aligner = self.require("aligner", "embed images")
        return self._answer(lambda e, b: embed_images(aligner, e, b, regions), batch, progress, images, boxes)

    @overload
    def embed_text(self, texts: str) -> TextVectors: ...
    @overload
    def embed_text(self, texts: list[str] | tuple[str, ...]) -> list[TextVectors]: ...
    def embed_text(self, texts: str | list[str] | tuple[str, ...]) -> TextVectors | list[TextVectors]:
        """Embed the words of a sentence, or of each of a list, in the space shared with regions.

        Raises:
            UserError: a sentence has no words.

        Example:
            >>> tuple(text.words for text in model.embed_text(["a cat", "two dogs"]))
            (('a', 'cat'), ('two', 'dogs'))
        """
        from saywhere.models.aligner import embed_texts

        aligner = self.require("aligner", "embed texts")
        require_texts(texts=texts)
        if isinstance(texts, str):
            return embed_texts(aligner, [texts])[0]
        return embed_texts(aligner, list(texts))

    def similarity(self, images: Iterable[ImageVectors], texts: Iterable[TextVectors]) -> np.ndarray:
        """Return the similarity ``(K, L)`` of each image and text: Eq. 8 minus the hubness of both; no probability.

        Raises:
            UserError: something in them is not of :meth:`embed` or :meth:`embed_text`.

        Example:
            >>> images = model.embed(["photo.jpg", "photos/motorcycle.jpg"])
            >>> model.similarity(images, model.embed_text(["a motorcycle"])).argmax(axis=0)
            array([1])
        """
        from saywhere.models.aligner import ImageVectors, TextVectors, similarities

        if isinstance(images, ImageVectors) or isinstance(texts, TextVectors):
            raise UserError("similarity compares lists: put one image, or one text, into brackets")
        images, texts = list(images), list(texts)
        for given, kind, maker in ((images, ImageVectors, "embed"), (texts, TextVectors, "embed_text")):
            if wrong := [one for one in given if not isinstance(one, kind)]:
                raise UserError(f"similarity compares what {maker} returns, not {type(wrong[0]).__name__}")
        return similarities(images, texts, self.require("aligner", "compare texts with images").config.score)

    # Sentences of whole images (Areas of Attention)

    @overload
    def caption(
        self, images: One, *, beam_size: int | None = None, least_probability: float | None = None,
        boxes: ArrayLike | None = None, attention: bool = True,
    ) -> Caption: ...  # fmt: skip
    @overload
    def caption(
        self, images: Sequence[One], *, beam_size: int | None = None, least_probability: float | None = None,
        boxes: Sequence[ArrayLike] | None = None, attention: bool = True, batch: int | None = None,
        progress: bool = False,
    ) -> list[Caption]: ...  # fmt: skip
    @overload
    def caption(
        self, images: Iterator[One], *, beam_size: int | None = None, least_probability: float | None = None,
        boxes: Iterator[ArrayLike] | None = None, attention: bool = True, batch: int | None = None,
        progress: bool = False,
    ) -> Iterator[Caption]: ...  # fmt: skip
    def caption(
        self, images: One | Sequence[One] | Iterator[One], *, beam_size: int | None = None,
        least_probability: float | None = None,
        boxes: ArrayLike | Sequence[ArrayLike] | Iterator[ArrayLike] | None = None, attention: bool = True,
        batch: int | None = None, progress: bool = False,
    ) -> Caption | list[Caption] | Iterator[Caption]:  # fmt: skip
        """Return a caption of an image, and the attention to regions at each word.

        Args:
            images: one or many.
            beam_size: number of hypotheses; 1 is greedy. Default: that of the configuration.
            least_probability: the sentence ends before parts whose words are on average less probable: the larger, the
                shorter and the more often right. Default: that of the configuration.
            boxes: ``(R, 4)`` in pixels of the image, one array per image, to attend to instead of the model's own.
            attention: whether to return the attention; False saves a little time.

        Raises:
            ImageError: an image cannot be read.
            UserError: ``beam_size`` is below 1, ``least_probability`` is no probability or the model has no n-grams for
                it, or there are boxes for a model that attends to none.

        Example:
            >>> caption = model.caption("photo.jpg", beam_size=2)
            >>> caption.attention.shape == (len(caption.words), len(caption.boxes))
            True
        """
        from saywhere.models.caption_nouns import NounChecker
        from saywhere.models.captioner import caption

        require_ints(beam_size=beam_size)
        require_probabilities(least_probability=least_probability)
        captioner = self.require("captioner", "caption images")
        if least_probability is not None and captioner.ngrams is None:
            raise UserError(f"{self.name} has no n-grams of captions: leave out least_probability")

        def ask(encodings: Sequence[Encoding], given: Sequence[ArrayLike] | None) -> list[Caption]:
            nouns = None
            if captioner.config.nouns and self.densecap is not None and self.nouns is not None:
                nouns = NounChecker(self.densecap, self.nouns, encodings)
            phrases = None if nouns is None else self._main_phrases
            return caption(
                captioner, encodings, beam_size, given, attention, self.aligner, nouns, phrases, least_probability
            )

        return self._answer(ask, batch, progress, images, boxes)

    def _main_phrases(self, encodings: Sequence[Encoding]) -> list[str | None]:
        from saywhere.models.densecap import main_phrase

        return [main_phrase(regions) for regions in self.describe(encodings)]

    def attend(self, image: One, sentences: Sequence[str], boxes: ArrayLike | None = None) -> list[Caption]:
        """Return the attention at each word of given sentences about one image.

        Raises:
            ImageError: the image cannot be read.
            UserError: the model attends to no regions, or ``boxes`` are invalid.

        Example:
            >>> model.attend("photo.jpg", ["a woman smiles"])[0].attention.shape[0]
            3
        """
        from saywhere.models.captioner import attend

        captioner = self.require("captioner", "attend to regions")
        return attend(captioner, self._encode([image])[0], sentences, boxes)
