"""Thirty public reports of training on Ascend NPUs, each run as its reporter would have: ``python thirty_reports.py`` prints the table.

A report has what its author had: the end of a log in our own abridgement (where the report quotes none, what upstream's code
prints at that place), the versions and variables of the host, scripts and configurations.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

NAMED, PARTLY, SILENT = "named", "partly", "silent"
GITHUB = "https://github.com"


@dataclass(frozen=True)
class Report:
    """One public report; ``expected`` are the problems that must be found, in the log and by doctor."""

    number: str
    address: str
    verdict: str
    expected: tuple[str, ...] = ()
    why: str = ""
    log: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


REPORTS = (
    Report(
        "D01",
        f"{GITHUB}/deepspeedai/DeepSpeed/issues/4892",
        PARTLY,
        ("ai_core_exception",),
        "the kind of fault and how to find the operator; the report does not say which kernel it was",
        log="EZ9999: Inner Error!\n"
        "EZ9999  Kernel task happen error, retCode=0x26, [aicore exception].[FUNC:PreCheckTaskErr][FILE:task_info.cc]\n"
        "        The error from device(2), there is an aicore error, core id is 0, error code = 0x10\n",
    ),
    Report(
        "D03",
        f"{GITHUB}/hiyouga/LlamaFactory/issues/6428",
        NAMED,
        ("visible_devices_of_a_look_alike",),
        environ={"NPU_VISIBLE_DEVICES": "0,1,2,3,5,7"},
    ),
    Report(
        "D05",
        f"{GITHUB}/hiyouga/LlamaFactory/pull/3930",
        NAMED,
        ("operator_compiler_cannot_start", "decorator: not installed"),
        log="EH9999: Inner Error!\nEH9999  [Init][Env]init env failed![FUNC:ReportInnerError][FILE:log_inner.cpp]\n",
        versions={"decorator": ""},
    ),
    Report(
        "D07",
        f"{GITHUB}/huggingface/transformers/issues/35785",
        NAMED,
        ("training_stays_on_the_cpu",),
        log="UserWarning: The /usr/local/Ascend/ascend-toolkit/latest owner does not match the current owner.\n"
        "01/20/2025 10:00:00 - WARNING - __main__ - Process rank: 0, device: cpu, n_gpu: 0, distributed training: True\n",
    ),
    Report(
        "D09",
        f"{GITHUB}/Ascend/pytorch/issues/10",
        NAMED,
        ("bitsandbytes_requires_cuda", "four_bit_weights_asked"),
        log="Traceback (most recent call last):\n"
        '  File "train.py", line 90, in <module>\n    trainer.train()\n'
        '  File "/env/lib/python3.9/site-packages/bitsandbytes/autograd/_functions.py", line 322, in forward\n'
        "    if torch.cuda.get_device_capability(device=A.device) < (7, 5):\n"
        '  File "/env/lib/python3.9/site-packages/torch/cuda/__init__.py", line 247, in _lazy_init\n'
        "AssertionError: Torch not compiled with CUDA enabled\n",
        files={
            "train.py": "from transformers import BitsAndBytesConfig\n"
            "config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4')\n"
        },
    ),
    Report(
        "D11",
        f"{GITHUB}/modelscope/ms-swift/pull/7299",
        NAMED,
        ("packed_sequences_without_padded_lengths",),
        log="Traceback (most recent call last):\n"
        '  File "/MindSpeed/mindspeed/core/context_parallel/utils.py", line 80, in forward\n'
        "    total = packed_seq_params.cu_seqlens_q_padded[-1]\n"
        "TypeError: 'NoneType' object is not subscriptable\n",
    ),
    Report(
        "D13",
        f"{GITHUB}/hiyouga/LlamaFactory/issues/7986",
        NAMED,
        ("integer_device_goes_to_cuda", "transformers_passes_integer_devices"),
        log="- PyTorch version: 2.2.0 (NPU)\n- torch_npu: 2.2.0\n- Transformers version: 4.51.0\n"
        "Traceback (most recent call last):\n"
        '  File "/env/lib/python3.10/site-packages/transformers/modeling_utils.py", line 4833, in _load_state_dict\n'
        "    param = param.to(param_device)\n"
        '  File "/env/lib/python3.10/site-packages/torch/cuda/__init__.py", line 293, in _lazy_init\n'
        "AssertionError: Torch not compiled with CUDA enabled\n",
        versions={"torch": "2.2.0", "torch-npu": "2.2.0", "transformers": "4.51.0"},
    ),
    Report(
        "D15",
        f"{GITHUB}/modelscope/ms-swift/issues/3567",
        NAMED,
        ("rollout_backend_not_installed", "lmdeploy_for_rollout_on_npu"),
        "the engine that is imported although another one was chosen, with the line; the report quotes no error text",
        log="Traceback (most recent call last):\n"
        '  File "/env/lib/python3.10/site-packages/swift/trainers/rlhf_trainer/grpo_trainer.py", line 27, in <module>\n'
        "    from vllm import LLM\n"
        "ModuleNotFoundError: No module named 'vllm'\n",
        files={"run.sh": "swift rlhf --rlhf_type grpo --use_lmdeploy true --model Qwen2.5-7B\n"},
    ),
    Report(
        "D17",
        f"{GITHUB}/verl-project/verl/issues/3947",
        PARTLY,
        ("hccl_cannot_find_its_host_network",),
        "what the error means and what to check; the report does not say which cause applied",
        log="RuntimeError: create_config:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:102 HCCL function error: "
        "hcclCommInitRootInfoConfig(numRanks, &rootInfo, rank, config, &(comm->hcclComm_)), error code is 4\n",
    ),
    Report(
        "D19",
        f"{GITHUB}/vllm-project/vllm-ascend/issues/4376",
        SILENT,
        why="its error text is no longer public",
    ),
    Report(
        "D21",
        f"{GITHUB}/verl-project/verl/pull/7837",
        NAMED,
        ("glm_5_2_without_its_patch_in_verl",),
        "the two vLLM fixes that its pull request names, from the run script; it quotes no error text",
        files={
            "run.sh": "python3 -m verl.experimental.fully_async_policy.fully_async_main "
            "actor_rollout_ref.model.path=zai-org/GLM-5.2\n"
        },
    ),
    Report(
        "D23",
        f"{GITHUB}/Ascend/pytorch/issues/7",
        NAMED,
        ("static_tls_of_libgomp",),
        log="ImportError: /env/lib/python3.10/site-packages/torch_npu/lib/../../torch.libs/libgomp-6e1a1d1b.so.1.0.0: "
        "cannot allocate memory in static TLS block\n",
    ),
    Report(
        "D25",
        f"{GITHUB}/wenet-e2e/wenet/issues/2570",
        PARTLY,
        ("loss_is_zero_and_gradient_nan",),
        "the NaN before the inner error, and how to find its operator; the kernel of CANN 8.0.RC1 can only be checked on the device",
        log="{'loss': 3.1, 'grad_norm': nan, 'lr': 0.001}\nEZ9999: Inner Error!\n",
    ),
    Report(
        "D27",
        f"{GITHUB}/Ascend/triton-ascend/issues/2",
        NAMED,
        ("bisheng_cannot_compile_the_kernel",),
        log="triton.compiler.errors.MLIRCompilationError:\n[ConvertLinalgRToBinary] encounters error:\n",
    ),
    Report(
        "D29",
        f"{GITHUB}/ByteDance-Seed/VeOmni/pull/246",
        NAMED,
        ("pin_memory_without_device", "stateful_loader_pins_without_device"),
        log="Traceback (most recent call last):\n"
        '  File "/job/train.py", line 40, in build_dataloader\n    for batch in loader:\n'
        '  File "/env/lib/python3.11/site-packages/torchdata/stateful_dataloader/stateful_dataloader.py", line 1002, in __init__\n'
        "    current_device = torch.cuda.current_device()\n"
        '  File "/env/lib/python3.11/site-packages/torch/cuda/__init__.py", line 403, in _lazy_init\n'
        "AssertionError: Torch not compiled with CUDA enabled\n",
        files={
            "train.py": "from torchdata.stateful_dataloader import StatefulDataLoader\n"
            "loader = StatefulDataLoader(data, num_workers=2, pin_memory=True)\n"
        },
    ),
    Report(
        "D31",
        f"{GITHUB}/deepspeedai/DeepSpeed/issues/7312",
        NAMED,
        ("nccl_backend_without_cuda",),
        log="[2025-05-26 13:54:18,696] [INFO] [comm.py:637:init_distributed] cdb=None\n"
        "Traceback (most recent call last):\n"
        '  File "/home/u/start_train.py", line 62, in <module>\n    start_train()\n'
        '  File "/env/lib/python3.10/site-packages/torch/distributed/distributed_c10d.py", line 1331, in helper\n'
        "RuntimeError: Distributed package doesn't have NCCL built in\n",
    ),
    Report(
        "D33",
        f"{GITHUB}/vllm-project/vllm-ascend/issues/486",
        PARTLY,
        ("hccl_socket_timeout",),
        "what the error means and how to find the rank that is elsewhere; one rank's log does not show which one it is",
        log="[rank1]: RuntimeError: InnerRunOpApi:torch_npu/csrc/framework/OpParamMaker.cpp:281 OPS function error: "
        "HcclAllreduce, error code is 6\n[rank1]: EI0006: [PID: 1292363] 2025-04-08-18:07:20.444.436 Getting socket "
        "times out. Reason: Remote Rank did not send the data in time.\n",
    ),
    Report(
        "D35",
        f"{GITHUB}/huggingface/trl/issues/3545",
        NAMED,
        ("module_removed_from_vllm_ascend", "trl_needs_a_newer_vllm_ascend"),
        log="Traceback (most recent call last):\n"
        '  File "/env/lib/python3.9/site-packages/trl/extras/vllm_client.py", line 38, in <module>\n'
        "ModuleNotFoundError: No module named 'vllm_ascend.distributed.device_communicators'\n",
        versions={"trl": "0.18.1", "vllm-ascend": "0.7.3"},
    ),
    Report(
        "D37",
        f"{GITHUB}/huggingface/accelerate/pull/3790",
        NAMED,
        ("fsdp2_in_accelerate_uses_cuda", "fsdp2_in_accelerate_uses_cuda_here"),
        log="Traceback (most recent call last):\n"
        '  File "/job/train.py", line 40, in <module>\n    model = accelerator.prepare(model)\n'
        '  File "/env/lib/python3.11/site-packages/accelerate/accelerator.py", line 1400, in prepare\n'
        '  File "/env/lib/python3.11/site-packages/torch/distributed/device_mesh.py", line 300, in __init__\n'
        '  File "/env/lib/python3.11/site-packages/torch/cuda/__init__.py", line 403, in _lazy_init\n'
        "AssertionError: Torch not compiled with CUDA enabled\n",
        versions={"accelerate": "1.10.1"},
        files={"fsdp.yaml": "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"},
    ),
    Report(
        "D39",
        f"{GITHUB}/verl-project/verl/issues/4200",
        NAMED,
        ("fp16_rollout_asked",),
        "matched by the setting that this report names; which rollout kernel overflows is not known",
        files={"run.sh": "python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.dtype=float16\n"},
    ),
    Report(
        "D41",
        f"{GITHUB}/Ascend/pytorch/issues/76",
        PARTLY,
        ("device_out_of_memory", "growing_shapes_until_out_of_memory"),
        "reported by others with these versions; what holds the memory is not known",
        log="RuntimeError: NPU out of memory. Tried to allocate 512.00 MiB (NPU 0; 60.97 GiB total capacity)\n",
        versions={"torch": "2.7.1", "torch-npu": "2.7.1", "transformers": "4.53.3", "deepspeed": "0.17.2"},
        files={"sft.yaml": "model_name_or_path: Qwen/Qwen2.5-VL-7B-Instruct\n"},
    ),
    Report(
        "D43",
        f"{GITHUB}/Ascend/pytorch/issues/35",
        NAMED,
        ("torch_npu_for_another_torch", "torch_npu 2.2.0 with torch 2.1.0"),
        log="RuntimeError: Failed to import transformers.optimization because of the following error:\n"
        "/env/PyTorch-2.1.0/lib/python3.9/site-packages/torch_npu/lib/libtorch_npu.so: undefined symbol: "
        "_ZN5torch10ValueErrorC1EPKcz\n",
        versions={"torch": "2.1.0", "torch-npu": "2.2.0"},
    ),
    Report(
        "D45",
        f"{GITHUB}/MinghuasLab/flash-attention-npu/issues/44",
        PARTLY,
        ("flash_attention_npu_varlen",),
        "reported by others for this package; a kernel's accuracy can only be checked on the device",
        files={"train.py": "from flash_attn_npu_v3.flash_attn_interface import flash_attn_varlen_func\n"},
    ),
    Report(
        "D47",
        f"{GITHUB}/modelscope/ms-swift/pull/8121",
        NAMED,
        ("argument_of_mindspeed_is_missing", "attention_is_never_fused"),
        log="Traceback (most recent call last):\n"
        '  File "/MindSpeed/mindspeed/core/transformer/attention.py", line 40, in forward\n'
        "AttributeError: 'MegatronModelConfig' object has no attribute 'context_parallel_algo'\n",
        versions={"mindspeed": "0.12.1", "ms-swift": "3.12.5"},
        files={"run.sh": "megatron sft --attention_backend flash --model Qwen3-8B\n"},
    ),
    Report(
        "D49",
        f"{GITHUB}/PKU-YuanGroup/Open-Sora-Plan/issues/261",
        NAMED,
        ("compute_capability_of_an_npu", "lightning_asked_for_a_gpu"),
        "the public traceback is cut; its last line here is what Lightning 2.2 raises where the warning above comes from",
        log="UserWarning: torch.npu.get_device_capability isn't implemented!\n"
        "Traceback (most recent call last):\n"
        '  File "/code/Open-Sora-Plan/opensora/train/train_causalvae.py", line 97, in train\n    trainer.fit(\n'
        '  File "/env/lib/python3.8/site-packages/lightning_fabric/accelerators/cuda.py", line 355, in _is_ampere_or_later\n'
        "    major, _ = torch.cuda.get_device_capability(device)\n"
        "TypeError: cannot unpack non-iterable NoneType object\n",
        files={
            "train_causalvae.py": "import pytorch_lightning as pl\n"
            "trainer = pl.Trainer(accelerator='cuda', devices=8)\ntrainer.fit(model, data)\n"
        },
    ),
    Report(
        "D51",
        f"{GITHUB}/OpenRLHF/OpenRLHF/issues/1016",
        SILENT,
        why="a reward that collapses after many steps, with no message and no known cause",
        files={"run.sh": "python3 -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen2.5-7B --zero_stage 3 --bf16\n"},
    ),
    Report(
        "D53",
        f"{GITHUB}/linkedin/Liger-Kernel/pull/1256",
        NAMED,
        ("ai_core_exception", "fused_moe_of_liger_on_npu"),
        "the log shows the kind of fault; the configuration and Liger's version identify the kernel",
        log="EZ9999: Inner Error!\n   errorStr: UB address accessed by the VEC instruction is out of bounds\n"
        "RuntimeError: NPU function error: aclrtSynchronizeStream, error code is 507035\n",
        versions={"liger-kernel": "0.8.0", "triton-ascend": "3.2.1"},
        files={"sft.yaml": "enable_liger_kernel: true\nmodel_name_or_path: Qwen/Qwen3-30B-A3B\n"},
    ),
    Report(
        "D55",
        f"{GITHUB}/hiyouga/LlamaFactory/issues/8865",
        SILENT,
        why="its error text is no longer public, and its versions fit each other",
        versions={"torch": "2.5.1", "torch-npu": "2.5.1", "deepspeed": "0.17.4", "transformers": "4.52.4"},
    ),
    Report(
        "D57",
        f"{GITHUB}/hiyouga/LlamaFactory/issues/3959",
        SILENT,
        why="the public traceback ends before its error",
        log="Traceback (most recent call last):\n"
        '  File "/env/lib/python3.10/site-packages/transformers/trainer.py", line 3264, in compute_loss\n'
        "    outputs = model(**inputs)\n",
    ),
    Report(
        "D59",
        f"{GITHUB}/Ascend/pytorch/issues/20",
        NAMED,
        ("no_current_device",),
        log="Traceback (most recent call last):\n"
        '  File "/data/InternEvo/internlm/utils/gputest.py", line 290, in warmup_process_group\n'
        "    buffer = torch.randn([64], device=internlm_accelerator.current_device_name())\n"
        "RuntimeError: Could not compute stream ID for Oxffff8c1d5e40 on device -1 (something has gone horribly wrong!)\n",
    ),
)

# A host without findings; each report changes what its author's host had.
PYTHON_OF_CANN = ("attrs", "cffi", "decorator", "protobuf", "psutil", "PyYAML", "scipy", "sympy")
VERSIONS = {"torch": "2.7.1", "torch_npu": "2.7.1", "numpy": "1.26.4", **dict.fromkeys(PYTHON_OF_CANN, "1")}


def output(report: Report) -> str:
    """Return what the commands print: explain of the log, doctor of the collected host and of the files."""
    from ascend_adapt.cli import main

    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
        here = Path(folder)
        if report.log:
            (here / "job.log").write_text(report.log)
            main(["explain", str(here / "job.log")])
        (here / "host.json").write_text(json.dumps(host(report, here / "root")))
        main(["doctor", "--report", str(here / "host.json"), "--device", "npu"])
        for name, text in report.files.items():
            (here / name).write_text(text)
        if report.files:
            print(files_of(report, here))
    return said.getvalue().replace(folder, "")


@functools.cache
def healthy_host() -> str:
    import ascend_host

    from ascend_adapt.diagnosis import collect

    with tempfile.TemporaryDirectory() as folder:
        environ = ascend_host.make(Path(folder))
        before = os.environ["PATH"]
        os.environ["PATH"] = f"{folder}/usr/local/bin:{before}"
        try:
            data = collect.collect({**environ, "PATH": os.environ["PATH"]}, folder)
        finally:
            os.environ["PATH"] = before
    return json.dumps({**data, "limits": {"n": 65536, "u": None, "l": None}, "shm_bytes": 1 << 34, "last_errors": {}})


def host(report: Report, root: Path) -> dict[str, object]:
    """Return what `doctor --collect` would have written on the host of a report."""
    data = json.loads(healthy_host())
    changed = {name.replace("torch-npu", "torch_npu"): version for name, version in report.versions.items()}
    versions = {name: version for name, version in {**VERSIONS, **changed}.items() if version}
    return {**data, "host": report.number, "versions": versions, "environ": {**data["environ"], **report.environ}}


def files_of(report: Report, folder: Path) -> str:
    """Return what doctor says of the files, with the versions of the report's host."""
    from ascend_adapt.diagnosis.predicted import as_findings
    from ascend_adapt.problems import known, reading
    from ascend_adapt.problems.facts import Facts

    read = functools.reduce(lambda one, other: one + other, (reading.read(folder / name) for name in report.files))
    facts = Facts(dict(report.versions), dict(report.environ), "npu", read, is_complete=True)
    problems, _ = known.problems({})
    found = as_findings([one for one in problems if one.when and one.when.reads_files], facts)
    return "\n".join(f"{one.what} — {one.why} — {one.do}" for one in found)


def shown(report: Report, text: str) -> list[str]:
    """Return for each expected problem the line of the output that names its cause, "" if there is none."""
    from ascend_adapt.problems import known

    causes = {one.name: max(one.cause.replace("}", "{").split("{")[::2], key=len) for one in known.problems({})[0]}
    wanted = [causes.get(name, name) for name in report.expected]
    return [next((line for line in text.splitlines() if part in line), "") for part in wanted]


def table() -> str:
    """Return the table of docs/diagnosis.md."""
    rows = ["| report | verdict | what is printed, and why not more |", "|---|---|---|"]
    for report in REPORTS:
        lines = [line.replace("|", "\\|")[:260] for line in shown(report, output(report))]
        said = "<br>".join(f"`{line}`" for line in dict.fromkeys(lines))
        words = "<br>".join(filter(None, (said, report.why)))
        rows.append(f"| [{report.number}]({report.address}) | {report.verdict} | {words} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
