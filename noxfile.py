"""Environments for releases of DeepSpeed older than the one in constraints.txt: one each, on the torch of today.

``nox`` makes them all and runs the behavioural matrix in each; ``nox -s "deepspeed(0.9.2)"`` one.
"""

import nox

nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True

# Release -> what its own requirements do not say, or say too loosely.
RELEASES = {
    "0.6.0": "pydantic<2",
    "0.9.2": "pydantic==1.10.27",
    "0.11.1": "pydantic==1.10.27",
    "0.12.6": "pydantic==1.10.27",
    "0.14.5": "pydantic==2.14.4",
    "0.16.9": "pydantic==2.14.4",
}


@nox.session
@nox.parametrize("release", list(RELEASES), ids=list(RELEASES))
def deepspeed(session: nox.Session, release: str) -> None:
    """One DeepSpeed release in an environment of its own."""
    constraints = ("--quiet", "--constraint", "constraints-deepspeed.txt")
    session.install(*constraints, "torch", "setuptools")
    session.install(*constraints, f"deepspeed=={release}", RELEASES[release], "--editable", ".")
