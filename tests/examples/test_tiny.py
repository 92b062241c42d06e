"""Examples that train with --tiny in a few seconds; the rest is every_example.py, which `make examples` runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples.examples import CHEAP, REST, ROOT, check


@pytest.mark.parametrize("path", CHEAP)
def test_it_trains(path: str, tmp_path: Path) -> None:
    check(path, *CHEAP[path], tmp_path)


def test_every_folder_has_an_example_that_is_run() -> None:
    elsewhere = {
        "megatron_deepspeed_gpt2": "make demo",
        "third_party_plugin": "test_third_party_plugin.py",
        "container": "tests/documentation/test_container_example.py",
    }
    run = {Path(path).parent.name for path in (*CHEAP, *REST)}
    folders = {path.name for path in (ROOT / "examples").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert run | set(elsewhere) == folders
    for folder in folders:
        assert f"[{folder}]({folder})" in (ROOT / "examples" / "README.md").read_text()
