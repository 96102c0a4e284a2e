"""Who computes how many tokens in the next step (plain Python, no device work)."""

from pagemill.scheduler.policy import (
    DeadlinePolicy,
    FCFSPolicy,
    PriorityPolicy,
    SchedulingPolicy,
)
from pagemill.scheduler.scheduler import Scheduler
from pagemill.scheduler.scheduler_output import SchedulerOutput

__all__ = [
    "DeadlinePolicy",
    "FCFSPolicy",
    "PriorityPolicy",
    "Scheduler",
    "SchedulerOutput",
    "SchedulingPolicy",
]
