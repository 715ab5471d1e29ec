"""Vectors of numbers for compiled loops, computed in the order of the text; numba itself uses those of AVX2 at most.

numba keeps a compiled function on the disk until the function's own file changes: `softmax_numba.VECTORS` names this
file's content, so that a change here changes that file.
"""

from collections.abc import Callable
from typing import Any

import numba  # type: ignore[import-untyped, unused-ignore]
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba.core import cgutils  # type: ignore[import-untyped, unused-ignore]
from numba.extending import intrinsic, models, register_model  # type: ignore[import-untyped, unused-ignore]

WIDTH = 16  # numbers of a vector: one register of AVX-512, two of AVX2


class Lanes(numba.types.Type):  # type: ignore[misc, unused-ignore]
    """The type of WIDTH numbers of one dtype."""

    def __init__(self, dtype: Any) -> None:
        super().__init__(f"lanes({dtype})")
        self.dtype = dtype


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):  # type: ignore[misc, unused-ignore]
    """One vector in LLVM."""

    def __init__(self, manager: Any, lanes: Any) -> None:
        number = manager.lookup(lanes.dtype).get_value_type()
        super().__init__(manager, lanes, ir.VectorType(number, WIDTH))  # type: ignore[no-untyped-call, unused-ignore]


def place(context: Any, builder: Any, array: Any, value: Any, at: Any) -> Any:
    """Address of the WIDTH values of a flat array from position `at`, as one vector."""
    vector = context.get_value_type(Lanes(array.dtype))
    return builder.bitcast(
        builder.gep(context.make_array(array)(context, builder, value).data, [at]), vector.as_pointer()
    )


operation: Callable[[Any], Any] = intrinsic
"""Makes a function of compiled code out of one that returns its types and the writer of its instructions."""


@operation
def load(typing: Any, array: Any, at: Any) -> Any:
    """array[at : at + WIDTH] of a flat array, unchecked."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(place(context, builder, array, *args), align=array.dtype.bitwidth // 8)

    return Lanes(array.dtype)(array, numba.types.intp), code


@operation
def store(typing: Any, array: Any, at: Any, lanes: Any) -> Any:
    """array[at : at + WIDTH] = lanes, unchecked."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], place(context, builder, array, *args[:2]), align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return numba.types.none(array, numba.types.intp, lanes), code


@operation
def prefetch(typing: Any, array: Any, at: Any) -> Any:
    """Prefetches array[at] of a row into the cache; changes no value."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        address = builder.gep(context.make_array(array)(context, builder, args[0]).data, [args[1]])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")  # type: ignore[no-untyped-call, unused-ignore]
        builder.call(prefetch, [builder.bitcast(address, byte), word(0), word(2), word(1)])  # to read, second level
        return context.get_dummy_value()

    return numba.types.none(array, numba.types.intp), code


@operation
def spread(typing: Any, value: Any) -> Any:
    """Vector with a number in all lanes."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = context.get_value_type(Lanes(value))
        one = builder.insert_element(vector(ir.Undefined), args[0], ir.IntType(32)(0))
        return builder.shuffle_vector(one, vector(ir.Undefined), ir.VectorType(ir.IntType(32), WIDTH)(None))

    return Lanes(value)(value), code


def arithmetic(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Turns a formula (builder, *values) into an operation's code.

    Instructions without a flag of their own would get those of OPTIONS and be reordered.
    """
    return lambda context, builder, signature, args: formula(builder, *args)


def lanewise(instruction: str) -> Any:
    """Operation on two vectors by an LLVM instruction of this name, rounded."""

    def typed(typing: Any, one: Any, other: Any) -> Any:
        return one(one, other), arithmetic(lambda builder, a, b: getattr(builder, instruction)(a, b, flags=("nsz",)))

    return operation(typed)


times, plus, minus = lanewise("fmul"), lanewise("fadd"), lanewise("fsub")


@operation
def fused(typing: Any, total: Any, one: Any, other: Any) -> Any:
    """total + one * other, in one instruction where there is one."""

    def formula(builder: Any, total: Any, a: Any, b: Any) -> Any:
        return builder.fadd(total, builder.fmul(a, b, flags=("contract",)), flags=("contract",))

    return total(total, one, other), arithmetic(formula)
