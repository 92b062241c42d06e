"""`ascend-adapt` as a user starts it, in fresh processes where what is imported matters."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys

import pytest
from launch.terminals import read_all, screen, terminal

from ascend_adapt import cli
from ascend_adapt.cli import main
from ascend_adapt.launch.request import parser_for_completion
from ascend_adapt.terminal import line


def ascend_adapt(*argv, **env):
    command = [sys.executable, "-m", "ascend_adapt.cli", *argv]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=280)


def write_status(folder, rank, **states):
    outcomes = [
        {
            "patch": patch,
            "plugin": "deepspeed",
            "target": "deepspeed:x",
            "state": state,
            "reason": "r",
            "requires": "",
            "found": "",
            "reversible": True,
            "evidence": [],
        }
        for patch, state in states.items()
    ]
    facts = {f"patch deepspeed.{patch}": state for patch, state in states.items()}
    data = {"rank": rank, "device": "cpu", "device_reason": "as requested", "outcomes": outcomes, "problems": []}
    data["facts"] = {"start": facts}
    (folder / f"adapt-status.{rank}.json").write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["stauts"], "'stauts' is not a command — did you mean status?"),
        (["status", "--yaml"], "unrecognized arguments: --yaml"),
        (["status", "a", "b"], "unrecognized arguments: b"),
    ],
)
def test_usage_errors(argv, text, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    printed = capsys.readouterr().err
    assert exit_.value.code == 2
    assert text in printed
    assert printed.count("\n") == 1


def test_without_a_command_the_help_is_printed(capsys):
    with pytest.raises(SystemExit) as exit_:
        main([])
    assert exit_.value.code == 2
    assert capsys.readouterr().err == cli._parser().format_help()


def test_help_lists_every_command_in_one_group_on_one_screen(capsys):
    (commands,) = (one for one in cli._parser()._actions if isinstance(one, argparse._SubParsersAction))
    listed = [name for names in cli._COMMANDS.values() for name in names]
    assert sorted(listed) == sorted(commands.choices)
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 100


def test_an_unknown_command_names_the_closest(capsys):
    for word, step in (("stauts", "did you mean status?"), ("x", "see ascend-adapt --help")):
        with pytest.raises(SystemExit) as exit_:
            main([word])
        assert exit_.value.code == 2
        assert capsys.readouterr().err == f"ascend-adapt: {word!r} is not a command — {step}\n"


def test_the_help_of_every_command_has_examples_that_it_accepts():
    parser = cli._parser()
    for name, examples in cli._EXAMPLES_OF.items():
        for example in examples:
            assert parser.parse_args(shlex.split(example.replace("\\\n", ""))).command == name
    assert set(cli._EXAMPLES_OF) == {name for names in cli._COMMANDS.values() for name in names}


def without_help(parser):
    """Return every command and argument without a help text, also those of the commands."""
    found = []
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            found += [] if action.help else [f"{parser.prog}: {action.option_strings or action.dest}"]
            continue
        found += sorted(set(action.choices) - {choice.dest for choice in action._choices_actions})
        found += [missing for command in action.choices.values() for missing in without_help(command)]
    return found


def test_every_command_and_option_has_a_help_text():
    assert without_help(cli._parser()) == without_help(parser_for_completion()) == []


def test_help_and_version_load_no_library():
    code = "import sys; from ascend_adapt.cli import main; main(sys.argv[1:])"
    heavy = "{'rich', 'torch', 'numpy', 'pluggy', 'yaml', 'shtab', 'importlib.metadata'}"
    check = f"import atexit, sys; atexit.register(lambda: print(sorted({heavy} & set(sys.modules)), file=sys.stderr)); "
    job = subprocess.run([sys.executable, "-c", check + code, "--help"], capture_output=True, text=True, timeout=60)
    assert (job.returncode, job.stderr) == (0, "[]\n")


def test_the_package_can_be_run_as_a_module():
    job = subprocess.run(
        [sys.executable, "-m", "ascend_adapt", "--version"], capture_output=True, text=True, timeout=60
    )
    assert (job.returncode, job.stdout[:13]) == (0, "ascend_adapt ")


@pytest.mark.parametrize(
    ("program", "typed", "expected"),
    [("ascend-adapt", "stat", "status"), ("ascend-run", "--hostf", "--hostfile"), ("ascend-adapt", "rep", "report")],
)
def test_bash_completes_commands_and_options(program, typed, expected, tmp_path, capsys):
    assert main(["completion", "bash", program]) == 0
    (tmp_path / "completion").write_text(capsys.readouterr().out)
    function = f"_shtab_{program.replace('-', '_')}"
    shell = f"source completion; COMP_WORDS=({program} {typed}); COMP_CWORD=1; {function}; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", shell], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{expected}\n"


@pytest.mark.usefixtures("needs_torch")
@pytest.mark.parametrize(
    ("command", "shown"), [(["doctor", "--device", "cpu"], "nothing must"), (["kernels"], "attention")]
)
def test_what_a_person_reads_narrows_to_60_columns(command, shown, tmp_path):
    ours, theirs = terminal(60)
    argv = [sys.executable, "-m", "ascend_adapt.cli", *command]
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    environ |= {"TERM": "xterm", "TORCH_EXTENSIONS_DIR": str(tmp_path)}  # this host may have the lock of a dead build
    with subprocess.Popen(argv, stdout=theirs, env=environ) as job:
        os.close(theirs)
        seen = read_all(ours)
    os.close(ours)
    assert job.returncode == 0
    assert any(line.startswith(shown) for line in screen(seen, 61))
    assert b"\x1b[" in seen


def test_no_colour_in_a_pipe_or_where_the_user_says_so(monkeypatch, capsys):
    text = "note: [bold] is no markup, " + "and a pipe wraps nothing, " * 8 + "end"
    line(text, "red")
    assert capsys.readouterr().out == f"{text}\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    line(text, "red")
    coloured = capsys.readouterr().out
    assert "\x1b[31m" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    line(text, "red")
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("note: [bold]")
    assert all(one.startswith("    ") and len(one) < 60 for one in rest)
    assert " ".join([first, *(one.strip() for one in rest)]) == text


@pytest.mark.usefixtures("needs_torch")
def test_status_judges_without_importing():
    code = (
        "import sys; from ascend_adapt.cli import main; code = main(['status', '--json']);"
        "print(sorted({'torch', 'deepspeed', 'wrapt'} & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    job = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280)
    assert (job.returncode, job.stderr) == (0, "[]\n")
    outcomes = {outcome["patch"]: outcome for outcome in json.loads(job.stdout)["outcomes"]}
    assert outcomes["fused_adam_in_torch"]["state"] == "armed"
    assert outcomes["fused_adam_in_torch"]["found"].startswith("deepspeed 0.")


def test_status_of_a_source_tree(tmp_path, capsys):
    (tmp_path / "deepspeed" / "comm").mkdir(parents=True)
    (tmp_path / "deepspeed" / "__init__.py").write_text("")
    (tmp_path / "deepspeed" / "comm" / "torch.py").write_text("def build_shm():\n    pass\n")
    (tmp_path / "version.txt").write_text("0.19.8\n")
    assert main(["status", "--json", "--upstream", str(tmp_path)]) == 0
    outcomes = {outcome["patch"]: outcome for outcome in json.loads(capsys.readouterr().out)["outcomes"]}
    moved = outcomes["no_shared_memory_build"]
    assert (moved["state"], moved["found"]) == ("drifted", "deepspeed 0.19.8")
    assert moved["reason"] == "deepspeed.comm.torch:build_shm_op: build_shm_op is not in deepspeed.comm.torch"


def test_status_of_a_run_names_ranks_that_differ(tmp_path, capsys):
    write_status(tmp_path, 0, a="applied", b="applied")
    write_status(tmp_path, 1, a="applied", b="applied")
    assert main(["status", str(tmp_path)]) == 0
    write_status(tmp_path, 10, a="applied", b="drifted")
    assert main(["status", str(tmp_path), "--json"]) == 1
    printed = capsys.readouterr()
    assert "rank 10 differs from rank 0: patch deepspeed.b is drifted instead of applied (rank 10: r)" in printed.err


@pytest.mark.parametrize("damage", ["", "{", '{"rank": 0}', '{"rank": 0, "outcomes": [{"patch": "x"}]}'])
def test_a_damaged_status_file_is_named(tmp_path, damage, capsys):
    (tmp_path / "adapt-status.0.json").write_text(damage)
    assert main(["status", str(tmp_path)]) == 1
    assert "adapt-status.0.json: is not a status file" in capsys.readouterr().err


@pytest.mark.parametrize("damaged", ["adapt-status.0.json", "job.json"])
def test_a_damaged_file_does_not_hide_the_other_ranks(tmp_path, damaged, capsys):
    for rank in range(3):
        write_status(tmp_path, rank, a="applied")
    (tmp_path / damaged).write_text("{")
    assert main(["status", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert f"{damaged}: is not a" in printed.err
    assert printed.out.startswith("1 patches: 1 applied\n")


def test_a_folder_without_status(tmp_path, capsys):
    assert main(["status", str(tmp_path)]) == 1
    assert "has no adapt-status.<rank>.json" in capsys.readouterr().err
    assert main(["status", str(tmp_path), "--upstream", str(tmp_path)]) == 2
    assert main(["status", "--upstream", str(tmp_path / "missing")]) == 2


def test_the_switches_reach_status():
    outcomes = json.loads(ascend_adapt("status", "--json", ASCEND_ADAPT_DISABLE="fused_adam_in_torch").stdout)[
        "outcomes"
    ]
    assert {o["patch"]: o["state"] for o in outcomes}["fused_adam_in_torch"] == "disabled"
    outcomes = json.loads(ascend_adapt("status", "--json", ASCEND_ADAPT="0").stdout)["outcomes"]
    assert {o["state"] for o in outcomes} == {"disabled"}
    job = ascend_adapt("status", ASCEND_ADAPT_DEVICE="tpu")
    assert (job.returncode, "Traceback" in job.stderr) == (2, False)
    assert "device 'tpu': expected auto, npu, cuda, cpu" in job.stderr


def test_a_reader_that_leaves_early_is_no_error():
    job = subprocess.run(
        f"{sys.executable} -m ascend_adapt.cli status --json | head -1", shell=True, capture_output=True, text=True
    )
    assert (job.stdout, job.stderr) == ("{\n", "")


@pytest.mark.parametrize("command", ["status --json", "status", "doctor"])
def test_a_full_disk_behind_standard_output_is_one_line(command):
    job = subprocess.run(
        f"{sys.executable} -m ascend_adapt.cli {command} > /dev/full", shell=True, capture_output=True, text=True
    )
    last = job.stderr.splitlines()[-1]
    assert "Traceback" not in job.stderr
    assert (job.returncode, last) == (
        1,
        "ascend-adapt: standard output: No space left on device, expected to write the output there — redirect it",
    )
