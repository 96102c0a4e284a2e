"""``pagemill bench prefix``: what it saves to use computed prefixes again.

A shared prefix of 512 tokens, 32 requests that arrive at once, 32 own tokens and 32 answered (the
scenario S4 of ``pagemill bench peers``), in turn

    off      prefix caching off
    on       an empty cache: the first request computes the prefix, the others wait for it
    known    somebody was there before: the prefix is in the cache

and 30 requests that share 48 or 53 tokens and have 16 of their own, with whole blocks only and with
partial hits. 48 tokens are three whole blocks of 16; of 53, whole blocks leave five that every
request computes again, and a partial hit copies them from a block of another request.

    hit rate   prompt tokens whose keys and values were there / all prompt tokens
    possible   the same if all but the first request found everything that they share
"""

from pagemill.bench.prefix.command import PrefixCommand

__all__ = ["PrefixCommand"]
