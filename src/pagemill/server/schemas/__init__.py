"""What clients send and get, as pydantic models: they check requests and describe both.

    base          what all of them share, and fields that may only have their default
    sampling      the fields of /v1/completions and /v1/chat/completions that choose tokens
    completions   chat   embeddings   tokenization   models       one for each route

Answers are not made of these models but written at once; a test compares the two.
"""
