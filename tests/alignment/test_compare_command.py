"""`ascend-adapt compare`, and `ascend-run --record` that makes what it compares."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from alignment.planted_faults import FAULTS

from ascend_adapt import cli
from ascend_adapt.alignment.recorder import Recorder
from ascend_adapt.alignment.selection import EVERYTHING, Selection
from ascend_adapt.errors import SettingsError

SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import torch
from alignment.small_training import Decoder, adamw, batches, loss_of
torch.manual_seed(0)
model = Decoder()
optimizer = adamw(model)
for step in (1, 2):
    ids, labels = batches(step)[0]
    loss_of(model(ids), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_agreement_and_difference(clean, tmp_path, capsys):
    fault = next(one for one in FAULTS if one.name == "norm eps 1e-6 for 1e-5")
    faulty = str(fault.run.record(tmp_path))
    assert cli.main(["compare", str(clean()), str(clean())]) == 0
    assert "agree in steps 1, 2, 3" in capsys.readouterr().out
    assert cli.main(["compare", str(clean()), faulty]) == 1
    text = capsys.readouterr().out
    assert "diverge in step 1, forward, at blocks.1.norm2 (rank 0)" in text
    settings = next(line for line in text.splitlines() if line.startswith("  settings: "))
    assert "eps=1e-05" in settings.partition(" and ")[0]
    assert "eps=1e-06" in settings.partition(" and ")[2]
    assert "--record-inputs blocks.1.norm2" in text
    assert cli.main(["compare", "--json", str(clean()), faulty]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["agree"], found["first"]["module"]) == (False, "blocks.1.norm2")


def test_sparse_gradients_have_no_values_that_could_differ(tmp_path):
    for folder in ("a", "b"):
        torch.manual_seed(0)
        model = torch.nn.Embedding(8, 4, sparse=True)
        optimizer = torch.optim.SparseAdam(model.parameters())
        with Recorder(tmp_path / folder, EVERYTHING):
            model(torch.arange(3)).sum().backward()
            optimizer.step()
    assert cli.main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0


def test_what_cannot_be_compared_is_said(clean, tmp_path, capsys):
    assert cli.main(["compare", str(tmp_path), str(clean())]) == 1
    assert "no folder rank-N, expected a recording" in capsys.readouterr().err
    assert cli.main(["compare", str(clean())]) == 2
    assert "neither or both given, expected one" in capsys.readouterr().err
    shorter = tmp_path / "shorter"
    shutil.copytree(clean(), shorter)
    lines = (shorter / "rank-0" / "steps.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line).get("step") != 3]
    assert len(kept) < len(lines)
    (shorter / "rank-0" / "steps.jsonl").write_text("".join(kept))
    assert cli.main(["compare", str(clean()), str(shorter)]) == 0
    assert "and not compared: steps 3" in capsys.readouterr().out
    more = tmp_path / "more"
    for rank in ("rank-0", "rank-1"):
        shutil.copytree(clean() / "rank-0", more / rank)
    assert cli.main(["compare", str(clean()), str(more)]) == 0
    assert "not recorded in the other run, and not compared: ranks 1 of B" in capsys.readouterr().out
    damaged = tmp_path / "damaged"
    shutil.copytree(clean(), damaged)
    (damaged / "rank-0" / "step-2.npy").write_bytes(b"\x93NUMPY")
    assert cli.main(["compare", str(clean()), str(damaged)]) == 1
    assert "expected the digests of step 2 — record again" in capsys.readouterr().err


def _altered(lines, kind, *path, value):
    """Set one value inside the first line of a kind."""
    number, line = next((number, json.loads(one)) for number, one in enumerate(lines) if f'"kind":"{kind}"' in one)
    inner = line
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return [*lines[:number], json.dumps(line) + "\n", *lines[number + 1 :]]


@pytest.mark.parametrize(
    ("kind", "path", "value", "why"),
    [
        ("gradient", ("root",), [], "root: [] is not a number from -1"),
        ("call", ("parent",), 10**9, "parent: 1000000000 is not a call that began before call"),
        ("call", ("inputs", 0, "shape"), float("nan"), "inputs[0].shape: NaN is not the size of each dimension"),
        ("weight", ("shape",), [2**62, 2**62], "is not the size of each dimension"),
        ("weight", ("shard",), [9, 0, 2], "shard[0]: 9 is not an axis of 2 dimensions"),
        ("optimizer", ("parameters", 0, "group"), 7, "parameters[0].group: 7 is not one of 2 groups"),
        ("optimizer", ("parameters", 0, "state", "exp_avg"), {}, "state.exp_avg: has no row, dtype, shape"),
        ("module", ("kind",), "odd", 'kind: "odd" is not one of module, step'),
    ],
)
def test_an_altered_line_is_refused(kind, path, value, why, clean, tmp_path, capsys):
    altered = tmp_path / "altered"
    shutil.copytree(clean(), altered)
    steps = altered / "rank-0" / "steps.jsonl"
    steps.write_text("".join(_altered(steps.read_text().splitlines(keepends=True), kind, *path, value=value)))
    assert cli.main(["compare", str(clean()), str(altered)]) == 1
    error = capsys.readouterr().err
    assert f"{steps}: line " in error
    assert why in error
    assert "expected a recording of format 1 — record again" in error


def test_every_fault_of_a_recording_is_reported(clean, tmp_path, capsys):
    altered = tmp_path / "altered"
    shutil.copytree(clean(), altered)
    run, steps = altered / "rank-0" / "run.json", altered / "rank-0" / "steps.jsonl"
    steps.write_text('{}\n{"kind":"step","step":0}\n{"kind"')
    assert cli.main(["compare", str(clean()), str(altered)]) == 1
    assert "line 1: kind: null is not one of" in (error := capsys.readouterr().err)
    assert "line 2: step: 0 is not a number from 1, expected" in error
    facts = json.loads(run.read_text())
    run.write_text(json.dumps({**facts, "tensor_parallel": [2, 2], "matmul": ["tf32"]}))
    assert cli.main(["compare", str(clean()), str(altered)]) == 1
    assert 'matmul: ["tf32"] is not a string; tensor_parallel: [2, 2] is not [rank, size]' in capsys.readouterr().err


@pytest.mark.parametrize(
    "header",
    ["'descr': '<f8'", "'descr': '<f4', 'shape': (1, 70), 'fortran_order': False}", "'shape': (9" + "9" * 30, "{(\n"],
)
def test_digests_of_another_shape_are_refused(header, clean, tmp_path, capsys):
    altered = tmp_path / "altered"
    shutil.copytree(clean(), altered)
    array = altered / "rank-0" / "step-1.npy"
    data = array.read_bytes()
    array.write_bytes(data[:11] + header.encode().ljust(117)[:117] + data[128:])
    assert cli.main(["compare", str(clean()), str(altered)]) == 1
    assert "expected the digests of step 1 — record again" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "0", "3-1", "1,x", "-2"])
def test_wrong_steps_are_refused(text):
    with pytest.raises(SettingsError, match="expected numbers from 1"):
        Selection.parse(text, "--record-steps", 1)


def test_steps_are_selected():
    chosen = Selection.parse("2,5-6", "--record-steps", 1)
    assert [number for number in range(9) if number in chosen] == [2, 5, 6]
    assert 7 in Selection.parse("all", "--record-steps", 1)


def test_a_job_is_recorded_with_and_without_patches(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parents[1])))

    def run(*options):
        command = [sys.executable, "-m", "ascend_adapt.launch.cli", "--device", "cpu", "--nproc", "1", *options]
        return subprocess.run([*command, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120)

    for name, options in (("with", ()), ("without", ("--no-adapt", "--record-steps", "2"))):
        ended = run("--record", name, *options)
        assert ended.returncode == 0, ended.stderr
    assert cli.main(["compare", str(tmp_path / "with"), str(tmp_path / "without")]) == 0
    assert "agree in steps 2:" in capsys.readouterr().out
    again = run("--dry-run", "--record", "with")
    assert (again.returncode, "a recording is already there" in again.stderr) == (1, True)
