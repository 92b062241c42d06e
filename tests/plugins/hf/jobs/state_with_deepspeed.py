"""Print, as JSON, the accelerate release, and the device that it gives a rank that uses DeepSpeed."""

import json
import os

import accelerate

os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
state = accelerate.PartialState()
print(json.dumps({"reported": [accelerate.__version__, str(state.distributed_type), str(state.device)]}))
