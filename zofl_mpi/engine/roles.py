"""Base classes of methods and problems for the engine, with defaults for optional members.

A method inherits `zofl_mpi.Method`, a problem `zofl_mpi.Problem`, hence no code tests for missing members.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    overridable = property
else:

    class overridable:
        """Property that a subclass may replace by a field, an attribute or a method of the same name.

        `property` would refuse a field's value, and a dataclass would take it for a default.
        """

        def __init__(self, value):
            self._value, self.__doc__ = value, value.__doc__

        def __get__(self, instance, owner=None):
            if instance is None:
                raise AttributeError("has a value on an instance only")
            return self._value(instance)


class KernelChoice(NamedTuple):
    """Kernel that a problem chooses for a run."""

    name: str  # name for --kernel
    reason: str = ""  # reason of the choice, for the result
    fallback: str = ""  # kernel for a rank that cannot use this one; "": refuse the run


class Backend(Protocol):
    """Compute interface of a problem: device, batching, kernels."""

    @overridable
    def device(self) -> str:
        """Name of its device in torch's notation."""
        return "cpu"

    @overridable
    def batched_clients(self) -> int:
        """Number of clients computed in one call; see `engine.batching`."""
        return 1

    @overridable
    def kernel(self) -> str:
        """Kernel as --kernel names it, if there are several; auto: the run chooses by `kernel_for`."""
        return ""

    def kernel_for(self, work: Any, data: Any, before: str = "") -> KernelChoice:
        """Chooses the kernel of a run, at rank 0.

        Args:
            work: the sizes of the local steps, a `setting.Work`.
            data: a client's, to try kernels on.
            before: the kernel's name in the result that the run continues; "" for none.
        """
        return KernelChoice(self.kernel)

    def kernel_obstacle(self, name: str, work: Any, data: Any) -> str:
        """Reason why this rank cannot use the kernel, from a trial on a client's data; "" if it can."""
        return ""

    def with_kernel(self, name: str, work: Any) -> Any:
        """A copy of the problem that computes with this kernel."""
        return self

    def prepare(self, kernel: str, data: Any) -> None:
        """Prepare a kernel before the first round, for example by compiling it."""
        return

    def module_of(self, final: Mapping[str, Any]) -> Any:
        """A torch module, on the CPU, with the parameters of a final state; None if the problem is no torch module."""
        return None

    @overridable
    def bf16(self) -> bool | None:
        """True if forward passes run in bfloat16; None if they cannot."""
        return None


class ClientProgram(Protocol):
    """The steps that clients are asked for, and how the engine runs them."""

    @overridable
    def backend(self) -> Backend:
        """The problem's compute interface."""
        return HOST

    @overridable
    def between(self) -> tuple[Any, ...]:
        """Wrappers of its clients; see `engine.between`."""
        return ()

    @overridable
    def grows_with(self) -> tuple[str, ...]:
        """Flags with which a step's memory grows, beside `memory.GROWS`."""
        return ()


class _Plain(Backend, ClientProgram):
    """Defaults of both: on the CPU, one client after another."""


HOST = _Plain()


def program_of(method: Any) -> ClientProgram:
    """The method's `ClientProgram`, or the defaults for a method without that base."""
    return method if ClientProgram in type(method).__mro__ else HOST
