"""`ascend-run --help`: the common options on one screen; `--help-all`: every option, in groups."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

EXAMPLES = """\
examples:
  ascend-run train.py --lr 1e-4               one rank per device of this host
  ascend-run --nproc 8 -m package.train       a module, eight ranks
  ascend-run bash run.sh                      torchrun, deepspeed and accelerate, too: every Python process is adapted
  ascend-run -H hosts train.py                hosts of DeepSpeed's hostfile, by ssh
  ascend-run --native neox -d configs 20B.yml GPT-NeoX's arguments, without GPT-NeoX
  ascend-run --device npu-emulated train.py   a rehearsal without an NPU
"""
COMMON = (
    *("module", "nproc", "device", "native", "hostfile", "disable", "no_adapt", "cuda_code", "max_restarts"),
    *("log_dir", "dry_run", "help_all"),
)
GROUPS = {
    "what runs": (
        *("module", "nproc", "device", "native", "fallback", "once", "pass_local_rank", "oversubscribe"),
        *("npu_compile_mode", "deterministic", "annotate"),
    ),
    "patches": ("disable", "allow_drift", "strict", "numerics", "cuda_code", "no_adapt"),
    "hosts": (
        *("hostfile", "include", "exclude", "launcher", "ssh_port", "export", "nnodes", "node_rank", "node_ips"),
        *("master_addr", "master_port"),
    ),
    "how the job ends": ("max_restarts", "grace", "exit_signal"),
    "the native trainer": ("compile", "eval_only", "profile", "profile_ranks", "no_progress"),
    "recording, for ascend-adapt compare": ("record", "record_steps", "record_ranks", "record_inputs"),
    "containers": ("container", "source", "python", "wheel", "line"),
}


class HelpAll(argparse.Action):
    """`--help-all`: print every option in groups, and exit."""

    def __init__(self, option_strings: Sequence[str], dest: str, **keywords: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **keywords)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the help."""
        print(full(parser), end="")
        parser.exit()


def short(parser: argparse.ArgumentParser) -> str:
    """Return the help on one screen."""
    return _help(parser, {"common options": COMMON}, []) + f"\n{EXAMPLES}"


def full(parser: argparse.ArgumentParser) -> str:
    """Return the help with every option, in groups."""
    return _help(parser, GROUPS, ["other options"]) + f"\n{EXAMPLES}"


def _help(parser: argparse.ArgumentParser, groups: dict[str, tuple[str, ...]], rest: Iterable[str]) -> str:
    by_name = {action.dest: action for action in parser._actions}
    formatter = parser._get_formatter()
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups)
    formatter.add_text(parser.description)
    for title, names in groups.items():
        formatter.start_section(title)
        formatter.add_arguments([by_name.pop(name) for name in names if name in by_name])
        formatter.end_section()
    for title in rest:
        formatter.start_section(title)
        formatter.add_arguments(by_name.values())
        formatter.end_section()
    return formatter.format_help()
