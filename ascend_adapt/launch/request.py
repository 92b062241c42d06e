"""The command line of `ascend-run`, parsed into plain data."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn

from ascend_adapt.emulation.full_size import STEPS
from ascend_adapt.launch import argument_types, help_text
from ascend_adapt.launch.argument_types import DEVICES
from ascend_adapt.launch.cores import ALWAYS_ALLOWED, RANKS_A_CORE

NATIVE = "ascend_adapt.native"

USAGE = """\
ascend-run [options] script.py [script arguments ...]
       ascend-run [options] -m package.module [arguments ...]
       ascend-run [options] COMMAND [arguments ...]
       ascend-run [options] --native neox|megatron|oneflow|glm [arguments of that dialect ...]"""

EXIT_SIGNALS = ("SIGUSR1", "SIGUSR2")
COMPILE_MODES = ("keep", "binary", "jit")
NUMERICS = ("upstream", "exact")
CUDA_CODE = ("auto", "script", "all", "off")
_OF_RECORD = ("record_steps", "record_ranks", "record_inputs")
# Options only for the launcher outside the container; True for options that take a value.
_OUTSIDE = {
    **dict.fromkeys(("--container", "--image", "--src", "--py", "--wheel", "--cmd", "--export", "--log-dir"), True),
    "--dry-run": False,
    "--json": False,
}


@dataclass(frozen=True)
class Request:
    """The request for one job, as parsed from the command line; the planner fills in fields that are None.

    ``form`` is the kind of ``target``: a Python script, a module, or a command that is started once, unchanged. With
    ``native``, the target is the native trainer, and the arguments are those of a dialect.
    """

    target: str
    arguments: tuple[str, ...]
    form: str = "script"
    native: str | None = None
    fallback: str | None = None
    once: bool = False
    nproc: int | None = None
    device: str = "auto"
    soc: str = "910B"
    master_addr: str | None = None
    master_port: int | None = None
    hostfile: str | None = None
    include: str | None = None
    exclude: str | None = None
    launcher: str = "auto"
    ssh_port: int | None = None
    export: tuple[str, ...] = ()
    nodes: int | None = None
    node: int | None = None
    node_ips: tuple[str, ...] = ()
    container: str | None = None
    source: str | None = None
    python: str | None = None
    wheel: str | None = None
    line: str | None = None
    inner: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    allow_drift: tuple[str, ...] = ()
    strict: bool = False
    numerics: str | None = None
    cuda_code: str | None = None
    deterministic: bool = False
    npu_compile_mode: str = "keep"
    adapt: bool = True
    pass_local_rank: bool = False
    oversubscribe: bool = False
    exit_signals: tuple[str, ...] = ()
    max_restarts: int = 0
    grace: float | None = None
    compile: bool = False
    eval_only: bool = False
    sample_prompts: str | None = None
    sample_tokens: int | None = None
    profile: str | None = None
    profile_ranks: str = "0"
    record: str | None = None
    record_steps: str | None = None
    record_ranks: str | None = None
    record_inputs: str | None = None
    log_dir: str | None = None
    progress: bool = True
    annotate: str = ""
    full_size_steps: int | None = None
    fit: bool = False
    memory: int | None = None
    dry_run: bool = False
    json: bool = False
    debug: bool = False


def parse(argv: Sequence[str]) -> Request:
    """Parse a command line; keep everything after the script as typed.

    Raises:
        SystemExit: with code 2 for a usage error, 0 for --help or --version.
    """
    parser = _parser()
    options, command = _split(parser, list(argv))
    if without := [word[:-3] for word in options if word.startswith("--") and word.endswith("=--")]:
        # argparse before Python 3.13 returns an empty list.
        parser.error(f"argument {without[0]}: expected one argument")
    known = parser.parse_args(options)
    if known.line is not None and known.container is None:
        parser.error("--cmd: needs a container — add --container IMAGE")
    if known.full_size and not known.device.startswith("npu-emulated"):
        parser.error(f"--full-size: --device is {known.device}, expected npu-emulated — add --device npu-emulated")
    if not known.full_size and (given := [name for name in ("fit", "memory") if getattr(known, name)]):
        parser.error(f"--{given[0]}: needs --full-size — add --full-size")
    if known.fit and (known.container or known.dry_run or known.hostfile):
        parser.error("--fit: cannot be combined with --container, --dry-run or --hostfile — leave them out")
    if known.line is not None and not command:
        command = ["bash"]
    if known.record is None and (given := [name for name in _OF_RECORD if getattr(known, name) is not None]):
        parser.error(f"--{given[0].replace('_', '-')}: needs --record — add --record DIR")
    inner = (*_inside(options), *command)
    if known.native:
        if known.module or known.once or known.fallback:
            parser.error("--native: cannot be combined with -m, --once or --fallback — leave them out")
        if {"-h", "--help"} & set(command):
            print(help_text.of_dialect(known.native), end="")
            parser.exit()
        if known.dry_run or "--dry-run" in command:
            # The only options of ascend-run that are accepted among a dialect's arguments.
            known.dry_run, known.json = True, known.json or "--json" in command
            command = [word for word in command if word not in ("--dry-run", "--json")]
        inner = (*_inside(options), *command)
        known.module, command = True, [NATIVE, *command]
    if not command:
        parser.error("no script: expected script.py, -m package.module or a command after the options")
    target, arguments = command[0], tuple(command[1:])
    form = "module" if known.module else "script" if target.endswith(".py") else "command"
    if known.once and form != "script":
        parser.error(f"--once {target}: expected a script.py — leave it out, a command is started once anyway")
    return _request(
        known,
        target=target,
        arguments=arguments,
        form=form,
        inner=inner,
        device=known.device.partition(":")[0],
        soc=known.device.partition(":")[2] or Request.soc,
        nodes=known.nnodes,
        node=known.node_rank,
        adapt=not known.no_adapt,
        exit_signals=tuple(known.exit_signal),
        progress=not known.no_progress,
        full_size_steps=known.full_size_steps if known.full_size else None,
    )


def _request(known: argparse.Namespace, **derived: Any) -> Request:
    """Return the request; each option has the name of its field, except for ``derived`` fields."""
    same = {field.name: getattr(known, field.name) for field in fields(Request) if field.name not in derived}
    lists = {name: tuple(value) for name, value in same.items() if isinstance(value, list)}
    return Request(**{**same, **lists, **derived})


def trial_of(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the command line of ``--fit`` into ascend-run's options for a trial and the words after them."""
    options, command = _split(_parser(), list(argv))
    left = _without(options, {"--fit": False, "--memory": True, "--log-dir": True})
    return left, [word for word in command if word != "--dry-run"]


