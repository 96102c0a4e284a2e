"""``pagemill bench peers``: this engine beside those that a user would pick instead.

    installed     which peers a directory holds, and where
    contenders    the settings of each engine that take part
    driver        an engine in a process of its own, asked over pipes
    drivers/      what runs in these processes; needs nothing but the engine
    race          one scenario: rounds in which every contender runs once
    memory, start_time     what the process costs
    summary       medians, ratios, targets
    tables        the summary for people, with its conditions; show puts it where they see it
    command       all of it

Everybody gets the same prompts, threads and machine, one after the other in each round; a ratio is
the median of the ratios within rounds.
"""
