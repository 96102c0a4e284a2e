"""The engine behind HTTP, for clients of the OpenAI API.

run          a socket, signals, and the order in which things stop
app          the routes and what stands before them
context      what handlers share: engine, tokenizer, limits
settings     every limit and option
keys         who may ask, how often, and with which priority
lifecycle    loading, ready, draining, stopped
metrics      Prometheus
"""
