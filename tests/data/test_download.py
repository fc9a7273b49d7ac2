"""Downloads, from a server on this machine: mirrors, checksums, archives, interruptions."""

from __future__ import annotations

import gzip
import hashlib
import io
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bayesbinn import data
from bayesbinn.data import catalog
from bayesbinn.data.published import download, mnist
from bayesbinn.data.published.download import locate
from bayesbinn.data.published.sources import Member, Source
from bayesbinn.errors import InvalidFile


class Server:
    """Serves the given files by path, counts requests, and can truncate a file."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.cut: set[str] = set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append(self.path)
                content = server.files.get(self.path)
                if content is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2] if self.path in server.cut else content)

            def log_message(self, *arguments: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/"


@pytest.fixture
def server() -> Iterator[Server]:
    serving = Server()
    thread = threading.Thread(target=serving.http.serve_forever, kwargs=dict(poll_interval=0.01))
    thread.start()
    yield serving
    serving.http.shutdown()
    serving.http.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if "data_dir" not in request.fixturenames:
        monkeypatch.delenv("BAYESBINN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def dead_url() -> str:
    """A port of this machine on which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/"


PLAIN = {"one": b"first " * 5000, "two": b"second"}


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def loose(*mirrors: str) -> Source:
    """Two files, each downloaded separately."""
    members = tuple(Member(name, md5(content)) for name, content in PLAIN.items())
    return Source("loose", ("loose",), members, mirrors)


def packed(archive: bytes, *mirrors: str) -> Source:
    """The same two files in one archive."""
    members = tuple(Member(name) for name in PLAIN)
    return Source("packed", ("packed",), members, mirrors, "packed.tar.gz", md5(archive))


