"""The Model Context Protocol, asked by the SDK's own client of servers in processes of their own."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import pytest
import skimage
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from PIL import Image
from refusals import refuses
from server_process import START, Process
from starlette.testclient import TestClient

import saywhere
from saywhere.serve import calls, mcp
from saywhere.serve.app import create_app
from saywhere.serve.folders import Folders

TOOLS = {"describe", "ground", "caption", "search", "crop"}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three photographs, with what shall not be read in it and beside it."""
    folder = tmp_path_factory.mktemp("mcp") / "photos"
    (folder / "below").mkdir(parents=True)
    for name in ("astronaut.png", "chelsea.png", "motorcycle_left.png"):
        image = Image.open(Path(skimage.data_dir) / name).convert("RGB")
        image.save(folder / "below" / name if name.startswith("m") else folder / name)
    Image.new("RGB", (40, 30)).save(folder.parent / "secret.png")
    (folder / "link.png").symlink_to(folder.parent / "secret.png")
    (folder / "up").symlink_to(folder.parent)
    (folder / "device.png").symlink_to("/dev/zero")
    (folder / "own.png").symlink_to(folder / "astronaut.png")
    os.mkfifo(folder / "pipe.png")
    (folder / "text.png").write_text("no image")
    return folder


def over_stdio(folder: Path) -> Any:
    return StdioServerParameters(
        command=sys.executable, args=["-c", START, "mcp", str(folder)], env=dict(os.environ) | {"OMP_NUM_THREADS": "1"}
    )


def talk(server: Any, work: Callable[[Client], Awaitable[None]], mode: str = "auto") -> None:
    async def run() -> None:
        async with Client(server, mode=mode) as client:
            await work(client)

    asyncio.run(run())


def said(result: Any) -> Any:
    """The JSON of a tool's answer."""
    assert not result.is_error, result.content
    return json.loads(result.content[-1].text)


