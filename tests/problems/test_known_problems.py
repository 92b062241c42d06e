"""Each known problem is found in its own example, and in nothing that is healthy."""

from __future__ import annotations

import functools
import re
import time
from pathlib import Path
from types import ModuleType

import healthy
import pytest

from ascend_adapt import hookimpl
from ascend_adapt.cli import main
from ascend_adapt.errors import PluginError
from ascend_adapt.problems import error_codes, explanation, known, literals, problem, reading
from ascend_adapt.problems.facts import Facts, of_text
from ascend_adapt.problems.log_text import LogText
from ascend_adapt.runtime.plugin_manager import PluginManager

PROBLEMS, FAULTS = known.problems({})
ROOT = Path(__file__).parents[2]
PROBLEM_OF = {one.name: one for one in PROBLEMS}


def found_in(example, folder):
    """Return the names of the problems that a text or facts show."""
    if isinstance(example, str):
        return {one.problem.name: one for one in explanation.explain(LogText(example), PROBLEMS, Facts())}
    readings = []
    for name, text in example.get("files", {}).items():
        (folder / name).write_text(text)
        readings.append(reading.read(folder / name))
    read = functools.reduce(lambda one, other: one + other, readings) if readings else None
    exported = {name: value for name, value, _ in read.environ} if read else {}
    versions = {name: str(version) for name, version in example.get("versions", {}).items()}
    environ = {**{name: str(value) for name, value in example.get("environ", {}).items()}, **exported}
    facts = Facts(versions, environ, example.get("device", "npu"), read, is_complete=True)
    return {one.problem.name: one for one in explanation.predict(PROBLEMS, facts)}


def test_the_files_are_valid():
    assert FAULTS == []
    reports = {one for problem in PROBLEMS for one in problem.source if "/issues/" in one or "/pull/" in one}
    assert len(PROBLEMS) > 350
    assert len(reports) > 310


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- name: x\n", "x: cause is missing; x: do is missing"),
        ("- {name: x, cause: c, do: d, until: u, source: s, evidence: report, symptom: ['(']}\n", "x: missing )"),
        ("- {name: x, cause: c, do: d, until: u, source: s, evidence: seen, symptom: [a]}\n", "expected one of report"),
        ("- {name: x, cause: c, do: d, until: u, source: s, evidence: report}\n", "expected symptom, when, or both"),
        ("- {name: x, when: {version: a}}\n", "version unknown, expected device, versions"),
        ("- [", "expected YAML"),
    ],
)
def test_an_invalid_file_is_refused_with_all_its_faults(tmp_path, text, message):
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(PluginError, match=re.escape(message)):
        problem.read(file)


def test_problems_of_a_plugin_are_found(tmp_path, monkeypatch):
    text = "- {name: mine, symptom: [MyError], cause: c, do: d, until: u, source: s, evidence: report}\n"
    (tmp_path / "mine.yaml").write_text(text)
    plugin = ModuleType("my_plugin")

    @hookimpl
    def register_problems():
        return [tmp_path / "mine.yaml"]

    plugin.register_problems = register_problems
    assert tmp_path / "mine.yaml" in PluginManager([plugin]).problem_files()


def test_a_general_problem_gives_way_to_a_specific_one():
    text = PROBLEM_OF["fsdp2_in_accelerate_uses_cuda"].example
    assert [one.problem.name for one in explanation.explain(LogText(text), PROBLEMS, Facts())] == [
        "fsdp2_in_accelerate_uses_cuda"
    ]


def test_a_module_that_a_provided_package_lacks():
    error = "ModuleNotFoundError: No module named 'xformers.profiler'"
    provided = f"torch_npu: 2.7.1\n{error} (provided by patch 'xformers' (plugin 'cuda_packages' of ascend-adapt))"
    (found,) = explanation.explain(LogText(provided), PROBLEMS, Facts())
    assert found.problem.name == "name_of_a_provided_package"
    assert "xformers is built for CUDA" in found.cause
    assert "xformers.profiler is not one of them" in found.cause


def test_the_cause_has_the_version_of_a_package_and_the_next_step_only_its_name():
    log = LogText(PROBLEM_OF["missing_module_attribute"].example.replace("torch.npu", "peft"))
    (found,) = explanation.explain(log, PROBLEMS, Facts({"peft": "0.9.0"}))
    assert "the installed peft 0.9.0 does not have" in found.cause
    assert found.do.startswith("replace peft by the release for which the code was made;")


