"""``pagemill bench serving``: what HTTP costs, and what a long prompt costs those beside it.

command     rounds, figures and tables
requests    what is asked
processes   the three processes: the engine without HTTP, the server, the client
client      the client's program, offline the engine's: each alone in its process
"""
