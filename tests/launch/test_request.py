from __future__ import annotations

import argparse
import dataclasses

import pytest

from ascend_adapt.launch import help_text
from ascend_adapt.launch import request as requests
from ascend_adapt.launch.request import parse
from ascend_adapt.recipes import options


def test_everything_after_the_script_is_the_scripts():
    request = parse(
        ["--nproc", "2", "train.py", "--nproc", "3", "--", "--strict", "", "a b", "$HOME", '{"x": 1}', "a;b"]
    )
    assert request.nproc == 2
    assert request.strict is False
    assert request.arguments == ("--nproc", "3", "--", "--strict", "", "a b", "$HOME", '{"x": 1}', "a;b")


@pytest.mark.parametrize(
    "spelling",
    [
        ["--nproc", "4"],
        ["--nproc=4"],
        ["--nproc-per-node", "4"],
        ["--nproc_per_node=4"],
        ["--num_gpus", "4"],
        ["--num-gpus", "4"],
    ],
)
def test_dashes_and_underscores_are_equal(spelling):
    assert parse([*spelling, "train.py"]).nproc == 4


def test_a_module():
    request = parse(["-m", "package.module", "-m", "x"])
    assert (request.form, request.target, request.arguments) == ("module", "package.module", ("-m", "x"))


def test_repeatable_options():
    request = parse(["--disable", "a", "--disable=b", "--allow_drift", "c", "train.py"])
    assert (request.disable, request.allow_drift) == (("a", "b"), ("c",))


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([], "no script: expected script.py, -m package.module or a command"),
        (["--once", "bash"], "--once bash: expected a script.py"),
        (["--nproc", "2"], "no script"),
        (["--nproc", "0", "train.py"], "'0' is less than 1"),
        (["--nproc", "two", "train.py"], "--nproc"),
        (["--npro", "2", "train.py"], "unrecognized arguments: --npro — did you mean --nproc?"),
        (["--nodes=2", "train.py"], "unrecognized arguments: --nodes=2 — did you mean --nnodes?"),
        (["--no_local_rank", "train.py"], "unrecognized arguments: --no-local-rank — see ascend-run --help"),
        (["--foo", "train.py"], "unrecognized arguments: --foo — see ascend-run --help"),
        (["--device", "tpu", "train.py"], "invalid choice: 'tpu'"),
        (["--master-port", "70000", "train.py"], "is not a port"),
        (["--strict=yes", "train.py"], "--strict"),
        (["--grace", "-1", "train.py"], "'-1' is not a number of seconds"),
        (["--npu-compile-mode", "fast", "train.py"], "invalid choice: 'fast' (choose from"),
        (["--grace", "inf", "train.py"], "'inf' is not a number of seconds"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(argv, text, capsys):
    with pytest.raises(SystemExit) as exit_:
        parse(argv)
    reported = capsys.readouterr().err
    assert exit_.value.code == 2
    assert text in reported
    assert reported.startswith("ascend-run: ")
    assert reported.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "form", "once"),
    [
        (["train.py", "x"], "script", False),
        (["--once", "train.py"], "script", True),
        (["-m", "train.py"], "module", False),
        (["bash", "run.sh"], "command", False),
        (["--strict", "python", "train.py"], "command", False),
        (["nohup", "train.py"], "command", False),
    ],
)
def test_what_the_first_word_is(argv, form, once):
    request = parse(argv)
    assert (request.form, request.once) == (form, once)


def test_what_follows_native_is_the_dialects():
    request = parse(["--nproc", "2", "--native", "megatron", "--nproc", "3", "--strict", "-m", "x"])
    assert (request.native, request.nproc, request.strict) == ("megatron", 2, False)
    assert (request.form, request.target) == ("module", "ascend_adapt.native")
    assert request.arguments == ("--nproc", "3", "--strict", "-m", "x")


@pytest.mark.parametrize(
    "argv",
    [["--native", "neox", "a.yml", "--dry-run"], ["--dry-run", "--native=neox", "a.yml"]],
)
def test_a_native_dry_run_is_asked_for_before_or_after(argv):
    request = parse(argv)
    assert (request.dry_run, request.native, request.arguments) == (True, "neox", ("a.yml",))
    as_json = parse([*argv, "--json"])
    assert (as_json.json, as_json.arguments) == (True, ("a.yml",))


def test_a_native_run_in_a_container_is_asked_for_again_inside():
    request = parse(["--container", "image", "--nproc", "2", "--native", "neox", "a.yml", "--dry-run"])
    assert request.inner == ("--nproc", "2", "--native", "neox", "a.yml")
    assert request.dry_run


def test_native_is_no_module(capsys):
    with pytest.raises(SystemExit):
        parse(["-m", "--native", "neox", "a.yml"])
    assert "--native: cannot be combined with -m, --once" in capsys.readouterr().err


def test_the_grace_and_what_a_native_run_is_asked_for_beside_its_dialect():
    assert parse(["train.py"]).grace is None
    words = ["--grace", "2.5", "--compile", "--profile", "3-5", "--profile-ranks", "0,2", "--native", "neox", "a.yml"]
    request = parse(words)
    assert (request.grace, request.compile, request.profile, request.profile_ranks) == (2.5, True, "3-5", "0,2")
    assert request.arguments == ("a.yml",)


def test_every_option_reaches_the_request():
    fields = {field.name for field in dataclasses.fields(requests.Request)}
    derived = {"module", "nnodes", "node_rank", "no_adapt", "exit_signal", "no_progress", "full_size"}
    options = {action.dest for action in requests._parser()._actions if action.dest != argparse.SUPPRESS}
    assert options - fields == derived | {"help", "help_all", "version"}


def test_help_shows_the_common_options_and_help_all_every_one(capsys):
    texts = []
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as exit_:
            requests.parse([option])
        assert exit_.value.code == 0
        texts.append(capsys.readouterr().out)
    assert len(texts[0].splitlines()) <= 45
    for name in requests._parser()._option_string_actions:
        assert name in texts[1]
    for heading in ("what runs:", "hosts:", "containers:", "examples:"):
        assert heading in texts[1]


@pytest.mark.parametrize("dialect", help_text.NATIVE_EXAMPLES)
def test_the_help_of_a_dialect_names_its_versions(dialect, capsys):
    with pytest.raises(SystemExit) as exit_:
        requests.parse(["--native", dialect, "--help"])
    assert exit_.value.code == 0
    printed = capsys.readouterr().out
    assert f"usage: ascend-run [options] --native {dialect}" in printed
    assert all(one.source in printed for one in options.versions(dialect))
