"""`ascend-adapt`: the command line for everything except starting a job."""

from __future__ import annotations

import argparse
import difflib
import errno
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ascend_adapt import completion as completions
from ascend_adapt import interruption, standard_streams, working_folder
from ascend_adapt.completion import SHELLS
from ascend_adapt.errors import AdaptError, CheckpointError, SettingsError

# What a write to a full, limited or broken standard output raises.
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `ascend-adapt` and return its exit code: 0 success, 1 failure, 2 wrong usage."""
    standard_streams.prepare()
    try:
        working_folder.check()
    except SettingsError as error:
        print(f"ascend-adapt: {error}", file=sys.stderr)
        return 2
    try:
        try:
            with interruption.as_exception():
                return _run(sys.argv[1:] if argv is None else list(argv))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The program that reads the pipe, such as head, has closed it.
        _drop_output()
        return 0
    except OSError as error:
        if error.filename is not None or error.errno not in _WRITE_ERRORS:
            raise
        _drop_output()
        print(
            f"ascend-adapt: standard output: {error.strerror}, expected to write the output there — redirect it",
            file=sys.stderr,
        )
        return 1


def _drop_output() -> None:
    """Discard buffered output, so that the flush at interpreter exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    known = _parser().parse_args(arguments, argparse.Namespace(words=arguments))
    try:
        return int(known.run(known))
    except AdaptError as error:
        if known.debug:
            raise
        print(f"ascend-adapt {known.command}: {error}", file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 1
    except KeyboardInterrupt as stopped:
        from ascend_adapt import probe

        if probe.own_rank() is None:  # of a rank, such as of `eval --tp 2`, the command that started it reports it
            print(f"ascend-adapt {known.command}: interrupted — nothing was changed, run it again", file=sys.stderr)
        return interruption.exit_code(stopped)


_COMMANDS = {
    "hosts and runs": ("status", "doctor", "kernels", "report", "audit"),
    "when a job fails": ("explain", "compare", "stop"),
    "data and checkpoints": ("preprocess", "merge", "convert", "inspect", "eval", "generate"),
    "shell": ("completion",),
}
_EXAMPLES = """\
examples:
  ascend-adapt doctor                       what must be fixed on this host before a job
  ascend-adapt status runs/train-...        what was applied in a job, and what failed
  ascend-adapt report runs/a runs/b         two runs compared, as one HTML page
  ascend-adapt explain train.log            why a job failed, and the next step
  ascend-adapt convert --input ckpt --to hf --output out

`ascend-adapt COMMAND --help` describes a command.
"""


_EXAMPLES_OF = {
    "status": ("status", "status runs/train-20260829-101500-4711", "status --upstream Megatron-LM"),
    "doctor": ("doctor", "doctor train.py ds_config.json", "doctor --hostfile hosts"),
    "kernels": ("kernels", "kernels --check"),
    "report": ("report runs/train-20260829-101500-4711 --watch", "report runs/a runs/b -o compared.html"),
    "audit": ("audit -- python train.py", "audit --static MindSpeed --upstream Megatron-LM"),
    "explain": ("explain train.log", "explain runs/train-20260829-101500-4711"),
    "compare": ("compare recorded/cpu recorded/npu",),
    "stop": ("stop runs/train-20260829-101500-4711",),
    "preprocess": (
        "preprocess --input corpus.jsonl --output-prefix data/corpus --append-eod \\\n"
        "      --tokenizer-type GPT2BPETokenizer --vocab vocab.json --merge-file merges.txt",
    ),
    "merge": ("merge --input data/part-0_text_document data/part-1_text_document --output-prefix data/corpus",),
    "convert": ("convert --input checkpoints/iter_0000100 --to hf --output exported",),
    "inspect": ("inspect checkpoints/iter_0000100", "inspect data/corpus_text_document"),
    "eval": ("eval --task lambada --data lambada_test.jsonl --model checkpoints/iter_0000100",),
    "generate": ('generate --model exported --prompt "def main(" --max-new-tokens 32',),
    "completion": ("completion bash", "completion zsh ascend-run"),
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if unknown := re.match(r"argument COMMAND: invalid choice: '(.*?)'", message):
            known = [name for names in _COMMANDS.values() for name in names]
            close = difflib.get_close_matches(unknown[1], known, 1)
            step = f"did you mean {close[0]}?" if close else f"see {self.prog} --help"
            self.exit(2, f"{self.prog}: {unknown[1]!r} is not a command — {step}\n")
        self.exit(2, f"{self.prog}: {message} — see {self.prog} --help\n")


class _MainParser(_Parser):
    """The parser of `ascend-adapt`, whose help lists the commands in groups; without a command it prints that help."""

    def error(self, message: str) -> NoReturn:
        if message.endswith("required: COMMAND"):
            self.exit(2, self.format_help())
        super().error(message)

    def format_help(self) -> str:
        (commands,) = (one for one in self._actions if isinstance(one, argparse._SubParsersAction))
        helps = {one.dest: one.help for one in commands._choices_actions}
        lines = [f"usage: {self.prog} COMMAND ...", "", str(self.description)]
        for title, names in _COMMANDS.items():
            lines += ["", f"{title}:", *(f"  {name:11} {helps[name]}" for name in names)]
        return "\n".join((*lines, "", "  --version   the version", "", _EXAMPLES))


def _parser() -> argparse.ArgumentParser:
    from ascend_adapt import __version__
    from ascend_adapt.alignment.commands import add_compare
    from ascend_adapt.audit.commands import add_audit
    from ascend_adapt.convert.commands import add_convert
    from ascend_adapt.data.commands import add_commands
    from ascend_adapt.evaluation.commands import add_commands as add_evaluation
    from ascend_adapt.report.commands import add_report

    parser = _MainParser(
        prog="ascend-adapt",
        description="Check hosts, jobs, kernels, data and checkpoints. Jobs are started by ascend-run.",
    )
    parser.add_argument("--version", action="version", version=f"ascend_adapt {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    status = commands.add_parser("status", help="show the state of every patch, in a run or as predicted for this host")
    status.add_argument(
        "run_dir", nargs="?", metavar="RUN_DIR", help="run directory of a job (default: predict for this host)"
    )
    status.add_argument("--upstream", metavar="DIR", help="check a source tree instead of what is installed")
    amount = status.add_mutually_exclusive_group()
    amount.add_argument("--short", action="store_true", help="show only counts, and the patches that need attention")
    amount.add_argument("--all", action="store_true", help="show every patch with its versions and evidence")
    doctor = commands.add_parser("doctor", help="check versions and devices, and list what must be fixed")
    doctor.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="scripts and configurations of the job; they are read, not run",
    )
    doctor.add_argument(
        "--device",
        choices=("auto", "npu", "cuda", "cpu", "npu-emulated"),
        help="the device that a job runs on (default: ASCEND_ADAPT_DEVICE, else detected)",
    )
    doctor.add_argument("--collect", metavar="FILE", help="write the facts about this host to FILE, without secrets")
    doctor.add_argument(
        "--report",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="check the hosts whose facts --collect wrote into these files, and compare the hosts",
    )
    doctor.add_argument("-H", "--hostfile", metavar="FILE", help="check these hosts instead of this one")
    doctor.add_argument("--launcher", default="auto", metavar="auto|ssh|pdsh", help="how to reach these hosts")
    doctor.add_argument("--ssh-port", type=int, metavar="PORT", help="port of the ssh servers on these hosts")
    explain = commands.add_parser("explain", help="find known problems and error codes in the logs of a failed job")
    explain.add_argument(
        "logs",
        nargs="+",
        type=Path,
        metavar="LOGFILE",
        help="a log of any program, - for standard input, or a folder of logs such as a run directory",
    )
    stop = commands.add_parser("stop", help="stop a detached job")
    stop.add_argument("run_dir", metavar="RUN_DIR", help="the run directory that ascend-run printed")
    completion = commands.add_parser("completion", help="print a script for shell completion")
    completion.add_argument("shell", choices=SHELLS, help="shell that runs the script")
    programs = ("ascend-adapt", "ascend-run")
    completion.add_argument("program", nargs="?", choices=programs, default=programs[0], help="command to complete")
    completion.set_defaults(run=_completion)
    kernels = commands.add_parser("kernels", help="show the backend of each kernel on this host, and why")
    kernels.add_argument("--check", action="store_true", help="compare each backend with the reference on this device")
    for command in (status, doctor, explain, kernels):
        command.add_argument("--json", action="store_true", help="print JSON")
    for command, run in (
        (status, _status),
        (doctor, _doctor),
        (explain, _explain),
        (stop, _stop),
        (kernels, _kernels),
    ):
        command.set_defaults(run=run)
    audit, compare, convert = add_audit(commands), add_compare(commands), add_convert(commands)
    *data_commands, inspect = add_commands(commands)
    evaluation = add_evaluation(commands)
    inspect.add_argument("--json", action="store_true", help="print JSON")
    inspect.set_defaults(run=_inspect, of_token_files=inspect.get_default("run"))
    diagnosis = (completion, status, doctor, explain, audit, compare, stop, kernels, add_report(commands))
    for each in (*diagnosis, convert, *data_commands, inspect, *evaluation):
        each.add_argument("--debug", action="store_true", help="show the traceback of an error")
    for listed in commands._choices_actions:
        _describe(commands.choices[listed.dest], str(listed.help), _EXAMPLES_OF[listed.dest])
    return parser


def _describe(parser: argparse.ArgumentParser, about: str, examples: Sequence[str]) -> None:
    """Add a description and examples to the help of a command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = f"{about[0].upper()}{about[1:]}."
    lines = "\n".join(f"  ascend-adapt {one}" for one in examples)
    parser.epilog = "\n\n".join((*filter(None, [parser.epilog]), f"examples:\n{lines}"))


def _status(known: argparse.Namespace) -> int:
    from ascend_adapt.diagnosis import status_report

    if known.run_dir is not None and known.upstream is not None:
        raise SettingsError(
            "RUN_DIR and --upstream: both given, expected one, because the first reports a run and the second predicts "
            "— drop one"
        )
    if known.run_dir is not None:
        report = status_report.of_run(Path(known.run_dir))
    else:
        report = status_report.of_installation(Path(known.upstream) if known.upstream else None)
    if known.json:
        _print_json(report.to_json())
    else:
        status_report.show(report, short=known.short, all_=known.all)
    for problem in report.problems:
        print(f"ascend-adapt status: {problem}", file=sys.stderr)
    return 1 if report.problems else 0


def _doctor(known: argparse.Namespace) -> int:
    from ascend_adapt.diagnosis import doctor

    given = [f"--{name}" for name in ("hostfile", "collect", "report") if getattr(known, name) is not None]
    if len(given) + bool(known.files) > 1:
        raise SettingsError(
            f"{', '.join([*given, *map(str, known.files)])}: given together, expected only one — drop the others"
        )
    if known.hostfile is not None:
        return _doctor_of_hosts(known)
    if known.collect is not None:
        from ascend_adapt.diagnosis import collect

        return collect.main([known.collect])
    if known.report is not None:
        return _doctor_of_reports(known)
    diagnosis = doctor.examine(os.environ, known.device, files=known.files)
    if known.json:
        _print_json(diagnosis.to_json())
    else:
        doctor.show(diagnosis)
    return 1 if any(finding.must_fix for finding in diagnosis.findings) else 0


def _doctor_of_hosts(known: argparse.Namespace) -> int:
    from dataclasses import asdict

    from ascend_adapt import probe
    from ascend_adapt.launch.many_hosts import inspection

    device, _ = probe.device_to_use(known.device or os.environ.get("ASCEND_ADAPT_DEVICE"), os.environ)
    reports = inspection.examine(Path(known.hostfile), known.launcher, known.ssh_port, device)
    if known.json:
        _print_json({"hosts": [asdict(one) for one in reports]})
    else:
        inspection.show(reports)
    return 1 if any(one.problems for one in reports) else 0


def _doctor_of_reports(known: argparse.Namespace) -> int:
    from ascend_adapt.diagnosis import host_reports

    reports, differences, faults = host_reports.judge(known.report, known.device)
    if known.json:
        _print_json({"hosts": [one.to_json() for one in reports], "differences": differences, "problems": faults})
    else:
        host_reports.show(reports, differences)
    for fault in faults:
        print(f"ascend-adapt doctor: {fault}", file=sys.stderr)
    must_fix = any(one.must_fix for report in reports for one in report.findings)
    return 1 if must_fix or differences or faults else 0


def _explain(known: argparse.Namespace) -> int:
    from ascend_adapt.diagnosis import explaining

    reports, faults = explaining.explain(known.logs, os.environ)
    if known.json:
        _print_json({"logs": [one.to_json() for one in reports], "problems": faults})
    else:
        explaining.show(reports)
    for fault in faults:
        print(f"ascend-adapt explain: {fault}", file=sys.stderr)
    return 1 if faults else 0


def _stop(known: argparse.Namespace) -> int:
    from ascend_adapt.launch.one_host import stop

    print(f"ascend-adapt stop: the job of {known.run_dir} {stop.stop(Path(known.run_dir))}")
    return 0


def _kernels(known: argparse.Namespace) -> int:
    from ascend_adapt.kernels import dispatch, report
    from ascend_adapt.runtime import settings
    from ascend_adapt.runtime.plugin_manager import PluginManager

    plugins = PluginManager.of(settings.resolve(os.environ))
    dispatch.register(plugins.kernels(dispatch.unusable))
    here = report.examine(os.environ, check=known.check)
    here.problems.extend(plugins.problems)
    if known.json:
        _print_json(here.to_json())
    else:
        report.show(here)
    for problem in here.problems:
        print(f"ascend-adapt kernels: {problem}", file=sys.stderr)
    return 1 if here.problems else 0


def _completion(known: argparse.Namespace) -> int:
    from ascend_adapt.launch.request import parser_for_completion

    parser = _parser() if known.program == "ascend-adapt" else parser_for_completion()
    print(completions.script(parser, known.shell))
    return 0


def _inspect(known: argparse.Namespace) -> int:
    if Path(known.prefix).is_dir():
        from ascend_adapt.convert import commands

        return commands.inspect(Path(known.prefix), as_json=known.json)
    if not Path(known.prefix).exists() and not any(Path(f"{known.prefix}.{end}").exists() for end in ("bin", "idx")):
        raise CheckpointError(
            f"{known.prefix}: does not exist, expected a checkpoint's folder, or token files {known.prefix}.bin and "
            ".idx — correct the path"
        )
    return int(known.of_token_files(known))


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=1))


if __name__ == "__main__":
    sys.exit(main())
