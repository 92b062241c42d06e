"""The table of file kinds in docs/security.md is complete: every module that opens a file is here, with its row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = "| file | how it is read | test |"

# A method of these names opens a file whatever its object is; ``load`` and others only of the libraries named here.
METHODS = {"read_text", "read_bytes", "open", "safe_open", "from_file", "fromfile", "memmap", "from_pretrained"}
METHODS |= {"open_binary", "open_text", "ParquetFile", "ZipFile", "SentencePieceProcessor", "read_array"}
LOADS = {"torch.load", "np.load", "json.load", "yaml.load", "yaml.safe_load", "pickle.load", "marshal.load", "dcp.load"}
WRITES = re.compile(r"""['"][wax]|O_WRONLY|O_CREAT""")

# A part of the first cell of its row, and the modules that open such files.
ROWS = {
    "native `*.distcp`": "checkpoint/writing native/checkpoint/load",
    "trackers, SHA256SUMS": """checkpoint/trackers checkpoint/dialects/native convert/output_folder
        native/checkpoint/folder""",
    "`convert`, `inspect` and a native `--finetune`": "checkpoint/distributed checkpoint/torch_files",
    "config.json, weight index and safetensors of Hugging Face": """checkpoint/hugging_face/files convert/verification
        evaluation/text""",
    "token index": "data/legacy_index data/mapping data/token_index data/merging",
    "index cache": "data/index_cache",
    "tokenizer.json": "data/glm_tokenizer data/tokenizer data/preprocessing recipes/vocabulary",
    "JSON lines": "data/inputs native/samples/glm_text native/samples/cloze_examples recipes/glm_samples",
    "Parquet": "data/parquet",
    "YAML of GPT-NeoX": "recipes/neox_files native/__main__ checkpoint/dialects/glm",
    "DeepSpeed JSON": """recipes/deepspeed_json launch/one_host/run_directory launch/one_host/failures
        launch/in_process/member launch/in_process/status_file
        diagnosis/status_report emulation/rehearsal kernels/run_record diagnosis/evidence
        data/unfinished native/finetuning/run report/run ../plugins/deepspeed_runtime/configuration""",
    "hostfile": "launch/placement/hostfile launch/placement/environment",
    "collected hosts": "diagnosis/host_reports problems/reading launch/fit/file_copy",
    "logs": "problems/log_text diagnosis/collect diagnosis/findings/npu native/metrics/run_log report/logs",
    "wheels, source archives": "emulation/wheel testing/releases",
    "recordings and msprobe dumps": "alignment/kept_inputs alignment/msprobe alignment/recording",
    "tasks and prompts": "evaluation/text_perplexity",
    "source code that is judged": """audit/targets patches/declare/syntax patches/judge/installation probe
        diagnosis/findings/imports diagnosis/findings/shell diagnosis/findings/versions diagnosis/findings/cuda
        launch/jobs/checks launch/jobs/fallback launch/jobs/launcher_scripts launch/jobs/missing_modules
        ../plugins/without_cuda/callers""",
    "shell files of GLM": "recipes/glm_shell",
    "what CUDA code loads": "../plugins/without_cuda/_loading_and_autocast",
}
# What is not from elsewhere.
OWN = {
    "the system: /proc, devices, locks": """build_locks data/memory diagnosis/findings/machine launch/one_host/coverage
        launch/one_host/processes launch/cores standard_streams""",
    "shipped with the package, or in a plugin, which is code": "problems/error_codes problems/problem recipes/options",
    "written by another process of the same run": """audit/running evaluation/commands launch/many_hosts/agent
        launch/fit/trials launch/many_hosts/launcher launch/one_host/recipients launch/transport/tls_callback
        native/checkpoint/save_lock""",
    "the emulation's own cache, mode 0700": "emulation/build emulation/cache emulation/environment",
    "samples, already open": "native/loop",
    "what all of these use": "regular_files",
    "the conformance suite, for authors of plugins": """testing/faults testing/hardware testing/real_target
        testing/scenarios testing/stage testing/upstream_facts""",
}


def opens(path: Path) -> bool:
    """Return whether a module has a call that opens a file for reading."""
    return any(isinstance(node, ast.Call) and _reads(node) for node in ast.walk(ast.parse(path.read_text())))


def _reads(call: ast.Call) -> bool:
    function = ast.unparse(call.func)
    name = function.rpartition(".")[2]
    return (name in METHODS or function in LOADS) and not WRITES.search(ast.unparse(call))


def opening() -> set[Path]:
    """Return every module that opens a file."""
    return {
        path.resolve()
        for folder in ("ascend_adapt", "plugins")
        for path in (ROOT / folder).rglob("*.py")
        if opens(path)
    }


def module(name: str) -> Path:
    """Return the file of a module that is listed here."""
    return (ROOT / "ascend_adapt" / f"{name}.py").resolve()


def test_every_module_that_opens_a_file_has_a_row():
    listed = {module(name) for names in (*ROWS.values(), *OWN.values()) for name in names.split()}
    found = opening()
    assert found == listed, (
        "add the module to ROWS, and its kind of file to docs/security.md with a test "
        f"(not listed: {sorted(map(str, found - listed))}, opens nothing: {sorted(map(str, listed - found))})"
    )


def test_every_row_is_in_the_table():
    table = (ROOT / "docs" / "security.md").read_text().partition(TABLE)[2].partition("\n\n")[0]
    cells = [line.split(" | ")[0] for line in table.splitlines()]
    assert [row for row in ROWS if not any(row in cell for cell in cells)] == []


def test_an_opening_call_is_seen(tmp_path):
    (tmp_path / "reads.py").write_text("import numpy as np\ndef f(x):\n    return np.load(x)\n")
    (tmp_path / "writes.py").write_text("def f(x):\n    x.open('wb').write(b'')\n")
    assert [path.name for path in sorted(tmp_path.glob("*.py")) if opens(path)] == ["reads.py"]
