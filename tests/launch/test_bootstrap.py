"""Which processes of a job are adapted, and what else they notice."""

from __future__ import annotations

import json
import os
import site as site_packages
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_adapt.launch.placement.environment import BOOTSTRAP

ANSWER = "import toytarget; print(toytarget.answer())"

BY_START_METHOD = f"""
import json, multiprocessing, os, subprocess, sys
ANSWER = {ANSWER!r}

def answer(queue):
    import toytarget
    queue.put(toytarget.answer())

def through(method):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=answer, args=(queue,))
    child.start()
    reported = queue.get()
    child.join()
    return reported

def run(*flags, env=None):
    child = subprocess.run([sys.executable, *flags, "-c", ANSWER], env=env, capture_output=True, text=True)
    return child.stdout.strip() or child.stderr.splitlines()[-1]

if __name__ == "__main__":
    table = {{method: through(method) for method in ("fork", "spawn", "forkserver")}}
    table["subprocess"] = run()
    table["shell"] = subprocess.run(
        f"{{sys.executable}} -c '{{ANSWER}}'", shell=True, capture_output=True, text=True
    ).stdout.strip()
    toy = os.environ["TOY"]
    for flag in "IES":
        ANSWER = f"import sys; sys.path.insert(0, {{toy!r}}); import toytarget; print(toytarget.answer())"
        table[f"subprocess -{{flag}}"] = run(f"-{{flag}}")
    table["subprocess, PYTHONPATH overwritten"] = run(env={{**os.environ, "PYTHONPATH": toy}})
    table["subprocess, cleared environment"] = run(env={{}})
    print(json.dumps(table))
"""


def test_which_processes_are_adapted(ascend_run, toy, tmp_path):
    (tmp_path / "train.py").write_text(BY_START_METHOD)
    job = ascend_run("train.py", PYTHONPATH=toy, TOY=toy)
    assert job.returncode == 0, job.stderr
    assert json.loads(job.stdout) == {
        "fork": "patched",
        "spawn": "patched",
        "forkserver": "patched",
        "subprocess": "patched",
        "shell": "patched",
        "subprocess -I": "plain",
        "subprocess -E": "plain",
        "subprocess -S": "plain",
        "subprocess, PYTHONPATH overwritten": "plain",
        "subprocess, cleared environment": "plain",
    }


