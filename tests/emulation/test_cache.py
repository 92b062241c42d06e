"""The cache: complete or absent, created once, and private to the user."""

from __future__ import annotations

import errno
import threading

import pytest

from ascend_adapt.emulation import cache
from ascend_adapt.errors import EmulationError


@pytest.fixture
def home(tmp_path):
    return cache.folder({"ASCEND_ADAPT_CACHE": str(tmp_path / "cache")})


def test_it_is_private(home):
    assert home.stat().st_mode & 0o777 == 0o700


def test_it_follows_the_users_own_cache(tmp_path):
    assert cache.folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "ascend_adapt"


def test_a_folder_that_others_may_write_to_is_refused(home):
    home.chmod(0o770)
    with pytest.raises(EmulationError, match=r"other users may write to it, and code is loaded from it — chmod 0700"):
        cache.folder({"ASCEND_ADAPT_CACHE": str(home)})


def test_a_file_in_its_place_is_refused(tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(EmulationError, match=r"File exists.* set ASCEND_ADAPT_CACHE"):
        cache.folder({"ASCEND_ADAPT_CACHE": str(tmp_path / "cache")})


def test_nothing_is_left_of_what_fails(home):
    def fail(aside):
        (aside / "half").write_text("")
        raise EmulationError("no")

    with pytest.raises(EmulationError, match="no"):
        cache.made_once(home, "kind/name", fail)
    assert [path.name for path in home.rglob("*") if path.name != ".lock"] == ["kind"]


def make_file(aside):
    (aside / "folder").mkdir()
    (aside / "folder" / "library.so").write_bytes(b"whole")


@pytest.mark.parametrize("damage", ["cut", "gone", "notes"])
def test_later_damage_is_reported(home, damage):
    made = cache.made_once(home, "name", make_file)
    assert cache.made_once(home, "name", make_file) == made
    if damage == "cut":
        (made / "folder" / "library.so").write_bytes(b"")
    elif damage == "gone":
        (made / "folder" / "library.so").unlink()
    else:
        (made / ".sizes.json").write_text("{")
    with pytest.raises(EmulationError, match=r"name: \S+ is missing or has changed.* — remove this folder"):
        cache.made_once(home, "name", make_file)


def test_a_cache_that_cannot_be_written_to(home):
    (home / ".lock").mkdir()
    with pytest.raises(EmulationError, match=r"cache: Is a directory, expected a writable folder.* — set ASCEND_"):
        cache.made_once(home, "name", make_file)


def test_no_room(home):
    def fill(aside):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(EmulationError, match="cache: No space left on device, expected a writable folder with 200"):
        cache.made_once(home, "name", fill)


def test_what_a_killed_process_left_is_removed(home):
    (home / ".name.abcd").mkdir()
    cache.made_once(home, "name", make_file)
    assert sorted(path.name for path in home.iterdir()) == [".lock", "name"]


def test_concurrent_processes_create_it_once(home):
    made = []

    def make(aside):
        made.append(aside)
        (aside / "whole").write_text("")

    threads = [threading.Thread(target=cache.made_once, args=(home, "name", make)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert (home / "name" / "whole").exists()
