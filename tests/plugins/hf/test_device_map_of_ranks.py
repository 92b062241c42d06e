"""trl's default device map in a job with several NPUs; trl is not installed here, so its function is a stand-in."""

from __future__ import annotations

import pytest

from ascend_adapt_plugins.hf.device_map_of_ranks import model_on_own_npu


@pytest.mark.parametrize(
    ("ranks", "given", "passed"),
    [("1", {}, {}), ("2", {}, {"device_map": None}), ("2", {"device_map": "auto"}, {"device_map": "auto"})],
)
def test_only_a_rank_among_others_loses_the_default(ranks, given, passed, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", ranks)
    found = model_on_own_npu.function(lambda path, **options: options, None, ("model",), given)
    assert found == passed
