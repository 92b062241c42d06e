"""GLM's own code beside the native trainer, on the same text, weights and batches.

    python -m ascend_adapt.launch.cli --nproc N --device cpu tests/native/beside_glm.py CHECKOUT FOLDER

on one or two ranks, whose number is the model-parallel size. Prints as JSON: digests of GLM's samples, batches and
cloze rows, the largest differences of logits and scores, and the losses of 50 steps of both. Model, loss, datasets and
patterns are GLM's, unmodified. Packages that are not there, and do nothing here, are stood in for: of apex only its
LayerNorm is used, of scipy its Poisson distribution. torch's AdamW stands for its optimizer.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import math
import sys
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

ABSENT = ("apex", "boto3", "botocore", "nltk", "pandas", "scipy", "sklearn", "tensorboardX", "unidecode", "fasttext")


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if root in ABSENT else None

    def create_module(self, spec):
        module = mock.MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        if spec.name.endswith("fused_layer_norm"):
            module.FusedLayerNorm = torch.nn.LayerNorm
        if spec.name == "scipy.stats":
            module.poisson.pmf = lambda n, rate: math.exp(-rate) * rate**n / math.factorial(n)
        return module

    def exec_module(self, module):
        pass


if __name__ == "__main__":
    sys.meta_path.append(StandIns())
    sys.path.insert(0, sys.argv[1])
    import glm_code

    glm_code.main(Path(sys.argv[2]))
