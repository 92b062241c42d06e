"""The runner of libraries' own tests: its report, and the PATH that it gives the tests."""

from __future__ import annotations

from pathlib import Path

import own_tests
import pytest


@pytest.mark.parametrize(("device", "where"), [("cpu", "worse"), ("npu-emulated", "explained"), ("npu", "explained")])
def test_a_reason_for_npus_explains_no_failure_on_a_cpu(device: str, where: str) -> None:
    name = "tests.test_custom_models::test_merge[AdaLoRA-AdaLoraConfig]"
    reported = own_tests.summary([{name: "passed"}], [{name: "failure: assert False"}], device)
    assert {kind: list(reported[kind]) for kind in ("worse", "explained")} == {
        "worse": [],
        "explained": [],
        where: [name],
    }


def test_commands_of_the_environment_are_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_path.py").write_text(
        "import shutil, sys, os\n\ndef test_path():\n"
        "    assert os.path.samefile(os.path.dirname(shutil.which('python')), os.path.dirname(sys.executable))\n"
    )
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    suite = own_tests.Suite(".", ("test_path.py",))
    assert own_tests.results(suite, tmp_path, suite.files, "plain", tmp_path) == {"test_path::test_path": "passed"}
