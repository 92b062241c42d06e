from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from ascend_adapt.launch.in_process.local_rank import as_declared


@pytest.mark.parametrize(
    ("words", "declared", "reported"),
    [
        (["--local-rank=1", "x"], ["--local_rank"], ["--local_rank=1", "x"]),
        (["--local_rank", "1"], ["--local-rank"], ["--local-rank", "1"]),
        (["--local-rank=1"], ["--local_rank", "--local-rank"], ["--local-rank=1"]),
        (["--local-rank=1"], ["--other"], ["--local-rank=1"]),
        (["--local-rank-x=1"], ["--local_rank"], ["--local-rank-x=1"]),
        (["--x=--local-rank=1"], ["--local_rank"], ["--x=--local-rank=1"]),
    ],
)
def test_the_spelling_is_the_declared_one(words, declared, reported):
    assert as_declared(words, declared) == reported


def test_a_parser_of_the_script_takes_either(tmp_path):
    code = (
        "from ascend_adapt.launch.in_process import local_rank\n"
        "local_rank.accept_both_spellings(); local_rank.accept_both_spellings()\n"
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--local_rank', type=int)\n"
        "print(p.parse_args().local_rank, p.parse_args(['--local-rank', '5']).local_rank)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, "--local-rank=3"], capture_output=True, text=True)
    assert run.stdout == "3 5\n", run.stderr
    assert not hasattr(argparse.ArgumentParser.parse_known_args, "__wrapped__")


@pytest.mark.parametrize("declared", ["--local_rank", "--local-rank"])
def test_pass_local_rank(declared, ascend_run, tmp_path):
    (tmp_path / "train.py").write_text(
        f"import argparse\np = argparse.ArgumentParser()\np.add_argument({declared!r}, type=int)\n"
        "print(p.parse_args().local_rank)\n"
    )
    job = ascend_run("--nproc", "2", "--pass-local-rank", "train.py")
    assert sorted(job.stdout.split()) == ["0", "1"], job.stderr
