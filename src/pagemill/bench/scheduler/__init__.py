"""``pagemill bench scheduler``: what it costs to plan a step. No model runs.

The scheduler is driven for some steps with 10 to 10,000 sequences (`trace`):

    steady   all of them decode, none comes or goes
    churn    as one ends the next one arrives, so that each step has prompts, too

and what it does is timed in parts (``drivers/driver_pagemill.py``):

    schedule      who computes what; blocks for it; looking for prefixes
    build batch   the arrays that a runner takes
    bookkeeping   what is computed now, blocks of whole tokens registered, who ended gives up his
    tokens        a drawn token appended to each sequence, and whether it ends
    add           a request admitted and queued

The figure with a target is schedule + build batch + bookkeeping for each scheduled token-row. Other
engines are driven on the same trace in processes of their own, by scripts in ``drivers/`` that call
nothing but their scheduler's public methods. They do not build their batches there (their model
runners do, and need a device for it), so their sums lack that part, and have everything else.

Then `lookup` times how long it takes to look for a prompt's prefix, by the prompt's length.
"""

from pagemill.bench.scheduler.command import SchedulerCommand

__all__ = ["SchedulerCommand"]
