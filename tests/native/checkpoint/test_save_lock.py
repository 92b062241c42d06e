"""Save lock: a folder in use, or not writable, is refused before the first step."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from native.test_loop import run

from ascend_adapt.config.train_config import Checkpoint
from ascend_adapt.errors import TrainingError
from ascend_adapt.native.checkpoint import save_lock
from ascend_adapt.native.checkpoint.save_lock import FILE

HOLDS = """
import sys, time, torch
from ascend_adapt.native.parallel import mesh
from ascend_adapt.native.checkpoint.save_lock import SaveLock
with SaveLock(sys.argv[1], mesh.single(torch.device("cpu"))):
    print("held", flush=True)
    time.sleep(600)
"""


def test_second_run_is_refused_until_the_first_has_ended(settings, tmp_path):
    settings = replace(settings, iterations=1, eval_interval=0, checkpoint=Checkpoint(save=str(tmp_path)))
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(TrainingError, match=rf"^{tmp_path}: process {other.pid} on .* saves there, expected no o"):
            run(settings)
        other.kill()
    run(settings)
    assert (tmp_path / "iter_0000001").exists()
    run(settings)


def test_unwritable_folder_is_refused_before_the_first_step(settings, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        TrainingError, match=r"file/saved: cannot be saved into \(Not a directory\), expected a writable folder"
    ):
        run(replace(settings, checkpoint=Checkpoint(save=str(tmp_path / "file" / "saved"))))


def test_folder_without_locks_is_used_with_a_warning(settings, tmp_path, monkeypatch):
    def none(*_):
        raise OSError(save_lock.errno.ENOLCK, "No locks available")

    monkeypatch.setattr(save_lock.fcntl, "lockf", none)
    checkpoint = Checkpoint(save=str(tmp_path))
    log = run(replace(settings, iterations=1, eval_interval=0, checkpoint=checkpoint))
    assert log.said[0] == f"warning: {tmp_path}: does not support locks, so a second run saving into it is not detected"
    assert (tmp_path / "iter_0000001").exists()
    assert (tmp_path / FILE).exists()
