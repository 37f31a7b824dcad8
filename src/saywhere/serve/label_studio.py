"""An ML backend for Label Studio: predictions for tasks, for drawn rectangles and for texts."""

from __future__ import annotations

import http.client
import json
import threading
import xml.etree.ElementTree as xml
from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import saywhere
from saywhere.errors import UserError
from saywhere.formats.classes import Classes
from saywhere.formats.label_studio import SIDES
from saywhere.models.encoding import Encoding
from saywhere.options import dataclass
from saywhere.regions import SHOWN, Region
from saywhere.serve.app import Service
from saywhere.serve.captions import answer_json
from saywhere.serve.folders import Folders
from saywhere.serve.limits import Problem, to_json

REGIONS = 20
"""Maximum number of regions predicted for an image."""
MOST_TASKS, MOST_BOXES = 100, 100
SECONDS = 20
"""Timeout of a request to Label Studio."""
CONFIG = 1 << 20
"""Maximum length of a labeling configuration, in characters."""


class Images:
    """The images of tasks, read from a folder or from the given Label Studio, and from nowhere else.

    Args:
        url: URL of Label Studio; None if images come from the folder only.
        token: API token of Label Studio, a legacy token or a personal access token.
        folder: folder where Label Studio's files are mounted.
        most: maximum size of an image, in bytes.
    """

    def __init__(self, url: str | None, token: str | None, folder: Folders | None, most: int) -> None:
        parts = urlsplit(url or "")
        if url is not None and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise UserError(f"--label-studio {url}: must be a URL such as http://localhost:8080")
        self._url, self._site, self._token, self._folder, self._most = url, parts, token, folder, most
        self._access, self._lock = "", threading.Lock()

    def fetch(self, address: Any) -> bytes:
        """Return the image file at a task's address; raise ``Problem`` 400 if it is elsewhere, 422 if not available."""
        text = address if isinstance(address, str) else ""
        try:
            parts = urlsplit(text)
            site = (parts.scheme, parts.hostname, parts.port)
        except ValueError:
            raise Problem(400, "the address of the image is damaged") from None
        own = (self._site.scheme, self._site.hostname, self._site.port)
        if not text or not (site == own or (not parts.scheme and not parts.netloc and text.startswith("/"))):
            allowed = f"only images of {self._url}" if self._url else "only images of the mounted folder"
            raise Problem(400, f"{allowed} are read, not {text[:100]!r}")
        if self._folder is not None and parts.path.startswith("/data/"):
            place = parse_qs(parts.query).get("d") or [unquote(parts.path.removeprefix("/data/"))]
            return self._folder.read(place[0].lstrip("/"))
        if self._url is None:
            raise Problem(400, f"only images of the mounted folder are read, not {text[:100]!r}")
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        status, body = self._ask("GET", target, self._authorization())
        if status == 401 and self._access:
            self._access = ""
            status, body = self._ask("GET", target, self._authorization())
        if status != 200:
            ways = {401: "put its token into LABEL_STUDIO_API_KEY", 302: "redirects are not followed"}
            way = f"; {ways[status]}" if status in ways else ""
            raise Problem(422, f"{self._url} answered {status} for {text[:100]!r}{way}")
        return body

    def _authorization(self) -> dict[str, str]:
        """Return the authorization header; a personal token is a JWT, exchanged for a short-lived access token."""
        if not self._token:
            return {}
        if self._token.count(".") != 2:
            return {"Authorization": f"Token {self._token}"}
        with self._lock:
            if not self._access:
                asked, path = json.dumps({"refresh": self._token}), f"{self._site.path.rstrip('/')}/api/token/refresh"
                status, body = self._ask("POST", path, {"Content-Type": "application/json"}, asked)
                try:
                    self._access = json.loads(body)["access"] if status == 200 else ""
                except (ValueError, KeyError, TypeError, RecursionError):
                    self._access = ""
                if not isinstance(self._access, str) or not self._access:
                    self._access = ""
                    raise Problem(422, f"{self._url} refuses the token in LABEL_STUDIO_API_KEY")
            return {"Authorization": f"Bearer {self._access}"}

    def _ask(self, method: str, target: str, headers: dict[str, str], body: str | None = None) -> tuple[int, bytes]:
        kind = http.client.HTTPSConnection if self._site.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._site.hostname or "", self._site.port, timeout=SECONDS)
        try:
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            content = response.read(self._most + 1)
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise Problem(422, f"{self._url} cannot be reached ({type(error).__name__})") from None
        finally:
            connection.close()
        if len(content) > self._most:
            raise Problem(422, f"an image of {self._url} is larger than {self._most >> 20} MB")
        return response.status, content


