from __future__ import annotations

import pytest

from ascend_adapt.launch.jobs.launcher_scripts import is_launcher

SPAWN = "import torch.multiprocessing as mp\n"


@pytest.mark.parametrize(
    ("name", "source", "launcher"),
    [
        ("deepy.py", "anything", True),
        ("start.py", "from deepspeed.launcher.runner import main\nmain()", True),
        ("start.py", "from deepspeed.launcher import runner", True),
        ("start.py", "def f():\n    import deepspeed.launcher.runner as r", True),
        ("start.py", "from torch.distributed.run import main", True),
        ("start.py", "from accelerate.commands.launch import launch_command", True),
        ("train.py", "import deepspeed\n# from deepspeed.launcher.runner import main", False),
        ("train.py", "import torch.distributed as dist", False),
        ("train.py", "from .torch.distributed import run", False),
        ("train.py", "not python at all", False),
        ("train.py", f"{SPAWN}mp.spawn(run, nprocs=2)", True),
        ("train.py", f"{SPAWN}def main():\n    mp.spawn(run)\nif __name__ == '__main__':\n    main()", True),
        ("train.py", "from torch.multiprocessing import spawn\nspawn(run)", True),
        ("train.py", f"{SPAWN}if torch.cuda.device_count() > 1:\n    mp.spawn(run)", True),
        ("train.py", f"{SPAWN}if gpus == 1:\n    run(0)\nelse:\n    mp.start_processes(run)", True),
        ("train.py", f"{SPAWN}if args.multiprocessing_distributed:\n    mp.spawn(run)", False),
        ("train.py", f"{SPAWN}if 'RANK' in os.environ:\n    run()\nelse:\n    mp.spawn(run)", False),
        ("train.py", f"{SPAWN}if int(os.environ.get('WORLD_SIZE', 1)) == 1:\n    mp.spawn(run)", False),
        ("train.py", f"{SPAWN}mp.set_start_method('spawn')", False),
        ("train.py", "import torch\ntorch.multiprocessing.spawn(run, nprocs=2)", True),
        ("train.py", "from torch import multiprocessing\nmultiprocessing.spawn(run, nprocs=2)", True),
        ("train.py", f"{SPAWN}def run(rank):\n    os.environ['RANK'] = str(rank)\nmp.spawn(run)", True),
        ("train.py", f"{SPAWN}class Job:\n    def start(self):\n        mp.spawn(run)\nJob().start()", True),
        ("train.py", f"{SPAWN}import pexpect\npexpect.spawn('ls')", False),
        ("train.py", f"{SPAWN}np.random.SeedSequence(1).spawn(4)", False),
        ("train.py", f"{SPAWN}def debug():\n    mp.spawn(run)\nrun()", False),
        ("train.py", f"{SPAWN}mp.spawn(run) if args.spawn else run()", False),
        ("train.py", f"{SPAWN}rank = int(os.getenv('RANK', -1))\nif rank < 0:\n    mp.spawn(run)", False),
        ("train.py", f"{SPAWN}try:\n    run(os.environ['RANK'])\nexcept KeyError:\n    mp.spawn(run)", False),
        ("train.py", f"{SPAWN}if 'LOCAL_RANK' in os.environ:\n    run()\n    sys.exit()\nmp.spawn(run)", False),
        ("train.py", "import subprocess\nspawn(run)", False),
        ("train.py", f"{SPAWN}seeds = np.random.SeedSequence(1).spawn(8)", False),
        ("train.py", "from torch.multiprocessing import start_processes as start\nstart(run)", True),
        ("train.py", "import torch\ntorch.multiprocessing.spawn(run)", True),
        ("train.py", f"{SPAWN}def local():\n    mp.spawn(run)\nif args.local:\n    local()", False),
        ("train.py", f"{SPAWN}def main():\n    mp.spawn(run)\nfire.Fire(main)", True),
        ("train.py", f"{SPAWN}class Trainer:\n    def fit(self):\n        mp.spawn(run)\nTrainer().fit()", True),
        (
            "train.py",
            f"{SPAWN}def main():\n    if 'RANK' in os.environ:\n        return run()\n    mp.spawn(run)\nmain()",
            False,
        ),
        ("train.py", f"{SPAWN}if not torch.cuda.is_available():\n    raise SystemExit('no GPU')\nmp.spawn(run)", True),
        ("train.py", f"{SPAWN}mp.spawn(run) if args.spawn else run(0)", False),
        ("crlf.py", "import os\r\nfrom deepspeed.launcher.runner import main\r\n", True),
    ],
)
def test_which_scripts_start_ranks_themselves(name, source, launcher, tmp_path):
    (tmp_path / name).write_bytes(source.encode())
    assert is_launcher(tmp_path / name) is launcher


def test_a_missing_script_is_none(tmp_path):
    assert not is_launcher(tmp_path / "missing.py")
