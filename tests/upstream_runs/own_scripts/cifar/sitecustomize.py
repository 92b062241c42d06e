"""First on PYTHONPATH of programs that read CIFAR-10 or CIFAR-100: torchvision accepts random pictures.

torchvision compares checksums and would download the archive; nothing else about the dataset is changed.
"""

import wrapt


def _without_checksums(module: object) -> None:
    for kind in (module.CIFAR10, module.CIFAR100):  # type: ignore[attr-defined]
        kind.train_list = [[name, None] for name, _ in kind.train_list]
        kind.test_list = [[name, None] for name, _ in kind.test_list]
        kind.meta = {**kind.meta, "md5": None}


wrapt.register_post_import_hook(_without_checksums, "torchvision.datasets.cifar")