def test_versions_that_a_log_prints_rule_a_problem_out():
    log = LogText("torch_npu: 2.7.1\n" + PROBLEM_OF["integer_device_goes_to_cuda"].example)
    names = [one.problem.name for one in explanation.explain(log, PROBLEMS, of_text(log.text))]
    assert "integer_device_goes_to_cuda" not in names


def test_prefixes_of_launchers_are_ignored_and_lines_keep_their_numbers():
    lines = PROBLEM_OF["torch_without_cuda_asked"].example.splitlines()
    for prefix in (
        "[rank3]: ",
        "(WorkerDict pid=12, ip=10.0.0.1) ",
        "(W pid=1) ERROR 12-10 10:52:09 [a.py:58] ",
        "worker-1: ",
    ):
        (found,) = explanation.explain(LogText("\n".join(f"{prefix}{line}" for line in lines)), PROBLEMS, Facts())
        assert (found.line, str(found.frames[-1])) == (6, "/home/u/train.py:3: model.cuda()")


@pytest.mark.parametrize(
    "spelled", ["error code is 507035", "error code:507035", "error code is:507035", "the error code is : 507035"]
)
def test_a_code_of_cann_is_found_in_every_spelling(spelled):
    log = LogText(f"RuntimeError: ACL stream synchronize failed, {spelled}")
    assert [one.problem.name for one in explanation.explain(log, PROBLEMS, Facts())] == ["ai_core_exception"]
    assert [one.code for one in error_codes.codes_in(log)] == ["507035"]


def test_a_large_configuration_is_read_once(tmp_path):
    names = ", ".join(f'"name{number}": {number}' for number in range(30000))
    (tmp_path / "vocabulary.json").write_text("{" + names.replace(", ", ",\n") + "}")
    began = time.monotonic()
    assert reading.read(tmp_path / "vocabulary.json").settings[-1][2].line == 30000
    assert time.monotonic() - began < 10


def test_explain_prints_lines_codes_and_the_next_step(tmp_path, capsys):
    (tmp_path / "rank-0.log").write_text("start\n" + PROBLEM_OF["hccl_socket_timeout"].example)
    assert main(["explain", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "hccl_socket_timeout: a rank waited" in said
    assert "rank-0.log:2: EI0006" in said
    assert "  EI0006: a connection between ranks was not established in time" in said
    assert main(["explain", str(tmp_path / "none.log")]) == 2


def test_explain_shows_no_password_and_no_token(tmp_path, capsys):
    known = "ModuleNotFoundError: No module named 'flash_attn' https://me:hunter2@host/x password=hunter2"
    unknown = "my.OwnError: token=hunter2"
    for number, error in enumerate((known, unknown)):
        text = (
            f"Traceback (most recent call last):\n  File \"t.py\", line 3, in f\n    login(token='hunter2')\n{error}\n"
        )
        (tmp_path / f"{number}.log").write_text(text)
        for options in ([], ["--json"]):
            assert main(["explain", str(tmp_path / f"{number}.log"), *options]) == 0
            said = capsys.readouterr().out
            assert error.partition(":")[0] in said
            assert "hunter2" not in said


@pytest.mark.parametrize(
    "message",
    [
        "unable to allocate shared memory(shm) for file </torch_26553_1934276645_0>: No space left on device (28)",
        "unable to open shared memory object </torch_1_2_3> in read-write mode: Too many open files (24)",
        "unable to write to file </torch_1_2_3>: No space left on device (28)",
    ],
)
def test_torchs_messages_about_full_shared_memory(message):
    log = LogText(f"RuntimeError: {message}\n")
    assert [one.problem.name for one in explanation.explain(log, PROBLEMS, Facts())] == ["shared_memory_is_full"]


def test_an_unknown_failure_is_shown_with_its_frames(tmp_path, capsys):
    text = 'Traceback (most recent call last):\n  File "t.py", line 3, in f\n    g()\n'
    text += '  File "/src/ascend_adapt/emulation/aten.py", line 9, in g\n    raise OwnError\nmy.OwnError: no\n'
    (tmp_path / "job.log").write_text(text)
    assert main(["explain", str(tmp_path / "job.log")]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"  last exception: {tmp_path}/job.log:6: my.OwnError: no",
        "  raised: /src/ascend_adapt/emulation/aten.py:9: raise OwnError",
        "  called from: t.py:3: g()",
    ]


@pytest.mark.parametrize("name", [name for name, one in PROBLEM_OF.items() if one.symptom])
def test_each_symptom_has_text_that_makes_it_fast_to_search(name):
    assert all(literals.required(pattern) for pattern in PROBLEM_OF[name].symptom)


@pytest.mark.usefixtures("needs_torch")
def test_doctor_reads_files_and_runs_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))  # not the locks that builds have left on this host
    monkeypatch.setenv("ASCEND_ADAPT_PLUGINS", "problems")  # patches take time to judge
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("from peft import x\nx(load_in_8bit=True)\nraise SystemExit(9)\n")
    assert main(["doctor", "train.py"]) == 1
    said = capsys.readouterr().out
    assert "must be fixed: train.py:2: x(load_in_8bit=True) — 8-bit weights" in said
    (tmp_path / "train.py").write_text("if args.eight:\n    x(load_in_8bit=True)\n")
    assert main(["doctor", "train.py"]) == 0
    assert "note: train.py:2: x(load_in_8bit=True)" in capsys.readouterr().out
    (tmp_path / "train.py").write_text("x(")
    assert main(["doctor", "train.py"]) == 2


