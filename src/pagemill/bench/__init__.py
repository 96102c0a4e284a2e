"""Benchmarks: ``pagemill bench NAME``, each one command that measures and reports.

    environment   what a result was measured on, and how quiet that was
    report        JSON, tables for the terminal and for ``docs/performance.md``
    progress      a bar on standard error
    workload      the scenarios that engines are compared in; spinner: a neighbour for one of them
    peers         this engine beside others
    roofline      each op of the kernels against what the machine allows
    numerics      each format of weights, keys and values against float32

Every result carries its environment, and every figure stands beside what it is compared with.
"""
