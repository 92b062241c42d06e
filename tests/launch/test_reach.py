from __future__ import annotations

import pytest

from ascend_adapt.launch.reach import why_unreached

REACHED = "/x:/our/bootstrap"


@pytest.mark.parametrize(
    ("argv", "python_path", "why"),
    [
        (["python", "train.py", "-I"], REACHED, ""),
        (["python", "-u", "-m", "train", "-S"], REACHED, ""),
        (["python", "-c", "pass", "-E"], REACHED, ""),
        (["python", "-W", "ignore", "train.py"], REACHED, ""),
        (["python", "-WEIS", "train.py"], REACHED, ""),
        (["python", "-mEIS"], REACHED, ""),
        (["python", "--check-hash-based-pycs", "always"], REACHED, ""),
        (["python"], REACHED, ""),
        (["python", "-I", "train.py"], REACHED, "its interpreter was started with -I"),
        (["python", "-uBE", "train.py"], REACHED, "its interpreter was started with -E"),
        (["python", "-u", "-S", "-c", "pass"], REACHED, "its interpreter was started with -S"),
        (["python", "-Ic", "pass"], REACHED, "its interpreter was started with -I"),
        (["python", "train.py"], "", "its PYTHONPATH was cleared or overwritten"),
        (["python", "train.py"], "/our/bootstrap/not:/x", "its PYTHONPATH was cleared or overwritten"),
    ],
)
def test_why(argv, python_path, why):
    assert why_unreached(argv, python_path, "/our/bootstrap") == why