async def ask_all(client: Client) -> None:
    """Ask each tool as the examples of their descriptions do, about real photographs."""
    listed = (await client.list_tools()).tools
    assert {tool.name for tool in listed} == TOOLS
    for tool in listed:
        example = json.loads((tool.description or "").partition("Example: ")[2])
        jsonschema.validate(example, tool.input_schema)
    found = said(await client.call_tool("describe", {"image": "astronaut.png", "top": 3, "threshold": 0}))
    assert (found["width"], found["height"], len(found["regions"])) == (512, 512, 3)
    assert all(len(row["box"]) == 4 and 0 < row["score"] <= 1 and row["phrase"] for row in found["regions"])
    sure = said(await client.call_tool("describe", {"image": "astronaut.png"}))["regions"]
    assert sure and all(min(row["score"], row["words"]) >= 0.3 for row in sure)
    one = said(await client.call_tool("describe", {"image": "own.png", "boxes": [[0, 0, 512, 512]]}))
    assert [row["box"] for row in one["regions"]] == [[0, 0, 512, 512]]
    cat = said(await client.call_tool("ground", {"image": "chelsea.png", "text": "a cat"}))
    assert [row["phrase"] for row in cat["regions"]] == ["a cat"] and cat["not_found"] == cat["unknown"] == []
    odd = said(await client.call_tool("ground", {"image": "chelsea.png", "text": "a flurble cat"}))
    assert [row["phrase"] for row in odd["regions"]] == ["a flurble cat"] and odd["unknown"] == ["flurble"]
    bike = said(await client.call_tool("caption", {"image": "below/motorcycle_left.png"}))
    assert len(bike["caption"].split()) > 3
    hits = said(await client.call_tool("search", {"query": "a motorcycle", "top": 2}))["hits"]
    assert len(hits) == 2 and hits[0]["image"].endswith("below/motorcycle_left.png") and hits[0]["phrases"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_sdks_client_asks_every_tool_over_stdio(photographs: Path, mode: str) -> None:
    async def work(client: Client) -> None:
        assert client.server_info.name == "saywhere" and str(photographs) in (client.instructions or "")
        if mode == "auto":
            await ask_all(client)
        with pytest.raises(MCPError, match="no tool 'draw'"):
            await client.call_tool("draw", {})
        refused = await client.call_tool("caption", {})
        assert refused.is_error and "image is missing" in str(refused.content)
        shown, place = (await client.call_tool("crop", {"image": "astronaut.png", "box": [100, 0, 300, 100]})).content
        image = Image.open(io.BytesIO(base64.b64decode(shown.data)))  # pyright: ignore[reportAttributeAccessIssue]
        assert (image.format, image.size) == ("JPEG", (768, 384))
        whole = Image.open(photographs / "astronaut.png").convert("RGB").crop((100, 0, 300, 100)).resize((768, 384))
        difference = [abs(a - b) for a, b in zip(image.tobytes(), whole.tobytes(), strict=True)]
        assert sum(difference) / len(difference) < 3
        assert json.loads(place.text) == {  # pyright: ignore[reportAttributeAccessIssue]
            "image": "astronaut.png", "box": [100, 0, 300, 100], "width": 768, "height": 384
        }  # fmt: skip

    talk(over_stdio(photographs), work, mode)


@pytest.fixture(scope="module")
def over_http(photographs: Path, indexed: Path) -> Iterator[Process]:
    with Process(str(photographs), "--index", str(indexed), "--token", "s3cret", command="mcp") as running:
        yield running


def test_the_sdks_client_asks_over_http_with_the_token(over_http: Process, photographs: Path) -> None:
    async def run() -> None:
        headers = {"Authorization": "Bearer s3cret"}
        async with httpx2.AsyncClient(headers=headers, timeout=600) as http:
            async with Client(streamable_http_client(f"{over_http.url}", http_client=http)) as client:
                assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS
                found = said(await client.call_tool("describe", {"image": "astronaut.png", "top": 2, "threshold": 0}))
                assert len(found["regions"]) == 2
                # The index has three photographs elsewhere, which are not in the folders.
                found = said(await client.call_tool("search", {"query": "a cat"}))
                outside = {f"outside the folders of this server ({photographs})": 5}
                assert found == {"query": "a cat", "hits": [], "not_shown": outside}
            refused = await http.post(over_http.url, headers={"Authorization": "Bearer wrong"}, json={})
            assert (refused.status_code, list(refused.json())) == (401, ["error"])
            foreign = await http.post(over_http.url, headers={"Origin": "https://other.example"}, json={})
            assert foreign.status_code == 403

    asyncio.run(run())
    message = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"caption","arguments":{"image":"data:,'
    before = over_http.peak
    assert {status for status, _ in over_http.refuse_huge("/mcp", message)} == {413}
    assert over_http.peak - before < 100 << 20


@pytest.fixture(scope="module")
def protocol(photographs: Path, model: saywhere.Model) -> mcp.Protocol:
    return mcp.Protocol(Folders([photographs]), lambda: model, None)


def call(protocol: mcp.Protocol, name: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    answer = protocol.answer({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params})
    assert answer is not None and answer["id"] == 7
    return answer


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("../secret.png", "outside the folders"),
        ("up/secret.png", "outside the folders"),
        ("link.png", "outside the folders"),
        ("device.png", "outside the folders"),
        ("/dev/zero", "outside the folders"),
        ("/etc/passwd", "outside the folders"),
        ("../no-such-file", "outside the folders"),
        ("pipe.png", "pipe.png: is not a file"),
        ("below", "below: is a folder"),
        ("text.png", "text.png: not an image"),
        ("none.png", "none.png: no such file"),
        ("a\0b.png", "is not a path"),
        ("x" * 4000, "no such file"),
    ],
)
@pytest.mark.parametrize("tool", ["describe", "crop"])
def test_paths_that_leave_the_folders_are_refused_by_one_line(
    protocol: mcp.Protocol, tool: str, image: str, message: str
) -> None:
    result = call(protocol, tool, image=image, **({"box": [0, 0, 1, 1]} if tool == "crop" else {}))["result"]
    assert result["isError"] and message in result["content"][0]["text"] and "\n" not in result["content"][0]["text"]
    assert "secret" not in result["content"][0]["text"].removeprefix(image)


def test_a_link_that_comes_while_the_file_is_opened_is_refused(
    photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = Folders([photographs])
    monkeypatch.setattr(Folders, "resolve", lambda *_: str(photographs / "up" / "secret.png"))
    refuses("changed while it was opened", folders.read, "a.png")


def test_a_folder_that_is_none_is_named() -> None:
    refuses("/nowhere: is not a folder", Folders, ["/nowhere"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"image": "a.png", "top": True}, "top must be an integer"),
        ({"image": "a.png", "top": 0}, "top must be from 1 to 100"),
        ({"image": "a.png", "threshold": float("nan")}, "threshold must be from 0 to 1"),
        ({"image": 3}, "image must be a string"),
        ({"image": ""}, "image must have 1 to 4096 characters"),
        ({"image": "a.png", "boxes": [[1, 2, 3]]}, "boxes[0] must have 4 to 4 items"),
        ({"image": "a.png", "boxes": [[1, 2, 3, "4"]]}, "boxes[0][3] must be a number"),
        ({"image": "a.png", "where": "x"}, "'where' is unknown; this tool has image"),
        ({"top": 3}, "image is missing; this tool needs image"),
    ],
)
def test_wrong_arguments_are_named_to_the_language_model(protocol: mcp.Protocol, arguments: Any, message: str) -> None:
    result = call(protocol, "describe", **arguments)["result"]
    assert result["isError"] and message in result["content"][0]["text"]


