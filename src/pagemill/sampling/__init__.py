"""From logits to tokens.

The order of operations on a row of logits, with each part's parameters:

    raw logits ────────────────────────────► log-probabilities, rank, top tokens
      │  masks        allowed_token_ids; end tokens before min_tokens; bad_words
      │  bias         logit_bias
      │  penalties    repetition_penalty (prompt and output), then frequency_penalty and
      │               presence_penalty (output only)
      ├────────────►  temperature = 0: the largest logit, lowest id among equals
      │  temperature  logits / temperature
      │  filters      top_k, then top_p of what top_k left, then min_p
      ▼
    one draw by inversion, in the order of token ids, with the uniform number of
    (seed, position in the output)

vLLM has the same order except that it applies min_p before top_k and top_p; Hugging Face
transformers applies the filters in the order used here. The repetition penalty is theirs; the
frequency and presence penalties and the bias are defined as in OpenAI's API. A bad word is looked
for in the output only: what the prompt ends with does not count.

Reported log-probabilities are those of the raw model distribution, in nats: a softmax of the
float32 logits before anything above is applied. They do not change with temperature, bias,
penalties or filters, and a token that a filter would remove still shows among the top ones.

Rows are computed by a `VocabularyOps`: in numpy (`NumpyVocabulary`), or by the native kernels
(`pagemill.sampling.native.NativeVocabulary`, which says how near the two are).

Importing this package needs no torch: a tensor is read through its own methods.
"""

from pagemill.sampling.reference import NumpyVocabulary
from pagemill.sampling.sampler import sample, score
from pagemill.sampling.vocabulary import VocabularyOps

__all__ = ["NumpyVocabulary", "VocabularyOps", "sample", "score"]
