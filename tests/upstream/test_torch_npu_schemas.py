from __future__ import annotations

import json

import torch_npu_schemas


def test_the_page_is_made_of_the_facts():
    releases = json.loads(torch_npu_schemas.FACTS.read_text())["releases"]
    assert tuple(releases) == torch_npu_schemas.RELEASES
    assert torch_npu_schemas.PAGE.read_text() == torch_npu_schemas.page(releases), "run: make npu-operators"


def test_every_operator_is_recorded():
    releases = json.loads(torch_npu_schemas.FACTS.read_text())["releases"]
    assert list(releases[torch_npu_schemas.WRITTEN_FOR]) == torch_npu_schemas.called(), "run: make npu-operators"