def tar(files: dict[str, bytes], *others: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for entry in others:
            archive.addfile(entry)
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def files_in(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


GZIPPED = {f"/{name}.gz": gzip.compress(content, 1) for name, content in PLAIN.items()}
INSIDE = {f"packed/{name}": content for name, content in PLAIN.items()}


def test_files_are_fetched_checked_and_found_again(server: Server, tmp_path: Path) -> None:
    server.files = GZIPPED
    folder = locate(loose(server.url), tmp_path / "data")
    assert folder == tmp_path / "data" / "loose"
    assert {name: gzip.decompress(content) for name, content in files_in(folder).items()} == {
        "one.gz": PLAIN["one"],
        "two.gz": PLAIN["two"],
    }
    assert server.requests == ["/one.gz", "/two.gz"]
    assert locate(loose(server.url), tmp_path / "data") == folder and len(server.requests) == 2


def test_only_missing_files_are_fetched(server: Server, tmp_path: Path) -> None:
    server.files = GZIPPED
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose" / "one").write_bytes(b"the user's own")
    locate(loose(server.url), tmp_path)
    assert server.requests == ["/two.gz"]
    assert (tmp_path / "loose" / "one").read_bytes() == b"the user's own"


def test_another_compression_of_the_same_content_passes(server: Server, tmp_path: Path) -> None:
    server.files = {f"/{name}.gz": gzip.compress(content, 9, mtime=1) for name, content in PLAIN.items()}
    assert locate(loose(server.url), tmp_path) == tmp_path / "loose"


def test_a_dead_mirror_is_skipped(server: Server, dead_url: str, tmp_path: Path) -> None:
    server.files = GZIPPED
    locate(loose(dead_url, server.url), tmp_path)
    assert server.requests == ["/one.gz", "/two.gz"]


@pytest.mark.parametrize("fault", ["missing", "cut", "wrong content", "not gzip", "damaged gzip"])
def test_a_bad_mirror_is_skipped_and_leaves_nothing(server: Server, tmp_path: Path, fault: str) -> None:
    bad = {
        "missing": {},
        "cut": {f"/bad{path}": content for path, content in GZIPPED.items()},
        "wrong content": {f"/bad{path}": gzip.compress(b"other") for path in GZIPPED},
        "not gzip": {f"/bad{path}": b"<html>" for path in GZIPPED},
        "damaged gzip": {f"/bad{path}": content[:-9] for path, content in GZIPPED.items()},
    }[fault]
    server.cut = set(bad) if fault == "cut" else set()
    server.files = bad | GZIPPED
    locate(loose(server.url + "bad/", server.url), tmp_path / "good")
    assert files_in(tmp_path / "good" / "loose") == {p.removeprefix("/"): content for p, content in GZIPPED.items()}

    with pytest.raises(InvalidFile) as caught:
        locate(loose(server.url + "bad/"), tmp_path / "none")
    reason = {
        "missing": "404",
        "cut": "IncompleteRead",
        "wrong content": f"one.gz has md5 {md5(b'other')} instead of {md5(PLAIN['one'])}",
        "not gzip": "one.gz has md5",
        "damaged gzip": "one.gz is damaged or truncated",
    }[fault]
    assert reason in str(caught.value) and "\n" not in str(caught.value)
    assert f"put one.gz, two.gz from {server.url}bad/ into {tmp_path / 'none' / 'loose'}" in str(caught.value)
    assert files_in(tmp_path / "none") == {}


def test_offline_gets_one_line(dead_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offline = replace(mnist.SOURCE, mirrors=(dead_url, dead_url))
    monkeypatch.setitem(catalog.SETS, "mnist", catalog.Published("", offline, mnist.load_mnist))
    with pytest.raises(InvalidFile, match="mnist could not be downloaded") as caught:
        data.load("mnist")
    line = str(caught.value)
    assert "\n" not in line and len(line) < 700 and "Connection refused" in line
    assert f"into {tmp_path / 'cache' / 'bayesbinn' / 'mnist'}" in line


def test_a_full_disk_stops_at_once(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files = GZIPPED

    def full(*arguments: Any, **named: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download, "_check", full)
    with pytest.raises(InvalidFile, match="No space left on device"):
        locate(loose(server.url, server.url), tmp_path)
    assert server.requests == ["/one.gz"] and files_in(tmp_path) == {}


def test_ctrl_c_leaves_nothing(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files = GZIPPED

    def interrupt(*arguments: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(download, "_check", interrupt)
    with pytest.raises(KeyboardInterrupt):
        locate(loose(server.url), tmp_path)
    assert files_in(tmp_path) == {}


# --- archives -----------------------------------------------------------------------------------------------


def test_an_archive_is_fetched_unpacked_and_removed(server: Server, tmp_path: Path) -> None:
    archive = tar(INSIDE | {"packed/readme.html": b"not wanted"})
    server.files = {"/packed.tar.gz": archive}
    locate(packed(archive, server.url), tmp_path)
    assert files_in(tmp_path) == INSIDE


def test_several_processes_may_fetch_the_same_archive(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has unpacked and deleted the archive between our download and our unpacking."""
    archive = tar(INSIDE)
    source = packed(archive, server.url)
    server.files = {"/packed.tar.gz": archive}
    fetch_one = download._fetch_one

    def overtaken(*arguments: Any) -> None:
        fetch_one(*arguments)
        monkeypatch.setattr(download, "_fetch_one", fetch_one)
        download.fetch(source, tmp_path / "packed")

    monkeypatch.setattr(download, "_fetch_one", overtaken)
    download.fetch(source, tmp_path / "packed")
    assert files_in(tmp_path) == INSIDE


def test_a_wrong_archive_is_not_unpacked(server: Server, tmp_path: Path) -> None:
    server.files = {"/packed.tar.gz": tar(INSIDE)}
    with pytest.raises(InvalidFile, match=r"packed\.tar\.gz has md5"):
        locate(packed(b"another", server.url), tmp_path)
    assert files_in(tmp_path) == {}


def test_an_archive_cannot_write_elsewhere(tmp_path: Path) -> None:
    """Entries with .. or absolute paths and links are skipped, even under a wanted name."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    link = tarfile.TarInfo("packed/one")
    link.type, link.linkname = tarfile.SYMTYPE, str(secret)
    hard = tarfile.TarInfo("packed/two")
    hard.type, hard.linkname = tarfile.LNKTYPE, "../secret"
    root = tmp_path / "data"
    root.mkdir()
    evil = {"../escaped": b"x", str(tmp_path / "absolute"): b"x", "packed/../../climbed": b"x"}
    archive = tar(evil, link, hard)
    (root / "packed.tar.gz").write_bytes(archive)
    with pytest.raises(InvalidFile, match="the archive has no file packed/one"):
        locate(packed(archive), root, download=False)
    assert files_in(tmp_path).keys() == {"secret", "data/packed.tar.gz"}


def test_an_archive_put_there_by_hand_is_used(tmp_path: Path) -> None:
    (tmp_path / "packed.tar.gz").write_bytes(tar(INSIDE))
    assert locate(packed(b"any"), tmp_path, download=False) == tmp_path / "packed"
    assert (tmp_path / "packed.tar.gz").exists(), "a user's file is never removed"


@pytest.mark.parametrize(
    "content",
    [tar(INSIDE)[:-40], tar(INSIDE)[:60], b"", b"no archive", b"PK\3\4 no zip"],
    ids=["without its end", "a beginning", "empty", "text", "half a zip"],
)
def test_a_damaged_archive_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "packed.tar.gz").write_bytes(content)
    with pytest.raises(InvalidFile, match=r"packed\.tar\.gz: ") as caught:
        locate(packed(b"any"), tmp_path, download=False)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize("good", [True, False])
def test_a_zip_is_checked_file_by_file(server: Server, tmp_path: Path, good: bool) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in PLAIN.items():
            archive.writestr(f"inner/{name}", content if good else content + b"!")
    server.files = {"/a.zip": buffer.getvalue()}
    source = replace(loose(server.url), archive="a.zip", archive_folder="inner")
    if good:
        assert files_in(locate(source, tmp_path)) == PLAIN
        return
    with pytest.raises(InvalidFile, match="one has md5"):
        locate(source, tmp_path)
    assert not (tmp_path / "loose" / "one").exists()


def test_a_folder_that_cannot_be_written_to_is_skipped(tmp_path: Path, server: Server) -> None:
    server.files = GZIPPED
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, not a folder")
    assert locate(loose(server.url), blocked) == tmp_path / "cache" / "bayesbinn" / "loose"


# --- the progress bar ---------------------------------------------------------------------------------------


def test_a_terminal_gets_a_progress_bar(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    server.files = GZIPPED
    locate(loose(server.url), tmp_path)
    size = len(GZIPPED["/two.gz"])
    assert "one.gz" in screen.getvalue() and f"{size}/{size} bytes" in screen.getvalue()


def test_the_real_mnist_through_a_download(
    server: Server, tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recompressed content has a different checksum; only the decompressed content counts."""
    names = [f"{member.name}.gz" for member in mnist.SOURCE.members]
    server.files = {f"/{name}": (data_dir / "mnist" / name).read_bytes() for name in names}
    here = replace(mnist.SOURCE, mirrors=(server.url,))
    monkeypatch.setitem(catalog.SETS, "mnist", catalog.Published("", here, mnist.load_mnist))
    monkeypatch.delenv("BAYESBINN_DATA")
    dataset = data.load("mnist", data_dir=tmp_path / "new")
    assert dataset.source == str(tmp_path / "new" / "mnist") and len(dataset.train_inputs) == 60_000
