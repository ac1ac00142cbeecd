"""Grammars that an output must follow: compiled once, kept, and turned into masks of allowed tokens (torch-free).

The gateway builds a grammar (`llguidance`'s Lark dialect) and compiles it to refuse what cannot be compiled; the worker
compiles the same text for sampling. Compiling is bounded by `LIMITS` and runs on a thread of its own, beside prefill;
afterwards a mask costs tens of microseconds. A request's progress is a matcher that is told every committed token, so
it follows the sequence wherever it goes: from prefill to decode, through a suspension and back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import llguidance

MAX_GRAMMAR_BYTES = 512 * 1024
KEPT_GRAMMARS = 128
"""Compiled grammars that stay at hand, least recently used go first; some hundred kilobytes each."""
LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=1_000_000, step_lexer_fuel=200_000, max_grammar_size=500_000, verbose_errors=False
)
"""Some tens of milliseconds for a grammar, some milliseconds for a mask, at worst."""

COMPILE_DEADLINE_S = 1.0
"""Whoever samples waits no longer for a grammar that prefill gave too little time to compile: others share the step."""


class ConstraintError(Exception):
    """The grammar cannot be compiled, or not be followed any further; the message says why."""


def load_vocabulary(folder: Path, *, eos_token_ids: Sequence[int], vocab_size: int) -> llguidance.LLTokenizer:
    """The vocabulary of a model folder's `tokenizer.json`, for masks (half a second for large ones)."""
    try:
        return llguidance.LLTokenizer(
            str(folder / "tokenizer.json"), n_vocab=vocab_size, eos_token=list(eos_token_ids) or None
        )
    except (ValueError, RuntimeError, OSError) as error:
        raise ConstraintError(f"the tokenizer serves no constraints: {error}") from error


class GrammarError(ConstraintError):
    """The grammar itself is at fault: it never compiles."""


class Constraint:
    """One request's progress through its grammar. Not thread-safe; whoever samples owns it."""

    def __init__(self, compiled: Future[llguidance.LLMatcher]) -> None:
        self._compiled = compiled
        self._matcher: llguidance.LLMatcher | None = None
        self._consumed = 0

    def fill(self, outputs: Sequence[int], pointer: int, size: int) -> None:
        """Write the tokens that may follow `outputs` (all output tokens committed so far) as bits at `pointer`.

        `size` bytes, little-endian 32-bit words, bit i of word j for token 32 * j + i. After the grammar's end only
        end-of-sequence tokens are allowed. Raises ConstraintError.
        """
        if self._matcher is None:
            self._matcher = self._copied()
        matcher = self._matcher
        fresh = list(outputs[self._consumed :])
        self._consumed = len(outputs)
        if fresh and not matcher.consume_tokens(fresh):
            raise ConstraintError(f"the output left its grammar: {matcher.get_error()[:500]}")
        matcher.unsafe_compute_mask_ptr(pointer, size)
        if matcher.is_error():
            raise ConstraintError(f"the grammar cannot be followed any further: {matcher.get_error()[:500]}")

    def _copied(self) -> llguidance.LLMatcher:
        try:
            return self._compiled.result(COMPILE_DEADLINE_S).deep_copy()
        except TimeoutError:
            raise ConstraintError(f"the grammar was not compiled within {COMPILE_DEADLINE_S:g} s of its need") from None
        except ConstraintError:
            raise
        except Exception as error:  # whatever the compiler made of it ends one request, not the engine
            raise ConstraintError(f"the grammar could not be compiled: {error}") from error


class Grammars:
    """Compiles and keeps grammars of one model. Thread-safe."""

    def __init__(self, folder: Path, *, eos_token_ids: Sequence[int], vocab_size: int) -> None:
        self._folder = folder
        self._eos_token_ids = tuple(eos_token_ids)
        self._vocab_size = vocab_size
        self._vocabulary: llguidance.LLTokenizer | None = None
        self._compiler = ThreadPoolExecutor(1, "grammars")
        self._kept: OrderedDict[str, Future[llguidance.LLMatcher]] = OrderedDict()

    def constraint(self, grammar: str) -> Constraint:
        """Starts compiling where `grammar` is new; never waits. What is wrong with it shows in `Constraint.fill`."""
        return Constraint(self.compiled(grammar))

    def compiled(self, grammar: str) -> Future[llguidance.LLMatcher]:
        """The matcher to copy; its exception is a ConstraintError."""
        found = self._kept.pop(grammar, None)
        # Kept are grammars and what is wrong with them; whatever else went wrong may be over.
        if found is None or (found.done() and not isinstance(found.exception(), GrammarError | None)):
            found = self._compiler.submit(self._compile, grammar)
        self._kept[grammar] = found
        while len(self._kept) > KEPT_GRAMMARS:
            self._kept.popitem(last=False)
        return found

    def _compile(self, grammar: str) -> llguidance.LLMatcher:
        if len(grammar) > MAX_GRAMMAR_BYTES:
            raise GrammarError(f"the grammar is larger than {MAX_GRAMMAR_BYTES} characters")
        if self._vocabulary is None:
            self._vocabulary = load_vocabulary(
                self._folder, eos_token_ids=self._eos_token_ids, vocab_size=self._vocab_size
            )
        matcher = llguidance.LLMatcher(self._vocabulary, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise GrammarError(matcher.get_error())
        return matcher