@pytest.mark.parametrize("params", [{"name": "describe", "arguments": [1]}, {"name": "draw", "arguments": {}}])
def test_calls_of_another_form_and_unknown_tools_are_refused(protocol: mcp.Protocol, params: Any) -> None:
    answer = protocol.answer({"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": params})
    assert answer is not None and (answer["id"], answer["error"]["code"]) == ("a", -32602)


def test_a_search_of_the_folders_sees_new_images_and_forgets_others(
    tmp_path: Path, photographs: Path, model: saywhere.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hits() -> list[str]:
        found = json.loads(call(protocol, "search", query="a cat")["result"]["content"][0]["text"])
        assert found.keys() == {"query", "hits"}
        return [Path(hit["image"]).name for hit in found["hits"]]

    protocol = mcp.Protocol(Folders([tmp_path]), lambda: model, None)
    none = call(protocol, "search", query="a cat")["result"]
    assert none["isError"] and "no images" in none["content"][0]["text"]
    (tmp_path / "a.png").write_bytes((photographs / "astronaut.png").read_bytes())
    (tmp_path / "secret.png").symlink_to(photographs.parent / "secret.png")
    assert hits() == ["a.png"]
    (tmp_path / "c.png").write_bytes((photographs / "chelsea.png").read_bytes())
    assert hits() == ["c.png", "a.png"]
    (tmp_path / "c.png").unlink()
    monkeypatch.setattr(calls, "MOST_IMAGES", 1)
    assert hits() == ["a.png"], "secret.png is not even embedded"
    monkeypatch.setattr(calls, "MOST_IMAGES", 0)
    many = call(protocol, "search", query="a cat")["result"]
    assert many["isError"] and "saywhere index" in many["content"][0]["text"]


def test_a_search_of_an_index_shows_archives_and_videos_and_counts_what_it_leaves_out(
    tmp_path: Path, photographs: Path, indexed: Path, model: saywhere.Model
) -> None:
    folder, elsewhere = tmp_path / "served", tmp_path / "elsewhere.png"
    folder.mkdir()
    with tarfile.open(folder / "a.tar", "w") as archive:
        archive.add(photographs / "astronaut.png", "x/astronaut.png")
        archive.add(photographs / "chelsea.png", "chelsea.png")
    shutil.copy(indexed.parent / "clip.mp4", folder)
    shutil.copy(photographs / "chelsea.png", elsewhere)
    shutil.copy(photographs / "chelsea.png", folder / "gone.png")
    with saywhere.Index(tmp_path / "index", model) as index:
        index.add([folder, folder / "a.tar", elsewhere], every=0.5)
    (folder / "gone.png").unlink()
    protocol = mcp.Protocol(Folders([folder]), lambda: model, tmp_path / "index")

    def ask(tool: str, **arguments: Any) -> Any:
        return json.loads(call(protocol, tool, **arguments)["result"]["content"][-1]["text"])

    found = ask("search", query="a cat")
    shown = [(hit["image"], hit.get("time")) for hit in found["hits"]]
    assert shown[0] == (str(folder / "a.tar" / "chelsea.png"), None) and len(shown) == 4
    assert {(str(folder / "clip.mp4"), time) for time in (0.0, 1.0)} < set(shown)
    outside = f"outside the folders of this server ({folder})"
    assert found["not_shown"] == {outside: 1, "no longer there; update the index": 1}
    first = ask("search", query="a cup of coffee", top=1)
    assert (first["hits"][0]["image"], first["hits"][0]["time"]) == (str(folder / "clip.mp4"), 0.0)
    assert "not_shown" not in first  # nothing better was left out
    for name in ("a.tar/x/astronaut.png", str(folder / "a.tar/x/astronaut.png")):
        seen = ask("describe", image=name, top=1)
        assert (seen["image"], seen["width"], seen["height"]) == (name, 512, 512)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("a.tar/none.png", "a.tar/none.png: no such file"),
        ("a.tar/link.png", "a.tar/link.png: no such file"),
        ("a.tar/../../secret.png", "outside the folders"),
        ("out.tar/astronaut.png", "outside the folders"),
        ("a.tar", "a.tar: not an image"),
        ("a.tar/large.png", "a.tar/large.png: larger than"),
    ],
)
def test_only_images_of_archives_in_the_folders_are_read(
    tmp_path: Path, photographs: Path, monkeypatch: pytest.MonkeyPatch, model: saywhere.Model, image: str, message: str
) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    with tarfile.open(folder / "a.tar", "w") as archive:
        archive.add(photographs / "link.png", "link.png")
        archive.add(photographs / "astronaut.png", "large.png")
    shutil.copy(folder / "a.tar", tmp_path / "out.tar")
    (folder / "out.tar").symlink_to(tmp_path / "out.tar")
    if "large" in image:
        monkeypatch.setattr("saywhere.serve.folders.FILE_BYTES", 1000)
    result = call(mcp.Protocol(Folders([folder]), lambda: model, None), "caption", image=image)["result"]
    assert result["isError"] and message in result["content"][0]["text"]


