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
  ascend-run -H hosts train.py                on the hosts of DeepSpeed's hostfile, over ssh
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
        *("npu_compile_mode", "deterministic"),
    ),
    "patches": ("disable", "allow_drift", "strict", "numerics", "cuda_code", "no_adapt"),
    "hosts": (
        *("hostfile", "include", "exclude", "launcher", "ssh_port", "export", "nnodes", "node_rank", "node_ips"),
        *("master_addr", "master_port"),
    ),
    "how the job ends": ("max_restarts", "grace", "exit_signal"),
    "the native trainer": (
        *("compile", "eval_only", "sample_prompts", "sample_tokens", "profile", "profile_ranks", "no_progress"),
    ),
    "recording, for ascend-adapt compare": ("record", "record_steps", "record_ranks", "record_inputs"),
    "the emulated NPU": ("full_size", "full_size_steps", "annotate"),
    "containers": ("container", "source", "python", "wheel", "line"),
}


NATIVE_EXAMPLES = {
    "glm": "ascend-run --native glm examples/glm_10b/10B.sh",
    "megatron": "ascend-run --native megatron --num-layers 24 --hidden-size 1024 ...",
    "neox": "ascend-run --native neox -d examples/gpt_neox 20B.yml",
    "oneflow": "ascend-run --native oneflow --num-layers 12 --hidden-size 768 ...",
}


def of_dialect(dialect: str) -> str:
    """Return the help of ``--native DIALECT``: the supported versions, and how to check arguments."""
    from ascend_adapt.recipes import options

    versions = "\n".join(
        f"  {one.name:12} {one.source:48} {len(one.options)} options" for one in options.versions(dialect)
    )
    example = NATIVE_EXAMPLES.get(dialect, f"ascend-run --native {dialect} ...")
    return (
        f"usage: ascend-run [options] --native {dialect} [arguments of {dialect} ...]\n\n"
        "Train with the native trainer, using upstream's own arguments. An option that it does not support is an\n"
        "error, or is reported as ignored, with the reason.\n\n"
        + (
            f"versions (detected from the arguments, or set by --upstream-version NAME):\n{versions}\n\n"
            if versions
            else ""
        )
        + f"examples:\n  {example}\n  {example.replace('ascend-run', 'ascend-run --dry-run', 1)}\n\n"
        "--dry-run checks the arguments and prints the configuration, the layout and the memory per rank.\n"
        "`ascend-run --help-all` lists the options that may stand before --native.\n"
    )


class HelpAll(argparse.Action):
    """`--help-all`: print every option in groups, and exit."""

    def __init__(self, option_strings: Sequence[str], dest: str, **keywords: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **keywords)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the help."""
        print(full(parser), end="")
        parser.exit()


def short(parser: argparse.ArgumentParser) -> str:
    """Return the short help, which fits one screen."""
    return _help(parser, {"common options": COMMON}, []) + f"\n{EXAMPLES}"


def full(parser: argparse.ArgumentParser) -> str:
    """Return the full help: every option, in groups."""
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
