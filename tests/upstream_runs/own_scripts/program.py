"""A public training program as its users start it: a copy of its folder, tiny local data, its own options."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from own_scripts import local_data
from upstream_job import Place, UpstreamJob

# Nothing is downloaded: a program whose data or model is missing fails at once.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_EVALUATE_OFFLINE": "1",
    "HF_HOME": "{shared}/hf",
    "TIKTOKEN_CACHE_DIR": "{shared}/tiktoken",
    "WANDB_MODE": "offline",
    "TOKENIZERS_PARALLELISM": "false",
    "HYDRA_FULL_ERROR": "1",
    "MPLBACKEND": "agg",
    "DISABLE_VERSION_CHECK": "1",
}


def words_of(text: str) -> list[str]:
    """Return the words of a command line."""
    return shlex.split(text)


def program(
    name: str,
    words: Sequence[str],
    *,
    code_base: str = "",
    parts: Sequence[str] = (".",),
    inside: str = ".",
    prepare: Callable[[Place, Path], object] | None = None,
    path: str = "",
    variables: dict[str, str] | None = None,
    **of_job: Any,
) -> UpstreamJob:
    """Return the job that starts ``words`` in the folder ``inside`` of the program.

    Only ``parts`` of a large repository are copied. ``prepare`` gets the place and the copy, and writes data. In words
    and ``path``, {code} is the copy and {shared} is kept for all runs; {checkout} in ``path`` is a release's archive.
    """

    def command(place: Place) -> Sequence[str]:
        code = place.folder / "code"
        shutil.rmtree(code, ignore_errors=True)
        for part in parts if code_base else ():
            source = place.checkout / part
            if source.is_dir():
                shutil.copytree(source, code / part, ignore=shutil.ignore_patterns(".git"), dirs_exist_ok=True)
            else:
                (code / part).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, code / part)
        (code / inside).mkdir(parents=True, exist_ok=True)
        local_data.write_tiktoken(place.shared / "tiktoken")
        if prepare is not None:
            prepare(place, code)
        return [word.replace("{code}", str(code)).replace("{shared}", str(place.shared)) for word in words]

    of_job.setdefault("nproc", 1)
    of_job.setdefault("seconds", 400)
    return UpstreamJob(
        name,
        command,
        words=tuple(words),
        code_base=code_base,
        inside=f"code/{inside}",
        path=(lambda place: path.format(code=place.folder / "code", shared=place.shared, checkout=place.checkout))
        if path
        else None,
        variables={**OFFLINE, **(variables or {})},
        dtypes=("float32",),
        **of_job,
    )
