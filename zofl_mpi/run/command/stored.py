"""Configurations from other runs' files, restricted to values that are safe to use.

Results and checkpoints are exchanged between people. Their configuration may name a user-defined class (module:Class),
whose import would execute its module, and paths of another machine. Neither is taken from a file: the command itself
must name them.
"""

import hmac
import json
import os
import secrets
import shlex
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from zofl_mpi.errors import UserError, warn
from zofl_mpi.run.command import flags
from zofl_mpi.run.command.run_flags import UNSTORED_FLAGS

PATH_FLAGS = ("data_dir",)
"""Flags with paths of a machine; taken from a file only if sealed by the same user."""
SEAL, SECRET_BYTES = "seal", 32
"""Name of the seal beside the folders, and length of its secret."""
CLASSES = ("method", "problem")
"""Flags that may name a user's class."""
KNOWN: Mapping[str, Collection[str]] = {
    "data": ("digits", "mnist", "fashion-mnist", "cifar10", "synthetic", "e2e"),
    "model": ("gpt2", "random:tiny", "random:small", "random:medium"),
    "devices": ("", "phones", "sensors", "silos"),
    "pretrained": ("",),
}
"""{flag that may name a user's file, folder or model: its built-in values; all others are the user's}."""


def config_of(path: str) -> tuple[dict[str, Any], dict[str, str], str]:
    """Configuration, this user's own folders and kernel of the run in --resume. UserError: it cannot be read."""
    from zofl_mpi.run import records
    from zofl_mpi.run.loop import rounds as loop

    result = loop.result_of(path)
    try:
        checkpoint = records.load_checkpoint(records.checkpoint_path(result), whole=False)
    except UserError as exc:
        raise UserError(f"--resume {path}: {exc}; name the result of a run that has written a checkpoint") from exc
    try:
        config = json.loads(checkpoint.attrs["config"])
        if not isinstance(config, dict) or not all(isinstance(config.get(name), str) for name in CLASSES):
            raise ValueError("it names no method and no problem")
        if odd := [name for name, value in config.items() if not _is_value(value)]:
            raise ValueError(f"{odd[0]} is no value of a flag")
        if not isinstance(config.get("rounds", 0), int):
            raise ValueError(f"rounds is {config['rounds']!r}")
        kernel = str(checkpoint.attrs["kernel"])
    except (KeyError, TypeError, ValueError, RecursionError) as exc:
        why = f"it has no {exc}" if isinstance(exc, KeyError) else str(exc)
        raise UserError(f"--resume {path}: the checkpoint's configuration is damaged ({why})") from exc
    return config, _unsealed(checkpoint.attrs.get("folders", "")), kernel


def _is_value(value: Any) -> bool:
    """True if a command line could have given the value: a number, a word, a truth value, or a list of these."""
    return all(isinstance(each, str | int | float) for each in (value if isinstance(value, list) else [value]))


def safe_config(
    config: Mapping[str, Any],
    named: Mapping[str, Any],
    source: str,
    by: str = "",
    own: Mapping[str, str] = MappingProxyType({}),
    command: str = "add",
) -> dict[str, Any]:
    """The usable part of a file's configuration: without flags of one command and folders of other users.

    UserError: it names a user-defined class, file or folder that the command does not, or a value that looks like a
    flag.

    Args:
        named: {flag: value} that the command itself gives.
        by: the flag by which the command names user-defined values, if it differs.
        own: folders of this user's run; used if they still exist.
        command: as typed, to be completed in the advice.
    """
    kept = {key: value for key, value in config.items() if flags.field_of(key) not in {*UNSTORED_FLAGS, *PATH_FLAGS}}
    made, add = [], []
    for key, value in kept.items():
        for word in value if isinstance(value, list | tuple) else [value]:
            if isinstance(word, str) and word.startswith("-"):  # the command line would read it as a flag
                raise UserError(f"{source}: its configuration has {key} = {word!r}, not a valid flag value")
        name = flags.field_of(key)
        theirs = (name in CLASSES and ":" in str(value)) or (name in KNOWN and is_place(name, str(value)))
        if theirs and str(named.get(name)) != str(value):
            made.append(f"--{flags.flag(name)} {value}")
            add.append(f"{by or '--' + flags.flag(name)} {value}")
    if made:
        advice = f"used only where the command names it, too; if you trust it: {command} {' '.join(add)}"
        raise UserError(f"{source} was made with {' '.join(made)}, which is user-defined: {advice}")
    for name in PATH_FLAGS:
        if not config.get(name) or named.get(name):
            continue
        if name in own and os.path.isdir(own[name]):
            kept[name] = own[name]
        else:
            made_with = f"{source} was made with --{flags.flag(name)} {config[name]}"
            use = f"{command} --{flags.flag(name)} {shlex.quote(str(config[name]))}"
            warn(f"{made_with}; no folder is taken from the file of another user or machine; to use it: {use}")
    return kept


def sealed(config: Mapping[str, Any]) -> dict[str, str]:
    """Absolute folders of a configuration, with a seal that only this user's runs can make; {} without folders."""
    folders = {k: os.path.abspath(os.path.expanduser(config[k])) for k in PATH_FLAGS if config.get(k)}
    secret = _secret() if folders else b""
    return {**folders, SEAL: _seal(folders, secret)} if secret else {}


def _unsealed(text: Any) -> dict[str, str]:
    """Folders from the output of `sealed`; {} if the seal is not this user's."""
    with suppress(AttributeError, TypeError, ValueError, RecursionError):
        folders = json.loads(text or "{}")
        seal = folders.pop(SEAL, "")
        if seal and (secret := _secret()) and hmac.compare_digest(seal, _seal(folders, secret)):
            return dict(folders)
    return {}


def _seal(folders: Mapping[str, str], secret: bytes) -> str:
    return hmac.digest(secret, json.dumps(folders, sort_keys=True).encode(), "sha256").hex()


def _secret() -> bytes:
    """This user's secret, created on first use in a private file; b"" if that is impossible."""
    import platformdirs

    path = Path(platformdirs.user_state_dir("zofl_mpi")) / "secret"
    with suppress(OSError):
        if path.is_absolute() and not path.exists():  # no home folder
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
            with open(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                file.write(secrets.token_bytes(SECRET_BYTES))
            try:
                with suppress(FileExistsError):  # another run created it first
                    os.link(new, path)
            finally:
                new.unlink()
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            found = os.fstat(file.fileno())
            ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
            secret = file.read(SECRET_BYTES + 1)
            return secret if ours and len(secret) == SECRET_BYTES else b""
    return b""


def is_place(name: str, value: str) -> bool:
    """True if a value of one of these flags is not built in, or names an existing folder."""
    return value not in KNOWN[name] or (name == "model" and os.path.isdir(value))
