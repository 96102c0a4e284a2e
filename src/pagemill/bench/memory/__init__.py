"""``pagemill bench memory``: what share of the KV memory holds anything, contiguous against paged.

The same requests (`lengths`) are served three times in a pool of the same size, by the same
scheduler, kernels and model, and only the accounting of blocks differs:

    contiguous, max_model_len         a piece as long as the context for each request (`contiguous`)
    contiguous, prompt + max_tokens   a piece that is just long enough: requests state exactly how
                                      much they will generate, which in practice nobody knows
    paged                             blocks as they are needed

After each step (`run`) all are asked the same question, by `LLMEngine.memory_report`:

    used       token slots that hold a computed token
    allocated  token slots that belong to a request
    pool       token slots that there are

and the utilization is used / allocated. Contiguous pieces can also leave gaps that no request fits
into; that shows in used / pool, averaged over the steps in which requests waited for memory.
"""

from pagemill.bench.memory.command import MemoryCommand

__all__ = ["MemoryCommand"]
