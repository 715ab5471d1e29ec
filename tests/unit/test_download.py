"""Downloads, against a server of this machine that can be made to fail in every way."""

from __future__ import annotations

import gc
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from zofl_mpi.data import download, images, published
from zofl_mpi.data.published import REMOTES, Remote
from zofl_mpi.errors import UserError

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


def complaint(*arguments, **options) -> str:
    with pytest.raises(UserError) as caught:
        download.download(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_files_are_fetched_once_and_then_only_checked(site, tmp_path):
    for _ in range(2):
        paths = download.download("mnist", tmp_path)
        assert paths == (tmp_path / "mnist" / "a.gz", tmp_path / "mnist" / "b.gz")
        assert contents(tmp_path / "mnist") == FILES
    assert site.asked == ["/some/folder/a.gz", "/some/folder/b.gz"]
    assert paths[0].stat().st_mode & 0o777 == 0o644


def test_a_mirror_takes_the_place_of_the_published_address(site, tmp_path, monkeypatch):
    monkeypatch.setitem(REMOTES, "mnist", Remote("http://127.0.0.1:1/", REMOTES["mnist"].files))
    download.download("mnist", tmp_path, f"{site.url}/mirror/")
    assert site.asked[0] == "/some/folder/mirror/a.gz"


def test_only_the_lacking_file_is_fetched(site, tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "a.gz").write_bytes(FILES["a.gz"])
    download.download("mnist", tmp_path)
    assert site.asked == ["/some/folder/b.gz"]


def test_a_wrong_file_that_is_there_is_told_with_both_sums_and_kept(site, tmp_path):
    (tmp_path / "mnist").mkdir()
    path = tmp_path / "mnist" / "a.gz"
    path.write_bytes(b"mine")
    said = complaint("mnist", tmp_path)
    for word in (str(path), sha256(b"mine"), sha256(FILES["a.gz"]), "delete it"):
        assert word in said
    assert path.read_bytes() == b"mine"
    assert site.asked == []


def test_a_corrupted_download_is_told_with_both_sums_and_not_kept(site, tmp_path):
    site.files["b.gz"] = b"changed"
    said = complaint("mnist", tmp_path)
    for word in (f"{site.url}/b.gz", sha256(b"changed"), sha256(FILES["b.gz"]), "try again", "--base-url"):
        assert word in said
    assert contents(tmp_path / "mnist") == {"a.gz": FILES["a.gz"]}


def test_a_download_that_breaks_off_is_told_and_not_kept(site, tmp_path):
    site.lost = 5
    said = complaint("mnist", tmp_path)
    assert "a.gz cannot be fetched" in said
    assert "broke off" in said
    assert contents(tmp_path / "mnist") == {}


def test_a_file_that_is_not_on_the_server_is_told(site, tmp_path):
    del site.files["a.gz"]
    said = complaint("mnist", tmp_path)
    assert "a.gz cannot be fetched (the server answers 404)" in said
    assert contents(tmp_path / "mnist") == {}


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # urllib3 leaves the socket of a time-out to the collector
def test_a_server_that_does_not_answer_is_told(site, tmp_path, monkeypatch):
    site.silent = threading.Event()
    monkeypatch.setattr(download, "TIMEOUT", 0.1)
    assert "no answer within 0.1 s" in complaint("mnist", tmp_path)
    site.silent.set()
    gc.collect()


def test_no_network_is_one_sentence_and_status_2(site, tmp_path, capsys):
    status = download.main(["mnist", "--data-dir", str(tmp_path), "--base-url", "http://127.0.0.1:1"])
    said = capsys.readouterr().err
    assert status == 2
    assert said.startswith("zofl_mpi: http://127.0.0.1:1/a.gz cannot be fetched (no connection")
    assert said.count("\n") == 1


def test_the_module_is_a_command(site, tmp_path):
    command = [sys.executable, "-m", "zofl_mpi.data.download"]
    done = subprocess.run([*command, "imagenet"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("zofl_mpi: imagenet: ")
    assert "Traceback" not in done.stderr


def test_the_command_tells_where_the_files_are(site, tmp_path, capsys):
    assert download.main(["mnist", "--data-dir", str(tmp_path)]) == 0
    assert str(tmp_path / "mnist" / "b.gz") in capsys.readouterr().out


@pytest.mark.parametrize("url", ["ftp://host/", "file:///etc", "host/folder", "http://"])
def test_an_address_of_another_kind_is_told(tmp_path, url):
    assert f"--base-url {url}: it must start with http:// or https://" in complaint("mnist", tmp_path, url)


def test_an_unknown_name_is_told_with_the_nearest(tmp_path):
    said = complaint("cifar-10", tmp_path)
    assert "did you mean cifar10?" in said
    assert "fashion-mnist" in said


def test_a_folder_that_cannot_be_written_is_told(site, tmp_path):
    (tmp_path / "file").write_text("")
    said = complaint("mnist", tmp_path / "file")
    assert "cannot be written" in said
    assert "--data-dir" in said


def test_a_folder_in_the_place_of_a_file_is_told(site, tmp_path):
    (tmp_path / "mnist" / "a.gz").mkdir(parents=True)
    assert "a.gz cannot be read" in complaint("mnist", tmp_path)


@pytest.fixture
def cifar(site, tmp_path, monkeypatch) -> dict[str, bytes]:
    """Tiny batches, whose archive the server has."""
    files = {file: bytes([k]) * images.CIFAR_RECORD for k, file in enumerate(images.CIFAR_MD5)}
    md5s = {file: hashlib.md5(data).hexdigest() for file, data in files.items()}
    monkeypatch.setattr(images, "CIFAR_MD5", md5s)
    packed = archive(files, "w:gz")
    site.files["cifar-10-binary.tar.gz"] = packed
    remote = Remote(site.url, {"cifar-10-binary.tar.gz": f"md5:{hashlib.md5(packed).hexdigest()}"})
    monkeypatch.setitem(REMOTES, "cifar10", remote)
    return files


def archive(files: dict[str, bytes], mode: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as tar:
        for file, data in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{file}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def test_cifar_is_fetched_checked_by_md5_and_then_found(cifar, site, tmp_path):
    for _ in range(2):
        assert download.download("cifar10", tmp_path) == (tmp_path / "cifar10" / "cifar-10-binary.tar.gz",)
    assert len(site.asked) == 1
    assert len(images.read_cifar(images.find_cifar(tmp_path)).labels) == 6


def test_a_cifar_of_another_packing_counts_as_there(cifar, site, tmp_path):
    (tmp_path / "cifar-10-binary.tar.xz").write_bytes(archive(cifar, "w:xz"))
    assert download.download("cifar10", tmp_path) == (tmp_path / "cifar-10-binary.tar.xz",)
    assert site.asked == []


def test_a_cifar_of_another_packing_with_a_wrong_batch_is_told(cifar, site, tmp_path):
    (tmp_path / "cifar-10-binary.tar.xz").write_bytes(archive(cifar | {"test_batch.bin": b"x" * 3073}, "w:xz"))
    said = complaint("cifar10", tmp_path)
    assert "test_batch.bin" in said
    assert images.CIFAR_MD5["test_batch.bin"] in said


def test_the_folder_is_the_variables_or_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("ZOFL_DATA", str(tmp_path))
    assert published.default_data_dir() == tmp_path
    monkeypatch.delenv("ZOFL_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert published.default_data_dir().name == "data"


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "e2e", "gpt2-bpe"])
def test_real_files_have_the_sums_in_the_table(name):
    folder = Path(os.environ.get("ZOFL_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
    if not all((folder / name / file).is_file() for file in REMOTES[name].files):
        pytest.skip(f"the real data set is not in {folder} (set ZOFL_DATA)")
    assert len(download.download(name, folder, "http://127.0.0.1:1")) == len(REMOTES[name].files)
