"""From a prompt to the block hash at its end: what a pin names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile

from controlplane.caching.errors import PrefixRefused
from controlplane.caching.identities import identity_of, salt_of
from controlplane.caching.prompts import Messages
from controlplane.config import home
from controlplane.fleet import selectors as fleet
from controlplane.fleet.models import Deployment
from workers.identity import chain, root_hash
from workers.manifest import ManifestError, read_manifest

_PROBES = ("A", "§ 7")
"""Two user messages that share no token: what renderings with them have in common is the prefix before them."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Full blocks of a prompt's beginning."""

    tip: str
    """Hash of the last block, hex."""
    blocks: int
    tokens: int


def deployment_of(model: str) -> Deployment:
    """The deployment that clients reach as `model`. Raises PrefixRefused."""
    found = list(fleet.deployments())
    for matches in (lambda d: d.name == model, lambda d: model in d.aliases, lambda d: d.model_name == model):
        for deployment in filter(matches, found):
            return deployment
    raise PrefixRefused(f"nothing is deployed as {model}")


def prefix_of(*, model: str, tenant: str, messages: Messages) -> Prefix:
    """The full blocks of a prompt, as the tenant's requests hash them. As `prefixes_of`, of one prompt."""
    return next(prefixes_of(model=model, tenant=tenant, prompts=[messages]))


def prefixes_of(*, model: str, tenant: str, prompts: Iterable[Messages]) -> Iterator[Prefix]:
    """One prefix for each prompt. CPU-bound; loads the tokenizer once for all.

    Messages that end with the user's are taken whole. Others (a system prompt alone) stand for the beginning that all
    conversations with them share. Raises PrefixRefused.
    """
    deployment = deployment_of(model)
    identity = identity_of(deployment.name)
    if identity is None:
        raise PrefixRefused(f"no worker of {deployment.name} reports; a pin is named by what its workers compute")
    encode, root = _encoder(deployment.model_name), root_hash(identity, salt_of(tenant))
    for messages in prompts:
        tokens = _tokens(encode, messages)
        hashes = chain(root, tokens, identity.block_tokens)
        if not hashes:
            raise PrefixRefused(
                f"the prefix has {len(tokens)} tokens, less than one block of {identity.block_tokens}: nothing to keep"
            )
        yield Prefix(tip=hashes[-1].hex(), blocks=len(hashes), tokens=len(hashes) * identity.block_tokens)


def _tokens(encode: Callable[[Messages], list[int]], messages: Messages) -> list[int]:
    if messages[-1]["role"] == "user":
        return encode(messages)
    first, second = (encode([*messages, {"role": "user", "content": text}]) for text in _PROBES)
    pairs = zip(first, second, strict=False)
    return [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]


def _encoder(name: str) -> Callable[[Messages], list[int]]:
    """Messages to the tokens that the gateway would send. Raises PrefixRefused, and so does what it returns."""
    # Here, not above: few processes of the control plane ever need tokenizers and templates.
    from controlplane.inference.conversation import UnsupportedModel, load_chat_model
    from controlplane.inference.errors import ApiError
    from controlplane.inference.rendering import TemplateError
    from controlplane.inference.schema.chat import parse_chat
    from controlplane.inference.tokenization import TokenizerError

    folder = home().models / name
    try:
        chat = load_chat_model(folder, read_manifest(folder))
    except (ManifestError, TokenizerError, TemplateError, UnsupportedModel, OSError) as error:
        raise PrefixRefused(str(error)) from error

    def encode(messages: Messages) -> list[int]:
        body = json.dumps({"model": name, "messages": messages, "max_tokens": 1}).encode()
        try:
            return chat.prepare(parse_chat(body, max_choices=1), chat.manifest.max_context)[0].tokens
        except ApiError as error:
            raise PrefixRefused(str(error)) from error

    return encode
