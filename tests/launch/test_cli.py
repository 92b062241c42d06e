"""`ascend-run` as a user starts it: what its options, files and messages do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_adapt.diagnosis import status_report
from ascend_adapt.launch import cli
from ascend_adapt.launch.placement import environment

SCRIPT = """
import json, os, pickle, sys
from pathlib import Path
class Local: pass
assert pickle.loads(pickle.dumps(Local())).__class__ is Local
Path(os.environ["OUT"], os.environ["RANK"]).write_text(json.dumps([sys.argv, __name__, __file__, sys.path[0]]))
"""


def test_two_ranks_run_the_script_as_main(ascend_run, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    arguments = ["--x", "a b", "", "--", "$HOME", "a;b", '{"k": "v"}', "ü"]
    job = ascend_run("--nproc", "2", "--log-dir", "run", "train.py", *arguments, OUT=str(tmp_path))
    assert job.returncode == 0, job.stderr
    for rank in ("0", "1"):
        argv, name, file, first_path = json.loads((tmp_path / rank).read_text())
        assert (argv, name, file, first_path) == (["train.py", *arguments], "__main__", "train.py", str(tmp_path))
        status = json.loads((tmp_path / "run" / f"adapt-status.{rank}.json").read_text())
        assert status["rank"] == int(rank)
        assert {outcome["state"] for outcome in status["outcomes"]} <= {"armed", "skipped", "not_needed"}


def test_a_file_in_the_current_folder_hides_no_module_from_a_script_elsewhere(tmp_path):
    (tmp_path / "tokenize.py").write_text("raise SystemExit('imported')")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text("import tokenize\nprint(tokenize.TokenInfo)")
    for options in ((), ("--no-adapt",)):
        # The installed program: `python -m` would itself put the current folder first.
        command = [Path(sys.executable).with_name("ascend-run"), *options, "scripts/train.py"]
        job = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
        assert job.stdout.strip() == "<class 'tokenize.TokenInfo'>", job.stderr


def test_a_module(ascend_run, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "train.py").write_text(
        "import sys\nprint(__name__, __spec__.name, sys.argv[1:], sys.path[0])"
    )
    job = ascend_run("-m", "package.train", "-m", "x")
    assert job.returncode == 0, job.stderr
    assert job.stdout.strip() == f"__main__ package.train ['-m', 'x'] {tmp_path}"


@pytest.mark.parametrize(
    ("ending", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137), ("raise KeyError", 1)]
)
def test_the_exit_code_is_the_failing_ranks_own(ascend_run, ending, code, tmp_path):
    (tmp_path / "train.py").write_text(f"import os, sys\nif os.environ['RANK'] == '1':\n    {ending}\n")
    job = ascend_run("--nproc", "2", "train.py")
    assert job.returncode == code, job.stderr
    assert job.stderr.count("ascend-run: rank 1 on ") == 1


def test_no_adapt_disables_every_patch(ascend_run, tmp_path):
    (tmp_path / "train.py").write_text(
        "import ascend_adapt, sys\n"
        "print({outcome.state for outcome in ascend_adapt.enable().outcomes}, 'wrapt' in sys.modules)"
    )
    job = ascend_run("--no-adapt", "train.py")
    assert job.stdout.strip() == "{'disabled'} False", job.stderr


def test_status_of_a_job_without_patches_is_short(ascend_run, tmp_path, capsys):
    (tmp_path / "train.py").write_text("import ascend_adapt\nascend_adapt.enable()")
    assert ascend_run("--no-adapt", "--log-dir", "run", "train.py").returncode == 0
    status_report.show(status_report.of_run(tmp_path / "run"), short=True)
    first, second, _ = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\d\d+ patches: 0 applied, \d\d+ disabled", first)
    assert second.endswith("run; not adapted")


def test_a_script_that_enables_itself_joins_the_launcher(ascend_run, tmp_path):
    (tmp_path / "train.py").write_text("import ascend_adapt\nprint(ascend_adapt.enable().summary())")
    job = ascend_run("train.py")
    assert job.returncode == 0, job.stderr
    assert "armed" in job.stdout


def test_a_script_that_contradicts_the_launcher_is_reported_in_one_paragraph(ascend_run, tmp_path):
    (tmp_path / "train.py").write_text("import ascend_adapt\nascend_adapt.enable(device='npu')")
    job = ascend_run("--device", "cpu", "train.py")
    assert job.returncode == 1
    assert "ascend_adapt: enable(device='npu') at train.py:2: device 'cpu'" in job.stderr
    assert "Traceback" not in job.stderr


def test_dry_run_starts_nothing(ascend_run, tmp_path):
    (tmp_path / "train.py").write_text("raise SystemExit('started')")
    job = ascend_run("--nproc", "3", "--dry-run", "--json", "train.py", "--x")
    plan = json.loads(job.stdout)
    assert (job.returncode, plan["world_size"], [rank["rank"] for rank in plan["ranks"]]) == (0, 3, [0, 1, 2])
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (["missing.py"], 2, "script 'missing.py': No such file or directory"),
        (["-m", "no_such.module"], 2, "module 'no_such.module': no 'no_such' in "),
        (["no_such_command", "x"], 2, "command 'no_such_command': not found on PATH"),
        (["."], 2, "command '.': not found on PATH"),
        (
            ["--device", "npu-emulated:911", "train.py"],
            2,
            "argument --device: invalid choice: '911' (choose from 910A, 910B)",
        ),
        (["--device", "npu-emulated:", "train.py"], 2, "argument --device: invalid choice: ''"),
        (["--device", "cpu:", "train.py"], 2, "argument --device: invalid choice: 'cpu:'"),
        (["--device", "cpu:910A", "train.py"], 2, "argument --device: invalid choice: 'cpu:910A'"),
        (["--foo", "train.py"], 2, "unrecognized arguments: --foo"),
        (["--disable", "nosharedmemory", "train.py"], 2, "'nosharedmemory': no plugin or patch has this name"),
        (["--device", "npu", "--nproc", "2", "train.py"], 1, "--nproc 2: found 0 npu devices"),
        (
            ["--device", "npu", "train.py"],
            1,
            "--device npu: no device found on this host — see `ascend-adapt doctor --device npu`",
        ),
        (["--log-dir", "train.py/x", "train.py"], 1, "run directory "),
    ],
)
def test_bad_input_is_one_clear_paragraph(ascend_run, argv, code, text, tmp_path):
    (tmp_path / "train.py").write_text("")
    job = ascend_run(*argv)
    assert job.returncode == code, job.stderr
    assert job.stderr.startswith(f"ascend-run: {text}")
    assert "Traceback" not in job.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("raise RuntimeError('out of\\ncoffee')", "importing broken_plugin raised RuntimeError: out of coffee"),
        (
            "from ascend_adapt import hookimpl\n@hookimpl\ndef register_kernels(): return [('glue', None)]",
            "there is no kernel 'glue'",
        ),
        (
            "import ascend_adapt\n@ascend_adapt.hookimpl\ndef register_patchs(): return []",
            "unknown hook 'register_patchs'",
        ),
        (
            "import ascend_adapt\n@ascend_adapt.hookimpl\ndef register_patches(): return ['x']",
            "register_patches returned 'x' among the patches",
        ),
        (
            "import ascend_adapt\nfrom ascend_adapt import wrap\n"
            "@wrap('m:f', host='nowhere', why='w', until='u', without='crash')\n"
            "def p(wrapped, instance, args, kwargs): ...\n"
            "@ascend_adapt.hookimpl\ndef register_patches(): return [p]",
            "code base 'nowhere' is unknown",
        ),
    ],
)
def test_a_plugin_that_cannot_be_used_stops_the_job_before_it_starts(ascend_run, source, text, tmp_path):
    (tmp_path / "broken_plugin.py").write_text(source)
    info = tmp_path / "broken_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[ascend_adapt]\nbroken = broken_plugin\n")
    (tmp_path / "train.py").write_text("print('started')")
    job = ascend_run("train.py", PYTHONPATH=str(tmp_path))
    assert job.returncode == 1
    assert "plugin 'broken' of broken-plugin" in job.stderr
    assert text in job.stderr
    assert "Traceback" not in job.stderr
    assert "started" not in job.stdout
    without = ascend_run("--disable", "broken", "train.py", PYTHONPATH=str(tmp_path))
    assert (without.returncode, without.stdout) == (0, "started\n"), without.stderr


def test_variables_reach_the_ranks_byte_for_byte(ascend_run, tmp_path):
    values = {"A": "64(x2)", "B": "a b\"c'd", "C": "/x:/y z", "D": "", "E": "$HOME `x` \\ \n", "F": "ü\udcff"}
    (tmp_path / "train.py").write_text("import json, os; print(json.dumps({n: os.environ[n] for n in 'ABCDEF'}))")
    for command in (["train.py"], ["bash", "-c", f"{sys.executable} train.py"]):
        job = ascend_run(*command, **values)
        assert json.loads(job.stdout) == values, job.stderr


def test_windows_line_ends_in_a_script_and_what_it_reads(ascend_run, tmp_path):
    (tmp_path / "c.yml").write_bytes(b"a: 1\r\nb:\r\n  - x\r\n")
    (tmp_path / "c.json").write_bytes(b'{"a":\r\n 1}\r\n')
    (tmp_path / "train.py").write_bytes(
        b"import json, yaml\r\nif True:\r\n    text = '''one\r\ntwo'''\r\n"
        b"print([text, yaml.safe_load(open('c.yml')), json.load(open('c.json'))])\r\n"
    )
    job = ascend_run("train.py")
    assert job.stdout == "['one\\ntwo', {'a': 1, 'b': ['x']}, {'a': 1}]\n", job.stderr


def test_the_devices_of_the_user_narrow_the_job(ascend_run, tmp_path):
    (tmp_path / "train.py").write_text("")
    job = ascend_run(
        "--device", "npu", "--dry-run", "--json", "train.py", ASCEND_RT_VISIBLE_DEVICES="4,5", HCCL_EXEC_TIMEOUT="9"
    )
    ranks = json.loads(job.stdout)["ranks"]
    assert [rank["device"] for rank in ranks] == ["npu:0", "npu:1"]
    assert "ASCEND_RT_VISIBLE_DEVICES" not in ranks[0]["env"]
    assert "HCCL_IF_BASE_PORT" in ranks[0]["env"]
    cuda = ascend_run("--device", "npu", "--dry-run", "--json", "train.py", CUDA_VISIBLE_DEVICES="0,1,2")
    ranks = json.loads(cuda.stdout)["ranks"]
    assert [rank["env"]["ASCEND_RT_VISIBLE_DEVICES"] for rank in ranks] == ["0,1,2"] * 3


def test_a_bootstrap_that_everybody_may_write_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "bootstrap").mkdir()
    (tmp_path / "bootstrap").chmod(0o777)
    monkeypatch.setattr(environment, "BOOTSTRAP", str(tmp_path / "bootstrap"))
    assert cli.main(["--dry-run", str(tmp_path / "train.py")]) == 1
    assert f"{tmp_path}/bootstrap: is world-writable" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--device", "cpu"], "this job runs on cpu"),
        (["--device", "cpu", "--no-adapt"], "this job runs without patches"),
    ],
)
def test_torch_npus_compile_mode_is_for_an_npu(ascend_run, tmp_path, options, why):
    (tmp_path / "train.py").touch()
    job = ascend_run(*options, "--npu-compile-mode", "jit", "train.py")
    assert job.returncode == 2
    assert job.stderr == f"ascend-run: --npu-compile-mode jit: needs an NPU, but {why} — remove the option\n"
