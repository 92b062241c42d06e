"""Which processes of a job are adapted, and what else they notice."""

from __future__ import annotations

import json
import os
import site as site_packages
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_adapt.launch.environment import BOOTSTRAP

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
    told = queue.get()
    child.join()
    return told

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
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)


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


def test_an_error_in_the_sitecustomize_of_others_is_told_as_without_us(others, toy):
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
    env = {"PYTHONPATH": ":".join([BOOTSTRAP, toy, packages]), "PYTHONUSERBASE": str(tmp_path / "user")}
    run = subprocess.run(
        [tmp_path / "v" / "bin" / "python", "-c", ANSWER],
        env={**os.environ, **env, "ASCEND_ADAPT_TARGETS": "toytarget"},
        capture_output=True,
        text=True,
    )
    assert run.stdout == "venv user patched\n", run.stderr


def test_a_target_that_a_pth_file_imports_is_adapted_at_once(toy, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "early.pth").write_text("import toytarget\n")
    # addsitedir reads .pth files as site does, before sitecustomize.
    code = f"import site; site.addsitedir({str(tmp_path / 'site')!r}); import runpy;"
    code += f"runpy.run_path({BOOTSTRAP + '/sitecustomize.py'!r}); print(sys.modules['toytarget'].answer())"
    env = {**os.environ, "PYTHONPATH": toy, "ASCEND_ADAPT_TARGETS": "toytarget"}
    run = subprocess.run([sys.executable, "-c", "import sys;" + code], env=env, capture_output=True, text=True)
    assert run.stdout == "patched\n", run.stderr


def test_an_interpreter_without_this_package_goes_on_and_says_so(toy):
    code = f"import sys; sys.path.insert(0, {toy!r}); {ANSWER}"
    env = {"PYTHONPATH": BOOTSTRAP, "ASCEND_ADAPT_TARGETS": "toytarget", "PATH": os.environ["PATH"]}
    # The interpreter below the virtual environment, which has nothing installed.
    base = Path(sys.base_prefix, "bin", "python3")
    run = subprocess.run([base, "-c", code], cwd=toy, env=env, capture_output=True, text=True)
    assert run.stdout == "plain\n", run.stderr
    assert "this process runs without patches — install ascend_adapt there" in run.stderr


def test_a_helper_that_imports_no_target_loads_nothing_of_ours(toy):
    code = "import sys; print([name for name in sys.modules if name.startswith(('ascend_adapt', 'wrapt', 'pluggy'))])"
    assert interpreter(code, BOOTSTRAP, toy).stdout == "[]\n"


def test_a_script_that_enables_itself_has_one_session(ascend_run, toy, tmp_path):
    (tmp_path / "train.py").write_text(
        "import sys, ascend_adapt\nascend_adapt.enable()\nimport toytarget\n"
        "print([type(finder).__name__ for finder in sys.meta_path].count('ImportWatch'), toytarget.answer())\n"
        "print({one.state for one in ascend_adapt.status().outcomes if one.plugin == 'toy'})\n"
    )
    for command in (["train.py"], [sys.executable, "train.py"]):
        job = ascend_run(*command, PYTHONPATH=toy)
        assert job.stdout == "1 patched\n{'applied'}\n", job.stderr


def test_the_sitecustomize_that_debian_ships_runs(toy):
    """It lies in the standard library's folder, where only the end of sys.path leads."""
    shipped = sorted(Path("/usr/lib").glob("python3.*/sitecustomize.py"))
    if not shipped or not Path("/usr/bin/python3").exists():
        pytest.skip("this system ships none")
    env = {**os.environ, "PYTHONPATH": BOOTSTRAP, "ASCEND_ADAPT_TARGETS": "toytarget"}
    code = "import sys, sitecustomize; print(sitecustomize.__file__, type(sys.meta_path[0]).__name__)"
    run = subprocess.run(["/usr/bin/python3", "-c", code], env=env, capture_output=True, text=True)
    file, finder = run.stdout.split()
    assert Path(file) in shipped
    assert finder == "TargetFinder"
