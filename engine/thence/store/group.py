"""What one transaction of the writer is made of: the plans that wait together, and their answers (§8)."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import FileReplaced, StoreError
from ..plan import Plan, Returned


class Job:
    """A plan and, once there is one, its answer."""

    __slots__ = ("answer", "plan")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.answer: Returned | StoreError | None = None


class Group:
    """One transaction: its jobs, what their statements returned, and whether COMMIT succeeded. ``durable``: somebody
    is told of it, or it protects an effect."""

    __slots__ = ("answers", "committed", "durable", "jobs")

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.durable = any(job.plan.durable for job in jobs)
        self.answers: list[Returned] = []
        self.committed: list[object] = []


def again(error: StoreError) -> StoreError:
    """A fresh error of the same kind, for a store that stays broken."""
    return type(error)(*error.args) if type(error) in (StoreError, FileReplaced) else StoreError(str(error))