def test_a_plain_process_unpickles_what_a_spawned_child_pickled(ascend_run, toy, tmp_path):
    (tmp_path / "train.py").write_text(
        "import multiprocessing, pickle\n"
        "def dump():\n"
        "    import toytarget\n"
        "    with open('thing.pickle', 'wb') as file:\n"
        "        pickle.dump(toytarget.Thing().grow(), file)\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=dump)\n"
        "    child.start(); child.join()\n"
    )
    job = ascend_run("train.py", PYTHONPATH=toy)
    assert job.returncode == 0, job.stderr
    # A process without this package: no site-packages at all.
    code = f"import sys, pickle; sys.path.insert(0, {toy!r}); print(pickle.load(open('thing.pickle', 'rb')).size)"
    plain = subprocess.run([sys.executable, "-I", "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert plain.stdout.strip() == "14", plain.stderr


@pytest.mark.parametrize("off", [["--no-adapt"], []])
def test_switched_off_nothing_of_ours_is_left(off, ascend_run, toy, tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, subprocess, sys, toytarget\n"
        "assert toytarget.answer() == 'plain'\n"
        f"subprocess.run([sys.executable, '-c', {ANSWER!r}])\n"
        "print([name for name in os.environ['PYTHONPATH'].split(':') if 'bootstrap' in name])\n"
    )
    env = {} if off else {"ASCEND_ADAPT": "0"}
    job = ascend_run(*off, "train.py", PYTHONPATH=toy, **env)
    assert job.returncode == 0, job.stderr
    assert sorted(job.stdout.split()) == ["[]", "plain"]
    assert list((tmp_path / "runs").glob("*/beacons/*")) == []


# Other tools that want every interpreter, as they really do it: run what comes after oneself.
TOOL = """
import os, sys
print("tool", end=" ")
here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize
finally:
    sys.path.insert(0, here)
"""
SYSTEM = 'print("system", end=" ")'


def interpreter(code, *path, **env):
    """Run Python with the bootstrap's variables and ``path`` as PYTHONPATH."""
    env = {**os.environ, "PYTHONPATH": ":".join(path), "ASCEND_ADAPT_TARGETS": "toytarget", **env}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=280)


@pytest.fixture
def others(tmp_path):
    """Return folders with a tool's sitecustomize, a system's, and one that raises."""
    folders = {}
    for name, text in (("tool", TOOL), ("system", SYSTEM), ("broken", "raise ZeroDivisionError('mine')")):
        folders[name] = str(tmp_path / name)
        Path(folders[name]).mkdir()
        Path(folders[name], "sitecustomize.py").write_text(text)
    return folders


@pytest.mark.parametrize("order", ["B", "Bs", "Bt", "Bts", "tB", "tBs", "BBs", "BtBs"])
def test_the_sitecustomize_of_others_runs_once_and_so_does_ours(order, others, toy):
    folders = {"B": BOOTSTRAP, "s": others["system"], "t": others["tool"]}
    count = "import sys; print(sum('TargetFinder' in str(finder) for finder in sys.meta_path), end=' ');"
    run = interpreter(count + ANSWER, *(folders[letter] for letter in order), toy)
    names = {"t": "tool", "s": "system"}
    assert run.stdout.split() == [*(names[letter] for letter in order if letter in names), "1", "patched"], run.stderr
    assert run.stderr == ""


def test_an_error_in_the_sitecustomize_of_others_is_reported_as_without_us(others, toy):
    with_us = interpreter(ANSWER, BOOTSTRAP, others["broken"], toy)
    without = interpreter(ANSWER, others["broken"], toy)
    assert with_us.stdout == "patched\n"
    assert with_us.stderr == without.stderr
    assert "ZeroDivisionError: mine" in with_us.stderr


def test_the_interpreters_own_sitecustomize_and_usercustomize_run(toy, tmp_path):
    """In a virtual environment as it is made, with a sitecustomize of its own, and user packages switched on."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", tmp_path / "v"], check=True
    )
    (site,) = (tmp_path / "v").glob("lib/python*/site-packages")
    (site / "sitecustomize.py").write_text('print("venv", end=" ")')
    user = tmp_path / "user" / "lib" / site.parent.name / "site-packages"
    user.mkdir(parents=True)
    (user / "usercustomize.py").write_text('print("user", end=" ")')
    packages = ":".join(site_packages.getsitepackages())
    env = {"PYTHONPATH": ":".join([BOOTSTRAP, toy, packages])}
    python, base = tmp_path / "v" / "bin" / "python", {"PYTHONUSERBASE": str(tmp_path / "user")}
    # Some distributions' interpreters have a sitecustomize of their own, which comes before that of an environment.
    plain = subprocess.run([python, "-c", ""], env={**os.environ, **base}, capture_output=True, text=True).stdout
    assert "user" in plain.split()
    run = subprocess.run(
        [python, "-c", ANSWER],
        env={**os.environ, **env, **base, "ASCEND_ADAPT_TARGETS": "toytarget"},
        capture_output=True,
        text=True,
    )
    assert run.stdout == f"{plain}patched\n", run.stderr


@pytest.mark.parametrize(("device", "seen"), [("cpu", ""), ("cuda", "0"), ("npu", "0")])
def test_gpus_that_a_launcher_in_the_job_hands_out_stay_hidden_from_a_cpu_job(device, seen):
    """DeepSpeed's launcher sets the variable for each of its ranks."""
    environ = {**os.environ, "PYTHONPATH": BOOTSTRAP, "ASCEND_ADAPT_DEVICE": device, "CUDA_VISIBLE_DEVICES": "0"}
    command = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    reported = subprocess.run([sys.executable, "-c", command], env=environ, capture_output=True, text=True)
    assert reported.stdout.strip() == seen
