"""``pagemill bench swap``: what it costs to take a sequence's blocks away and to give them back.

By length (`costs`), each way on its own, on an otherwise idle machine:

    recompute       the keys and values of all its tokens, computed again in steps of the budget
    memory          its blocks copied out to the swap space in memory, and in again
    file            the same with ``swap_path``: the system keeps the file's pages in memory, and
                    writes them when it likes
    file, on disk   pages written out before the blocks come back, and read from the disk: what
                    it costs when there really was no memory

and from which length on swapping is the cheaper one. Then whole workloads with far too little
memory (`pressure`), with ``preemption_mode`` swap, recompute and auto in turn. There a
recomputation shares its steps with others, and finds some blocks still in the prefix cache.
"""

from pagemill.bench.swap.command import SwapCommand

__all__ = ["SwapCommand"]
