"""Downloads, against a server of this machine that can be made to fail in every way."""

import gc
import hashlib
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.unit.made import archive, complaint, real
from zofl_mpi.data import download, images, published
from zofl_mpi.data.published import REMOTES, Remote

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # urllib3 leaves broken sockets to the collector

FILES = {"a.gz": b"first file" * 1000, "b.gz": b"second file"}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Site:
    """What the server holds and how it misbehaves."""

    def __init__(self) -> None:
        self.files = dict(FILES)
        self.asked: list[str] = []
        self.lost = 0  # bytes of each body that never come
        self.silent: threading.Event | None = None  # until then there is no answer
        self.url = ""


@pytest.fixture
def site(monkeypatch) -> Iterator[Site]:
    held = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            held.asked.append(self.path)
            with suppress(ConnectionError):  # the client may have given up
                self.answer()

        def answer(self) -> None:
            if held.silent:
                held.silent.wait(60)
            data = held.files.get(self.path.rpartition("/")[2])
            if data is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) - held.lost])

        def log_message(self, *_: object) -> None: ...

    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(variable, "127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    held.url = f"http://127.0.0.1:{server.server_port}/some/folder"
    remote = Remote(held.url, {file: f"sha256:{sha256(data)}" for file, data in FILES.items()})
    monkeypatch.setitem(REMOTES, "mnist", remote)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield held
    server.shutdown()
    server.server_close()
    thread.join(10)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def test_what_lacks_is_fetched_once_and_then_only_checked(site, tmp_path, monkeypatch, capsys):
    """From a mirror, if one is named."""
    for _ in range(2):
        assert download.main(["mnist", "--data-dir", str(tmp_path)]) == 0
        assert str(tmp_path / "mnist" / "b.gz") in capsys.readouterr().out
        assert contents(tmp_path / "mnist") == FILES
    assert site.asked == ["/some/folder/a.gz", "/some/folder/b.gz"]
    assert (tmp_path / "mnist" / "a.gz").stat().st_mode & 0o777 == 0o644
    monkeypatch.setitem(REMOTES, "mnist", Remote("http://127.0.0.1:1/", REMOTES["mnist"].files))
    (tmp_path / "mnist" / "a.gz").unlink()
    assert [path.name for path in download.download("mnist", tmp_path, f"{site.url}/mirror/")] == ["a.gz", "b.gz"]
    assert site.asked[2:] == ["/some/folder/mirror/a.gz"]
    monkeypatch.setenv("ZOFL_DATA", str(tmp_path))
    assert published.default_data_dir() == tmp_path
    monkeypatch.delenv("ZOFL_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert published.default_data_dir().name == "data"


def test_a_wrong_file_that_is_there_is_told_with_both_sums_and_kept(site, tmp_path):
    (tmp_path / "mnist").mkdir()
    path = tmp_path / "mnist" / "a.gz"
    path.write_bytes(b"mine")
    said = complaint(download.download, "mnist", tmp_path)
    for word in (str(path), sha256(b"mine"), sha256(FILES["a.gz"]), "delete it"):
        assert word in said
    assert path.read_bytes() == b"mine"
    assert site.asked == []


def test_a_corrupted_download_is_told_with_both_sums_and_not_kept(site, tmp_path):
    """So is one that breaks off, and one that is not there; and what lies in its place."""
    site.files["b.gz"] = b"changed"
    said = complaint(download.download, "mnist", tmp_path)
    for word in (f"{site.url}/b.gz", sha256(b"changed"), sha256(FILES["b.gz"]), "try again", "--base-url"):
        assert word in said
    assert contents(tmp_path / "mnist") == {"a.gz": FILES["a.gz"]}
    site.lost = 5
    said = complaint(download.download, "mnist", tmp_path / "new")
    assert "a.gz cannot be fetched" in said and "a broken one" in said
    del site.files["a.gz"]
    assert "a.gz cannot be fetched (the server answers 404)" in complaint(download.download, "mnist", tmp_path / "new")
    assert not (tmp_path / "new").exists()  # nor are folders that were made for it
    (tmp_path / "mine" / "mnist").mkdir(parents=True)
    complaint(download.download, "mnist", tmp_path / "mine")
    assert (tmp_path / "mine" / "mnist").is_dir()
    (tmp_path / "file").write_text("")
    said = complaint(download.download, "mnist", tmp_path / "file")
    assert "cannot be written" in said and "--data-dir" in said
    (tmp_path / "other" / "mnist" / "a.gz").mkdir(parents=True)
    assert "a.gz is a folder, a pipe" in complaint(download.download, "mnist", tmp_path / "other")


def test_a_server_that_does_not_answer_is_told(site, tmp_path, monkeypatch):
    site.silent = threading.Event()
    monkeypatch.setattr(download, "TIMEOUT", 0.1)
    assert "no answer within 0.1 s" in complaint(download.download, "mnist", tmp_path)
    site.silent.set()
    gc.collect()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["mnist", "--base-url", "http://127.0.0.1:1"], "http://127.0.0.1:1/a.gz cannot be fetched (no connection"),
        (["cifar-10"], "cifar-10: "),
        *(
            (["mnist", "--base-url", url], f"--base-url {url}: it must start with http:// or https://")
            for url in ("ftp://host/", "file:///etc", "host/folder", "http://")
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(site, tmp_path, capsys, words, sentence):
    assert download.main([*words, "--data-dir", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"zofl_mpi: {sentence}") and said.count("\n") == 1
    assert "cifar-10" not in words or "the nearest is cifar10" in said


@pytest.fixture
def cifar(site, tmp_path, monkeypatch) -> dict[str, bytes]:
    """Tiny batches, whose archive the server has."""
    files = {file: bytes([k]) * images.CIFAR_RECORD for k, file in enumerate(images.CIFAR_MD5)}
    md5s = {file: hashlib.md5(data).hexdigest() for file, data in files.items()}
    monkeypatch.setattr(images, "CIFAR_MD5", md5s)
    packed = archive(files)
    site.files["cifar-10-binary.tar.gz"] = packed
    remote = Remote(site.url, {"cifar-10-binary.tar.gz": f"md5:{hashlib.md5(packed).hexdigest()}"})
    monkeypatch.setitem(REMOTES, "cifar10", remote)
    return files


def test_cifar_is_fetched_checked_by_md5_and_then_found(cifar, site, tmp_path):
    for _ in range(2):
        assert download.download("cifar10", tmp_path) == (tmp_path / "cifar10" / "cifar-10-binary.tar.gz",)
    assert len(site.asked) == 1
    assert len(images.read_cifar(images.find_cifar(tmp_path)).labels) == 6


def test_a_cifar_of_another_packing_counts_as_there(cifar, site, tmp_path):
    (tmp_path / "cifar-10-binary.tar.xz").write_bytes(archive(cifar, "w:xz"))
    assert download.download("cifar10", tmp_path) == (tmp_path / "cifar-10-binary.tar.xz",)
    (tmp_path / "cifar-10-binary.tar.xz").write_bytes(archive(cifar | {"test_batch.bin": b"x" * 3073}, "w:xz"))
    said = complaint(download.download, "cifar10", tmp_path)
    assert "test_batch.bin" in said and images.CIFAR_MD5["test_batch.bin"] in said and site.asked == []


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "e2e", "gpt2-bpe"])
def test_real_files_have_the_sums_in_the_table(name):
    folder = real(*(f"{name}/{file}" for file in REMOTES[name].files))
    assert len(download.download(name, folder, "http://127.0.0.1:1")) == len(REMOTES[name].files)
