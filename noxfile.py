"""Environments for DeepSpeed releases older than the one in constraints.txt: one for each, with current torch.

``make behaviour`` creates all and runs the behavioural matrix on each; ``nox -s "deepspeed(0.9.2)"`` does one. The
newest release has no session: it is in .venv.
"""

import sys

import nox

nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True

# Release -> requirements that its own metadata lacks or leaves too loose.
RELEASES = {
    "0.6.0": "pydantic==1.10.27",
    "0.9.2": "pydantic==1.10.27",
    "0.11.1": "pydantic==1.10.27",
    "0.12.6": "pydantic==1.10.27",
    "0.14.5": "pydantic==2.14.4",
    "0.16.9": "pydantic==2.14.4",
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
