"""Benchmarks: ``pagemill bench NAME``, each one command that measures and reports.

    environment   what a result was measured on, and how quiet that was
    report        JSON, tables for the terminal and for the documents
    figures       medians, ratios of rounds, how people read them
    progress      a bar on standard error
    workload      the scenarios that engines are compared in; spinner: a neighbour for one of them
    peers         this engine beside others
    command       what a command does with a result; rounds
    shared_model  one model, and a fresh engine on it for each run
    roofline      each op of the kernels against what the machine allows
    overhead      what part of a decode step is not arithmetic
    memory        contiguous KV memory against paged
    prefix        computed prefixes used again
    swap          swapping against recomputing
    scheduler     what planning a step costs, beside other engines
    serving       what HTTP costs, and a long prompt those beside it
    numerics      each format of weights, keys and values against float32

Every result carries its environment, and every figure stands beside what it is compared with.
"""
