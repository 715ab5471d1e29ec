"""Files of a data set: where they are, and sentences on those that are missing or damaged, the same for all readers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from zofl_mpi.data.published import remedy
from zofl_mpi.errors import UserError


def find_files(
    files: Sequence[str], folders: Sequence[Path], packings: Sequence[str] = ("",)
) -> tuple[tuple[Path, ...], list[str]]:
    """Paths of the files in the first folder that has all; else none, and the names that the fullest folder lacks.

    Args:
        packings: what may follow a file's name.
    """
    absent = list(files)
    for folder in folders:
        candidates = {file: [folder / f"{file}{packing}" for packing in packings] for file in files}
        # unlike Path.is_file it answers where a folder may not be searched
        paths = {file: next(filter(os.path.isfile, found), None) for file, found in candidates.items()}
        lacking = [file for file, path in paths.items() if path is None]
        if not lacking:
            return tuple(path for path in paths.values() if path), []
        absent = min(absent, lacking, key=len)
    return (), absent


def missing_files(name: str, what: str, data_dir: Path, asked: str = "") -> str:
    """Sentence on a data set without its files: what is missing, where, how to get it.

    Args:
        what: the missing files with a verb, to be followed by "in ...".
        asked: the flag that asked for it; --data NAME where it is left out.
    """
    return (
        f"{asked or f'--data {name}'}: {what} in {data_dir / name} or {data_dir}; {remedy(name, data_dir)}, "
        "or set --data-dir or ZOFL_DATA to the folder that holds it"
    )


@contextmanager
def reading_file(path: Path, advice: str) -> Iterator[None]:
    """Context manager: turns any error of the decoders into one sentence.

    gzip, lzma, zipfile, tarfile and numpy raise a dozen types for a bad file, some undocumented: hence Exception.
    """
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        reason = error.strerror or "it is damaged or cut short"
        raise UserError(f"{path} cannot be read ({reason}): {advice}") from error
    except Exception as error:
        detail = str(error).partition("\n")[0]
        raise UserError(f"{path} is damaged or cut short ({type(error).__name__}: {detail}): {advice}") from error


def fetch_again(name: str) -> str:
    """Advice on a damaged file of a published data set."""
    return f"delete it and {remedy(name)}"
