"""What a run has computed and may compute again."""

from typing import Any, final


@final
class RunContext:
    """Caches of a run in this process, by their owner: lost when it is continued, so no bit depends on them."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, Any]] = {}

    def of(self, owner: str) -> dict[str, Any]:
        """An owner's entries, at first none."""
        return self._kept.setdefault(owner, {})
