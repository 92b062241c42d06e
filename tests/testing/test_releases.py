"""Downloads from an index of our own: a local server, real HTTP, archives that are wrong in every way."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import tarfile
import threading

import pytest

from ascend_adapt.testing.releases import ReleaseError, Releases, ReleaseUnreachable


def archive(*names, link=""):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size, info.mode = 1, 0o4777
            tar.addfile(info, io.BytesIO(b"x"))
        if link:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc"
            tar.addfile(info)
    return buffer.getvalue()


@pytest.fixture(params=["data filter", "none"])
def unpacking(request, monkeypatch):
    """Python's filter of what is unpacked, and a Python that is too old to have it."""
    if request.param == "none":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    elif not hasattr(tarfile, "data_filter"):
        pytest.skip("not checked: tarfile's data filter: this Python has none")


@pytest.fixture
def index(monkeypatch):
    """Serve files: name -> (content, sha256 or None for the right one)."""
    served, asked = {}, []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            if self.path == "/simple/some-toy/":
                files = [
                    {"filename": name, "url": f"../../files/{name}", "hashes": {"sha256": sha256}}
                    for name, (_, sha256) in served.items()
                ]
                body = json.dumps({"files": files}).encode()
            elif self.path in ("/simple/html/", "/simple/cut-short/"):
                body = b"<html>"
            else:
                body = served.get(self.path.rpartition("/")[2], (None,))[0]
            self.send_response(404 if body is None else 200)
            if self.path == "/simple/cut-short/":
                self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")

    def add(name, content, sha256=None):
        served[name] = (content, sha256 or hashlib.sha256(content).hexdigest())
        return asked

    yield add
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_release_is_downloaded_once_and_unpacked(unpacking, index, tmp_path):
    asked = index("some_toy-1.0.tar.gz", archive("some_toy-1.0/toy/__init__.py"))
    index("some_toy-1.1-py3-none-any.whl", b"a wheel is no source")
    releases = Releases(tmp_path / "cache")
    assert releases.versions("Some.Toy") == ["1.0"]
    folder = releases.tree("Some.Toy", "1.0")
    (file,) = (folder / "toy").iterdir()
    assert (file.name, file.stat().st_mode & 0o7777) == ("__init__.py", 0o755)
    count = len(asked)
    assert releases.tree("Some.Toy", "1.0") == folder
    assert Releases(tmp_path / "cache").tree("Some.Toy", "1.0") == folder
    assert len(asked) == count


@pytest.mark.parametrize(
    ("content", "sha256", "text"),
    [
        (archive("some_toy-1.0/x"), "0" * 64, "expected 0000"),
        (b"no archive", None, "is not a tar archive"),
        (archive("../outside"), None, "is not a tar archive"),
        (archive("some_toy-1.0/x", link="some_toy-1.0/etc"), None, "is not a tar archive"),
        (archive("some_toy-1.0/x")[:-20], None, "is not a tar archive"),
        (archive("some_toy-1.0/x")[:20] + bytes(40), None, "is not a tar archive"),
        (archive(), None, "is not a tar archive"),
        (archive("some_toy-1.0/x", "another/x"), None, "does not contain exactly one folder"),
    ],
    ids=("sum", "text", "outside", "link", "cut", "damaged", "empty", "two folders"),
)
def test_what_is_not_as_promised_is_refused_and_leaves_nothing(unpacking, content, sha256, text, index, tmp_path):
    index("some_toy-1.0.tar.gz", content, sha256)
    with pytest.raises(ReleaseError, match=text):
        Releases(tmp_path / "cache").tree("some-toy", "1.0")
    assert not (tmp_path / "outside").exists()
    assert not list(tmp_path.glob("cache/*"))


def test_a_release_that_is_not_there(index, tmp_path):
    index("some_toy-1.0.tar.gz", b"")
    with pytest.raises(ReleaseError, match=r"some-toy 2\.0: the index has no source archive"):
        Releases(tmp_path).tree("some-toy", "2.0")


def test_no_connection(monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(ReleaseUnreachable, match="check the connection to the index"):
        Releases(tmp_path).tree("some-toy", "1.0")


def test_an_index_that_answers_without_the_file_is_no_lost_connection(index, tmp_path):
    index("some_toy-1.0.tar.gz", b"")
    with pytest.raises(ReleaseError, match="the index does not have this file") as raised:
        Releases(tmp_path).tree("another-toy", "1.0")
    assert not isinstance(raised.value, ReleaseUnreachable)


@pytest.mark.parametrize(
    ("distribution", "text"), [("html", "is not a JSON list of files"), ("cut-short", "the response is truncated")]
)
def test_an_index_that_answers_with_something_else(distribution, text, index, tmp_path):
    index("some_toy-1.0.tar.gz", b"")
    with pytest.raises(ReleaseError, match=text) as raised:
        Releases(tmp_path).versions(distribution)
    assert not isinstance(raised.value, ReleaseUnreachable)