def without_effect_on_a_command(request: Request, device: str) -> list[str]:
    """Return the given options that have no effect on a command, which starts its ranks itself."""
    stated = {
        # On a CPU and an emulated NPU, it is the number of devices that the command finds.
        "--nproc": None if request.device == "npu-emulated" or device == "cpu" else request.nproc,
        "--master-addr": request.master_addr,
        "--master-port": request.master_port,
        "--pass-local-rank": request.pass_local_rank,
        "--oversubscribe": request.oversubscribe,
        "--hostfile": request.hostfile,
        "--include": request.include,
        "--exclude": request.exclude,
        "--nnodes": request.nodes,
        "--node-rank": request.node is not None,
        "--node-ips": request.node_ips,
    }
    return [option for option, value in stated.items() if value]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"ascend-run: {message} — {self._next_step(message)}\n")

    def format_help(self) -> str:
        return help_text.short(self)

    def _next_step(self, message: str) -> str:
        if message.startswith("unrecognized arguments: "):
            wrong = message.split()[2].partition("=")[0]
            # For a negated option, such as DeepSpeed's --no_local_rank, the closest match may be its opposite.
            alike = [name for name in self._option_string_actions if _negates(name) == _negates(wrong)]
            if close := difflib.get_close_matches(wrong, alike, 1, 0.7):
                return f"did you mean {close[0]}?"
        return "see ascend-run --help"


def _negates(option: str) -> bool:
    return option.startswith("--no-")


def parser_for_completion() -> argparse.ArgumentParser:
    """Return the parser with an additional argument for the script, which ``parse`` splits off without argparse."""
    parser = _parser()
    parser.add_argument("script", nargs="?", metavar="FILE", help="script, or a command")
    return parser