@dataclass(frozen=True)
class Controls:
    """The names in a labeling configuration.

    Attributes:
        image: name of the image tag.
        value: key of the image's address in a task's data.
        boxes: name of the control for boxes.
        kind: type of its results, ``rectanglelabels`` or ``rectangle``.
        labels: classes of boxes.
        text: name of the control for phrases, or None.
    """

    image: str
    value: str
    boxes: str
    kind: str
    labels: Classes
    text: str | None

    @classmethod
    def read(cls, config: Any) -> Controls:
        """Read a labeling configuration; raise ``Problem`` 400 if it has no image with rectangles."""
        if not isinstance(config, str) or len(config) > CONFIG or "<!" in config.replace("<!--", ""):
            raise Problem(400, "label_config must be XML of at most 1 MB, without declarations")
        try:
            root = xml.fromstring(config)
        except (xml.ParseError, ValueError, RecursionError):
            raise Problem(400, "label_config is not XML") from None
        image = root.find(".//Image")
        name = "" if image is None else image.get("name", "")
        of_image = [one for one in root.iter() if one.get("toName") == name and one.get("name")]
        boxes = next((one for one in of_image if one.tag in ("RectangleLabels", "Rectangle")), None)
        if image is None or boxes is None:
            raise Problem(400, "label_config must have an Image with RectangleLabels or a Rectangle")
        text = next((one.get("name") for one in of_image if one.tag == "TextArea"), None)
        known = Classes.of(one.get("value") for one in boxes.iter("Label"))
        value = image.get("value", "").removeprefix("$")
        return cls(name, value, boxes.get("name", ""), boxes.tag.lower(), known, text)


