"""Command line of a dialect, parsed with the recorded options of one of its versions."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ascend_adapt import extensions
from ascend_adapt.config.train_config import LOG_FORMATS
from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes.options import Options, Version, choose_version

SCHEDULE_OPTIONS = ("override-opt_param-scheduler", "use-checkpoint-opt_param-scheduler")
STAGE_OPTIONS = {
    "decoder-first-pipeline-num-layers": int,
    "decoder-last-pipeline-num-layers": int,
    "pipeline-model-parallel-layout": str,
}
_TYPES = {"int": int, "float": float}
_STRAY = "belongs to no option, expected --name value — correct the command line"


@dataclass(frozen=True)
class OwnOptions:
    """Options that every dialect accepts in addition to its own."""

    upstream_version: str | None
    log_format: str | None
    vocab_size: int | None
    exit_interval: int | None
    check_for_nan_in_loss_and_grad: bool = True
    override_opt_param_scheduler: bool = False
    use_checkpoint_opt_param_scheduler: bool = False
    stages: Mapping[str, Any] = field(default_factory=dict)
    """The STAGE_OPTIONS that are given, by dest."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} — correct the command line")


def take_own_options(argv: Sequence[str]) -> tuple[OwnOptions, list[str]]:
    """Return the options of this package, and the remaining arguments, which belong to the dialect."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--upstream-version", "--upstream-line", dest="upstream_version")
    parser.add_argument("--log-format", choices=extensions.names(LOG_FORMATS, "megatron"))
    parser.add_argument("--vocab-size", "--vocab_size", type=int)
    parser.add_argument("--exit-interval", "--exit_interval", type=int)
    # Megatron-core's options, accepted for every dialect. They may be added to resume a run or to balance its pipeline,
    # so they must not determine its version.
    for name in ("no-check-for-nan-in-loss-and-grad", *SCHEDULE_OPTIONS):
        spellings = (f"--{one}" for one in (name, name.replace("_", "-"), name.replace("-", "_")))
        parser.add_argument(*dict.fromkeys(spellings), action="store_true")
    for name, kind in STAGE_OPTIONS.items():
        parser.add_argument(f"--{name}", f"--{name.replace('-', '_')}", type=kind)
    known, rest = parser.parse_known_args(list(argv))
    stages = {name: getattr(known, name) for name in (one.replace("-", "_") for one in STAGE_OPTIONS)}
    return OwnOptions(
        known.upstream_version,
        known.log_format,
        known.vocab_size,
        known.exit_interval,
        not known.no_check_for_nan_in_loss_and_grad,
        known.override_opt_param_scheduler,
        known.use_checkpoint_opt_param_scheduler,
        {name: value for name, value in stages.items() if value is not None},
    ), rest


def resume_schedule(own: OwnOptions, options: Options, default: str = "match") -> str:
    """Return which schedule a resumed run uses, one of RESUME_SCHEDULES; option names of older upstreams contain "lr".

    Raises:
        ConfigError: both options are given.
    """
    override = own.override_opt_param_scheduler or options("override_lr_scheduler", False)
    checkpoint = own.use_checkpoint_opt_param_scheduler or options("use_checkpoint_lr_scheduler", False)
    if override and checkpoint:
        raise ConfigError(f"--{', --'.join(SCHEDULE_OPTIONS)}: both are given, expected one — choose one")
    return "override" if override else "checkpoint" if checkpoint else default


def parse(
    dialect: str, argv: Sequence[str], versions: Sequence[str], asked: str | None
) -> tuple[Version, dict[str, Any], list[str]]:
    """Return the version that ``argv`` is written for, its values by argparse dest, and a list of problems.

    Dashes and underscores are equivalent in option names. A problem is an unknown option, a value of the wrong type, or
    an argument that belongs to no option.

    Raises:
        ConfigError: ``asked`` names no version.
    """
    spelled = {_plain(name): name for one in versions for name in choose_version(dialect, (), [one], None)[0].options}
    stray, groups = _grouped([_spelled(word, spelled) for word in argv])

    def accepts(version: Version, name: str) -> bool:
        return not any(_parsed(name, version.options[name], values)[1] for one, values in groups if one == name)

    of, problems = choose_version(dialect, [name for name, _ in groups], versions, asked, accepts)
    problems += [f"{word!r}: {_STRAY}" for word in stray]
    given: dict[str, Any] = {}
    for name, values in groups:
        if name in of.options:
            known, wrong = _parsed(name, of.options[name], values)
            given |= known
            problems += wrong
    return of, given, problems


def _parsed(name: str, facts: Mapping[str, Any], values: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Parse the ``values`` of an option; return the result by dest, and a list of problems."""
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    if facts["action"] in ("true", "false"):
        parser.add_argument(name, dest=facts["dest"], action=f"store_{facts['action']}")
    else:
        choices, kind = facts.get("choices"), _TYPES.get(facts.get("type", "str"), str)
        if choices and not all(isinstance(choice, kind) for choice in choices):
            choices = None  # upstream's own objects, recorded by their names
        parser.add_argument(name, dest=facts["dest"], type=kind, nargs=facts.get("nargs"), choices=choices)
    try:
        known, rest = parser.parse_known_args([name, *values])
    except ConfigError as error:
        return {}, [str(error)]
    return vars(known), [f"{word!r}: {_STRAY}" for word in rest]


def _grouped(words: Sequence[str]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the arguments before the first option, and each option with its values."""
    stray: list[str] = []
    groups: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            groups.append((name, [value] if equals else []))
        else:
            (groups[-1][1] if groups else stray).append(word)
    return stray, groups


def _plain(name: str) -> str:
    return name.replace("_", "-").lower()


def _spelled(word: str, spelled: Mapping[str, str]) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return spelled.get(_plain(name), name) + equals + value
