"""The command line of a container, and jobs through a stand-in for docker that runs the command here.

No container engine was at hand.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from ascend_adapt import probe
from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.jobs import container_job as container
from ascend_adapt.launch.placement.environment import OF_ANOTHER_JOB
from ascend_adapt.launch.request import parse


def command(*argv, device="cpu", environ=(), exists=()):
    request = parse([*argv])
    return container.command(
        request,
        ["ascend-run", *request.inner],
        engine="docker",
        name="n",
        device=device,
        environ=dict(environ),
        variables=["HCCL_A"],
        folder=Path("/work"),
        exists=frozenset(exists),
    )


def test_it_gets_the_folder_and_no_more():
    argv = command("--container", "image:1", "--nproc", "2", "--dry_run", "train.py", "a b")
    image = argv.index("image:1")
    assert argv[image + 1 :] == ("ascend-run", "--nproc", "2", "train.py", "a b")
    assert [argv[index + 1] for index, word in enumerate(argv) if word == "--volume"] == ["/work:/work"]
    assert argv[argv.index("--user") + 1] == f"{os.getuid()}:{os.getgid()}"
    assert argv[argv.index("--env") + 1] == "HCCL_A"
    assert not {"--privileged", "-v", "-e"} & set(argv)
    assert not any(".ssh" in word for word in argv)


def test_only_the_chosen_npus(monkeypatch):
    monkeypatch.setattr(probe, "device_nodes", lambda kind: [f"davinci{number}" for number in range(8)])
    driver = "/usr/local/Ascend/driver"
    given = ("--image", "i", "train.py")
    argv = command(*given, device="npu", environ={"ASCEND_RT_VISIBLE_DEVICES": "2,5"}, exists=[driver])
    devices = [word for word in argv if word.startswith("--device=")]
    managers = ["--device=/dev/davinci_manager", "--device=/dev/devmm_svm", "--device=/dev/hisi_hdc"]
    assert devices == ["--device=/dev/davinci2", "--device=/dev/davinci5", *managers]
    assert f"{driver}:{driver}:ro" in argv
    assert sum("davinci" in word for word in command(*given, device="npu")) == 8 + 1


def test_only_the_chosen_gpus():
    argv = command("--image", "i", "train.py", device="cuda", environ={"CUDA_VISIBLE_DEVICES": "1,3"})
    assert argv[argv.index("--gpus") + 1] == '"device=1,3"'


def test_what_oneflows_launch_container_takes(tmp_path):
    wheel = tmp_path / "a b.whl"
    wheel.touch()
    given = ["--src", str(tmp_path), "--wheel", str(wheel), "--py", "python3.8", "--cmd", "bash train.sh"]
    argv = command("--image", "i", *given)
    assert argv[-3:-1] == ("bash", "-c")
    assert argv[-1] == (
        f"python3.8 -m pip install --user '{wheel}' && export PYTHONPATH={tmp_path}${{PYTHONPATH:+:$PYTHONPATH}} "
        "&& bash train.sh"
    )
    assert f"{wheel}:{wheel}:ro" in argv


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--src", "/nowhere"], "--src /nowhere: is not a folder"),
        (["--wheel", "/nowhere"], "--wheel /nowhere: is not a file"),
    ],
)
def test_what_is_not_there(argv, says):
    with pytest.raises(LaunchError, match=says):
        command("--image", "i", *argv, "train.py")


def test_cmd_needs_a_container(capsys):
    with pytest.raises(SystemExit):
        parse(["--cmd", "bash train.sh"])
    assert "--cmd: needs a container" in capsys.readouterr().err


STAND_IN = """#!{python}
import json, os, subprocess, sys
argv = sys.argv[1:]
with open("called", "a") as called:
    called.write(json.dumps(argv) + "\\n")
if argv[0] == "run":
    names = [argv[at + 1] for at, word in enumerate(argv) if word == "--env"]
    print(json.dumps({{name: os.environ[name] for name in names}}), flush=True)
    inner = argv[argv.index("image") + 1:]
    sys.exit(subprocess.call([sys.executable, "-m", "ascend_adapt.launch.cli", *inner[1:]]))
"""


@pytest.fixture
def docker(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").write_text(STAND_IN.format(python=sys.executable))
    (tmp_path / "bin/docker").chmod(0o755)
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv[1:], flush=True)\nsys.exit(7)\n")
    return {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HCCL_A": "a\nb", "MY_TOKEN": "secret", "HOME": "/root"}


def test_a_job_in_one(ascend_run, docker, tmp_path):
    """Its variables arrive, with line breaks, and their values are in no file and on no command line."""
    (tmp_path / "train.py").write_text("import sys, glob\nprint(sys.argv[1:], glob.glob('run/.*'))\nsys.exit(7)\n")
    given = ["--device", "cpu", "--container", "image", "--export", "MY_TOKEN", "--log-dir", "run"]
    of_a_rank = dict.fromkeys(OF_ANOTHER_JOB, "1")  # as if a rank of another job started this one
    job = ascend_run(*given, "train.py", "a b", **docker, **of_a_rank)
    assert job.returncode == 7, job.stderr
    reported, arguments = job.stdout.splitlines()
    assert {"HCCL_A": "a\nb", "MY_TOKEN": "secret"}.items() <= json.loads(reported).items()
    assert not set(OF_ANOTHER_JOB) & set(json.loads(reported))
    assert arguments == "['a b'] []"
    assert "secret" not in (tmp_path / "called").read_text()
    written = [path.read_text() for path in (tmp_path / "run").rglob("*") if path.is_file() and path.suffix != ".log"]
    assert "secret" not in "".join(written)
    last = json.loads((tmp_path / "called").read_text().splitlines()[-1])
    assert last[:2] == ["rm", "--force"]
    assert (tmp_path / "run/container/rank-0.log").exists()


def test_the_dry_run_of_one(ascend_run, docker, tmp_path):
    given = ["--device", "cpu", "--container", "image", "--export", "MY_TOKEN", "--dry-run", "--json"]
    job = ascend_run(*given, "train.py", **docker)
    (only,) = json.loads(job.stdout)["ranks"]
    assert only["argv"][:2] == ["docker", "run"]
    assert only["env"]["MY_TOKEN"] == "***"
    assert not (tmp_path / "called").exists()


def test_the_home_is_not_given_away(ascend_run, docker, tmp_path):
    job = ascend_run("--container", "image", "train.py", **{**docker, "HOME": str(tmp_path / "me")})
    assert job.returncode == 1
    assert "contains your home with ~/.ssh" in job.stderr
