"""The container file without a container: what it copies is there, its commands and options exist, its port answers."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import subprocess
from http.client import HTTPConnection
from pathlib import Path

import pytest
import yaml
from server_process import Process
from typer.main import get_command

from saywhere import cli
from saywhere.serve.questions import describe_api

ROOT = Path(__file__).parents[2]
NEEDED = ("pyproject.toml", "README.md", "LICENSE", "requirements.txt", "src/saywhere/serve/page/index.html",
          "src/saywhere/pretrained/flickr-coco/model.safetensors")  # fmt: skip
"""What building the wheel and its environment reads."""


@pytest.fixture(scope="module")
def lines() -> list[tuple[str, str]]:
    """Instructions and their arguments, continued lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return [(found[1], found[2]) for found in re.finditer(r"^([A-Z]+) +(.+)$", text, re.MULTILINE)]


def ignored(path: str) -> bool:
    """Whether a pattern of ``.dockerignore`` fits a path or a folder that it is in."""
    patterns = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    parents = [path, *map(str, Path(path).parents)]
    return any(fnmatch.fnmatch(part, pattern.removeprefix("**/")) for part in parents for pattern in patterns)


def test_what_is_copied_is_there(lines: list[tuple[str, str]]) -> None:
    sources = [
        source for name, rest in lines if name == "COPY" and "--from" not in rest for source in rest.split()[:-1]
    ]
    assert sources == ["."]
    assert [path for path in NEEDED if not (ROOT / path).is_file() or ignored(path)] == []
    assert ignored("tests/serve/test_container.py") and ignored(".git/config") and ignored("large-model/trunk.onnx")
    made = re.findall(r"^/([^/*]+)/$", (ROOT / ".gitignore").read_text(encoding="utf-8"), re.MULTILINE)
    assert "build" in made and [folder for folder in made if not ignored(folder)] == []  # builds and data may be large


def test_everything_is_installed_by_the_hashes_of_the_lock(lines: list[tuple[str, str]], tmp_path: Path) -> None:
    build = next(rest for name, rest in lines if name == "RUN")
    commands = [command.strip() for command in build.split("&&")]
    script = commands[0].replace("requirements.txt", shlex.quote(str(ROOT / "requirements.txt")))
    subprocess.run(["bash", "-euc", script.replace(" /uv.txt", " uv.txt")], cwd=tmp_path, check=True, timeout=600)
    installer = (tmp_path / "uv.txt").read_text()
    assert re.fullmatch(r"uv==[\d.]+ \\\n(    --hash=sha256:[0-9a-f]{64}( \\)?\n)+", installer)
    assert "--require-hashes" in commands[2] and "--requirement /uv.txt" in commands[2]
    options = "--require-hashes --constraint requirements.txt --requirement pyproject.toml --extra serve"
    assert options in re.sub(" +", " ", commands[4])
    target = commands[3].split()[-1]
    copied = [rest for name, rest in lines if name == "COPY" and "--from=build" in rest]
    assert copied == [f"--from=build {target} {target}"] and f"--python {target}/bin/python" in commands[4]
    assert f"{target}/bin" in next(rest for name, rest in lines if name == "ENV")


def test_the_base_image_is_named_by_its_digest(lines: list[tuple[str, str]]) -> None:
    assert re.fullmatch(r"BASE=python:3\.11\.\d+-slim@sha256:[0-9a-f]{64}", dict(lines)["ARG"])
    assert [rest.split()[0] for name, rest in lines if name == "FROM"] == ["${BASE}", "${BASE}"]


def test_it_serves_without_rights(lines: list[tuple[str, str]]) -> None:
    last = dict(lines)
    program, command, *options = json.loads(last["ENTRYPOINT"])
    known = get_command(cli.app).commands[command]
    names = {option: parameter for parameter in known.params for option in parameter.opts}
    assert program == "saywhere" and set(options[::2]) <= names.keys() and options == ["--host", "0.0.0.0"]
    assert int(last["EXPOSE"]) == names["--port"].default
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last["USER"])
    check = json.loads(last["HEALTHCHECK"].partition("CMD")[2])
    compile(check[2], "HEALTHCHECK", "exec")
    port, path = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", check[2])[0]
    assert port == last["EXPOSE"] and path in describe_api(False)["paths"]


def test_the_documented_command_leads_to_a_server_that_answers(lines: list[tuple[str, str]]) -> None:
    said = [(ROOT / name).read_text(encoding="utf-8") for name in ("Dockerfile", "docs/serve.md")]
    places = {found for text in said for found in re.findall(r"docker run .*--publish ([\d.]+:\d+):8077 ", text)}
    _, _, *options = json.loads(dict(lines)["ENTRYPOINT"])
    server = Process(*options)
    for host in ("".join(places), "localhost:8077", "rebound.example:8077"):
        connection = HTTPConnection("127.0.0.1", server.port, timeout=600)
        connection.request("GET", "/v1/models", headers={"Host": host})
        assert connection.getresponse().status == (421 if "rebound" in host else 200)
        connection.close()
    code, note = server.stop()
    assert code == 0 and len(note.splitlines()) == 1 and "token" in note, "the container's network reaches it"
    assert len(places) == 1


def test_the_compose_file_has_options_that_there_are(lines: list[tuple[str, str]]) -> None:
    """Its keys are those of the Compose Specification, and its server is reached by the name that it allows."""
    found = yaml.safe_load((ROOT / "docs" / "compose.yaml").read_text(encoding="utf-8"))
    services = found["services"]
    assert found.keys() == {"services", "volumes"} and services.keys() == {"label-studio", "saywhere"}
    keys = {"image", "build", "ports", "volumes", "command", "environment", "depends_on"}
    assert all(service.keys() <= keys for service in services.values())
    ours = services["saywhere"]
    assert (ROOT / "docs" / ours["build"] / "Dockerfile").is_file() and set(ours["depends_on"]) < services.keys()
    options = dict(option.split("=", 1) for option in ours["command"])
    names = {option for parameter in get_command(cli.app).commands["serve"].params for option in parameter.opts}
    assert options.keys() <= names and options["--allowed-host"] == "saywhere"
    assert options["--label-studio"] == "http://label-studio:8080"
    assert services["label-studio"]["environment"] == {"USE_DEFAULT_BANNED_SUBNETS": "false"}
    assert services["label-studio"]["volumes"][0].partition(":")[0] in found["volumes"]
    said = (ROOT / "docs" / "programs.md").read_text(encoding="utf-8")
    assert f"`http://saywhere:{dict(lines)['EXPOSE']}`" in said
