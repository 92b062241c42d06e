"""What a script for a GPU asks of its device, on the emulated NPU: one process answers all questions."""

from __future__ import annotations

import pytest
from capability_questions import QUESTIONS, SCRIPT, outcomes_in, save_as_on_cuda_3

# Why the emulated NPU has no answer; each fails with this text.
NOT_ANSWERED = {
    "types_named_by_text": "Cannot initialize CUDA without ATen_cuda library",  # Tensor.type is never patched
}


@pytest.fixture(scope="module")
def outcomes(jobs, tmp_path_factory):
    file = save_as_on_cuda_3(tmp_path_factory.mktemp("cuda") / "weights.pt")  # a path with this word
    return outcomes_in(jobs(SCRIPT.name, str(file)).check().stdout)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered(outcomes, question):
    missing = NOT_ANSWERED.get(question)
    assert outcomes[question] == "" if missing is None else missing in outcomes[question]
