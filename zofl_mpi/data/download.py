"""Downloads a public data set by name and verifies it: ``python -m zofl_mpi.data.download mnist``."""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from zofl_mpi.data.images import find_cifar, read_cifar
from zofl_mpi.data.published import REMOTES, default_data_dir
from zofl_mpi.errors import UserError, nearest, printing, refused
from zofl_mpi.paths import user_path

TIMEOUT = 30.0  # seconds without an answer


def download(name: str, data_dir: Path | None = None, base_url: str | None = None) -> tuple[Path, ...]:
    """Downloads the files of data set `name` to `data_dir`/`name`, or verifies those there; returns their paths.

    Raises:
        UserError: the name is unknown, a file cannot be fetched or written, or its checksum is wrong.
    """
    if name not in REMOTES:
        one_of = f"must be one of {', '.join(REMOTES)}"
        raise UserError(f"{name}: no data set of this name can be fetched; it {one_of}{nearest(name, REMOTES)}")
    url = base_url or REMOTES[name].url
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise UserError(f"--base-url {url}: it must start with http:// or https:// and name a host")
    root = data_dir or default_data_dir()
    if name == "cifar10" and (held := find_cifar(root)):  # in any packing
        read_cifar(held)  # verifies the checksums
        return held
    paths = {root / name / file: known for file, known in REMOTES[name].files.items()}
    for path, known in paths.items():
        if os.path.lexists(path):  # a broken link counts: its purpose is unknown
            _check(path, known, str(path), "delete it and run again")
        else:
            _fetch(path, f"{url.rstrip('/')}/{path.name}", known)
    return tuple(paths)


def _check(path: Path, known: str, called: str, advice: str) -> None:
    import pooch

    if not path.is_file():
        raise UserError(f"{path} is a folder, a pipe, a device or a broken link; rename it and run again")
    kind, _, right = known.partition(":")
    try:
        digest = pooch.file_hash(str(path), kind)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): check that it is a file you may read") from error
    if digest != right:
        raise UserError(f"{called} is not the published file: its {kind} is {digest}, it should be {right}; {advice}")


def _fetch(path: Path, url: str, known: str) -> None:
    """Downloads to a temporary file beside `path`, verifies it, renames it."""
    import pooch

    pooch.get_logger().setLevel("WARNING")
    transfer = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), chunk_size=2**16, timeout=TIMEOUT)

    def checked(source: str, temporary: str, caller: Any) -> None:
        transfer(source, temporary, caller)
        _check(Path(temporary), known, source, _other_ways(path))  # pooch's own message lacks the remedy

    fresh: list[Path] = []
    try:
        fresh += [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        pooch.retrieve(url, known, path.name, path.parent, downloader=checked)
        path.chmod(0o644)  # only the user could read the temporary file
    except OSError as error:  # includes requests' exceptions
        raise UserError(_explained(error, path, url)) from error
    finally:
        for folder in fresh:
            with suppress(OSError):  # not empty, or never created
                folder.rmdir()


def _other_ways(path: Path) -> str:
    return f"try again, name a mirror with --base-url, or put the file into {path.parent} by hand"


def _explained(error: OSError, path: Path, url: str) -> str:
    from requests import exceptions

    if not isinstance(error, exceptions.RequestException):
        return f"{path} cannot be written ({error.strerror or error}): choose another folder with --data-dir"
    reason = f"no connection, a broken one, or no answer within {TIMEOUT:g} s: {type(error).__name__}"
    if error.response is not None:
        reason = f"the server answers {error.response.status_code}"
    return f"{url} cannot be fetched ({reason}): {_other_ways(path)}"


@printing
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status: 0, or 2 after an error message on standard error."""
    parser = argparse.ArgumentParser(prog="python -m zofl_mpi.data.download", description="Fetch a public data set.")
    parser.add_argument("name", help=f"one of {', '.join(REMOTES)}")
    parser.add_argument("--data-dir", help="destination (default: $ZOFL_DATA, else the user's cache folder)")
    parser.add_argument("--base-url", help="URL of a mirror's folder that holds the files")
    given = parser.parse_args(arguments)
    try:
        root = user_path(given.data_dir, "--data-dir") if given.data_dir else None
        for path in download(given.name, root, given.base_url):
            print(f"{path} is there and is the published file")
    except UserError as error:
        return refused(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
