"""What a script for a GPU asks of its device, on a CPU: one process answers all questions."""

from __future__ import annotations

import subprocess
import sys

import pytest
from capability_questions import QUESTIONS, SCRIPT, outcomes_in, save_as_on_cuda_3


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuda")  # a path with this word
    file = save_as_on_cuda_3(folder / "weights.pt")
    command = [sys.executable, "-m", "ascend_adapt.launch.cli", "--device", "cpu", str(SCRIPT), str(file)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return outcomes_in(done.stdout)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered(outcomes, question):
    assert outcomes[question] == ""
