"""The order of trials, when they end, and the table; trials are a model of memory, not jobs."""

from __future__ import annotations

import pytest

from ascend_adapt.launch.fit import search, trials
from ascend_adapt.launch.fit.setting import Setting, cost, in_order
from ascend_adapt.launch.fit.trials import GIB, Measured

GIVEN = Setting(False, 8, 1, False)
CHOICES = {"zero": [2, 3], "micro": [4, 2, 1], "recompute": [True]}


class Job:
    """A job whose activations take 5 GiB a sample, a fifth of it if recomputed, and whose states take ``states``."""

    given, pipeline = GIVEN, 1

    def __init__(self, states):
        self.states = states

    def choices(self):
        return CHOICES, []

    def write(self, setting, folder, accumulation=None):
        assert accumulation in (None, 2)
        return [setting], [f"options: of {setting}"]

    def measured(self, options, command, folder, environ, gib=0):
        (setting,) = command
        if setting.zero == 3:
            return Measured(failed="ValueError: not with this optimizer")
        peak = self.states[setting.zero] + 5 * setting.micro * (0.2 if setting.recompute else 1.0)
        return Measured(int(peak * GIB), int(peak * GIB), 0.2 if setting.recompute else 0.0)


@pytest.fixture
def tried(monkeypatch, tmp_path):
    def run(job, gib):
        monkeypatch.setattr(trials, "run", job.measured)
        found = search.Search(job, [], tmp_path, {}, gib)
        return found.run(), found

    return run


def test_single_changes_come_before_the_combinations_that_they_are_cheaper_than():
    order = in_order(GIVEN, CHOICES)
    assert order[0] == Setting(False, 8, 2, False)
    assert order.index(Setting(False, 4, 2, False)) < order.index(Setting(True, 8, 1, False))
    assert [cost(one, GIVEN) for one in order] == sorted(cost(one, GIVEN) for one in order)
    assert len(set(order)) == len(order) == 3 * 4 * 2 - 1


def test_a_job_that_fits_is_run_once(tried):
    setting, found = tried(Job({1: 10, 2: 10}), 64)
    assert setting == GIVEN
    assert len(found.results) == 1


def test_the_cheapest_setting_that_fits_is_found_without_trying_those_that_cannot(tried):
    setting, found = tried(Job({1: 24, 2: 20}), 32)
    # 64, 60 with ZeRO-2, 44 with half a batch; 40 with both is known, so the next tried is a quarter of the batch.
    assert setting == Setting(False, 2, 2, False)
    assert list(found.results) == [
        GIVEN,
        Setting(False, 8, 2, False),
        Setting(False, 4, 1, False),
        Setting(False, 2, 2, False),
    ]


def test_a_change_that_fails_is_not_combined_and_nothing_fits(tried):
    setting, found = tried(Job({1: 100, 2: 90}), 32)
    assert setting is None
    assert [one for one in found.results if one.zero == 3] == [Setting(False, 8, 3, False)]
    assert list(found.results)[-1] == Setting(True, 1, 2, False)  # it saves most
    table = search._table(found)
    assert table[0].split() == [
        "setting",
        "peak",
        "reserved",
        "fits",
        "32",
        "GiB",
        "fits",
        "64",
        "GiB",
        "recomputed",
        "moved",
        "per",
        "step",
    ]
    assert "(as given)" in table[1]
    assert any("not with this optimizer" in line for line in table)


def test_more_reserved_than_the_device_has_is_tried_on_a_device_of_that_size(monkeypatch, tmp_path):
    sizes = []

    def measured(options, command, folder, environ, gib=0):
        sizes.append(gib)
        return Measured(30 * GIB, (31 if gib else 40) * GIB)

    monkeypatch.setattr(trials, "run", measured)
    found = search.Search(Job({}), [], tmp_path, {}, 32)
    assert found.run() == GIVEN
    assert sizes == [0, 32]


def test_what_fragments_keep_from_fitting_keeps_its_peak(monkeypatch, tmp_path):
    def measured(options, command, folder, environ, gib=0):
        return Measured(failed="out of memory at train.py:3") if gib else Measured(31 * GIB, 40 * GIB)

    monkeypatch.setattr(trials, "run", measured)
    found = search.Search(Job({}), [], tmp_path, {}, 32)
    assert found.run() is None
    assert (found.results[GIVEN].peak, found.results[GIVEN].fits(32), found.results[GIVEN].fits(64)) == (
        31 * GIB,
        "no",
        "yes",
    )
