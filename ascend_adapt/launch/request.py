"""The command line of `ascend-run` as data: what is asked for, before anything is planned."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from ascend_adapt.emulation import SOCS
from ascend_adapt.launch.cores import ALWAYS_ALLOWED, RANKS_A_CORE

DEVICES = ("auto", "npu", "cuda", "cpu", "npu-emulated")
FORMS = ("script", "module", "command")
NATIVE = "ascend_adapt.native"

USAGE = """\
ascend-run [options] script.py [script arguments ...]
       ascend-run [options] -m package.module [arguments ...]
       ascend-run [options] COMMAND [arguments ...]
       ascend-run [options] --native neox|megatron|oneflow [that dialect's own arguments ...]"""

EXIT_SIGNALS = ("SIGUSR1", "SIGUSR2")
COMPILE_MODES = ("keep", "binary", "jit")
NUMERICS = ("upstream", "exact")
# What is said to the launcher outside of a container only; true for those that take a value.
_OUTSIDE = {
    **dict.fromkeys(("--container", "--image", "--src", "--py", "--wheel", "--cmd", "--export", "--log-dir"), True),
    "--dry-run": False,
    "--json": False,
}


@dataclass(frozen=True)
class Request:
    """One job as asked for; None is left to the plan.

    ``form`` says what ``target`` is: a Python script, a module, or a command that is started once, unchanged. With
    ``native`` the arguments are a dialect's, and the target is this package's own trainer.
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
    deterministic: bool = False
    npu_compile_mode: str = "keep"
    adapt: bool = True
    pass_local_rank: bool = False
    oversubscribe: bool = False
    exit_signals: tuple[str, ...] = ()
    max_restarts: int = 0
    grace: float | None = None
    compile: bool = False
    profile: str | None = None
    profile_ranks: str = "0"
    log_dir: str | None = None
    progress: bool = True
    dry_run: bool = False
    json: bool = False
    debug: bool = False


def parse(argv: Sequence[str]) -> Request:
    """Return what the command line asks for; everything after the script is kept as typed.

    Raises:
        SystemExit: usage error (2), --help or --version (0).
    """
    parser = _parser()
    options, command = _split(parser, list(argv))
    known = parser.parse_args(options)
    if known.line is not None and known.container is None:
        parser.error("--cmd: is for a container — give --container IMAGE too")
    if known.line is not None and not command:
        command = ["bash"]
    inner = (*_inside(options), *command)
    if known.native:
        if known.module or known.once or known.fallback:
            parser.error("--native: takes neither -m nor --once nor --fallback — leave them out")
        # The one option of ours that may stand among a dialect's arguments.
        words = [word for word in command if word != "--dry-run"]
        inner = (*_inside(options), *words)
        known.dry_run, known.module, command = known.dry_run or words != command, True, [NATIVE, *words]
    if not command:
        parser.error("no script: expected script.py, -m package.module or a command after the options")
    target, arguments = command[0], tuple(command[1:])
    form = "module" if known.module else "script" if target.endswith(".py") else "command"
    if known.once and form != "script":
        parser.error(f"--once {target}: is for a script.py — leave it out, a command is started once anyway")
    return Request(
        target=target,
        arguments=arguments,
        form=form,
        native=known.native,
        fallback=known.fallback,
        once=known.once,
        nproc=known.nproc,
        device=known.device.partition(":")[0],
        soc=known.device.partition(":")[2] or Request.soc,
        master_addr=known.master_addr,
        master_port=known.master_port,
        hostfile=known.hostfile,
        include=known.include,
        exclude=known.exclude,
        launcher=known.launcher,
        ssh_port=known.ssh_port,
        export=tuple(known.export),
        nodes=known.nnodes,
        node=known.node_rank,
        node_ips=known.node_ips,
        container=known.container,
        source=known.source,
        python=known.python,
        wheel=known.wheel,
        line=known.line,
        inner=inner,
        disable=tuple(known.disable),
        allow_drift=tuple(known.allow_drift),
        strict=known.strict,
        numerics=known.numerics,
        deterministic=known.deterministic,
        npu_compile_mode=known.npu_compile_mode,
        adapt=not known.no_adapt,
        pass_local_rank=known.pass_local_rank,
        oversubscribe=known.oversubscribe,
        exit_signals=tuple(known.exit_signal),
        max_restarts=known.max_restarts,
        grace=known.grace,
        compile=known.compile,
        profile=known.profile,
        profile_ranks=known.profile_ranks,
        log_dir=known.log_dir,
        progress=not known.no_progress,
        dry_run=known.dry_run,
        json=known.json,
        debug=known.debug,
    )


def without_effect_on_a_command(request: Request) -> list[str]:
    """Return the options that speak of ranks, which a command starts by itself or not at all."""
    stated = {
        "--nproc": None if request.device == "npu-emulated" else request.nproc,  # there it is the number of devices
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

    def _next_step(self, message: str) -> str:
        if message.startswith("unrecognized arguments: "):
            wrong = message.split()[2].partition("=")[0]
            # Of an option that switches off, such as DeepSpeed's --no_local_rank, the like may be its opposite.
            alike = [name for name in self._option_string_actions if _negates(name) == _negates(wrong)]
            if close := difflib.get_close_matches(wrong, alike, 1, 0.7):
                return f"did you mean {close[0]}?"
        return "see ascend-run --help"


def _negates(option: str) -> bool:
    return option.startswith("--no-")


def _parser() -> argparse.ArgumentParser:
    from ascend_adapt import __version__

    parser = _Parser(prog="ascend-run", usage=USAGE, allow_abbrev=False, description="Start a training job, adapted.")
    add = parser.add_argument
    add("-m", dest="module", action="store_true", help="the script is a module, as in python -m")
    names = ("--nproc", "--nproc-per-node", "--num-gpus", "--num-gpus-per-node")
    add(*names, dest="nproc", type=_at_least_one, metavar="N", help=_NPROC)
    add("--native", metavar="DIALECT", help="train with this package's own trainer, from a dialect's own arguments")
    add("--fallback", choices=("native",), help="where the script's imports are missing, train natively instead")
    add("--once", action="store_true", help="start the script once, without ranks: it is a launcher itself")
    add(
        "--device",
        type=_device,
        default="auto",
        help="what the ranks run on (default: what is found)",
        metavar="|".join(DEVICES) + "[:SOC]",
    )
    add("--master-addr", metavar="HOST", help="address of rank 0 (default: 127.0.0.1)")
    add("--master-port", type=_port, metavar="PORT", help="port of rank 0 (default: a free one)")
    add("-H", "--hostfile", metavar="FILE", help="DeepSpeed's hostfile: other machines, reached by ssh or pdsh")
    add("-i", "--include", metavar="HOST:SLOT,..@HOST", help="use only these hosts and slots of the hostfile")
    add("-e", "--exclude", metavar="HOST:SLOT,..@HOST", help="use all but these")
    add("--launcher", default="auto", metavar="auto|local|ssh|pdsh", help="how other hosts are reached (default: ssh)")
    add("--ssh-port", type=_port, metavar="PORT", help="port of the other machines' ssh servers")
    add("--export", action="append", default=[], metavar="NAME", help="forward this variable to the other machines")
    add("--nnodes", "--num-nodes", dest="nnodes", type=_at_least_one, metavar="N", help=_NNODES)
    add("--node-rank", type=_at_least_zero, metavar="N", help="which of them this machine is, from 0 on")
    add("--node-ips", type=_words, default=(), metavar="IP,IP", help="their addresses, this machine's among them")
    add("--disable", action="append", default=[], metavar="NAME", help="leave out a plugin or patch")
    add(
        "--allow-drift", action="append", default=[], metavar="NAME", help="go on although this patch drifted or failed"
    )
    add("--strict", action="store_true", help="stop on every patch that drifted, failed or was lost")
    add("--numerics", choices=NUMERICS, help="masks of Megatron's softmax extensions: upstream's own fill, or exact")
    add("--deterministic", action="store_true", help="kernels that repeat bit for bit; none is chosen by measuring")
    add(
        "--npu-compile-mode",
        choices=COMPILE_MODES,
        default="keep",
        help="torch_npu's operators",
    )
    add("--no-adapt", action="store_true", help="start the job without any patch")
    add("--pass-local-rank", action="store_true", help="add --local_rank=N to the script's arguments")
    add("--oversubscribe", action="store_true", help=_OVERSUBSCRIBE)
    add("--exit-signal", action="append", default=[], choices=EXIT_SIGNALS, help=_EXIT_SIGNAL)
    add("--max-restarts", type=_at_least_zero, default=0, metavar="N", help="restart all ranks up to N times")
    add("--grace", type=_seconds, metavar="SECONDS", help=_GRACE)
    add("--compile", action="store_true", help="with --native: torch.compile makes code of the model's blocks")
    add("--profile", metavar="N[-M]", help="with --native: keep a trace of these iterations, in the run directory")
    add("--profile-ranks", default="0", metavar="R,R-R", help="with it: of these ranks (default: 0)")
    add("--log-dir", metavar="DIR", help="the run directory (default: runs/<script>-<time>-<pid>)")
    add("--no-progress", action="store_true", help="no progress bar below the lines of a native run on a terminal")
    add("--container", "--image", metavar="IMAGE", help="run the job in a container (docker or podman)")
    add("--src", dest="source", metavar="DIR", help="with it: a source folder for the container's PYTHONPATH")
    add("--py", dest="python", metavar="PYTHON", help="with it: the container's interpreter (default: python3)")
    add("--wheel", metavar="FILE", help="with it: a wheel to install there first")
    add("--cmd", dest="line", metavar="LINE", help="with it: a shell line to run instead of a script")
    add("--dry-run", action="store_true", help="check everything, print the plan and start nothing")
    add("--json", action="store_true", help="with --dry-run: print the plan as JSON, also on a terminal")
    add("--debug", action="store_true", help="show tracebacks of ascend-run's own errors")
    add("--version", action="version", version=f"ascend_adapt {__version__}")
    return parser


_NNODES = "machines of the job, where the same command is started on each; no ssh"
_GRACE = "from SIGTERM to SIGKILL, where the job is asked to end (default: 10; 600 of a native run that saves)"
_OVERSUBSCRIBE = f"allow more than {RANKS_A_CORE} ranks a core ({ALWAYS_ALLOWED} on any machine) on a CPU"
_EXIT_SIGNAL = "with --native: end after the checkpoint that is saved at this signal (default: continue)"
_NPROC = "ranks on this machine (default: the devices found, 1 on a CPU)"


def _split(parser: argparse.ArgumentParser, argv: list[str]) -> tuple[list[str], list[str]]:
    """Split ``argv`` before the script; argparse's own REMAINDER would swallow a ``--`` of the script's."""
    takes_value = {
        name: action.nargs is None for action in parser._actions for name in action.option_strings
    }  # nargs is 0 for flags
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
    """Return the options that are for the ascend-run inside of a container."""
    left: list[str] = []
    rest = iter(options)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name not in _OUTSIDE:
            left.append(word)
        elif _OUTSIDE[name] and not equals:
            next(rest, None)
    return left


def _device(text: str) -> str:
    kind, colon, soc = text.partition(":")
    if kind not in DEVICES or (colon and kind != "npu-emulated"):
        raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (choose from {', '.join(DEVICES)})")
    if colon and soc not in SOCS:
        raise argparse.ArgumentTypeError(f"invalid choice: {soc!r} (choose from {', '.join(SOCS)})")
    return text


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _at_least_one(text: str) -> int:
    number = _number(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is less than 1")
    return number


def _at_least_zero(text: str) -> int:
    number = _number(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is less than 0")
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return number


def _port(text: str) -> int:
    number = _number(text)
    if not 0 < number < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (1 to 65535)")
    return number
