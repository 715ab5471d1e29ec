"""Published data sets: addresses and checksums for `data.download`, search paths, error messages on bad files."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from zofl_mpi.errors import UserError
from zofl_mpi.paths import user_folder


class Remote(NamedTuple):
    """Address and checksums of a published data set."""

    url: str  # the folder that holds the files
    files: Mapping[str, str]  # file name -> "sha256:..." or "md5:..."


MNIST = {
    "train-images-idx3-ubyte.gz": "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
FASHION_MNIST = {
    "train-images-idx3-ubyte.gz": "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte.gz": "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte.gz": "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte.gz": "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
IDX_FILES = tuple(file.removesuffix(".gz") for file in MNIST)
E2E = {
    "trainset.csv": "sha256:f27d48df45815288ab15619d47a79028c300fbb7f42e373668aba0b98c1d57c6",
    "devset.csv": "sha256:fc26b78cdb849c80545f513b223d1e051138b43882eeb79e3eb153e689c864f9",
    "testset_w_refs.csv": "sha256:edc8db685e39bb9824d5bd70c18b1c9b0412d14b527aa960e2d1c8251ee15ccd",
}
GPT2_BPE = {
    "encoder.json": "sha256:196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "sha256:1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
TORCHVISION = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}
"""torchvision's folder names; its unpacked files lie in a subfolder raw."""
REMOTES: dict[str, Remote] = {
    "mnist": Remote("https://ossci-datasets.s3.amazonaws.com/mnist/", MNIST),
    "fashion-mnist": Remote("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", FASHION_MNIST),
    "cifar10": Remote(
        "https://www.cs.toronto.edu/~kriz/", {"cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"}
    ),
    "e2e": Remote("https://raw.githubusercontent.com/tuetschek/e2e-dataset/master/", E2E),
    "gpt2-bpe": Remote("https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/", GPT2_BPE),
}


def default_data_dir() -> Path:
    """Data folder: ``$ZOFL_DATA``, else a folder in the user's cache."""
    return user_folder("ZOFL_DATA", "data")


def remedy(name: str, data_dir: Path | None = None) -> str:
    """Advice for getting the files of `name` into `data_dir`."""
    where = "" if data_dir in (None, default_data_dir()) else f" --data-dir {data_dir}"
    return f"fetch it with `python -m zofl_mpi.data.download {name}{where}`"


def find_data_set(
    name: str, files: Sequence[str], data_dir: Path, packing: str = "", what: str = "", asked: str = ""
) -> tuple[Path, ...]:
    """Paths of a data set's files, all in one folder (UserError: files are missing).

    Searches `data_dir`/`name`, `data_dir`, and torchvision's folders (MNIST/raw, raw). Other arguments: see
    `find_files` and `missing_files`.
    """
    theirs = [data_dir / TORCHVISION[name] / "raw", data_dir / "raw"] if name in TORCHVISION else []
    paths, lacking = find_files(files, (data_dir / name, data_dir, *theirs), packing)
    if lacking:
        same = f" (or the same with {packing})" if packing else ""
        raise UserError(missing_files(name, what or f"no {', '.join(lacking)}{same}", data_dir, asked))
    return paths


def find_files(files: Sequence[str], folders: Sequence[Path], packing: str = "") -> tuple[tuple[Path, ...], list[str]]:
    """Paths of the files in the first folder that has all; else (), and the names missing in the fullest folder.

    Also finds mirrors' spellings: an IDX name with a dot, a file inside a folder of the same name.

    Args:
        packing: optional additional suffix of a file's name.
    """
    absent = list(files)
    for folder in folders:
        candidates = {file: [folder / name for name in _spellings(file, packing)] for file in files}
        # unlike Path.is_file it does not raise for an unreadable folder
        paths = {file: next(filter(os.path.isfile, found), None) for file, found in candidates.items()}
        lacking = [file for file, path in paths.items() if path is None]
        if not lacking:
            return tuple(path for path in paths.values() if path), []
        absent = min(absent, lacking, key=len)
    return (), absent


def _spellings(file: str, packing: str) -> Iterator[str]:
    """Yields the possible relative paths of a file."""
    for name in dict.fromkeys((file, file.replace("-idx", ".idx"))):
        for path in (name, f"{name}/{name}"):
            yield from dict.fromkeys((path, f"{path}{packing}"))


def missing_files(name: str, what: str, data_dir: Path, asked: str = "") -> str:
    """Error message for missing files of a data set: which, where, how to get them.

    Args:
        what: the missing files and a verb; "in ..." follows.
        asked: the flag that requested the data set; "": --data NAME.
    """
    return (
        f"{asked or f'--data {name}'}: {what} in {data_dir / name} or {data_dir}; {remedy(name, data_dir)}, "
        "or set --data-dir or ZOFL_DATA to the folder that holds it"
    )


@contextmanager
def reading_file(path: Path, advice: str) -> Iterator[None]:
    """Context manager: turns any decoder's error into a UserError with `advice`.

    gzip, lzma, zipfile, tarfile and numpy raise a dozen exception types for bad files, some undocumented.
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
