"""The members of `problems.base` as functions, until the methods ask the problem itself."""

# ruff: noqa: D103

from __future__ import annotations

from typing import Any

from zofl_mpi.problems.base import score_of

score = score_of


def gradient(problem: Any) -> Any:
    return problem.gradient_f1


def x0(problem: Any) -> Any:
    return problem.x0


def initial(problem: Any, generator: Any) -> Any:
    return problem.initial(generator)


def kernel_name(problem: Any, size: int) -> str:
    return str(problem.kernel_name(size))


def flops_evaluation(problem: Any, size: int) -> float:
    return float(problem.flops_evaluation(size))


def parts(problem: Any, data: Any) -> tuple[Any, Any]:
    upper, lower = problem.parts(data)
    return upper, lower


def initial_lower(problem: Any) -> Any:
    return problem.initial_lower()


def as_for(problem: Any, batch: int) -> Any:
    return problem.as_for(batch)


def lengths(problem: Any, data: Any) -> Any:
    return problem.lengths(data)


def hits(problem: Any) -> Any:
    return problem.hits


def smooth_twin(problem: Any) -> Any:
    return problem.smooth_twin


def blocks(problem: Any) -> Any:
    return problem.blocks


def report_batch(problem: Any) -> int:
    return int(problem.report_batch)


def local_losses(problem: Any) -> Any:
    return problem.local_losses


def head_gradient(problem: Any) -> Any:
    return problem.head_gradient


def constrained(problem: Any) -> Any:
    return problem.constrained


def lipschitz(problem: Any) -> Any:
    return problem.lipschitz


def project_lower(problem: Any) -> Any:
    return problem.project_lower


def solution_only(problem: Any) -> Any:
    return problem.solution_only


def solution(problem: Any) -> Any:
    return problem.solution


def homogeneous(problem: Any) -> Any:
    return problem.homogeneous