def pipe(folder: Path, *lines: bytes) -> list[dict[str, Any]]:
    """What a server of its own process, with 128 MB of memory, answers to lines, in order."""
    command = ["sh", "-c", 'ulimit -d 131072; exec "$@"', "sh", sys.executable, "-c", START, "mcp", str(folder)]
    done = subprocess.run(command, input=b"".join(lines), capture_output=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, b"")
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_what_is_no_message_is_answered_by_one_line(photographs: Path) -> None:
    ping = b'{"jsonrpc":"2.0","id":5,"method":"ping"}\n'
    answers = pipe(
        photographs,
        b"garbage\n",
        b"\n",
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b'{"jsonrpc":"2.0","id":1,"method":"tools/list","x":"data:image/png;base64,' + b"x" * (100 << 20) + b'"}\n',
        b'[{"jsonrpc":"2.0","id":2,"method":"ping"}]\n',
        b'{"jsonrpc":"2.0","id":[3],"method":"ping"}\n',
        b'{"jsonrpc":"2.0","id":4,"method":"files/read"}\n',
        b'{"jsonrpc":"2.0","id":4,"method":"ping","params":[]}\n',
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n',
        ping,
    )
    codes = [-32700, -32700, -32700, -32600, -32600, -32600, -32601, -32602]
    assert [answer["error"]["code"] for answer in answers[:-1]] == codes
    assert answers[-1] == {"jsonrpc": "2.0", "id": 5, "result": {}}
    assert all("\n" not in answer["error"]["message"] for answer in answers[:-1])


def test_nothing_heavy_is_imported_before_the_first_call(photographs: Path) -> None:
    code = (
        f"import sys\nfrom saywhere.cli import app\nsys.argv = ['saywhere', 'mcp', {str(photographs)!r}]\n"
        "try:\n    app()\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'numpy', 'PIL', 'onnxruntime', 'starlette', 'pydantic', 'mcp'}\n"
        "print(*sorted(heavy & sys.modules.keys()), file=sys.stderr)"
    )
    message = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26"}}\n'
    done = subprocess.run([sys.executable, "-c", code], input=message, capture_output=True, timeout=600)
    assert done.stderr.strip() == b""
    assert json.loads(done.stdout)["result"]["protocolVersion"] == "2025-03-26"


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"garbage", {}, 400),
        (b"[" * 100_000, {}, 400),
        (b" " * ((1 << 20) + 1), {}, 413),
        (b"{}", {"MCP-Protocol-Version": "1999-01-01"}, 400),
        (b"{}", {"Content-Type": "text/plain"}, 415),
        (b'{"jsonrpc":"2.0","method":"notifications/initialized"}', {}, 202),
    ],
    ids=["garbage", "nested", "large", "version", "type", "notification"],
)
def test_over_http_garbage_has_a_status(
    model: saywhere.Model, photographs: Path, body: bytes, headers: dict[str, str], status: int
) -> None:
    app = create_app(model, protocols=[lambda service: mcp.routes(Folders([photographs]), None, service)])
    with TestClient(app) as client:
        response = client.post("/mcp", content=body, headers={"Content-Type": "application/json"} | headers)
        assert response.status_code == status
        assert status == 202 or list(response.json()) == ["error"]
        assert client.get("/mcp").status_code == 405
