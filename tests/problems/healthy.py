"""Set-ups and logs with which nothing is wrong; messages that look like errors and are none are the point."""

from __future__ import annotations

from pathlib import Path

LOGS = {
    "operators that fall back to the CPU": "[W compiler_depend.ts:51] Warning: CAUTION: The operator "
    "'aten::isin.Tensor_Tensor_out' is not currently supported on the NPU backend and will fall back to run on the CPU. "
    "This may have performance implications. (function npu_cpu_fallback)\n{'loss': 1.2, 'grad_norm': 0.7, 'epoch': 0.1}\n",
    "transfer_to_npu": "/lib/python3.10/site-packages/torch_npu/contrib/transfer_to_npu.py:292: ImportWarning:\n"
    "    The torch.Tensor.cuda and torch.nn.Module.cuda are replaced with torch.Tensor.npu and torch.nn.Module.npu now..\n"
    "    The torch.cuda.DoubleTensor is replaced with torch.npu.FloatTensor cause the double type is not supported now..\n"
    "    The backend in torch.distributed.init_process_group set to hccl now..\n"
    "RuntimeWarning: torch.jit.script and torch.jit.script_method will be disabled by transfer_to_npu, which currently does "
    "not support them\n iteration 10/ 100 | loss: 9.1 | grad norm: 1.2 |\n",
    "deepspeed": "[2025-05-01 05:26:45,878] [INFO] [real_accelerator.py:203:get_accelerator] Setting ds_accelerator to npu "
    "(auto detect)\n [WARNING]  async_io requires the dev libaio .so object and headers but these were not found.\n"
    " [WARNING]  async_io: please install the libaio-devel package with yum\n"
    "[INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=2, lr=[1e-05], mom=[(0.9, 0.95)]\n"
    "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n",
    "bitsandbytes is installed": "UserWarning: The installed version of bitsandbytes was compiled without GPU support. 8-bit "
    "optimizers, 8-bit multiplication, and GPU quantization are unavailable.\n{'loss': 1.1, 'epoch': 0.2}\n",
    "owner of the toolkit": "UserWarning: Warning: The /usr/local/Ascend/ascend-toolkit/latest owner does not match the "
    "current owner.\nUserWarning: HCCL doesn't support gather at the moment. Implemented with allgather instead.\n",
    "typed storage": "UserWarning: TypedStorage is deprecated. It will be removed in the future and UntypedStorage will be the "
    "only storage class.\n",
    "torchair": "UserWarning: Register eager implementation for the 'npu' backend of dynamo, as torch_npu was not compiled with "
    "torchair.\n  warnings.warn(\n",
    "npu-smi": "| npu-smi 24.1.rc3                 Version: 24.1.rc3 |\n| 0     910B3   | OK            | 93.9   40   0    / 0 |\n"
    "| 0             | 0000:C1:00.0  | 0           0    / 0          3396 / 65536 |\n"
    "| No running processes found in NPU 0 |\n",
    "llamafactory": "[INFO|trainer.py:641] 2024-05-24 17:16:11,641 >> Using auto half precision backend\n"
    "llamafactory.model.utils.attention - Using torch SDPA for faster training and inference.\n"
    "Detected kernel version 4.19.36, which is below the recommended minimum of 5.5.0; this can cause the process to hang.\n"
    "Warning: Non finite check and unscale on NPU device!\n{'train_runtime': 100.0, 'train_loss': 0.9}\n",
    "processes on an npu": "WARNING - __main__ - Process rank: 0, device: npu:0, n_gpu: 1, distributed training: True, 16-bits "
    "training: False\n",
    "a cpu job": "ascend-run: run directory runs/x\nWARNING - __main__ - Process rank: -1, device: cpu, n_gpu: 0, distributed training: False\n"
    "{'loss': 1.0}\nTrainingArguments(use_cpu=True)\n",
    "loss scaler": "Gradient overflow. Skipping step\nLoss scaler reducing loss scale to 32768.0\n"
    "Gradient overflow. Skipping step\nLoss scaler reducing loss scale to 16384.0\n{'loss': 2.0, 'grad_norm': 1.1}\n",
    "training arguments": "TrainingArguments(no_cuda=False, use_cpu=False, fp16=False, bf16=True, ddp_backend=None, "
    "torch_compile=False, torchdynamo=None, use_liger_kernel=False, optim=OptimizerNames.ADAMW_TORCH)\n",
    "megatron": " iteration       10/     100 | consumed samples:           80 | elapsed time per iteration (ms): 100.0 | "
    "learning rate: 1.0E-04 | global batch size:     8 | lm loss: 9.2E+00 | loss scale: 1.0 | grad norm: 1.1 | number of "
    "skipped iterations:   0 | number of nan iterations:   0 |\n",
    "megatron without extensions": "WARNING: fused_layer_norm_cuda is not available, torch.nn.LayerNorm is used\n"
    "Zarr-based strategies will not be registered because of missing packages\ntraining ...\n",
    "vllm-ascend": "INFO 03-15 11:48:25 __init__.py:30] Available plugins for group vllm.platform_plugins:\n"
    "INFO 03-15 11:48:25 __init__.py:198] Platform plugin ascend is activated\n"
    'WARNING 03-15 11:48:26 _custom_ops.py:21] Failed to import from vllm._C with ModuleNotFoundError("No module named '
    "'vllm._C'\")\nINFO Loading model weights took 3.5782 GB\n",
    "ray": "INFO worker.py:1841 -- Started a local Ray instance.\n(TaskRunner pid=904050) Training from scratch\n"
    "(WorkerDict pid=1) step:1 - actor/loss:0.01 - actor/grad_norm:0.3\n",
    "nccl is only mentioned": "[INFO] backend: hccl (nccl was asked for, which is translated)\nstep 1 loss 3.2\n",
    "ascend-run": "ascend-run: 2 ranks on npu-emulated\nascend-run: rehearsal: 2 ranks, 10 steps, 40 operators\n",
    "triton autotune": "Warning: The cache directory for DeepSpeed Triton autotune appears to be on an NFS system.\n",
    "resume": "successfully loaded checkpoint from checkpoints at iteration 100\nresuming, consumed samples 800\n",
    "advice about crashes and devices": "WARNING: flash attention only supports Ampere GPUs or newer, SDPA is used\n"
    "set PYTHONFAULTHANDLER=1 to see where a Segmentation fault comes from\ndevices: {'npu': 8, 'cpu': 192}\n"
    "UserWarning: torch.cuda.amp only supports CUDA, autocast is off\nHCCL function HcclAllReduce took 15 us\n",
    "a log that begins with the code of its script": "import torch\nassert torch.cuda.is_available()\ndevice = f'cuda:{rank}'\n"
    "====\nstep:0/3125 val_loss:10.8258 train_time:252ms\nstep:10/3125 train_loss:7.4\n",
    "an import that was caught": "import error: No module named 'triton'\nstep 1 loss 3.2\n",
    "torch_npu without CANN in a job on CPUs": "ascend_adapt: torch_npu: is installed but cannot be imported (libhccl.so: "
    "cannot open shared object file: No such file or directory), treated as not installed\n{'loss': '6.234'}\n",
    "elastic": "W0428 15:09:48.454000 1704539 torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment variable for each "
    "process to be 1 in default\n",
}
_FITTING = {"torch": "2.7.1", "torch-npu": "2.7.1", "transformers": "4.57.1", "accelerate": "1.15.0", "numpy": "1.26.4"}
SET_UPS = {
    "nothing": {"versions": {}, "environ": {}, "device": "npu"},
    "a cpu": {"versions": {"torch": "2.13.0", "numpy": "2.4.0"}, "environ": {}, "device": "cpu"},
    "a gpu": {
        "versions": {"torch": "2.7.1", "triton": "3.2.0", "transformer-engine": "2.2.0", "flash-attn": "2.7.4"},
        "environ": {"CUDA_VISIBLE_DEVICES": "0,1", "NCCL_SOCKET_IFNAME": "eth0", "PYTORCH_CUDA_ALLOC_CONF": "x"},
        "device": "cuda",
    },
    "an npu": {"versions": _FITTING, "environ": {"ASCEND_RT_VISIBLE_DEVICES": "0,1,2,5"}, "device": "npu"},
    "an npu with its variables": {
        "versions": _FITTING,
        "environ": {
            "TASK_QUEUE_ENABLE": "2",
            "COMBINED_ENABLE": "1",
            "INF_NAN_MODE_ENABLE": "1",
            "HCCL_CONNECT_TIMEOUT": "1800",
            "HCCL_EXEC_TIMEOUT": "3600",
            "HCCL_BUFFSIZE": "200",
            "HCCL_IF_IP": "10.0.0.1",
            "HCCL_SOCKET_IFNAME": "=eth0",
            "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
            "MULTI_STREAM_MEMORY_REUSE": "2",
            "ASCEND_LAUNCH_BLOCKING": "0",
            "ASCEND_GLOBAL_LOG_LEVEL": "3",
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        },
        "device": "npu",
    },
    "reinforcement learning": {
        "versions": {**_FITTING, "trl": "0.27.0", "vllm": "0.11.0", "vllm-ascend": "0.11.0", "triton-ascend": "3.2.0"},
        "environ": {"VLLM_USE_V1": "1", "http_proxy": "http://proxy:80"},
        "device": "npu",
    },
    "mindspeed": {
        "versions": {**_FITTING, "mindspeed": "0.12.1", "megatron-core": "0.12.1", "ms-swift": "4.6.0"},
        "environ": {"MEGATRON_LM_PATH": "/job/Megatron-LM"},
        "device": "npu",
    },
    "liger": {
        "versions": {**_FITTING, "liger-kernel": "0.7.0", "triton-ascend": "3.2.0"},
        "environ": {},
        "device": "npu",
    },
    "an old pair": {
        "versions": {"torch": "2.1.0", "torch-npu": "2.1.0.post13", "transformers": "4.44.0", "numpy": "1.24.4"},
        "environ": {},
        "device": "npu",
    },
    "emulated": {
        "versions": {"torch": "2.13.0"},
        "environ": {"ASCEND_ADAPT_DEVICE": "npu-emulated"},
        "device": "npu-emulated",
    },
}


def files(root: Path) -> list[Path]:
    """Return the scripts and configurations of this project's examples."""
    kinds = {".py", ".sh", ".json", ".yaml", ".yml"}
    return sorted(one.relative_to(root) for one in (root / "examples").rglob("*") if one.suffix in kinds)
