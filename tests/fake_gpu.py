"""A GPU that holds nothing: `python -m tests.fake_gpu` takes steps of every split method on it, without any hardware.

Its tensors are torch's fake ones, of a device of their own: they have shapes, no numbers. An operation on tensors of
two devices raises, and so does one whose result the host must know. What is drawn or looked up on the host is done
there. Such devices are young in torch: before 2.10 or so there are none.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils import backend_registration

from tests.bench.gpu_split import TEXTS, VARIANTS, on, stepping
from zofl_mpi.data import texts
from zofl_mpi.problems import lm_checks, split_lm
from zofl_mpi.problems.split_lm import SplitLM

NAME = "hollow"
PLACE = f"{NAME}:0"
MODE = FakeTensorMode(allow_non_fake_inputs=True)


def there(tensor: Tensor) -> Tensor:
    return MODE.from_tensor(tensor).to(PLACE)


def moved(to: Callable[..., Any], own: nn.Module, *given: Any, **named: Any) -> nn.Module:
    """`nn.Module.to`: to the hollow device with fake parameters."""
    if not given or NAME not in str(given[0]):
        return to(own, *given, **named)  # type: ignore[no-any-return]
    to(own, *given[1:], **named)
    with MODE:
        for module in own.modules():
            for held in (module._parameters, module._buffers):
                for name, value in held.items():
                    if value is not None:
                        fake: Any = torch.empty_like(value, device=PLACE)
                        held[name] = nn.Parameter(fake, value.requires_grad) if held is module._parameters else fake
    return own


def samples(own: SplitLM, data: Any, positions: Any) -> tuple[Tensor, Tensor]:
    """As a problem's: what the labels predict is found on the host, which has numbers."""
    with unset_fake_temporarily():
        tokens, labels = (torch.from_numpy(each) for each in texts.batch(data, positions))
        noted = split_lm.predicted(labels)
    found = there(labels)
    found.predicted = tuple(map(there, noted))  # type: ignore[attr-defined]
    return there(tokens), found


class OnHost:
    """A generator of the host, whatever device is asked for."""

    def __new__(cls, place: Any = "cpu", own: Any = torch.Generator) -> Any:
        return own("cpu")


@contextmanager
def hollow() -> Iterator[None]:
    """Within it the device is there, once for a process."""
    backend_registration._setup_privateuseone_for_python_backend(NAME)
    to, randn = nn.Module.to, torch.randn
    with ExitStack() as stack:
        for patch in (
            mock.patch.object(nn.Module, "to", lambda *given, **named: moved(to, *given, **named)),
            mock.patch.object(torch, "randn", lambda *size, pin_memory=False, **kind: randn(*size, **kind)),
            mock.patch.object(torch, "Generator", OnHost),
            mock.patch.object(torch.random, "fork_rng", functools.partial(torch.random.fork_rng, devices=())),
            mock.patch.object(SplitLM, "samples", samples),
            mock.patch.object(lm_checks, "own_logits", return_value=[]),  # its parts are compared by numbers
        ):
            stack.enter_context(patch)
        yield


def main() -> None:
    """Two steps of each method: the second has moments."""
    with hollow():
        makes = {make for _, make, _ in {**VARIANTS, **TEXTS}.values()}
        own = {make: on(PLACE, make) for make in makes}  # modules are made of numbers, before they are fake
        with MODE:
            for which, steps in stepping(PLACE, own):
                for _ in range(2):
                    next(steps)
                print(which)


if __name__ == "__main__":
    main()
