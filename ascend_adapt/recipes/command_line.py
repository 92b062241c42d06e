"""Command line of a dialect, parsed with the recorded options of one of its versions."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ascend_adapt.errors import ConfigError
from ascend_adapt.native.config.train_config import LOG_FORMATS
from ascend_adapt.recipes.options import Options, Version, choose_version

SCHEDULE_OPTIONS = ("override-opt_param-scheduler", "use-checkpoint-opt_param-scheduler")
_TYPES = {"int": int, "float": float}


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


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} — correct the command line")


def take_own_options(argv: Sequence[str]) -> tuple[OwnOptions, list[str]]:
    """Return the options of this package, and the remaining words, which are the dialect's."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--upstream-version", "--upstream-line", dest="upstream_version")
    parser.add_argument("--log-format", choices=LOG_FORMATS)
    parser.add_argument("--vocab-size", "--vocab_size", type=int)
    parser.add_argument("--exit-interval", "--exit_interval", type=int)
    # From Megatron-core, here for every dialect. Resuming a run may add them, so they must not choose its version.
    for name in ("no-check-for-nan-in-loss-and-grad", *SCHEDULE_OPTIONS):
        spellings = (f"--{one}" for one in (name, name.replace("_", "-"), name.replace("-", "_")))
        parser.add_argument(*dict.fromkeys(spellings), action="store_true")
    known, rest = parser.parse_known_args(list(argv))
    return OwnOptions(
        known.upstream_version,
        known.log_format,
        known.vocab_size,
        known.exit_interval,
        not known.no_check_for_nan_in_loss_and_grad,
        known.override_opt_param_scheduler,
        known.use_checkpoint_opt_param_scheduler,
    ), rest


def resume_schedule(own: OwnOptions, options: Options, default: str = "match") -> str:
    """Return which schedule a resumed run has, one of RESUME_SCHEDULES; older upstreams name the options after lr.

    Raises:
        ConfigError: both are given.
    """
    override = own.override_opt_param_scheduler or options("override_lr_scheduler", False)
    checkpoint = own.use_checkpoint_opt_param_scheduler or options("use_checkpoint_lr_scheduler", False)
    if override and checkpoint:
        raise ConfigError(f"--{', --'.join(SCHEDULE_OPTIONS)}: both are given, expected one — choose one")
    return "override" if override else "checkpoint" if checkpoint else default


def parse(
    dialect: str, argv: Sequence[str], versions: Sequence[str], asked: str | None
) -> tuple[Version, dict[str, Any]]:
    """Return the version that ``argv`` is for, and the given values by argparse's dest.

    Dashes and underscores in option names are interchangeable.

    Raises:
        ConfigError: an option is unknown, or a value has another type.
    """
    names = [word.partition("=")[0] for word in argv if word.startswith("--")]
    spelled = {_plain(name): name for one in versions for name in choose_version(dialect, (), [one], None).options}
    of = choose_version(dialect, [spelled.get(_plain(name), name) for name in names], versions, asked)
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for name, facts in of.options.items():
        _add(parser, name, facts)
    known, rest = parser.parse_known_args([_spelled(word, spelled) for word in argv])
    if rest:
        raise ConfigError(f"{rest[0]!r}: belongs to no option, expected --name value — correct the command line")
    return of, vars(known)


def _plain(name: str) -> str:
    return name.replace("_", "-").lower()


def _spelled(word: str, spelled: Mapping[str, str]) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return spelled.get(_plain(name), name) + equals + value


def _add(parser: argparse.ArgumentParser, name: str, facts: Mapping[str, Any]) -> None:
    names = [name, *facts.get("also", ())]
    if facts["action"] in ("true", "false"):
        parser.add_argument(*names, dest=facts["dest"], action=f"store_{facts['action']}")
        return
    choices = facts.get("choices")
    kind = _TYPES.get(facts.get("type", "str"), str)
    if choices and not all(isinstance(choice, kind) for choice in choices):
        choices = None  # upstream's own objects, recorded by their names
    parser.add_argument(*names, dest=facts["dest"], type=kind, nargs=facts.get("nargs"), choices=choices)
