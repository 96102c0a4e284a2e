"""Benchmarks: ``pagemill bench NAME``, each one command that measures and reports.

    environment   what a result was measured on, and how quiet that was
    report        JSON, tables for the terminal and for ``docs/performance.md``
    progress      a bar on standard error
    roofline      each op of the kernels against what the machine allows

Every result carries its environment, and every figure stands beside what it is compared with.
"""
