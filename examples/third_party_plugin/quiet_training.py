"""Third-party plugin: the training code of `gpt2_recipes` (imaginary) on hosts without an NVIDIA driver."""

from ascend_adapt import Symptom, add, entry, hookimpl, patches_in, rewrite, wrap

TERMS = {"requires": "gpt2_recipes>=1.2,<2", "until": "support for gpt2_recipes 1 ends"}


@wrap(
    "gpt2_recipes.devices:free_memory",
    devices=("npu", "cpu"),
    why="it runs nvidia-smi, which is missing",
    without="crash",
    symptom=Symptom("subprocess.check_output(['nvidia-smi'])"),
    **TERMS,
)
def no_nvidia_smi(wrapped, instance, args, kwargs):
    """Return 0 bytes, which the recipe treats as unknown."""
    return 0


mean_over_tokens = rewrite(
    "gpt2_recipes.losses:Loss.reduce",
    old="losses.mean()",
    new="losses.sum() / mask.sum()",
    why="padding counts as tokens",
    without="wrong numbers",
    **TERMS,
)


@add("gpt2_recipes.losses:Loss.unreduced", why="our trainer needs the loss of each token", without="crash", **TERMS)
def unreduced(self, losses):
    """Return the losses unchanged."""
    return losses


bf16_everywhere = entry(
    "gpt2_recipes.precision:DTYPES",
    "auto",
    "bfloat16",
    present=True,
    why="auto is float16, which overflows without loss scaling",
    without="wrong numbers",
    **TERMS,
)


@hookimpl
def register_patches():
    return patches_in(__name__)
