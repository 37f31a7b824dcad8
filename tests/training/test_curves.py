from __future__ import annotations

from pathlib import Path

from PIL import Image

from saywhere.training.loop import CsvLog, draw_curves, read_log


def write(path: Path, steps: range, start: int = 0) -> None:
    log = CsvLog(path, start)
    for step in steps:
        log.write(step, step // 2, {"train/loss": 10.0 / step, "train/box": 1 / 3})


def test_the_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path / "metrics.csv", range(1, 4))
    assert read_log(tmp_path / "metrics.csv") == {
        "train/loss": [(1, 10.0), (2, 5.0), (3, 10 / 3)],
        "train/box": [(1, 1 / 3), (2, 1 / 3), (3, 1 / 3)],
    }
    assert (tmp_path / "metrics.csv").read_text().splitlines()[:2] == ["step,epoch,name,value", "1,0,train/loss,10.0"]


def test_a_resumed_log_drops_what_was_not_saved_and_a_half_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    write(path, range(1, 6))
    with path.open("a") as file:
        file.write("6,3,train/lo")
    write(path, range(4, 6), start=3)
    resumed = path.read_text()
    write(path, range(1, 6))
    assert resumed == path.read_text()


def test_each_term_has_its_panel(tmp_path: Path) -> None:
    draw_curves(tmp_path / "metrics.csv", tmp_path / "curves.png")
    assert not list(tmp_path.iterdir())  # nothing is logged yet
    sizes = []
    for terms in (("loss",), ("loss", "box"), ("loss", "box", "score", "caption")):
        log = CsvLog(tmp_path / "metrics.csv")
        for step in (1, 2):
            log.write(step, 0, {f"train/{term}": 1.0 / step for term in terms} | {"val/loss": 1.0})
        draw_curves(log.path, tmp_path / "curves.png")
        sizes.append(Image.open(tmp_path / "curves.png").size)
    assert sizes == [(420, 300), (840, 300), (1260, 600)]
