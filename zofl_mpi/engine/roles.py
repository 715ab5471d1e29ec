"""Base classes of methods and problems for the engine: defaults of the members that these may leave out.

A method inherits `zofl_mpi.Method`, a problem `zofl_mpi.Problem`, so that no code asks whether a member exists.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    overridable = property
else:

    class overridable:
        """A property that a field, an attribute or a method of the same name in a subclass replaces.

        `property` would refuse the values of fields, and a dataclass would take it for a field's default value.
        """

        def __init__(self, value):
            self._value, self.__doc__ = value, value.__doc__

        def __get__(self, instance, owner=None):
            if instance is None:
                raise AttributeError("known of an instance only")
            return self._value(instance)


class KernelChoice(NamedTuple):
    """The kernel that a problem chooses for a run."""

    name: str  # as --kernel would name it
    reason: str = ""  # how it was chosen, for the result
    fallback: str = ""  # the kernel to take where a rank cannot have it; "" where the run is then refused


class Backend(Protocol):
    """Where and how a problem computes."""

    @overridable
    def device(self) -> str:
        """Name of the device it computes on, as torch calls it."""
        return "cpu"

    @overridable
    def batched_clients(self) -> int:
        """Number of clients that it computes for in one call; see `engine.batching`."""
        return 1

    @overridable
    def kernel(self) -> str:
        """The kernel as --kernel names it, where there are several; auto: the run chooses by `kernel_for`."""
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
        """Why this rank may not compute by the kernel, by a trial on a client's data; "" where it may."""
        return ""

    def with_kernel(self, name: str, work: Any) -> Any:
        """The problem computed by this kernel."""
        return self

    def prepare(self, kernel: str, data: Any) -> None:
        """Makes a kernel ready before the first round, as by compiling it."""
        return

    def module_of(self, final: Mapping[str, Any]) -> Any:
        """A torch module, a copy on the CPU, with the parameters of a last state; None where the problem is none."""
        return None

    @overridable
    def bf16(self) -> bool | None:
        """True if forward passes run in bfloat16; None where they cannot."""
        return None


class ClientProgram(Protocol):
    """The steps that clients are asked for, and how the engine runs them."""

    @overridable
    def backend(self) -> Backend:
        """Where and how the steps compute."""
        return HOST

    @overridable
    def between(self) -> tuple[Any, ...]:
        """Wrappers of its clients; see `engine.between`."""
        return ()

    @overridable
    def grows_with(self) -> tuple[str, ...]:
        """Flags with which the memory of a step grows, beside `memory.GROWS`."""
        return ()


class _Plain(Backend, ClientProgram):
    """The defaults of both: the CPU, one client after the other."""


HOST = _Plain()


def program_of(method: Any) -> ClientProgram:
    """The method as the engine runs it: itself where it has the base `ClientProgram`, else the defaults of that."""
    return method if ClientProgram in type(method).__mro__ else HOST
