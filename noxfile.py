"""Environments of older DeepSpeed releases, and of each Python.

``make behaviour`` creates those of DeepSpeed, with current torch, and runs the behavioural matrix on each; ``nox -s
"deepspeed(0.9.2)"`` does one. The newest release has no session: it is in .venv. ``make pythons`` runs the tests that
need no torch on each Python, and checks the types of the public names.
"""

import sys
from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"
nox.options.sessions = ["deepspeed"]
nox.options.reuse_existing_virtualenvs = True

# Release -> requirements that its own metadata lacks or leaves too loose.
RELEASES = {
    "0.6.0": "pydantic==1.10.27",
    "0.9.2": "pydantic==1.10.27",
    "0.11.1": "pydantic==1.10.27",
    "0.12.6": "pydantic==1.10.27",
    "0.14.5": "pydantic==2.14.4",
    "0.16.9": "pydantic==2.14.4",
    "0.17.2": "pydantic==2.14.4",
    "0.19.2": "pydantic==2.14.4",
}
EVIDENCE = "ascend_adapt/diagnosis/evidence_records.json"
# Its setup.py imports torch.
NOT_ISOLATED = ("0.6.0",)


@nox.session
@nox.parametrize("release", list(RELEASES), ids=list(RELEASES))
def deepspeed(session: nox.Session, release: str) -> None:
    """One DeepSpeed release in its own environment."""
    constraints = ("--quiet", "--constraint", "constraints-deepspeed.txt")
    session.install(*constraints, "torch", "setuptools", "wheel")
    isolation = ("--no-build-isolation",) if release in NOT_ISOLATED else ()
    session.install(*constraints, RELEASES[release], "--editable", ".")
    session.install(*constraints, *isolation, f"deepspeed=={release}", RELEASES[release], env={"DS_BUILD_OPS": "0"})
    session.install("--quiet", "--constraint", "constraints.txt", "pytest", "pytest-timeout")  # as pyproject.toml asks
    suite = ("--pyargs", "ascend_adapt.testing", "-k", "installed_target", "--evidence", EVIDENCE)
    session.run("python", "-m", "pytest", "-q", *suite)
    tests = "tests/plugins/test_deepspeed_behaviour.py"
    # pytest runs in nox's own environment.
    command = (sys.executable, "-m", "pytest", tests, "-k", f"{release} or reference")
    session.run(*command, env={"DEEPSPEED_RELEASE": release}, external=True)


# For these torch releases PyPI has only CUDA builds for x86_64 (670 to 890 MB). The CPU builds (about 200 MB) are on
# pytorch.org, which was unreachable when this was written.
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
EMULATED = {
    "2.1.0": "not run as a job: no CPU build within reach; by hand before, see docs/rehearsal.md",
    "2.6.0": "not run: no CPU build within reach",
    "2.7.1": "not run as a job: no CPU build within reach; by hand before, see docs/rehearsal.md",
    "2.8.0": "not run: no CPU build within reach",
    "2.13.0": "run by make test, in .venv",
}


@nox.session
@nox.parametrize("torch", list(EMULATED), ids=list(EMULATED))
def emulated(session: nox.Session, torch: str) -> None:
    """One torch with its torch_npu on the emulated NPU: every operator, and two ranks over hccl."""
    numpy = ("numpy<2",) if torch < "2.3" else ("numpy",)
    session.install("--quiet", "--index-url", CPU_BUILDS, f"torch=={torch}")
    session.install("--quiet", *numpy, "pyyaml", "pytest", "pytest-timeout", "--editable", ".")
    tests = ("tests/emulation/operators", "tests/emulation/test_on_device.py", "tests/emulation/test_jobs.py")
    session.run("python", "-m", "pytest", "-q", *tests)


# Without torch: its wheels for each Python are large. Tests that need it run on .venv's Python.
WITHOUT_TORCH = (
    "tests/patches",
    "tests/problems",
    "tests/launch/placement",
    "tests/test_cli.py",
    "tests/test_packaging.py",
)


@nox.session(python=["3.10", "3.11", "3.12", "3.13"])
def python(session: nox.Session) -> None:
    """One Python: the package installed from its wheel, its commands, and the tests that need no torch."""
    wanted = (".[data,shell]", "hypothesis", "pytest", "pytest-timeout")
    session.install("--quiet", "--constraint", "constraints.txt", *wanted)
    session.run("ascend-run", "--version")
    session.run("ascend-adapt", "status", "--short")
    session.run("python", "-m", "pytest", "-q", *WITHOUT_TORCH)


@nox.session
def types(session: nox.Session) -> None:
    """The annotations of every public name, read by mypy from the installed wheel."""
    session.install("--quiet", "--constraint", "constraints.txt", ".[data]", "mypy", "types-PyYAML")
    names = Path("tests/typing/public_names.py").absolute()
    session.chdir(session.create_tmp())  # here mypy would read this checkout
    session.run("python", "-m", "mypy", "--strict", str(names))
