"""Dialects are entry points; one of a third party is read as the built-in ones are."""

from __future__ import annotations

import pytest

from ascend_adapt.errors import SettingsError
from ascend_adapt.recipes import dialects

THEIRS = """\
from ascend_adapt.recipes import megatron

def read(argv):
    return megatron.read(["--tensor-model-parallel-size" if word == "--tp" else word for word in argv])
"""
MODEL = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--micro-batch-size 1 --train-iters 10 --lr 1e-3 --vocab-size 100 --data-path x"
)


def test_a_dialect_of_a_third_party(site):
    site.write(their_dialect=THEIRS)
    site.install("theirs", "1.0", "[ascend_adapt.dialects]\ntheirs = their_dialect:read")
    config, _ = dialects.read("theirs", ["--tp", "2", *MODEL.split()]).build(2)
    assert config.parallel.tensor == 2


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "--native theirs: expected one of glm, megatron, neox, oneflow — choose one"),
        ("1 / 0", r"--native theirs \(of theirs\): importing their_dialect:read raised ZeroDivisionError: division"),
        ("", r"--native theirs \(of theirs\): importing their_dialect:read raised AttributeError: .*'read'"),
    ],
)
def test_a_dialect_that_is_missing_or_cannot_be_imported(site, source, message):
    if source is not None:
        site.write(their_dialect=source)
        site.install("theirs", "1.0", "[ascend_adapt.dialects]\ntheirs = their_dialect:read")
    with pytest.raises(SettingsError, match=message):
        dialects.read("theirs", MODEL.split())