def _parser() -> argparse.ArgumentParser:
    from ascend_adapt import __version__

    parser = _Parser(prog="ascend-run", usage=USAGE, allow_abbrev=False, description=_DESCRIPTION)
    add = parser.add_argument
    add("-m", dest="module", action="store_true", help="run a module as the script, as python -m does")
    names = ("--nproc", "--nproc-per-node", "--num-gpus", "--num-gpus-per-node")
    add(*names, dest="nproc", type=argument_types.at_least_one, metavar="N", help=_NPROC)
    add("--native", metavar="DIALECT", help="train with the native trainer, using the arguments of this dialect")
    add(
        "--fallback", choices=("native",), help="use the native trainer if packages that the script imports are missing"
    )
    add("--once", action="store_true", help="start the script once, as python does, and not once per rank")
    add(
        "--device",
        type=argument_types.device,
        default="auto",
        help="device that the ranks run on; SOC is for npu-emulated (default: auto, detect it)",
        metavar="|".join(DEVICES) + "[:SOC]",
    )
    add("--master-addr", metavar="HOST", help="address of rank 0 (default: 127.0.0.1)")
    add("--master-port", type=argument_types.port, metavar="PORT", help="port of rank 0 (default: a free one)")
    add("-H", "--hostfile", metavar="FILE", help="file that lists the hosts of the job, in DeepSpeed's format")
    add("-i", "--include", metavar="HOST:SLOT,..@HOST", help="use only these hosts and slots of the hostfile")
    add("-e", "--exclude", metavar="HOST:SLOT,..@HOST", help="use all hosts and slots of the hostfile except these")
    add("--launcher", default="auto", metavar="auto|local|ssh|pdsh", help="transport to other hosts (default: ssh)")
    add("--ssh-port", type=argument_types.port, metavar="PORT", help="port of the ssh servers on the other hosts")
    add("--export", action="append", default=[], metavar="NAME", help="forward this environment variable to all hosts")
    add("--nnodes", "--num-nodes", dest="nnodes", type=argument_types.at_least_one, metavar="N", help=_NNODES)
    add("--node-rank", type=argument_types.at_least_zero, metavar="N", help="rank of this host among the hosts, from 0")
    add(
        "--node-ips",
        type=argument_types.words,
        default=(),
        metavar="IP,IP",
        help="addresses of all hosts, including this one",
    )
    add("--disable", action="append", default=[], metavar="NAME", help="plugin or patch that is not applied")
    add(
        "--allow-drift",
        action="append",
        default=[],
        metavar="NAME",
        help="continue if this patch has drifted or failed",
    )
    add("--strict", action="store_true", help="stop if any patch has drifted, failed or been lost")
    add(
        "--numerics",
        choices=NUMERICS,
        help="masking in Megatron's softmax kernels: upstream's fill value, or exact",
    )
    add("--cuda-code", choices=CUDA_CODE, help=_CUDA_CODE)
    add("--deterministic", action="store_true", help="use only deterministic kernels, and no autotuning")
    add(
        "--npu-compile-mode",
        choices=COMPILE_MODES,
        default="keep",
        help="torch_npu's operators: prebuilt binaries, or compiled for each shape (default: keep the script's choice)",
    )
    add("--no-adapt", action="store_true", help="start the job without patches")
    add("--pass-local-rank", action="store_true", help="add --local_rank=N to the script's arguments")
    add("--oversubscribe", action="store_true", help=_OVERSUBSCRIBE)
    add("--exit-signal", action="append", default=[], choices=EXIT_SIGNALS, help=_EXIT_SIGNAL)
    add(
        "--max-restarts",
        type=argument_types.at_least_zero,
        default=0,
        metavar="N",
        help="restart all ranks up to N times",
    )
    add("--grace", type=argument_types.seconds, metavar="SECONDS", help=_GRACE)
    add("--compile", action="store_true", help="with --native: compile the transformer layers with torch.compile")
    add("--eval-only", action="store_true", help="with --native: evaluate the checkpoint of --load, without training")
    add("--sample-prompts", metavar="FILE", help="with --native: continue these prompts at each evaluation")
    add("--sample-tokens", type=int, metavar="N", help="with --sample-prompts: tokens of each sample (default: 64)")
    add("--profile", metavar="N[-M]", help="with --native: write a profiler trace of these iterations")
    add("--profile-ranks", default="0", metavar="R,R-R", help="with --profile: ranks to profile (default: 0)")
    add(
        "--record",
        metavar="DIR",
        help="record digests of the results of each module and optimizer, for ascend-adapt compare",
    )
    add(
        "--record-steps",
        type=argument_types.steps,
        metavar="N,M-K",
        help="with --record: steps to record, or all (default: 1-3)",
    )
    add(
        "--record-ranks",
        type=argument_types.ranks,
        metavar="R,R-R",
        help="with --record: ranks to record (default: all)",
    )
    add("--record-inputs", metavar="MODULE", help="with --record: save the inputs of these modules for a replay")
    add("--log-dir", metavar="DIR", help="run directory (default: runs/<script>-<time>-<pid>)")
    add("--no-progress", action="store_true", help="with --native: no progress bar on a terminal")
    add("--container", "--image", metavar="IMAGE", help="run the job in a container (docker or podman)")
    add("--src", dest="source", metavar="DIR", help="with --container: folder to add to PYTHONPATH in the container")
    add(
        "--py",
        dest="python",
        metavar="PYTHON",
        help="with --container: interpreter in the container (default: python3)",
    )
    add("--wheel", metavar="FILE", help="with --container: install this wheel inside the container first")
    add("--cmd", dest="line", metavar="LINE", help="with --container: run this shell command instead of a script")
    add(
        "--annotate",
        choices=("github",),
        default="",
        help="with --device npu-emulated: print findings as GitHub annotations",
    )
    add("--full-size", action="store_true", help=_FULL_SIZE)
    add("--full-size-steps", type=argument_types.at_least_one, default=STEPS, metavar="N", help=_STEPS)
    add("--fit", action="store_true", help=_FIT)
    add("--memory", type=argument_types.at_least_one, metavar="GIB", help=_MEMORY)
    add("--dry-run", action="store_true", help="check everything and print the plan, but start nothing")
    add("--json", action="store_true", help="with --dry-run: print the plan as JSON, also on a terminal")
    add("--debug", action="store_true", help="show tracebacks of errors in ascend_adapt")
    add("--help-all", action=help_text.HelpAll, help="every option, in groups")
    add("--version", action="version", version=f"ascend_adapt {__version__}")
    return parser