class LabelStudio:
    """The routes of the backend."""

    def __init__(self, service: Service, images: Images) -> None:
        self.service, self._images = service, images
        self.version = f"saywhere-{saywhere.__version__}-{service.digest[:8]}"

    def routes(self) -> list[Route]:
        """Return the routes."""

        async def health(_: Request) -> Response:
            return self.service.json(to_json({"status": "UP", "model_class": "saywhere"}))

        async def versions(_: Request) -> Response:
            return self.service.json(to_json({"versions": [self.version]}))

        async def webhook(request: Request) -> Response:
            async with self.service.bodies.read(request):
                return Response(b"{}", 201, media_type="application/json")

        return [
            Route("/health", health, methods=["GET"]),
            Route("/setup", partial(answer_json, self.service, work=self._setup), methods=["POST"]),
            Route("/predict", partial(answer_json, self.service, work=self._predict), methods=["POST"]),
            Route("/versions", versions, methods=["GET"]),
            Route("/webhook", webhook, methods=["POST"]),
        ]

    def _setup(self, asked: dict[str, Any]) -> tuple[bytes, str]:
        if asked.get("schema"):
            Controls.read(asked["schema"])
        return to_json({"model_version": self.version}), "application/json"

    def _predict(self, asked: dict[str, Any]) -> tuple[bytes, str]:
        tasks, controls = asked.get("tasks"), Controls.read(asked.get("label_config"))
        if not isinstance(tasks, list) or not 0 < len(tasks) <= MOST_TASKS:
            raise Problem(400, f"tasks must be a list of 1 to {MOST_TASKS}")
        params = asked.get("params")
        context = params.get("context") if isinstance(params, dict) else None
        drawn = context.get("result") if isinstance(context, dict) else None
        entries = [one for one in drawn if isinstance(one, dict)] if isinstance(drawn, list) else []
        results, problems = list[dict[str, Any]](), list[Problem]()
        for task in tasks:
            try:
                results.append(self._of_task(task, controls, entries))
            except (Problem, UserError) as problem:
                problems.append(problem if isinstance(problem, Problem) else Problem(422, str(problem)))
                results.append({"result": [], "score": 0, "model_version": self.version, "error": str(problem)})
        if len(problems) == len(tasks):
            raise problems[0]
        return to_json({"results": results}), "application/json"

    def _of_task(self, task: Any, controls: Controls, drawn: Sequence[dict[str, Any]]) -> dict[str, Any]:
        data = task.get("data") if isinstance(task, dict) else None
        address = data.get(controls.value) if isinstance(data, dict) else None
        seen, model = self.service.see(self._images.fetch(address)), self.service.model
        names: list[str] = []
        if texts := [text for one in drawn if one.get("type") == "textarea" for text in _texts(one)]:
            regions = model.ground(seen, texts[0] if len(texts) == 1 else texts)
        elif boxes := [(one, box) for one in drawn if (box := _box(one, seen)) is not None]:
            names = [str(one.get("id", number)) for number, (one, _) in enumerate(boxes)]
            regions = model.describe(seen, [box for _, box in boxes][:MOST_BOXES])
        else:
            regions = model.describe(seen, threshold=SHOWN).at_least()[:REGIONS]
        result: list[dict[str, Any]] = []
        for number, region in enumerate(regions):
            name = names[number] if names else f"saywhere{number}"
            result += _entries(controls, seen, name, region)
        scores = [] if regions.scores is None else regions.scores.tolist()
        score = round(sum(scores) / len(scores), 5) if scores else 0
        return {"result": result, "score": score, "model_version": self.version}


def _texts(entry: dict[str, Any]) -> list[str]:
    value = entry.get("value")
    text = value.get("text") if isinstance(value, dict) else None
    found = [text] if isinstance(text, str) else text if isinstance(text, list) else []
    return [one for one in found if isinstance(one, str) and 0 < len(one) <= 1000][:MOST_BOXES]


def _box(entry: dict[str, Any], seen: Encoding) -> list[float] | None:
    """Return the rectangle of an entry, ``[x1, y1, x2, y2]`` in pixels, or None."""
    value = entry.get("value")
    if not isinstance(value, dict) or not all(isinstance(value.get(side), int | float) for side in SIDES):
        return None
    x, y, width, height = (value[side] / 100 for side in SIDES)
    scale = (seen.width, seen.height, seen.width, seen.height)
    return [share * size for share, size in zip((x, y, x + width, y + height), scale, strict=True)]


def _entries(controls: Controls, seen: Encoding, name: str, region: Region) -> list[dict[str, Any]]:
    """Return a region's entries for Label Studio: its rectangle with a label and, with the same id, its phrase.

    A region that is of no label is left out, unless there is a control for its phrase.
    """
    known = controls.labels.label(region.caption) if controls.labels.names else None
    if controls.labels.names and known is None and controls.text is None:
        return []
    x1, y1, x2, y2 = region.box
    shares = (x1 / seen.width, y1 / seen.height, (x2 - x1) / seen.width, (y2 - y1) / seen.height)
    place: dict[str, Any] = {side: round(100 * v, 4) for side, v in zip(SIDES, shares, strict=True)} | {"rotation": 0}
    size = {"original_width": seen.width, "original_height": seen.height, "image_rotation": 0}
    both = {"id": name, "to_name": controls.image, **size}
    score = {} if region.score is None else {"score": round(region.score, 5)}
    named = {} if controls.kind == "rectangle" else {"rectanglelabels": [] if known is None else [known]}
    rows = [{**both, "type": controls.kind, "from_name": controls.boxes, "value": place | named, **score}]
    if controls.text is not None and region.caption:
        text = {"type": "textarea", "from_name": controls.text, "value": {**place, "text": [region.caption]}}
        rows.append({**both, **text})
    return rows
