"""Commands whose standard streams are closed or narrow behave like any other."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

RUN = [sys.executable, "-m", "ascend_adapt.launch.cli"]
ADAPT = [sys.executable, "-m", "ascend_adapt.cli"]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_job_runs_with_closed_streams(tmp_path, closed):
    (tmp_path / "s.py").write_text("import os, pathlib\nprint('x' * 100)\npathlib.Path('written').write_text('data')\n")
    command = f'exec "$0" -m ascend_adapt.launch.cli --device cpu --no-adapt --log-dir run s.py {closed}'
    job = subprocess.run(["sh", "-c", command, sys.executable], cwd=tmp_path, capture_output=True, text=True)
    assert (job.returncode, "Traceback" in job.stderr) == (0, False), job.stderr
    assert (tmp_path / "written").read_text() == "data"
    assert (tmp_path / "run" / "rank-0.log").read_text() == "x" * 100 + "\n"


def test_no_file_gets_the_descriptor_of_a_closed_stream(tmp_path):
    code = (
        "from ascend_adapt import standard_streams; standard_streams.prepare()\n"
        "with open('data', 'w') as stream: print('printed', flush=True); stream.write(str(stream.fileno()))"
    )
    command = f'exec {sys.executable} -c "$0" >&- 2>&- <&-'
    assert subprocess.run(["sh", "-c", command, code], cwd=tmp_path).returncode == 0
    assert int((tmp_path / "data").read_text()) > 2


@pytest.mark.parametrize(
    "command", [[*RUN, "--dry-run", "--nproc", "10000", "s.py"], [*ADAPT, "completion", "bash"], [*ADAPT, "doctor"]]
)
def test_an_encoding_without_the_characters_is_no_traceback(tmp_path, command):
    (tmp_path / "s.py").write_text("")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii:strict"}
    job = subprocess.run(command, cwd=tmp_path, env={**os.environ, **plain}, capture_output=True)
    assert b"Traceback" not in job.stderr, job.stderr.decode()


def test_a_name_that_is_not_utf8_is_printed(tmp_path):
    folder = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(folder)
    job = subprocess.run([*RUN, "--dry-run", "--json", "--log-dir", folder, "true"], capture_output=True, text=True)
    assert (job.returncode, "Traceback" in job.stderr) == (0, False), job.stderr


@pytest.mark.parametrize(("name", "words"), [("ascend-run", "launch.cli {}/s.py"), ("ascend-adapt", "cli doctor")])
def test_a_removed_working_folder_is_named(name, words, tmp_path):
    command = f'mkdir gone && cd gone && rmdir ../gone && exec "$0" -m ascend_adapt.{words.format(tmp_path)}'
    (tmp_path / "s.py").write_text("")
    environ = {**os.environ, "PYTHONPATH": os.getcwd()}
    job = subprocess.run(
        ["sh", "-c", command, sys.executable], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert (job.returncode, job.stderr) == (
        2,
        f"{name}: working folder: No such file or directory, expected an existing folder — cd to one\n",
    )
