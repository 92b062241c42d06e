"""DeepSpeed's hostfile and filters."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.placement import hostfile
from ascend_adapt.launch.placement.hostfile import Host


def slots(text):
    return {host.address: len(host.slots) for host in hostfile.parse(text, "hosts", lambda text: None)}


def test_host_1(tmp_path):
    path = tmp_path / "hosts"
    path.write_bytes(b"# c\r\n\r\nw-1 slots=2  # head\r\nu@10.0.0.2 slots=4\r\n")
    hosts = hostfile.read(path, lambda text: pytest.fail(text))
    assert hosts == (Host("w-1", (0, 1)), Host("u@10.0.0.2", (0, 1, 2, 3)))
    assert [host.name for host in hosts] == ["w-1", "10.0.0.2"]


def test_host_1_the_guides_slot_is_read_with_one_warning():
    reported = []
    hosts = hostfile.parse("w-2 slot=8\nw-3 slot=8\n", "hosts", reported.append)
    assert [len(host.slots) for host in hosts] == [8, 8]
    assert reported == ["hostfile hosts: line 1 is 'w-2 slot=8', read as slots=8"]


@pytest.mark.parametrize(
    "line",
    ["w-3 lots=8", "w-3", "w-3 slots=", "w-3 slots=x", "w-3 slots=0", "w-3 slots=1 more", "-oProxyCommand=x slots=1"]
    + ["w-[3-4] slots=1", "w-3,w-4 slots=1", "^/etc/passwd slots=1", "/w/ slots=1", "u@w-3;id slots=1", "w-%h slots=1"]
    + ["w-3 slots=4097", "w-3 slots=99999999999", f"w-3 slots={'9' * 5000}"],
)
def test_host_1_a_malformed_line_is_named(line):
    with pytest.raises(LaunchError, match=r"hostfile hosts: line 2 is .*expected `name slots=N`") as raised:
        slots(f"w-1 slots=1\n{line}\n")
    assert repr(line) in str(raised.value)


@pytest.mark.parametrize("again", ["w-1 slots=2", "u@w-1 slots=1"])
def test_a_duplicate_is_named(again):
    with pytest.raises(LaunchError, match=r"line 2 is .* but w-1 already has a line"):
        slots(f"w-1 slots=1\n{again}\n")


def test_the_dot_of_an_absolute_name_is_left_out():
    hosts = hostfile.parse("u@w-1. slots=2\nw-2.example.com. slots=1\n", "hosts", print)
    assert [host.address for host in hosts] == ["u@w-1", "w-2.example.com"]
    assert hostfile.select(hosts, "w-1.:1", None) == hostfile.select(hosts, "w-1:1", None)


@pytest.mark.parametrize("again", ["w-1.", "W-1", "u@W-1."])
def test_the_same_host_in_another_spelling_is_a_duplicate(again):
    with pytest.raises(LaunchError, match=r"line 2 is .*, but [wW]-1 already has a line"):
        slots(f"w-1 slots=1\n{again} slots=1\n")


def test_a_hostfile_without_a_host():
    with pytest.raises(LaunchError, match="lists no host"):
        slots("# nothing\n")


def test_text_that_is_none(tmp_path):
    (tmp_path / "hosts").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LaunchError, match="is not text"):
        hostfile.read(tmp_path / "hosts", print)


def test_a_device_that_never_ends_is_refused():
    with pytest.raises(LaunchError, match="hostfile /dev/zero: is a device, not a regular file"):
        hostfile.read(Path("/dev/zero"), print)


def test_a_file_that_would_take_the_memory_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(hostfile, "_MOST_CHARACTERS", 1 << 16)
    (tmp_path / "hosts").write_bytes(bytes(1 << 17))
    with pytest.raises(LaunchError, match="has more than 65536 characters"):
        hostfile.read(tmp_path / "hosts", print)


HOSTS = (Host("w-1", (0, 1, 2, 3)), Host("u@w-2", (0, 1)), Host("w-3", (0,)))


def chosen(include=None, exclude=None):
    return {host.address: (host.slots, host.narrowed) for host in hostfile.select(HOSTS, include, exclude)}


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ({}, {"w-1": ((0, 1, 2, 3), False), "u@w-2": ((0, 1), False), "w-3": ((0,), False)}),
        ({"include": "w-3@w-1:2,0"}, {"w-1": ((0, 2), True), "w-3": ((0,), False)}),
        ({"include": "w-2:1"}, {"u@w-2": ((1,), True)}),
        ({"include": "w-1:0@u@w-2:0,1"}, {"w-1": ((0,), True), "u@w-2": ((0, 1), False)}),
        ({"exclude": "u@w-2@w-1:1"}, {"w-1": ((0, 2, 3), True), "w-3": ((0,), False)}),
    ],
)
def test_filters(filters, wanted):
    assert chosen(**filters) == wanted


@pytest.mark.parametrize(
    ("filters", "says"),
    [
        ({"include": "w-9"}, "'w-9' is not one of the hosts — choose from"),
        ({"include": "w-3:1"}, "w-3 has no slot 1, expected 0 to 0"),
        ({"include": "w-1:a"}, "'a' is not a list of slots"),
        ({"exclude": "w-1@w-2@w-3"}, "leaves no slot of 3 hosts"),
        ({"include": "w-1", "exclude": "w-2"}, "both are given"),
    ],
)
def test_filters_that_cannot_be_meant(filters, says):
    with pytest.raises(LaunchError, match=says):
        chosen(**filters)
