"""Programs whose source is a small package on PyPI: CI runs them."""

from __future__ import annotations

from pathlib import Path

from own_scripts import local_data
from own_scripts.program import program
from upstream_job import Place

# As picogpt's README has it, but for the sizes, and the tokenizer that is at hand without a download.
PICOGPT = """\
from picogpt import PicoGPT

sizes = {"n_embd": 16, "n_head": 2, "n_layer": 1, "block_size": 8, "batch_size": 2}
pico = PicoGPT(tokenizer_name="gpt2", **sizes, train_steps=200, dropout=0.0)
pico.train_with_file("corpus.txt")
pico.save_model("model.pt")
"""


def picogpt(place: Place, code: Path) -> None:
    """Write a script that trains picogpt, and its text."""
    (code / "train.py").write_text(PICOGPT)
    local_data.write_text(code / "corpus.txt", 4000)


JOBS = (
    program(
        "picogpt",
        ["train.py"],
        release=("picogpt", "0.1.1"),
        prepare=picogpt,
        path="{checkout}/src",
        loss=r"loss=([0-9.]+)",
        bound=1e-2,  # its autocast is bf16
    ),
)
