"""Who computes how many tokens in the next step (plain Python, no device work)."""

from pagemill.scheduler.policy import FCFSPolicy, PriorityPolicy, SchedulingPolicy
from pagemill.scheduler.scheduler import Scheduler
from pagemill.scheduler.scheduler_output import SchedulerOutput

__all__ = [
    "FCFSPolicy",
    "PriorityPolicy",
    "Scheduler",
    "SchedulerOutput",
    "SchedulingPolicy",
]