_STEPS = f"with --full-size: end after this many optimizer steps (default: {STEPS}; later steps use the same memory)"
_FIT = (
    "with --full-size: try smaller micro batches, recomputation, ZeRO stages and sequence parallelism until the job "
    "fits --memory, and print the memory of each"
)
_MEMORY = "with --full-size: memory of a device in GiB (default: 64)"
_FULL_SIZE = (
    "with --device npu-emulated: reserve device memory and compute nothing, for a job that does not fit this host; "
    "reports memory, collectives and floating-point operations"
)
_DESCRIPTION = (
    "Start a training job with the patches for Ascend NPUs applied. The first word that is not an option ends \
the options; everything after it is passed on unchanged."
)
_CUDA_CODE = 'where "cuda" means this device: in the script and in packages that do not support the device (auto, the \
default), in the script only, in all packages too, or nowhere (off)'
_NNODES = "number of hosts; without --hostfile, start the same command on each host"
_GRACE = "grace period from SIGTERM to SIGKILL (default: 10; 600 for a native run that saves checkpoints)"
_OVERSUBSCRIBE = f"allow more than {RANKS_A_CORE} ranks per CPU core ({ALWAYS_ALLOWED} are always allowed)"
_EXIT_SIGNAL = "with --native: save a checkpoint and exit at this signal (default: save and continue)"
_NPROC = "ranks per host (default: number of devices; 1 on a CPU)"


def _split(parser: argparse.ArgumentParser, argv: list[str]) -> tuple[list[str], list[str]]:
    """Split ``argv`` into options and command; argparse.REMAINDER would drop a ``--`` that is meant for the script."""
    takes_value = {
        name: action.nargs is None for action in parser._actions for name in action.option_strings
    }  # nargs is 0 for flags.
    options: list[str] = []
    rest = iter(range(len(argv)))
    for index in rest:
        word = argv[index]
        if not word.startswith("-") or word == "-":
            return options, argv[index:]
        name, equals, value = word.partition("=")
        name = name if not name.startswith("--") else name.replace("_", "-")
        options.append(name + equals + value)
        if takes_value.get(name) and not equals:
            follower = next(rest, None)
            if follower is not None:
                options.append(argv[follower])
                index = follower
        if name == "--native":
            return options, argv[index + 1 :]
    return options, []


def _inside(options: Sequence[str]) -> list[str]:
    """Return the options for the ascend-run inside the container."""
    return _without(options, _OUTSIDE)


def _without(options: Sequence[str], dropped: Mapping[str, bool]) -> list[str]:
    """Return options without those in ``dropped``, which maps each option to whether it takes a value."""
    left: list[str] = []
    rest = iter(options)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name not in dropped:
            left.append(word)
        elif dropped[name] and not equals:
            next(rest, None)
    return left