@pytest.mark.parametrize("name", PROBLEM_OF)
def test_a_problem_is_found_in_its_example_only(name, tmp_path):
    found = found_in(PROBLEM_OF[name].example, tmp_path)
    lines = [one.line for one in found.values() if one.line and not one.problem.general]
    assert len(lines) == len(set(lines)), sorted(found)
    assert name in found, sorted(found)
    assert not re.search(r"\{\w+\}", found[name].cause + found[name].do)
    if PROBLEM_OF[name].healthy:
        assert name not in found_in(PROBLEM_OF[name].healthy, tmp_path)


def test_a_handled_import_is_the_cause_of_a_later_exception():
    """Alone it is none: tests/problems/healthy.py has the same line in a job that trained."""
    handled = healthy.LOGS["torch_npu without CANN in a job on CPUs"]
    failed = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nRuntimeError: no NPU\n'
    assert list(found_in(handled + failed, None)) == ["cann_environment_is_not_set"]


THROUGH_HOOKS = """\
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/accelerate/commands/launch.py", line 1190, in launch_command
    simple_launcher(args)
  File "/home/u/train.py", line 3, in <module>
    from megatron import training
  File "<frozen importlib._bootstrap>", line 1178, in _find_and_load
  File "/venv/lib/python3.11/site-packages/wrapt/importer.py", line 163, in _self_exec_module
    self.__wrapped__.exec_module(module)
  File "/home/u/Megatron-LM/megatron/training.py", line 7, in <module>
    from megatron.data import gpt_dataset
  File "/venv/lib/python3.11/site-packages/wrapt/importer.py", line 253, in find_spec
    spec = importlib.util.find_spec(fullname)
  File "/src/ascend_adapt/patches/apply/providing.py", line 100, in find_spec
    return None
ModuleNotFoundError: No module named 'megatron.data'
"""


def test_an_import_hook_is_not_named_as_the_importer():
    (found,) = explanation.explain(LogText(THROUGH_HOOKS), PROBLEMS, Facts())
    assert found.cause.startswith("the code imports megatron.data")
    assert [str(one) for one in found.frames] == [
        "/home/u/Megatron-LM/megatron/training.py:7: from megatron.data import gpt_dataset"
    ]
    installed = THROUGH_HOOKS.replace("/home/u/Megatron-LM", "/venv/lib/python3.11/site-packages")
    (found,) = explanation.explain(LogText(installed), PROBLEMS, Facts())
    assert found.cause.startswith("megatron imports megatron.data")


THROUGH_A_PATCH = f"""\
Traceback (most recent call last):
  File "/home/u/gpt-neox/megatron/training.py", line 1188, in setup_model_and_optimizer
    model, optimizer, _, lr_scheduler = deepspeed.initialize(
  File "{ROOT}/ascend_adapt/patches/declare/call.py", line 62, in call
    return wrapper(Call(wrapped, instance, args, kwargs))
  File "{ROOT}/plugins/deepspeed_runtime/configuration.py", line 27, in single_config_argument
    return call.proceed()
  File "{ROOT}/ascend_adapt/patches/declare/call.py", line 26, in proceed
    return self.wrapped(*self.args, **self.kwargs)
  File "/venv/lib/python3.11/site-packages/deepspeed/runtime/engine.py", line 2004, in _do_sanity_check
    raise ValueError("Type fp16 is not supported on your device.")
ValueError: Type fp16 is not supported on your device.
"""


def test_a_patch_is_not_named_as_the_caller():
    (found,) = explanation.explain(LogText(THROUGH_A_PATCH), PROBLEMS, Facts())
    assert found.frames[-1].file == "/home/u/gpt-neox/megatron/training.py"
