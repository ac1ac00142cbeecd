"""What a second costs and earns: prices of nodes and tokens as the database had them when it was last asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from controlplane.fleet.selectors import NodePrice, node_prices
from controlplane.metering.pricing import NoPrice, PriceTable, amount_pico, price_table
from controlplane.telemetry.totals import Totals

PICO_PER_MICRO = 10**6


@dataclass(frozen=True, slots=True)
class Economics:
    nodes: Mapping[str, NodePrice] = field(default_factory=dict)
    prices: PriceTable = field(default_factory=PriceTable)

    def cost_micro_per_hour(self, ranks_on: Iterable[str]) -> int:
        """Micro-dollars per hour of the cards in use; `ranks_on` names the node of each live rank.

        A rank uses a card. Ranks that share the cards of a node (processes on one CPU host) pay for it once together.
        """
        total = 0
        for node, ranks in Counter(ranks_on).items():
            price = self.nodes.get(node)
            if price is not None:
                total += min(ranks, price.cards) * price.micro_usd_per_card_hour
        return total

    def revenue_pico(self, model: str, tokens: Totals, at: datetime) -> int:
        """Pico-dollars that these tokens are worth at the price of `at`. Raises NoPrice."""
        if not (tokens.hit or tokens.miss or tokens.output):
            return 0
        return amount_pico(self.prices.price_at(model, at), tokens.hit, tokens.miss, tokens.output)


def micro_as_usd(micro: int) -> str:
    return str((Decimal(micro) / 10**6).quantize(Decimal("0.000001")))


def cost_pico(micro_per_hour: int, seconds: float) -> int:
    return round(micro_per_hour * PICO_PER_MICRO * seconds / 3600)


def load_economics() -> Economics:
    """Ask the database. Blocks."""
    return Economics(nodes=node_prices(), prices=price_table())


__all__ = ["Economics", "NoPrice", "cost_pico", "load_economics", "micro_as_usd"]
