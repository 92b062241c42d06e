"""Hosts that share no folder: checkpoints are refused before a step is lost to one that is not whole, data is not."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from native.small_models import config
from native.test_loop import run

from ascend_adapt.config.train_config import Checkpoint
from ascend_adapt.config.yaml_file import to_dict
from ascend_adapt.data import IndexedDataset
from ascend_adapt.data.token_index import write_index
from ascend_adapt.native.checkpoint import save_lock
from ascend_adapt.native.checkpoint.folder import LATEST, CheckpointFolder

HERE = Path(__file__).parent


def train_apart(settings, folder, checkpoint):
    """Train on two ranks, each in a folder of its own, and return how that ended."""
    made = config(settings.model, data=2)
    settings = replace(settings, parallel=made.parallel, batch=made.batch, checkpoint=checkpoint, iterations=3)
    (folder / "config.yaml").write_text(yaml.safe_dump(to_dict(settings)))
    command = [sys.executable, "-m", "ascend_adapt.launch.cli", "--nproc", "2", "--device", "cpu", "--log-dir", "run"]
    command += [str(HERE / "train_apart.py"), "config.yaml"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PATIENCE": "1"}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300)


def test_one_that_is_not_shared_is_refused_before_the_first_step(settings, tmp_path):
    done = train_apart(settings, tmp_path, Checkpoint(save="kept", interval=1))
    assert done.returncode == 1
    assert "kept: rank 1 on" in done.stderr
    assert "does not see it (No such file or directory), expected one folder that all ranks share" in done.stderr
    assert "iteration        1/" not in done.stdout
    assert "Traceback" not in done.stderr


def test_a_host_that_sees_the_folder_late_is_waited_for(tmp_path, monkeypatch):
    later = threading.Timer(0.6, (tmp_path / save_lock.FILE).write_text, ["process 1"])
    later.start()
    assert save_lock._wrong_with(tmp_path, "process 1") is None
    later.join()
    monkeypatch.setattr(save_lock, "PATIENCE", 0.0)
    assert save_lock._wrong_with(tmp_path, "process 2") == f"on {socket.gethostname()} sees another folder"


def test_a_checkpoint_that_one_host_has_is_not_loaded(settings, tmp_path):
    run(replace(settings, iterations=1, eval_interval=0, checkpoint=Checkpoint(save=str(tmp_path / "host-0" / "kept"))))
    done = train_apart(settings, tmp_path, Checkpoint(load="kept"))
    assert done.returncode == 1
    assert "kept/iter_0000001 is damaged (rank 1 sees a different checkpoint: it does not exist)" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_another_rank_wrote_elsewhere_is_not_published(tmp_path):
    folder = CheckpointFolder(tmp_path)
    (folder.begin(3) / "__0_0.distcp").touch()
    with pytest.raises(ValueError, match=r"__1_0\.distcp is missing in .*saving-iter_0000003: the rank that wrote it"):
        folder.publish(3, "{}", {"__0_0.distcp": "0", "__1_0.distcp": "1"}, keep_last=1)
    assert not (tmp_path / LATEST).exists()
    assert folder.saved() == []


@pytest.mark.parametrize("is_same", [pytest.param(True, marks=pytest.mark.every_case), False])
def test_token_files_may_be_each_hosts_own_if_they_are_the_same(settings, tmp_path, is_same):
    for host in range(2):
        (tmp_path / f"host-{host}").mkdir()
        for kind in ("bin", "idx"):
            shutil.copy(tmp_path / f"text.{kind}", tmp_path / f"host-{host}")
    if not is_same:
        sizes = np.array(IndexedDataset(tmp_path / "text").sizes)[::-1]
        with (tmp_path / "host-1" / "text.idx").open("wb") as stream:
            write_index(stream, np.dtype(np.uint16), sizes)
    done = train_apart(replace(settings, data=replace(settings.data, train=("text",))), tmp_path, Checkpoint())
    if is_same:
        assert done.returncode == 0, done.stderr
        assert list((tmp_path / "host-1" / "text_index_cache").iterdir())
    else:
        assert done.returncode == 1
        assert "text: rank 1 has 60 sequences of " in done.stderr
        assert "give all hosts the same token files" in done.stderr
        assert "Traceback" not in done.stderr
